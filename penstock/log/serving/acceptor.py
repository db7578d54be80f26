"""Accept sockets: each is counted at once, and only then begins its handshake, where there is TLS.

A TLS server of the event loop makes a connection only after the handshake, so nobody could count
the sockets that wait before it. Here a socket is accepted, admitted like every other that has not
shown the token (arrivals.py), and then taken through TLS. Whose listener it is says who is admitted
and what becomes of them. Laws: as many handshakes are under way as connections may be without a
token; each has a deadline, and ends when its connection is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.limits import PREAUTH_SECONDS_MAX
from penstock.log.serving.task_set import TaskSet
from penstock.log.serving.tls_files import ServerTls

logger = logging.getLogger(__name__)

#: Sockets accepted before others have a turn of the loop.
ACCEPTS_PER_TURN = 16
#: After an accept that failed: the kernel has nothing left for another socket.
RETRY_SECONDS = 0.2


class Guest(Protocol):
    """Somebody who was accepted and admitted."""

    #: Takes it through TLS; whoever drops it cancels this.
    handshake: asyncio.Task[None] | None

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """None before the handshake is done."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Also of a connection that was never made."""


G = TypeVar("G", bound=Guest)


class Acceptor(Generic[G]):
    """See the module's docstring. As much of an `asyncio.Server` as is used.

    Without `tls` there is no handshake. `admit` is given a peer's address; None: it is sent away.
    `failed` is told of defects, `fatal` of one after which nobody more is accepted.
    """

    def __init__(
        self,
        tls: ServerTls | None,
        sockets: tuple[socket.socket, ...],
        *,
        admit: Callable[[str], G | None],
        protocol: Callable[[G], asyncio.BaseProtocol],
        failed: Callable[[BaseException], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._tls = tls
        self._admit = admit
        self._protocol = protocol
        self.sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._accepting = TaskSet(fatal)
        self._handshakes = TaskSet(failed)
        for each in sockets:
            self._accepting.spawn(self._accept(each))

    def close(self) -> None:
        """Nobody more is let in; those who are in a handshake end with their connections."""
        self._accepting.cancel_nowait()
        for each in self.sockets:
            self._loop.call_soon(each.close)  # the loop still looks at it

    async def wait_closed(self) -> None:
        """Nobody is in a handshake any more."""
        await self._handshakes.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                for _ in range(ACCEPTS_PER_TURN):
                    accepted, address = await self._loop.sock_accept(listening)
                    self._enter(accepted, str(address[0]))
                await asyncio.sleep(0)
            except OSError as error:
                logger.error("cannot accept a connection cause=%s", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _enter(self, accepted: socket.socket, peer: str) -> None:
        guest = self._admit(peer)
        if guest is None:
            accepted.close()
            return
        task = self._handshakes.spawn(self._shake(accepted, guest, peer))
        guest.handshake = task

        def ended(_: object) -> None:
            guest.handshake = None
            if guest.transport is None:
                accepted.close()  # if nobody else has
                guest.connection_lost(None)

        task.add_done_callback(ended)

    async def _shake(self, accepted: socket.socket, guest: G, peer: str) -> None:
        seconds = None if self._tls is None else PREAUTH_SECONDS_MAX
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(guest),
                accepted,
                ssl=None if self._tls is None else self._tls.context(),
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError as error:  # as all errors of TLS are
            logger.warning("closing a connection peer=%s cause=no TLS: %r", peer, error)


async def listening_sockets(host: str, port: int, backlog: int) -> tuple[socket.socket, ...]:
    """One for each address of the host. OSError if one cannot be had."""
    loop = asyncio.get_running_loop()
    passive = socket.AI_PASSIVE
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen(backlog)
            each.setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return tuple(sockets)
