"""Storage nodes over the network: one connection to each life of a node, and all nodes there are.

Implements `node_api.NodeClient` and `Nodes`. Law: every add ends with its fsync, with the node's
refusal, or, when the connection ends or falls silent, with Unavailable, which says nothing of
whether the block is there; none is refused here for its size, it waits for its turn. A connection
is to one cookie only: a node that lost something is never mistaken for itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock.config import is_loopback
from penstock.errors import (
    BadFormat,
    DeadlineExceeded,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.ids import BlockId, NodeId
from penstock.limits import CONNECTION_INFLIGHT_BYTES_MAX, DELIVERY_BYTES, GROUP_OVERHEAD_BYTES
from penstock.log.group_format import Buffer
from penstock.log.handshake import ask_with_proof
from penstock.log.meta.api import MetadataStore
from penstock.log.pairing import PairedConnection
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Added, Blocks, Fence, Found, NodeInfo
from penstock.wire import node_messages as n

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
#: An answer to anything but a long poll.
REQUEST_SECONDS = 10.0
#: A node that owes an answer for so long, and says nothing at all, is cut off.
SILENCE_SECONDS = 10.0
#: Between attempts to connect.
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 2.0
#: Unanswered bytes of one connection: what a node takes before it stops reading, which would keep
#: reads and fences waiting, too. Adds beyond it wait here.
INFLIGHT_BYTES_MAX = CONNECTION_INFLIGHT_BYTES_MAX
_HEADS_MAX = 1024

M = TypeVar("M", bound=n.NodeMessage)
NodeLink = PairedConnection[n.NodeMessage]


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
        self._link: NodeLink | None = None
        self._request = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        #: What waits for the connection: called with the error if it fails.
        self._queue: list[Callable[[NodeLink | PenstockError], None]] = []
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
            self._link.abort(error)

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
            self._order(link, head, block, added)
            return

        def connected(outcome: NodeLink | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                added(outcome)
            else:
                self._order(outcome, head, block, added)

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

    def _order(self, link: NodeLink, head: bytes, block: Sequence[Buffer], added: Added) -> None:
        request = self._next_request(link)
        link.order(request, n.AddBlock.KIND, head, block, GROUP_OVERHEAD_BYTES, added)

    async def _ask(
        self, message: n.NodeMessage, wanted: type[M], seconds: float
    ) -> tuple[M, memoryview]:
        link: NodeLink | None = None
        heard_count = 0
        try:
            async with asyncio.timeout(seconds + 2 * self._delay):
                link = await self._connected()
                heard_count = link.heard_count
                answer, body = await link.ask(self._next_request(link), message)
        except TimeoutError as error:
            if link is not None and link.heard_count == heard_count:
                # It may be dead, and nobody was told: the next request makes another.
                link.abort(Unavailable(f"the node has said nothing for {seconds:g} s"))
            raise DeadlineExceeded(f"{self.node} has not answered for {seconds:g} s") from error
        if not isinstance(answer, wanted):
            raise Unavailable(f"the node answered {type(answer).__name__}")
        return answer, body

    def _next_request(self, link: NodeLink) -> int:
        """A number that nobody waits for an answer to; they begin anew after 2^32."""
        while True:
            self._request = self._request % 0xFFFF_FFFF + 1
            if not link.is_unanswered(self._request):
                return self._request

    # ---- connecting

    def _when_connected(self, connected: Callable[[NodeLink | PenstockError], None]) -> None:
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

    async def _connected(self) -> NodeLink:
        if self._link is not None:
            return self._link
        future: asyncio.Future[NodeLink] = self._loop.create_future()

        def connected(outcome: NodeLink | PenstockError) -> None:
            if future.done():
                return
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._when_connected(connected)
        return await future

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
        self._watch(link, heard_count=link.heard_count, rounds=0)
        queue, self._queue = self._queue, []
        for connected in queue:
            connected(link)
        self._on_change()

    async def _open(self) -> NodeLink:
        info = self.info
        if not info.tls and not is_loopback(info.host):
            # Whoever can write to the metadata could name an address of his own.
            raise Unavailable(f"{info.host} does not speak TLS: the token must not travel openly")
        tls = (self._tls or ssl.create_default_context()) if info.tls else None
        _, link = await self._loop.create_connection(self._make_link, info.host, info.port, ssl=tls)
        try:
            hello = n.NodeHello(info.name, info.cookie)
            message = await ask_with_proof(link, self._next_request(link), hello, self._token)
            if not isinstance(message, n.NodeWelcome):
                raise Unavailable(f"{info.host}:{info.port} is not a storage node")
        except BaseException:
            link.abort(Unavailable("the connection was given up"))
            raise
        if link.closed.done():
            raise link.closed.result()  # with the welcome came its end
        self.is_trusted = message.trusted
        return link

    def _make_link(self) -> NodeLink:
        link: NodeLink = PairedConnection(
            n.encode_node_message,
            n.decode_node_message,
            on_end=lambda error: self._ended(link, error),
            ack_kind=n.BlockAdded.KIND,
            window_bytes=INFLIGHT_BYTES_MAX,
            delay_seconds=self._delay,
        )
        return link

    def _watch(self, link: NodeLink, *, heard_count: int, rounds: int) -> None:
        """Cut off a node that owes acknowledgements and says nothing for four rounds."""
        is_silent = link.inflight_bytes > 0 and link.heard_count == heard_count
        rounds = rounds + 1 if is_silent else 0
        if rounds > 4:
            link.abort(Unavailable(f"the node has said nothing for {SILENCE_SECONDS:g} s"))
            return
        look = partial(self._watch, link, heard_count=link.heard_count, rounds=rounds)
        self._watchdog = self._loop.call_later(SILENCE_SECONDS / 4, look)

    def _ended(self, link: NodeLink, error: PenstockError) -> None:
        if link is self._link:
            self._link = None
            self._problem = Unavailable(f"node {self.node}: {error}")
            if self._watchdog is not None:
                self._watchdog.cancel()
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
