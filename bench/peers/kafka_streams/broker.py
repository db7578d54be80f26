"""One Kafka broker, its own controller, as a process. It ends with whoever started it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from java_classes import compiled
from settings import BROKER, JAVA, Settings

HERE: Final = Path(__file__).resolve().parent
_BROKER_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1


def java_command(options: Sequence[str]) -> list[str]:
    """How a program of java/ is started, with the peer's jars."""
    jars = Path(sys.prefix) / "jars" / "*"
    return ["java", *JAVA, *options, "-cp", f"{compiled(HERE / 'java', jars)}:{jars}"]


class Broker:
    """Fresh, in a directory; it listens once this is made."""

    def __init__(self, directory: Path, settings: Settings, options: Sequence[str]) -> None:
        port, controller = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        mine = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(directory / "broker"),
        }
        path = write_settings(directory / "broker.properties", {**BROKER, **settings, **mine})
        self.process = subprocess.Popen(
            [*java_command(options), "peer.Broker", str(path)], stdin=subprocess.PIPE, text=True
        )
        try:
            self._wait(port)
        except BaseException:
            self.process.kill()
            raise

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + _BROKER_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError("the broker died; what it said is above")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(_LOOK_SECONDS)
            else:
                return
        raise RuntimeError(f"the broker did not listen within {_BROKER_SECONDS:g} s")


def end_process(process: subprocess.Popen[str], seconds: float) -> None:
    """It ends when its input does; if not in time, it is killed."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(seconds)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()


def write_settings(path: Path, settings: Settings) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
