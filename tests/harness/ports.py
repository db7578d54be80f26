"""Ports of this machine for servers that come back where they were."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """That nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
