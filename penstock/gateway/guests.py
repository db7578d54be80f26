"""The listeners of the gateway, and who has connected there and shown nothing yet.

Laws: guests are counted from the accept on. There are WAITING_MAX of them, each for so many
seconds, a TLS handshake included; they never keep a newcomer out, the oldest of the peer that has
most of them makes place (arrivals.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.errors import Unavailable
from penstock.limits import PREAUTH_CONNECTIONS_MAX
from penstock.log.serving.acceptor import Acceptor, listening_sockets
from penstock.log.serving.arrivals import Arrivals
from penstock.log.serving.directory import Address
from penstock.log.serving.listener import BACKLOG
from penstock.log.serving.tls_files import ServerTls

logger = logging.getLogger(__name__)

WAITING_MAX: Final = PREAUTH_CONNECTIONS_MAX


class Guest:
    """One of them."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self.handshake: asyncio.Task[None] | None = None
        #: None before it is made, as in a handshake.
        self.transport: asyncio.WriteTransport | None = None
        self.timer: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also of one that was never made."""
        self._guests.dismiss(self)


class Guests:
    """See the module's docstring. On the loop only. `seconds`: how long each may be one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: Arrivals[Guest] = Arrivals()

    async def listen(
        self,
        host: str,
        port: int,
        tls: ServerTls | None,
        protocol: Callable[[Guest], asyncio.BaseProtocol],
        fatal: Callable[[], None],
    ) -> tuple[Acceptor[Guest], Address]:
        """`fatal`: nobody more can be accepted. Raises Unavailable."""
        try:
            sockets = await listening_sockets(host, port, BACKLOG)
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(f"cannot listen on {host} port {port}: {reason}") from None

        def failed(error: BaseException) -> None:
            logger.error("a connection failed cause=%r", error, exc_info=error)

        def stop(error: BaseException) -> None:
            failed(error)
            fatal()

        made = Acceptor(
            tls, sockets, admit=self.admit, protocol=protocol, failed=failed, fatal=stop
        )
        at, chosen = sockets[0].getsockname()[:2]
        return made, Address(at, chosen, tls is not None)

    def admit(self, peer: str) -> Guest:
        while len(self._waiting) >= WAITING_MAX:
            oldest = self._waiting.choose()
            assert oldest is not None
            self.dismiss(oldest)
            oldest.drop()
        guest = Guest(self)
        guest.timer = asyncio.get_running_loop().call_later(self._seconds, guest.drop)
        self._waiting.add(peer, guest)
        return guest

    def dismiss(self, guest: Guest) -> None:
        """It has gone, or is none any more."""
        self._waiting.remove(guest)
        if guest.timer is not None:
            guest.timer.cancel()
