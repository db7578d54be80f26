"""A client's connection to a log server or proxy: how it is opened, and what its messages are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from penstock.errors import Unavailable
from penstock.log.pairing import Answer, PairedConnection
from penstock.wire import messages as m

ClientConnection = PairedConnection[m.Message]
ClientAnswer = Answer[m.Message]
#: Takes what comes without being asked for: deliveries.
OnDelivery = Callable[[m.Message, memoryview], None]


def make_connection(on_delivery: OnDelivery) -> ClientConnection:
    return PairedConnection(m.encode_message, m.decode_message, unasked=on_delivery)


async def open_connection(
    host: str,
    port: int,
    *,
    token: str,
    name: str,
    session: str,
    tls: ssl.SSLContext | None,
    timeout: float,
    on_delivery: OnDelivery,
    log: str = "",
    reads: bool = False,
) -> tuple[ClientConnection, m.Welcome]:
    """Connect and show the token. Raises Unavailable, Unauthorized."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: make_connection(on_delivery), host, port, ssl=tls
            )
            try:
                message, _ = await connection.ask(1, m.Hello(token, name, session, log, reads))
            except BaseException:
                connection.close()
                raise
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"no log server answers at {host}:{port}: {error or 'timeout'}"
        ) from error
    if not isinstance(message, m.Welcome):
        connection.close()
        raise Unavailable(f"{host}:{port} is not a log server")
    return connection, message
