"""The requests of one proxy to a storage node: frames ↔ calls of the owner.

Owns the pairing of requests and answers, and the limits on unanswered bytes. Laws: what a
connection may hear depends on the cookie that it named: this life's, a former one's (positive
answers only), or none (status only). No block is refused because there are many: whoever sends too
many is not read until most are answered. Transport and token are serving/connection.py's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import (
    BadRequest,
    Fenced,
    PenstockError,
    Refused,
    TooLarge,
    Unavailable,
)
from penstock.limits import (
    CONNECTION_INFLIGHT_BYTES_MAX,
    DELIVERY_BYTES,
    GROUP_OVERHEAD_BYTES,
    SERVER_INFLIGHT_BYTES_MAX,
)
from penstock.log.node.owner import BlocksFound
from penstock.log.replication.manifest import SegmentKey, check_log_name
from penstock.log.replication.node_api import Fence
from penstock.log.replication.node_core import WAIT_MS_MAX, ReadRequest
from penstock.log.serving.connection import ServerConnection
from penstock.wire import node_messages as n
from penstock.wire.frames import Frame, encode_frame

if TYPE_CHECKING:
    from penstock.log.node.server import NodeServer

T = TypeVar("T")
#: Ten digits in a file's name.
SEGMENT_ID_END = 10**10
#: Reads and other requests of one connection that may wait for an answer.
WAITING_MAX = 4096
#: Heads of `AddBlock` repeat: one segment's are all the same.
_HEADS_MAX = 4096
#: Ranges of one `BlocksListed`.
_RANGES_MAX = 100_000
_UNANSWERED = "unanswered requests"
UNFLUSHED = "unflushed blocks"
CROWDED = "unanswered blocks of all"


class NodeRequests:
    """See the module's docstring. A `connection.Requests`."""

    def __init__(self, server: NodeServer, connection: ServerConnection) -> None:
        self._server = server
        self._listener = server.listener
        self._connection = connection
        self._trusted = False
        self._status_only = True
        self._inflight_bytes = 0
        self._requests = 0
        self._heads: dict[bytes, tuple[SegmentKey, int]] = {}

    def after_event(self) -> None:
        self._server.is_asked = True
        self._listener.turn_soon()

    def pause(self) -> None:
        return None

    def resume(self) -> None:
        return None

    def lost(self) -> None:
        self._server.full.pop(self._connection, None)
        self._server.crowded.pop(self._connection, None)

    # ---- frames

    def hello(self, frame: Frame) -> Callable[[], None] | None:
        message = n.decode_node_message(frame.kind, frame.head)
        if not isinstance(message, n.NodeHello):
            return None
        return lambda: self._welcome(frame.request, message)

    def _welcome(self, request: int, message: n.NodeHello) -> None:
        identity = self._server.identity
        if message.name and message.name != identity.name:
            raise Unavailable(f"this is node {identity.name}, not {message.name}")
        known = (identity.cookie, *identity.past_cookies)
        if message.cookie and message.cookie not in known:
            raise Unavailable(f"this is {identity.name}:{identity.cookie}, not {message.cookie}")
        self._status_only = not message.cookie
        self._trusted = message.cookie == identity.cookie
        self._send(request, n.NodeWelcome(identity.name, identity.cookie, trusted=self._trusted))

    def handle(self, frame: Frame) -> None:
        try:
            if frame.kind == n.AddBlock.KIND:
                self._add(frame)
            else:
                self._dispatch(frame.request, n.decode_node_message(frame.kind, frame.head))
        except Refused as error:
            self._count(error)
            self._connection.fail(frame.request, error)

    def _send(self, request: int, message: n.NodeMessage, body_bytes: int = 0) -> None:
        """`body_bytes` bytes of body must follow in `out`."""
        head = n.encode_node_message(message)
        self._connection.out.append(encode_frame(message.KIND, request, head, body_bytes))
        self._listener.dirty[self._connection] = None

    def _dispatch(self, request: int, message: n.NodeMessage) -> None:
        if isinstance(message, n.GetNodeStatus):
            self._send(request, n.NodeStatus(self._server.status_json()))
            return
        if self._status_only:
            raise BadRequest("no cookie was named: this connection is for the status only")
        match message:
            case n.FenceSegment():
                key = _check_key(message.log, message.segment, 0)
                reply = self._expect(request, self._fenced)
                self._server.owner.fence(reply, key, message.epoch, self._trusted)
            case n.ReadBlocks():
                self._read(request, message)
            case n.ListBlocks():
                key = _check_key(message.log, message.segment, message.part)
                listed = self._expect(request, self._listed)
                self._server.owner.list_blocks(listed, key, message.first, message.end)
            case _:
                raise BadRequest(f"{type(message).__name__} is not for a node")

    def _add(self, frame: Frame) -> None:
        known = self._heads.get(frame.head)
        if known is None:
            known = self._decode_add(frame.head)
        key, epoch = known
        request, body = frame.request, frame.body
        size = GROUP_OVERHEAD_BYTES + len(body)
        server, listener, connection = self._server, self._listener, self._connection
        self._inflight_bytes += size
        listener.inflight_bytes += size

        def reply(outcome: PenstockError | None) -> None:
            self._inflight_bytes -= size
            listener.inflight_bytes -= size
            if connection.halts and self._inflight_bytes < CONNECTION_INFLIGHT_BYTES_MAX // 2:
                self._connection.go_on("unanswered blocks")
            if server.crowded and listener.inflight_bytes < SERVER_INFLIGHT_BYTES_MAX // 2:
                server.thinned()
            if outcome is None:
                connection.out.append(encode_frame(n.BlockAdded.KIND, request, b""))
                listener.dirty[connection] = None
            else:
                self._count(outcome)
                self._connection.fail(request, outcome)

        owner = server.owner
        owner.add(reply, key, epoch, body, self._trusted)
        if self._inflight_bytes > CONNECTION_INFLIGHT_BYTES_MAX:
            self._connection.halt("unanswered blocks")
        if listener.inflight_bytes > SERVER_INFLIGHT_BYTES_MAX:
            self._connection.halt(CROWDED)
            server.crowded[connection] = None
        if owner.is_full:
            self._connection.halt(UNFLUSHED)
            server.full[connection] = None

    def _decode_add(self, head: bytes) -> tuple[SegmentKey, int]:
        message = n.decode_node_message(n.AddBlock.KIND, head)
        assert isinstance(message, n.AddBlock)
        if self._status_only:
            raise BadRequest("no cookie was named: this connection is for the status only")
        found = (_check_key(message.log, message.segment, message.part), message.epoch)
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        self._heads[head] = found
        return found

    def _read(self, request: int, message: n.ReadBlocks) -> None:
        read = ReadRequest(
            _check_key(message.log, message.segment, message.part),
            message.first,
            message.durable_block,
            min(message.bytes_max, DELIVERY_BYTES),
            message.fence_epoch,
            min(message.wait_ms, WAIT_MS_MAX),
        )
        self._server.owner.read(self._expect(request, self._found), read, self._trusted)

    # ---- answers

    def _expect(
        self, request: int, answer: Callable[[int, T], None]
    ) -> Callable[[T | PenstockError], None]:
        """Count a request that may wait; its outcome is sent by `answer`, or is a failure."""
        self._requests += 1
        if self._requests > WAITING_MAX:
            self._connection.halt(_UNANSWERED)

        def reply(outcome: T | PenstockError) -> None:
            self._requests -= 1
            if self._requests < WAITING_MAX // 2:
                self._connection.go_on(_UNANSWERED)
            if isinstance(outcome, PenstockError):
                self._count(outcome)
                self._connection.fail(request, outcome)
            else:
                answer(request, outcome)

        return reply

    def _fenced(self, request: int, fence: Fence) -> None:
        self._send(request, n.SegmentFenced(fence.durable_block, fence.next_block))

    def _found(self, request: int, blocks: BlocksFound) -> None:
        message = n.BlocksRead(int(blocks.found), blocks.durable_block)
        self._send(request, message, sum(map(len, blocks.data)))
        self._connection.out += blocks.data

    def _listed(self, request: int, ranges: list[tuple[int, int]]) -> None:
        if len(ranges) > _RANGES_MAX:
            self._connection.fail(request, TooLarge(f"{len(ranges)} ranges: ask for fewer blocks"))
            return
        numbers = tuple(number for found in ranges for number in found)
        self._send(request, n.BlocksListed(numbers))

    def _count(self, error: PenstockError) -> None:
        if isinstance(error, Fenced):
            self._server.metrics.fenced += 1
        else:
            self._server.metrics.refused += 1


def _check_key(log: str, segment: int, part: int) -> SegmentKey:
    check_log_name(log)
    if part > 1 or segment >= SEGMENT_ID_END:
        raise BadRequest(f"segment {segment} part {part} makes no sense")
    return SegmentKey(log, segment, part)
