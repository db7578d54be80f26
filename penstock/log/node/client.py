"""Storage nodes over the network: one connection to each life of a node, and all nodes there are.

Implements `node_api.NodeClient` and `Nodes`. Law: every add ends with its fsync, with the node's
refusal, or, when the connection ends or falls silent, with Unavailable, which says nothing of
whether the block is there. A connection is to one cookie only: a node that lost something is never
mistaken for itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from penstock.config import is_loopback
from penstock.errors import (
    BadFormat,
    DeadlineExceeded,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.ids import BlockId, NodeId
from penstock.limits import CONNECTION_INFLIGHT_BYTES_MAX, DELIVERY_BYTES, GROUP_OVERHEAD_BYTES
from penstock.log.group_format import Buffer
from penstock.log.meta.api import MetadataStore
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Added, Blocks, Fence, Found, NodeInfo
from penstock.wire import node_messages as n
from penstock.wire.errors import error_from_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.messages import Failed

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
#: An answer to anything but a long poll.
REQUEST_SECONDS = 10.0
#: A node that owes an answer for so long, and says nothing at all, is cut off.
SILENCE_SECONDS = 10.0
#: Between attempts to connect.
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 2.0
#: Unanswered bytes and requests of one connection; beyond, adds are refused with Overloaded.
INFLIGHT_BYTES_MAX = CONNECTION_INFLIGHT_BYTES_MAX
_HEADS_MAX = 1024

M = TypeVar("M", bound=n.NodeMessage)
_Answer = Callable[["n.NodeMessage | PenstockError", memoryview], None]
_NOTHING = memoryview(b"")


class _Link(asyncio.BufferedProtocol):
    """One connection: requests paired with answers. Output goes out once per loop turn."""

    def __init__(self, delay: float, on_end: Callable[[_Link, PenstockError], None]) -> None:
        self._reader = FrameReader(authenticated=True)
        self._transport: asyncio.Transport | None = None
        self._delay = delay
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        self._request = 0
        #: Unanswered adds, each with its bytes, and everything else.
        self._adds: dict[int, tuple[Added, int]] = {}
        self._answers: dict[int, _Answer] = {}
        self.inflight_bytes = 0
        self._heard = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._ended = False

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(Unavailable(f"the connection was lost: {exc or 'closed by the node'}"))

    def end(self, error: PenstockError) -> None:
        """Close; all that is unanswered ends with this error."""
        if self._ended:
            return
        self._ended = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        adds, self._adds = self._adds, {}
        answers, self._answers = self._answers, {}
        self.inflight_bytes = 0
        self._on_end(self, error)
        for added, _ in adds.values():
            added(error)
        for answer in answers.values():
            answer(error, _NOTHING)

    def _watch(self) -> None:
        """Cut off a node that owes something and says nothing."""
        now = self._loop.time()
        if not self._adds:
            self._heard = now
        elif now - self._heard > SILENCE_SECONDS:
            self.end(Unavailable(f"the node has said nothing for {now - self._heard:.1f} s"))
            return
        self._watchdog = self._loop.call_later(SILENCE_SECONDS / 4, self._watch)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size: int) -> None:
        try:
            frames = self._reader.buffer_updated(size)
        except PenstockError as error:
            self.end(Unavailable(f"the node sent what cannot be read: {error}"))
            return
        if self._delay:
            self._loop.call_later(self._delay, self._take, frames)
        else:
            self._take(frames)

    def _take(self, frames: list[Frame]) -> None:
        self._heard = self._loop.time()
        try:
            for frame in frames:
                if self._ended:
                    return
                self._handle(frame)
        except PenstockError as error:
            self.end(Unavailable(f"the node sent what cannot be read: {error}"))

    def _handle(self, frame: Frame) -> None:
        add = self._adds.pop(frame.request, None)
        if add is not None:
            self.inflight_bytes -= add[1]
            if frame.kind == n.BlockAdded.KIND:
                add[0](None)
                return
        message = n.decode_node_message(frame.kind, frame.head)
        outcome: n.NodeMessage | PenstockError = message
        if isinstance(message, Failed):
            outcome = error_from_code(message.code, message.message)
        if add is not None:
            if isinstance(outcome, PenstockError):
                add[0](outcome)
                return
            add[0](Unavailable("the node answered with something else"))
            raise BadFormat(f"{type(outcome).__name__} is no answer to an add")
        elif (answer := self._answers.pop(frame.request, None)) is not None:
            answer(outcome, memoryview(frame.body))
        elif isinstance(outcome, PenstockError) and frame.request == 0:
            self.end(Unavailable(f"the node closed the connection: {outcome}"))
        # Else nobody waits any more: the request was given up.

    # ---- requests

    def add(self, head: bytes, block: Sequence[Buffer], added: Added) -> None:
        size = sum(map(len, block))
        number = self._next()
        self._adds[number] = (added, size + GROUP_OVERHEAD_BYTES)
        self.inflight_bytes += size + GROUP_OVERHEAD_BYTES
        self._send(encode_frame(n.AddBlock.KIND, number, head, size))
        self._out += block

    def ask(self, message: n.NodeMessage, answer: _Answer) -> int:
        number = self._next()
        self._answers[number] = answer
        self._send(encode_frame(message.KIND, number, n.encode_node_message(message)))
        return number

    def forget(self, number: int) -> None:
        self._answers.pop(number, None)

    def _next(self) -> int:
        self._request = self._request % 0xFFFF_FFFF + 1
        return self._request

    def _send(self, frame: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._delay:
            self._loop.call_later(self._delay, self._write, out)
        else:
            self._write(out)

    def _write(self, out: list[Buffer]) -> None:
        if self._transport is not None and out:
            self._transport.writelines(out)


class NetworkNodeClient:
    """One life of a node; connects when asked, and again after a while. See `NodeClient`."""

    def __init__(
        self,
        info: NodeInfo,
        *,
        token: str,
        tls: ssl.SSLContext | None = None,
        delay_seconds: float = 0.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self._token = token
        self._tls = tls
        self._delay = delay_seconds
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        #: What waits for the connection: called with the error if it fails.
        self._queue: list[Callable[[_Link | PenstockError], None]] = []
        self._queue_bytes = 0
        self._backoff = 0.0
        self._next_attempt = 0.0
        self._problem = Unavailable("not connected yet")
        self._heads: dict[tuple[SegmentKey, int], bytes] = {}
        self._closed = False
        #: The node has lost something since: it only shows what it has.
        self.is_trusted = True

    @property
    def node(self) -> NodeId:
        return self.info.id

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def close(self) -> None:
        """Unanswered requests end with Unavailable. Idempotent."""
        self._closed = True
        error = Unavailable("the client was closed")
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._fail_queue(error)
        if self._link is not None:
            self._link.end(error)

    # ---- node_api.NodeClient

    def add(self, key: SegmentKey, epoch: int, block: Sequence[Buffer], added: Added) -> None:
        head = self._heads.get((key, epoch))
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = n.encode_node_message(n.AddBlock(*key, epoch))
            self._heads[key, epoch] = head
        link = self._link
        if link is not None:
            if link.inflight_bytes > INFLIGHT_BYTES_MAX:
                self._loop.call_soon(added, Overloaded("too many unanswered blocks"))
            else:
                link.add(head, block, added)
            return
        size = GROUP_OVERHEAD_BYTES + sum(map(len, block))

        def connected(outcome: _Link | PenstockError) -> None:
            self._queue_bytes -= size
            if isinstance(outcome, PenstockError):
                added(outcome)
            else:
                outcome.add(head, block, added)

        self._queue_bytes += size
        if self._queue_bytes > INFLIGHT_BYTES_MAX:
            self._loop.call_soon(connected, Overloaded("too many unanswered blocks"))
        else:
            self._when_connected(connected)

    async def fence(self, key: SegmentKey, epoch: int) -> Fence:
        message = n.FenceSegment(key.log, key.segment, epoch)
        fenced, _ = await self._ask(message, n.SegmentFenced, REQUEST_SECONDS)
        return Fence(BlockId(fenced.durable_block), BlockId(fenced.next_block))

    async def read(
        self,
        key: SegmentKey,
        first: int,
        *,
        durable_block: int = 0,
        bytes_max: int = DELIVERY_BYTES,
        fence_epoch: int = 0,
        wait_ms: int = 0,
    ) -> Blocks:
        message = n.ReadBlocks(*key, first, durable_block, bytes_max, fence_epoch, wait_ms)
        seconds = REQUEST_SECONDS + wait_ms / 1000
        read, data = await self._ask(message, n.BlocksRead, seconds)
        found = Found(read.outcome) if read.outcome <= Found.UNKNOWN else Found.UNKNOWN
        return Blocks(found, BlockId(read.durable_block), data)

    async def list_blocks(self, key: SegmentKey, first: int, end: int) -> list[tuple[int, int]]:
        message = n.ListBlocks(*key, first, end)
        listed, _ = await self._ask(message, n.BlocksListed, REQUEST_SECONDS)
        numbers = listed.ranges
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    async def status(self) -> dict[str, Any]:
        """What the node says of itself, for people and tools."""
        status, _ = await self._ask(n.GetNodeStatus(), n.NodeStatus, REQUEST_SECONDS)
        found: dict[str, Any] = json.loads(status.json)
        return found

    async def _ask(
        self, message: n.NodeMessage, wanted: type[M], seconds: float
    ) -> tuple[M, memoryview]:
        future: asyncio.Future[tuple[M, memoryview]] = self._loop.create_future()
        sent: list[tuple[_Link, int]] = []

        def answer(outcome: n.NodeMessage | PenstockError, body: memoryview) -> None:
            if future.done():
                return
            if isinstance(outcome, wanted):
                future.set_result((outcome, body))
            elif isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_exception(Unavailable(f"the node answered {type(outcome).__name__}"))

        def connected(outcome: _Link | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                answer(outcome, _NOTHING)
            elif not future.done():
                sent.append((outcome, outcome.ask(message, answer)))

        self._when_connected(connected)
        try:
            async with asyncio.timeout(seconds + 2 * self._delay):
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.node} has not answered for {seconds:g} s") from error
        finally:
            for link, number in sent:
                link.forget(number)

    # ---- connecting

    def _when_connected(self, connected: Callable[[_Link | PenstockError], None]) -> None:
        """Now, soon, or, while a failed attempt is recent, not at all."""
        if self._link is not None:
            connected(self._link)
        elif self._connecting is not None:
            self._queue.append(connected)
        elif self._closed or self._loop.time() < self._next_attempt:
            problem = Unavailable("the client is closed") if self._closed else self._problem
            self._loop.call_soon(connected, problem)
        else:
            self._queue.append(connected)
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                link = await self._open()
        except (OSError, TimeoutError, PenstockError) as error:
            self._connecting = None
            self._problem = Unavailable(f"cannot reach node {self.node}: {error or 'timeout'}")
            self._backoff = min(max(2 * self._backoff, BACKOFF_SECONDS_MIN), BACKOFF_SECONDS_MAX)
            self._next_attempt = self._loop.time() + self._backoff
            self._fail_queue(self._problem)
            return
        self._connecting = None
        self._backoff = 0.0
        self._link = link
        queue, self._queue = self._queue, []
        for connected in queue:
            connected(link)
        self._on_change()

    async def _open(self) -> _Link:
        info = self.info
        if not info.tls and not is_loopback(info.host):
            # Whoever can write to the metadata could name an address of his own.
            raise Unavailable(f"{info.host} does not speak TLS: the token must not travel openly")
        tls = (self._tls or ssl.create_default_context()) if info.tls else None
        _, link = await self._loop.create_connection(
            lambda: _Link(self._delay, self._ended), info.host, info.port, ssl=tls
        )
        welcome: asyncio.Future[n.NodeMessage] = self._loop.create_future()

        def answer(outcome: n.NodeMessage | PenstockError, _: memoryview) -> None:
            if welcome.done():
                return
            if isinstance(outcome, PenstockError):
                welcome.set_exception(outcome)
            else:
                welcome.set_result(outcome)

        try:
            link.ask(n.NodeHello(self._token, info.name, info.cookie), answer)
            message = await welcome
            if not isinstance(message, n.NodeWelcome):
                raise Unavailable(f"{info.host}:{info.port} is not a storage node")
        except BaseException:
            link.end(Unavailable("the connection was given up"))
            if welcome.done() and not welcome.cancelled():
                welcome.exception()  # whoever waited for it is gone
            raise
        self.is_trusted = message.trusted
        return link

    def _ended(self, link: _Link, error: PenstockError) -> None:
        if link is self._link:
            self._link = None
            self._problem = Unavailable(f"node {self.node}: {error}")
            self._on_change()

    def _fail_queue(self, error: PenstockError) -> None:
        queue, self._queue = self._queue, []
        for connected in queue:
            connected(error)


class NetworkNodes:
    """All nodes that are registered in the metadata. See `node_api.Nodes`."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        token: str,
        tls: ssl.SSLContext | None = None,
        delay: Callable[[NodeInfo], float] | None = None,
    ) -> None:
        self._store = store
        self._token = token
        self._tls = tls
        self._delay = delay
        self._alive: dict[NodeId, NodeInfo] = {}
        #: Former lives of those, as places to read from.
        self._past: dict[NodeId, NodeInfo] = {}
        self._clients: dict[NodeId, NetworkNodeClient] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._unwatch: list[Callable[[], None]] = []
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what there is now, and follow it. Raises Unavailable."""
        self._watch_store()
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def use(self, store: MetadataStore) -> None:
        """Follow another session, after the last one was lost."""
        self._stop_watching()
        self._store = store
        self._watch_store()
        self._due.set()

    async def close(self) -> None:
        """Close all connections. The store is not ours. Idempotent."""
        self._stop_watching()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        clients, self._clients = self._clients, {}
        self._watchers.clear()
        for client in clients.values():
            client.close()

    def client(self, node: NodeId) -> NetworkNodeClient | None:
        client = self._clients.get(node)
        info = self._alive.get(node) or self._past.get(node)
        if info is None:
            # It has lost its session, not its connection to us: it still serves.
            return client if client is not None and client.is_connected else None
        if client is None or not _is_same_place(client.info, info):
            if client is not None:
                client.close()
            client = NetworkNodeClient(
                info,
                token=self._token,
                tls=self._tls,
                delay_seconds=self._delay(info) if self._delay is not None else 0.0,
                on_change=self._changed,
            )
            self._clients[node] = client
        return client

    def alive(self) -> dict[NodeId, NodeInfo]:
        return dict(self._alive)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watchers[key] = changed

        def end() -> None:
            self._watchers.pop(key, None)

        return end

    def _changed(self) -> None:
        for changed in list(self._watchers.values()):
            changed()

    def _watch_store(self) -> None:
        self._unwatch = [self._store.watch(path, self._due.set) for path in ("/nodes", "/draining")]

    def _stop_watching(self) -> None:
        for end in self._unwatch:
            end()
        self._unwatch = []

    async def _follow(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._refresh()
            except (PenstockError, OSError) as error:
                # What was known stays known: nobody is gone because nobody can be asked.
                logger.warning("cannot list the storage nodes, trying again cause=%r", error)
                await asyncio.sleep(1.0)
                self._due.set()

    async def _refresh(self) -> None:
        draining = set(await self._children("/draining"))
        found: dict[NodeId, NodeInfo] = {}
        for name in await self._children("/nodes"):
            value = await self._store.get(f"/nodes/{name}")
            if value is None:
                continue
            try:
                info = decode_node_info(value.data, is_draining=name in draining)
            except BadFormat as error:
                logger.error("cannot read a registration node=%s: %s", name, error)
                continue
            found[info.id] = info
        if found == self._alive:
            return
        self._alive = found
        former = [
            replace(info, cookie=cookie) for info in found.values() for cookie in info.past_cookies
        ]
        self._past = {info.id: info for info in former}
        for node in [one for one in self._clients if one not in {**found, **self._past}]:
            # One that lost its session still serves: its connection ends when the node does.
            if not self._clients[node].is_connected:
                self._clients.pop(node).close()
        self._changed()

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NotFound:
            return []  # nobody has registered yet


def _is_same_place(one: NodeInfo, other: NodeInfo) -> bool:
    return (one.host, one.port, one.tls) == (other.host, other.port, other.tls)


def decode_node_info(data: bytes, *, is_draining: bool = False) -> NodeInfo:
    """Raises BadFormat."""
    try:
        said: dict[str, Any] = json.loads(data)
        # What a newer version says beyond is left away.
        fields = {name: said[name] for name in NodeInfo.__slots__ if name in said}
        fields["draining"] = bool(fields.get("draining")) or is_draining
        fields["past_cookies"] = tuple(fields.get("past_cookies", ()))
        return NodeInfo(**fields)
    except (ValueError, TypeError) as error:
        raise BadFormat(f"the registration of a node cannot be read: {error}") from error
