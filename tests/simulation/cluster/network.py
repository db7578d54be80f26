"""Connections between simulated processes, and storage nodes as a proxy sees them through them.

A connection keeps its messages in order, each way. While the way from one machine to another is
cut, messages are held back, as TCP would; the client gives a silent node up after a while. When a
connection ends, what was under way is lost, or arrives all the same, much later: whoever sent it
knows nothing, and is told `Unavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import DeadlineExceeded, PenstockError, Unavailable
from penstock.ids import NodeId
from penstock.limits import DELIVERY_BYTES
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Added, Blocks, Fence, NodeInfo
from penstock.log.replication.node_core import ReadRequest
from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.cluster.nodes import SimNode
    from simulation.cluster.world import ClusterWorld

#: A node that owes an answer to an add and says nothing for so long is given up.
SILENCE_SECONDS = 0.8
REQUEST_SECONDS = 1.0
#: How much later the messages of a connection that ended may still arrive.
LATE_SECONDS_MAX = 4.0

Action = Callable[[], None]
Outcome = Fence | Blocks | list[tuple[int, int]] | PenstockError | None


class Connection:
    """See the module's docstring. `ended` is told to each side once, unless it ended it itself."""

    def __init__(
        self,
        world: ClusterWorld,
        client: tuple[str, Process],
        server: tuple[str, Process | None],
        ended: Action,
    ) -> None:
        self._world = world
        self.client, self._client_process = client
        self.server, self._server_process = server
        self._ended = ended
        self.server_ended: Action = _nothing
        self.is_open = True
        #: It ended, and what was under way arrives all the same.
        self._is_late = False
        #: When the last message arrives, by direction.
        self._last = {True: 0.0, False: 0.0}
        self._held: list[tuple[bool, Action]] = []
        world.connections[self] = None
        self.reset_if_dead()

    def send(self, to_server: bool, action: Action) -> None:
        """`action` happens over there, if it arrives."""
        if not self.is_open:
            return
        if self._held or self._is_cut(to_server):
            self._held.append((to_server, action))
        else:
            self._schedule(to_server, action, self._world.delay())

    def _is_cut(self, to_server: bool) -> bool:
        way = (self.client, self.server) if to_server else (self.server, self.client)
        return way in self._world.cuts

    def _schedule(self, to_server: bool, action: Action, delay: float) -> None:
        at = max(self._last[to_server], self._world.now + delay)
        self._last[to_server] = at
        process = self._server_process if to_server else self._client_process
        if process is not None:
            process.call_at(at, self._arrive, to_server, action)

    def _arrive(self, to_server: bool, action: Action) -> None:
        if self.is_open:
            action()
        elif to_server and self._is_late:
            self._world.count("late request")
            action()

    def flush(self) -> None:
        """A way was mended: what was held back goes on, as far as it can."""
        held, self._held = self._held, []
        for place, (to_server, action) in enumerate(held):
            if self._is_cut(to_server):
                self._held = held[place:]
                return
            self._schedule(to_server, action, self._world.delay())
        self.reset_if_dead()

    def reset_if_dead(self) -> None:
        """Whoever has died answers with a reset, as soon as anything gets through."""
        process = self._server_process
        if (process is None or process.dead) and not self._is_cut(False):
            self._client_process.call_later(self._world.delay(), self.break_off)

    def close(self) -> None:
        """The client ends it."""
        self._end(True)

    def break_off(self) -> None:
        """The network ends it; the client hears of it."""
        self._end(False)

    def _end(self, by_client: bool) -> None:
        if not self.is_open:
            return
        world = self._world
        self.is_open = False
        self._is_late = world.is_broken and world.random.random() < world.swarm.late_odds
        world.connections.pop(self, None)
        held, self._held = self._held, []
        if self._is_late:
            for to_server, action in held:
                if to_server:
                    delay = world.random.random() * LATE_SECONDS_MAX
                    self._schedule(True, action, delay)
        if not by_client:
            self._client_process.call_soon(self._ended)
        if self._server_process is not None:
            self._server_process.call_later(world.delay(), self.server_ended)


def _nothing() -> None:
    return None


class SimNodes:
    """All storage nodes, for one life of a proxy (`Nodes`)."""

    def __init__(self, world: ClusterWorld, proxy: str, process: Process) -> None:
        self.world = world
        self.proxy = proxy
        self.process = process
        self._infos: dict[NodeId, NodeInfo] = dict(world.registry)
        self._clients: dict[NodeId, SimNodeClient] = {}
        self._watchers: list[Callable[[], None]] = []

    def client(self, node: NodeId) -> SimNodeClient | None:
        if node not in self._infos:
            return None
        found = self._clients.get(node)
        if found is None:
            found = self._clients[node] = SimNodeClient(self, node)
        return found

    def alive(self) -> dict[NodeId, NodeInfo]:
        return dict(self._infos)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        return partial(self._watchers.remove, changed)

    def refresh(self) -> None:
        """The metadata told which nodes are there."""
        self._infos = dict(self.world.registry)
        for changed in list(self._watchers):
            changed()


class SimNodeClient:
    """One node, believed to be in one life (`NodeClient`)."""

    def __init__(self, nodes: SimNodes, node: NodeId) -> None:
        self._nodes = nodes
        self._world = nodes.world
        self._node = node
        name, _, self._cookie = node.partition(":")
        self._target: SimNode = nodes.world.nodes[name]
        self._connection: Connection | None = None
        self._number = 0
        self._adds: dict[int, Added] = {}
        self._answers: dict[int, asyncio.Future[Outcome]] = {}
        self._heard = 0.0
        self._watching = False

    @property
    def node(self) -> NodeId:
        return self._node

    def add(self, key: SegmentKey, epoch: int, block: Sequence[Buffer], added: Added) -> None:
        data = b"".join(block)
        number = self._next()
        self._adds[number] = added
        self._request(
            number, lambda trusted, reply: self._target.add(reply, key, epoch, data, trusted)
        )
        if not self._watching:
            self._watching = True
            self._heard = self._world.now
            self._nodes.process.call_later(SILENCE_SECONDS, self._watch)

    async def fence(self, key: SegmentKey, epoch: int) -> Fence:
        found = await self._ask(
            lambda trusted, reply: self._target.fence(reply, key, epoch, trusted), REQUEST_SECONDS
        )
        assert isinstance(found, Fence)
        return found

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
        request = ReadRequest(key, first, durable_block, bytes_max, fence_epoch, wait_ms)
        found = await self._ask(
            lambda trusted, reply: self._target.read(reply, request, trusted),
            REQUEST_SECONDS + wait_ms / 1000,
        )
        assert isinstance(found, Blocks)
        return found

    async def list_blocks(self, key: SegmentKey, first: int, end: int) -> list[tuple[int, int]]:
        found = await self._ask(
            lambda trusted, reply: self._target.list_blocks(reply, key, first, end),
            REQUEST_SECONDS,
        )
        assert isinstance(found, list)
        return found

    # ---- one connection after the other

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _ask(
        self, ask: Callable[[bool, Callable[[Outcome], None]], None], seconds: float
    ) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        number = self._next()
        self._answers[number] = future
        self._request(number, ask)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"node {self._node} did not answer") from None
        finally:
            self._answers.pop(number, None)

    def _request(self, number: int, ask: Callable[[bool, Callable[[Outcome], None]], None]) -> None:
        connection = self._connected()

        def reply(outcome: Outcome) -> None:
            connection.send(False, partial(self._answered, connection, number, outcome))

        def arrive() -> None:
            ask(self._target.cookie == self._cookie, reply)

        connection.send(True, arrive)

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = Connection(
                self._world,
                (self._nodes.proxy, self._nodes.process),
                (self._target.name, self._target.process),
                lambda: self._ended(connection),
            )
            self._connection = connection
        return self._connection

    def _answered(self, connection: Connection, number: int, outcome: Outcome) -> None:
        if connection is not self._connection:
            return
        self._heard = self._world.now
        added = self._adds.pop(number, None)
        if added is not None:
            assert outcome is None or isinstance(outcome, PenstockError)
            added(outcome)
            return
        future = self._answers.pop(number, None)
        if future is not None and not future.done():
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _ended(self, connection: Connection) -> None:
        """Nothing that was under way will be answered."""
        if connection is not self._connection:
            return
        self._connection = None
        error = Unavailable(f"the connection to {self._node} ended")
        adds, self._adds = self._adds, {}
        answers, self._answers = self._answers, {}
        for added in adds.values():
            added(error)
        for future in answers.values():
            if not future.done():
                future.set_exception(error)

    def _watch(self) -> None:
        self._watching = bool(self._adds)
        if not self._watching:
            return
        if self._world.now - self._heard >= SILENCE_SECONDS and self._connection is not None:
            self._world.count("silent node given up")
            connection = self._connection
            connection.close()
            self._ended(connection)
        self._nodes.process.call_later(SILENCE_SECONDS, self._watch)
