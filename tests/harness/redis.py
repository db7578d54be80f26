"""Redis for tests: the machine's own server, in a directory of its own, on loopback.

Law: nothing but the tests can reach it, and nothing of it is left. It syncs each transaction, as
stores of checkpoints want it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.waiting import wait_until

PASSWORD = "sesame with % and @"


class RedisServer:
    """One server; it can be killed, stopped and started again."""

    def __init__(self, directory: Path, program: str, **settings: str) -> None:
        self._directory = directory
        self._program = program
        self._settings = {"appendonly": "yes", "appendfsync": "always", "save": ""} | settings
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        import redis

        return redis.Redis(port=self.port, password=self._settings.get("requirepass"))

    def start(self) -> None:
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self._directory}
        settings |= {name.replace("_", "-"): value for name, value in self._settings.items()}
        lines = [f'{name} "{value}"' for name, value in settings.items()]
        (self._directory / "redis.conf").write_text("\n".join(lines))
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, self._directory / "redis.conf"], stdout=output, stderr=output
            )
        wait_until(self._answers, "Redis does not answer", seconds=60)

    def _answers(self) -> bool:
        import redis

        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "output").read_text()
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def kill(self) -> None:
        """With SIGKILL: nothing is said to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def redis_server(**settings: str) -> Iterator[RedisServer]:
    """Skips the test if there is no Redis; in CI it fails."""
    program = shutil.which("redis-server")
    if program is None:
        reason = "Redis is missing: run bin/ensure redis-server redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
    server = None
    try:
        server = RedisServer(directory, program, **settings)
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(directory)
