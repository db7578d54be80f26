"""Transactions of Kafka's to many consumers, for `penstock bench deliver`.

A program for the harness, in the peer's virtual environment. `open` starts a broker that syncs
every append before it acknowledges it, and Kafka's own clients in a JVM (java/peer/).

    {"do": "open", "directory": …, "targets": …, "producers": …}    {"settings": {…}}
    {"do": "load", "transactions": …, "rate": …, "bytes": …}        {"ms": […], "held": a second}
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker import Broker, end_process, java_command  # noqa: E402
from settings import VARIANTS  # noqa: E402
from talk import Command, Figures, serve  # noqa: E402

#: The broker that syncs, and goes on to the next transaction as soon as we know how to have it.
_VARIANT: Final = VARIANTS["commit_2ms_flushed"]
_END_SECONDS: Final = 4.0


class DeliveryLoad:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._clients: subprocess.Popen[str] | None = None

    def open(self, command: Command) -> Figures:
        self._broker = Broker(Path(command["directory"]), _VARIANT.broker, _VARIANT.java)
        numbers = [str(command["targets"]), str(command["producers"])]
        self._clients = subprocess.Popen(
            [*java_command(_VARIANT.java), "peer.Deliveries", self._broker.bootstrap, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return {"settings": _VARIANT.broker}

    def load(self, command: Command) -> Figures:
        clients = self._clients
        assert clients is not None and clients.stdin is not None and clients.stdout is not None
        clients.stdin.write(f"{command['transactions']} {command['rate']} {command['bytes']}\n")
        clients.stdin.flush()
        line = clients.stdout.readline()
        if not line:
            raise RuntimeError("Kafka's clients died; what they said is above")
        held, *ms = map(float, line.split())
        return {"ms": ms, "held": held}

    def close(self) -> None:
        if self._clients is not None:
            end_process(self._clients, _END_SECONDS)
        if self._broker is not None:
            end_process(self._broker.process, _END_SECONDS)


if __name__ == "__main__":
    delivery = DeliveryLoad()
    serve({"open": delivery.open, "load": delivery.load}, close=delivery.close)
