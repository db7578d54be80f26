"""A client's connection to a log server or proxy: how it is opened, and what its messages are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from penstock.errors import Retryable, Unavailable
from penstock.log.handshake import ask_with_proof
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
    """Connect and prove the token. Raises Unavailable, Unauthorized."""
    hello = m.Hello(name, session, log, reads)
    connection, message = await _open(host, port, hello, token, tls, timeout, on_delivery)
    if not isinstance(message, m.Welcome):
        connection.close()
        raise Unavailable(f"{host}:{port} is not a log server")
    return connection, message


async def ask_metrics(
    host: str, port: int, *, token: str, tls: ssl.SSLContext | None, timeout: float
) -> str:
    """A proxy's or log server's metrics, without a log. Raises Unavailable, Unauthorized."""
    connection, message = await _open(
        host, port, m.GetMetrics(), token, tls, timeout, lambda message, body: None
    )
    connection.close()
    if not isinstance(message, m.MetricsText):
        raise Unavailable(f"{host}:{port} is not a log server")
    return message.text


async def _open(
    host: str,
    port: int,
    hello: m.Message,
    token: str,
    tls: ssl.SSLContext | None,
    timeout: float,
    on_delivery: OnDelivery,
) -> tuple[ClientConnection, m.Message | None]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: make_connection(on_delivery), host, port, ssl=tls
            )
            try:
                return connection, await ask_with_proof(connection, 1, hello, token)
            except BaseException as error:
                ended = connection.closed.result() if connection.closed.done() else error
                connection.close()
                if isinstance(error, Retryable) and not isinstance(ended, Retryable):
                    raise ended from None  # it is the answer: nothing else was asked
                raise
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"no log server answers at {host}:{port}: {error or 'timeout'}"
        ) from error
