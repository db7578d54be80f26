"""Targets on a host elsewhere, over frames: one connection for all shards that are there.

Owns the connection. All batches that are due together leave in one frame, whichever shards they
are of, and acks come back as they are ready, joined, too: so shards share the cost of a round trip.
Laws: see host.py. When the connection is lost, every shard on it is told so, once. A host that says
nothing, not even that it is there, is cut off within SILENCE_SECONDS; one whose targets are slow is
not.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from penstock.delivery.api import Shard
from penstock.delivery.host import Tell
from penstock.delivery.messages import Ack, Apply, At, Bye, Failure, FromTarget, Hello, ToTarget
from penstock.delivery.remote.address import HostAddress
from penstock.delivery.remote.row_parts import PART_BYTES_MAX, encode_batch_of
from penstock.delivery.remote.shard_format import encode_opening
from penstock.errors import BadRow, PenstockError, Retryable, Unavailable
from penstock.ids import Lsn
from penstock.limits import FRAME_BODY_BYTES_MAX, MIB
from penstock.log.group_format import Buffer
from penstock.log.handshake import ask_with_proof
from penstock.log.pairing import PairedConnection
from penstock.wire import target_messages as t
from penstock.wire.errors import error_from_code
from penstock.wire.messages import Ping, Pong

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
#: Without a sign of life; it is asked for one after half of it.
SILENCE_SECONDS: Final = 10.0
#: A frame is ended when it has as many bytes of rows.
FRAME_BYTES: Final = 1 * MIB
assert FRAME_BYTES + PART_BYTES_MAX <= FRAME_BODY_BYTES_MAX

HostLink = PairedConnection[t.TargetMessage]


class FramesHost:
    """A `TargetHost` of some shards of one delivery."""

    #: The target works on one batch while the next are on their way. More would not keep it busier,
    #: and let each wait for those before it, where together they could be one.
    window = 4

    def __init__(
        self,
        address: HostAddress,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        shards: Mapping[int, Shard],
        schema: pa.Schema,
    ) -> None:
        """`shards` by the number of their target there; the stream's schema, `_weight` included."""
        self._address = address
        self._token = token
        self._tls = tls
        self._shards = dict(shards)
        self._numbers = {shard.index: number for number, shard in shards.items()}
        self._schema = schema
        self._link: HostLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        #: By shard: connections that may be spoken on, and those of which the host does not know.
        self._open: dict[int, int] = {}
        self._waiting: dict[int, Hello] = {}
        #: What leaves with the next frame.
        self._parts: list[t.Part] = []
        self._rows: list[Buffer] = []
        self._rows_bytes = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._tell: Tell
        self._loop: asyncio.AbstractEventLoop

    # ---- host.TargetHost

    def start(self, tell: Tell) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    def send(self, messages: Sequence[ToTarget]) -> None:
        for message in messages:
            match message:
                case Apply():
                    if self._open.get(message.shard) == message.connection:
                        self._apply(message)
                case Hello():
                    self._open[message.shard] = message.connection
                    self._waiting[message.shard] = message
                    self._greet()
                case Bye():
                    self._bye(message)
        self._flush()

    async def close(self) -> None:
        self._is_closed = True
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        self._open.clear()
        self._waiting.clear()
        if self._link is not None:
            self._flush()
            self._link.close()

    # ---- to the host

    def _greet(self) -> None:
        """Open what waits for it, now or when there is a connection."""
        if self._link is None:
            if self._connecting is None and not self._is_closed:
                self._connecting = self._loop.create_task(self._connect())
            return
        self._post_parts()
        waiting, self._waiting = self._waiting, {}
        for hello in waiting.values():
            opening = encode_opening(
                self._shards[self._numbers[hello.shard]],
                self._schema,
                target=self._numbers[hello.shard],
                connection=hello.connection,
                term=hello.term,
            )
            self._link.post(opening.KIND, t.encode_target_message(opening))

    def _bye(self, message: Bye) -> None:
        if self._open.get(message.shard) != message.connection:
            return
        del self._open[message.shard]
        was_asked = self._waiting.pop(message.shard, None) is None
        if self._link is not None and was_asked:
            self._post_parts()
            closing = t.CloseTarget(self._numbers[message.shard], message.connection)
            self._link.post(closing.KIND, t.encode_target_message(closing))

    def _apply(self, message: Apply) -> None:
        try:
            parts = encode_batch_of(message)
        except PenstockError as error:
            self._fail(message.shard, error)
            return
        place = self._numbers[message.shard], message.connection, message.after, message.upto
        for part in parts:
            self._parts.append(t.Part(*place, len(part), part is parts[-1]))
            self._rows.append(part)
            self._rows_bytes += len(part)
            if self._rows_bytes >= FRAME_BYTES:
                self._post_parts()

    def _post_parts(self) -> None:
        parts, self._parts = self._parts, []
        rows, self._rows = self._rows, []
        self._rows_bytes = 0
        if parts and self._link is not None:
            head = t.encode_target_message(t.ApplyParts(t.encode_parts(parts)))
            self._link.post(t.ApplyParts.KIND, head, rows)

    def _flush(self) -> None:
        self._post_parts()
        if self._link is not None:
            self._link.flush()

    # ---- from the host

    def _heard(self, message: t.TargetMessage, body: memoryview) -> None:
        match message:
            case t.TargetAcks():
                for number, connection, position in t.decode_acks(message.acks):
                    self._tell(Ack(self._shard(number), connection, Lsn(position)))
            case t.TargetAt():
                shard = self._shard(message.target)
                self._tell(At(shard, message.connection, Lsn(message.position)))
            case t.TargetFailed():
                shard = self._shard(message.target)
                if self._open.get(shard) == message.connection:
                    del self._open[shard]
                self._tell(Failure(shard, message.connection, _error_of(message)))
            case Pong():
                pass
            case _:
                raise Unavailable(f"a host of targets does not say {type(message).__name__}")

    def _shard(self, number: int) -> int:
        shard = self._shards.get(number)
        if shard is None:
            raise Unavailable(f"it speaks of target {number}, which was not asked for")
        return shard.index

    def _fail(self, shard: int, error: Exception) -> None:
        """Tell a shard that its connection is over; never from inside `send`."""
        self._waiting.pop(shard, None)
        connection = self._open.pop(shard, None)
        if connection is not None:
            self._loop.call_soon(self._tell_late, Failure(shard, connection, error))

    def _tell_late(self, message: FromTarget) -> None:
        if not self._is_closed:
            self._tell(message)

    # ---- the connection

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                link = await self._open_link()
        except (OSError, TimeoutError, PenstockError) as error:
            self._connecting = None
            words = f"no host of targets answers at {self._address}: {error or 'timeout'}"
            is_final = isinstance(error, PenstockError) and not isinstance(error, Retryable)
            self._fail_all(error if is_final else Unavailable(words))
            return
        self._connecting = None
        self._link = link
        self._watch(link)
        self._greet()
        self._flush()

    async def _open_link(self) -> HostLink:
        host, port = self._address.host, self._address.port
        _, link = await self._loop.create_connection(self._make_link, host, port, ssl=self._tls)
        try:
            names = {shard.delivery for shard in self._shards.values()}
            welcome = await ask_with_proof(link, 1, t.TargetHello(min(names)), self._token)
            if not isinstance(welcome, t.TargetWelcome):
                raise Unavailable("it is no host of targets")
        except BaseException as error:
            ended = link.closed.result() if link.closed.done() else error
            link.abort(Unavailable("the connection was given up"))
            if isinstance(error, Retryable) and not isinstance(ended, Retryable):
                raise ended from None  # it is the answer: nothing else was asked
            raise
        if link.closed.done():
            raise link.closed.result()  # with the welcome came its end
        return link

    def _make_link(self) -> HostLink:
        def heard(message: t.TargetMessage, body: memoryview) -> None:
            if link is self._link:
                self._heard(message, body)

        link: HostLink = PairedConnection(
            t.encode_target_message,
            t.decode_target_message,
            unasked=heard,
            on_end=lambda error: self._ended(link, error),
        )
        return link

    def _ended(self, link: HostLink, error: PenstockError) -> None:
        if link is not self._link:
            return
        self._link = None
        self._parts, self._rows, self._rows_bytes = [], [], 0
        if self._watchdog is not None:
            self._watchdog.cancel()
        if not self._is_closed:
            logger.info("host=%s was lost: %s", self._address, error)
            self._fail_all(Unavailable(f"the host of targets at {self._address} was lost: {error}"))

    def _fail_all(self, error: Exception) -> None:
        for shard in list(self._open):
            self._fail(shard, error)

    def _watch(self, link: HostLink, heard_count: int = -1, silent: int = 0) -> None:
        """Ask for a sign of life after half of the time, and cut it off after all of it."""
        silent = silent + 1 if link.heard_count == heard_count else 0
        if silent == 4:
            link.abort(Unavailable(f"it has said nothing for {SILENCE_SECONDS:g} s"))
            return
        if silent == 2:
            link.post(Ping.KIND, t.encode_target_message(Ping()))
        look = partial(self._watch, link, link.heard_count, silent)
        self._watchdog = self._loop.call_later(SILENCE_SECONDS / 4, look)


def _error_of(message: t.TargetFailed) -> PenstockError:
    error = error_from_code(message.code, message.message)
    if isinstance(error, BadRow):
        error.row = message.row
    return error
