"""Connections whose other end is gone without a word: the kernel asks, and ends them.

Law: of a connection on which nothing is said, both ends learn within about a minute that the other
one is not there any more. So whoever vanished does not count among a server's connections for ever.
Where something was on its way, the kernel gives up by itself, after about a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

#: Of silence, until the kernel asks for the first time; between two questions; unanswered ones.
IDLE_SECONDS: Final = 30
INTERVAL_SECONDS: Final = 10
PROBES: Final = 3

#: Not every system knows all of them, and some by other names.
_IDLE: Final = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
_OPTIONS: Final = (
    (_IDLE, IDLE_SECONDS),
    (getattr(socket, "TCP_KEEPINTVL", None), INTERVAL_SECONDS),
    (getattr(socket, "TCP_KEEPCNT", None), PROBES),
)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """For either end, as soon as it is connected."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is None:
        return  # no socket of the kernel: a simulation
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _OPTIONS:
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
