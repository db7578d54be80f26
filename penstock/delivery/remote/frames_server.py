"""A host of targets, over frames: any Python `Target` objects, beside their data.

Owns the way up and down, and what is held for targets. Sockets, admission and the token are in
log/serving/; a target's work is served_target.py's. Laws: who has not proved the token reaches no
target; a target that blocks keeps nobody from being read or answered but who waits for it; what
all targets together have not applied yet is bounded: beyond HELD_BYTES_MAX who sends more is not
read until half of it is done. Answers of a turn go out together: one frame of acks per player.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import uvloop

from penstock.delivery.api import Target
from penstock.delivery.messages import Ack, At, Failure, FromTarget
from penstock.delivery.remote.host_config import HostConfig
from penstock.delivery.remote.row_parts import BATCH_BYTES_MAX
from penstock.delivery.remote.served_target import (
    ERROR_TEXT_MAX,
    ApplyRows,
    Close,
    Job,
    Open,
    ServedTarget,
    told,
)
from penstock.delivery.remote.shard_format import decode_opening
from penstock.delivery.remote.target_metrics import TargetMetrics
from penstock.errors import BadFormat, BadRequest, BadRow, NotFound, TooLarge
from penstock.ids import Lsn
from penstock.limits import GROUP_OVERHEAD_BYTES, MIB, POSITION_MAX
from penstock.log.group_format import Buffer
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.directory import Address, ensure_token
from penstock.log.serving.listener import Listener
from penstock.log.serving.process import run_until_signal
from penstock.log.serving.tls_files import tls_files
from penstock.wire import target_messages as t
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, encode_frame
from penstock.wire.messages import Ping, Pong

logger = logging.getLogger(__name__)

#: Rows that no target has applied yet, of all players. A player alone never comes to it, unless
#: its commits are huge: its queues hold less (player.py).
HELD_BYTES_MAX: Final = 512 * MIB
#: How long the end waits for targets that are at work.
STOP_SECONDS: Final = 10.0
#: What a job of a target counts for beyond its rows, so that a flood of small ones is bounded.
_JOB_BYTES: Final = GROUP_OVERHEAD_BYTES
_UNAPPLIED: Final = "unapplied batches"
assert BATCH_BYTES_MAX <= HELD_BYTES_MAX


class TargetServer:
    """See the module's docstring. A `listener.ListenerHost` and a `process.Server`."""

    def __init__(
        self,
        config: HostConfig,
        targets: Sequence[Target],
        on_ready: Callable[[Address], None] = lambda address: None,
    ) -> None:
        config.validate()
        self._config = config
        self._on_ready = on_ready
        self.metrics = TargetMetrics()
        self.listener = Listener(self, files_max=64)
        self.targets = [ServedTarget(number, target) for number, target in enumerate(targets)]
        self.ready = asyncio.Event()
        self.address: Address
        #: Of batches that came and were not done with yet.
        self.held_bytes = 0
        self._halted: dict[ServerConnection, None] = {}
        #: What threads of targets have answered, and whether the loop knows of it.
        self._answers: deque[tuple[PlayerRequests, FromTarget | None, int]] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop

    # ---- life

    @property
    def descriptors_wanted(self) -> int:
        return self.listener.descriptors_wanted

    def stop(self) -> None:
        self.listener.stop()

    async def run(self) -> None:
        """Until `stop`; then targets finish what they are at work on."""
        self._loop = asyncio.get_running_loop()
        self.listener.begin()
        config, socket = self._config, None
        try:
            self.listener.token = ensure_token(config.token_file)
            files = tls_files(config.tls_cert, config.tls_key)
            socket = await self.listener.listen(config.host, config.port, files)
            port = socket.sockets[0].getsockname()[1]
            self.address = Address(config.host, port, tls=config.tls_cert is not None)
            logger.info("serving targets=%d host=%s port=%d", len(self.targets), config.host, port)
            self.ready.set()
            self._on_ready(self.address)
            await self.listener.stopped.wait()
        finally:
            if socket is not None:
                socket.close()
            await self._stop_targets()
            self.listener.close_connections()
        self.listener.raise_fatal("the host of targets")

    async def _stop_targets(self) -> None:
        for target in self.targets:
            target.shut_down()
        deadline = self._loop.time() + STOP_SECONDS
        for number, target in enumerate(self.targets):
            left = max(0.0, deadline - self._loop.time())
            if not await asyncio.to_thread(target.join, left):
                logger.warning("target=%d is still at work: nobody waits for it", number)
        self._take_answers()

    # ---- listener.ListenerHost

    def meet(self, connection: ServerConnection) -> PlayerRequests:
        return PlayerRequests(self, connection)

    def turn(self) -> None:
        """Nothing is due beyond what was handled."""

    def after_turn(self) -> None:
        """Nothing is left for later."""

    async def full_metrics_text(self) -> str:
        return self.metrics_text()

    def metrics_text(self) -> str:
        return self.metrics.text(
            {
                "targets": ("Targets of this host.", len(self.targets)),
                "connections": ("Players that are connected.", len(self.listener.connections)),
                "held_bytes": ("Bytes of batches that wait for targets.", self.held_bytes),
            }
        )

    # ---- answers of targets

    def answered(self, asker: PlayerRequests, answer: FromTarget | None, size: int) -> None:
        """From the thread of a target. Many of them wake the loop once."""
        self._answers.append((asker, answer, size))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._take_answers)
            except RuntimeError:
                pass  # the loop has ended before this target: nobody waits for its answers

    def _take_answers(self) -> None:
        self._is_woken = False  # before they are taken, or the next could be left
        told: dict[PlayerRequests, None] = {}
        while self._answers:
            asker, answer, size = self._answers.popleft()
            self.held_bytes -= size
            if answer is not None:
                asker.collect(answer)
                told[asker] = None
        for asker in told:
            asker.send_collected()
        if self._halted and self.held_bytes < HELD_BYTES_MAX // 2:
            halted, self._halted = self._halted, {}
            for connection in halted:
                connection.go_on(_UNAPPLIED)

    def hold(self, size: int, connection: ServerConnection) -> None:
        self.held_bytes += size
        if self.held_bytes > HELD_BYTES_MAX:
            connection.halt(_UNAPPLIED)
            self._halted[connection] = None

    def forget(self, connection: ServerConnection) -> None:
        self._halted.pop(connection, None)


class PlayerRequests:
    """What one player asks. A `connection.Requests` and a `served_target.Asker`."""

    def __init__(self, server: TargetServer, connection: ServerConnection) -> None:
        self._server = server
        self._connection = connection
        self.is_gone = False
        #: Of targets that it has asked for.
        self._opened: dict[int, None] = {}
        #: The batch whose last part did not come yet.
        self._begun: t.Part | None = None
        self._parts: list[Buffer] = []
        self._parts_bytes = 0
        self._acks: list[t.TargetAck] = []

    # ---- connection.Requests

    def hello(self, frame: Frame) -> Callable[[], None] | None:
        message = t.decode_target_message(frame.kind, frame.head)
        if not isinstance(message, t.TargetHello):
            return None
        logger.info("player=%s connected peer=%s", message.player, self._connection.peer)
        return lambda: self._send(t.TargetWelcome(len(self._server.targets)), frame.request)

    def handle(self, frame: Frame) -> None:
        message = t.decode_target_message(frame.kind, frame.head)
        match message:
            case t.ApplyParts():
                self._take_parts(t.decode_parts(message.parts), frame.body)
            case t.OpenTarget():
                self._open(message)
            case t.CloseTarget():
                if message.target in self._opened:
                    self._put(message.target, Close(self, message.connection, _JOB_BYTES))
            case Ping():
                self._send(Pong())
            case _:
                raise BadRequest(f"{type(message).__name__} is not for a host of targets")

    def after_event(self) -> None:
        if self._connection.out:
            self._server.listener.turn_soon()

    def pause(self) -> None:
        return None

    def resume(self) -> None:
        return None

    def lost(self) -> None:
        self.is_gone = True
        self._parts = []
        self._server.forget(self._connection)
        for number in self._opened:
            self._server.targets[number].put(Close(self))

    # ---- what is asked

    def _open(self, message: t.OpenTarget) -> None:
        self._server.metrics.openings += 1
        count = len(self._server.targets)
        if message.target >= count:
            problem = f"this host has no target {message.target}, only 0 to {count - 1}"
            self._fail(message.target, message.connection, NotFound(problem))
            return
        try:
            shard, schema = decode_opening(message)
        except BadFormat as error:
            self._fail(message.target, message.connection, error)
            return
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._opened[message.target] = None
        opening = Open(self, message.connection, message.term, shard, empty, _JOB_BYTES)
        self._put(message.target, opening)

    def _take_parts(self, parts: list[t.Part], body: memoryview) -> None:
        if sum(part.bytes for part in parts) != len(body):
            raise BadFormat(f"the parts of a frame are not its body of {len(body)} bytes")
        at = 0
        for part in parts:
            rows: Buffer = body[at : at + part.bytes]
            at += part.bytes
            if len(parts) > 1:
                rows = bytes(rows)  # or a small part would hold the whole frame
            self._take_part(part, rows)

    def _take_part(self, part: t.Part, rows: Buffer) -> None:
        begun = self._begun
        if begun is not None and begun[:4] != part[:4]:
            raise BadFormat("a batch has no last part")
        if part.target not in self._opened:
            raise BadRequest(f"target {part.target} was not opened on this connection")
        if not part.after < part.upto <= POSITION_MAX:
            raise BadFormat(f"a batch from LSN {part.after} to {part.upto}")
        if len(rows):
            self._parts.append(rows)
            self._parts_bytes += len(rows)
        if self._parts_bytes > BATCH_BYTES_MAX:
            raise TooLarge(f"a batch of more than {BATCH_BYTES_MAX} bytes")
        if not part.is_last:
            self._begun = part
            return
        size, after, upto = self._parts_bytes, Lsn(part.after), Lsn(part.upto)
        rows_of = ApplyRows(self, part.connection, after, upto, self._parts, size + _JOB_BYTES)
        self._server.metrics.batches += 1
        self._server.metrics.bytes += size
        self._begun, self._parts, self._parts_bytes = None, [], 0
        self._put(part.target, rows_of)

    def _put(self, target: int, job: Job) -> None:
        self._server.hold(job.size, self._connection)
        self._server.targets[target].put(job)

    # ---- answers

    def answer(self, answer: FromTarget | None, size: int) -> None:
        """See `served_target.Asker`."""
        self._server.answered(self, answer, size)

    def collect(self, answer: FromTarget) -> None:
        match answer:
            case Ack():
                self._server.metrics.acks += 1
                self._acks.append(t.TargetAck(answer.shard, answer.connection, answer.position))
            case At():
                self._send(t.TargetAt(answer.shard, answer.connection, answer.position))
            case Failure():
                self._fail(answer.shard, answer.connection, answer.error)

    def send_collected(self) -> None:
        """Now: nothing else would bring these acks out."""
        self._flush_acks()
        self._connection.flush()

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks:
            self._send(t.TargetAcks(t.encode_acks(acks)))

    def _fail(self, target: int, connection: int, error: Exception) -> None:
        self._flush_acks()  # answers stay in order
        self._server.metrics.failures += 1
        known = told(error)
        row = known.row if isinstance(known, BadRow) else None
        text = str(known)[:ERROR_TEXT_MAX]
        self._send(t.TargetFailed(target, connection, error_code(known), text, row))

    def _send(self, message: t.TargetMessage, request: int = 0) -> None:
        if not self.is_gone:
            head = t.encode_target_message(message)
            self._connection.out.append(encode_frame(message.KIND, request, head))
            self._server.listener.dirty[self._connection] = None


def run_target_server(
    config: HostConfig,
    targets: Sequence[Target],
    on_ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    uvloop.run(run_until_signal(TargetServer(config, targets, on_ready), config.lines()))
