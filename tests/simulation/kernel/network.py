"""Connections between machines: byte streams that take their time and end at the worst moment.

Owns what is in flight. Bytes written at one moment travel together, are split at random places, and
arrive in order after a random delay. While the way from one machine to another is cut, what is sent
waits, as TCP would let it. A connection ends for its two sides at different times. What a client
sent before the end may be lost, or lie in a buffer and reach the server long after the client has
connected again and sent everything once more (*late*). A connection may be dead and nobody is told:
then one direction of it, or both, drops everything (*half open*).
Law: within one connection and direction, what arrives is a prefix of what was sent, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.kernel.process import Process
from simulation.kernel.scheduler import Scheduler
from simulation.kernel.transport import Buffer, SimServer, SimTransport

#: The first port that nobody asked for by number.
_PORT = 40_000


@dataclass(slots=True)
class NetworkOdds:
    """How the network behaves; a world may change it as it goes."""

    delay_seconds: tuple[float, float] = (20e-6, 400e-6)
    #: Some bytes take as long as a lost packet that TCP sends again.
    slow_odds: float = 0.03
    slow_seconds: tuple[float, float] = (0.001, 0.04)
    #: How often what was written together arrives in two pieces.
    split_odds: float = 0.05
    #: How often what a client sent arrives after the client has ended the connection, and how late.
    late_odds: float = 0.0
    late_seconds_max: float = 2.5
    #: How long a side takes to notice that the network has ended a connection.
    notice_seconds_max: float = 0.06
    #: What the machines' own buffers take before a transport's buffer fills.
    window_bytes: int = 64 * 1024


class _End:
    """The last thing that travels: an end of file, or a reset."""

    __slots__ = ("error",)

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Pipe:
    """One direction of a connection."""

    def __init__(self, connection: Connection, source: SimTransport, target: SimTransport) -> None:
        self._connection = connection
        self._network = connection.network
        self._scheduler = connection.network.scheduler
        self._source = source
        self._target = target
        self._way = (source.process.machine, target.process.machine)
        self._is_to_server = target is connection.server_end
        self.other: Pipe
        self._flying: deque[bytearray | _End] = deque()
        #: The newest of them, to which bytes that are written at the same moment are added.
        self._newest: bytearray | None = None
        self._written_at = -1.0
        #: How many of them, the oldest first, have a time of arrival; the others are held back.
        self._due_count = 0
        self._last = 0.0
        self._generation = 0
        self._is_held = False
        self._is_dead = False
        self._is_over = False
        self._unread_bytes = 0

    # ---- the sender's side

    @property
    def unsent_bytes(self) -> int:
        """What does not fit into the machines' own buffers."""
        return max(self._unread_bytes - self._network.odds.window_bytes, 0)

    @property
    def in_flight(self) -> int:
        """Writes that have not arrived."""
        return len(self._flying)

    def write(self, data: Buffer) -> None:
        if self._is_over:
            return
        self._unread_bytes += len(data)
        if self._is_dead:
            return
        if self._newest is not None and self._written_at == self._scheduler.now:
            self._newest += data
            return
        self._newest = bytearray(data)
        self._written_at = self._scheduler.now
        self._send(self._newest)

    def _send(self, packet: bytearray | _End) -> None:
        if self._is_dead:
            return
        self._flying.append(packet)
        if self._way in self._network.cuts:
            self._network.held[self] = None
        elif not self._is_held and len(self._flying) == self._due_count + 1:
            self._due(self._network.delay())

    def _due(self, delay: float) -> None:
        """The oldest that has no time of arrival yet gets one."""
        self._due_count += 1
        self._last = max(self._scheduler.now + delay, self._last)
        self._target.process.call_at(self._last, self._arrive, self._generation)

    def finish(self) -> None:
        """The sender closes: the end comes after what was sent, sometimes much later."""
        if not self._is_over:
            self.end(None)
            if self._is_to_server and self._network.is_late():
                self.postpone()
            self._connection.side_ended()

    def abort(self) -> None:
        """The sender lets go: what was sent is lost, or arrives late."""
        if not self._is_over:
            late = self._is_to_server and self._network.is_late()
            self.lose(late=late)
            self.end(ConnectionResetError("the peer reset the connection"))
            if late:
                self.postpone()
            self._connection.side_ended()

    def abandon(self) -> None:
        """Nothing follows what was sent, not even an end: the other side knows, or will not."""
        self._is_over = True
        self._connection.side_ended()

    def lose(self, *, late: bool = False) -> int:
        """What is in flight never arrives, or, if late, some of it; returns how much is lost."""
        count = len(self._flying)
        kept = self._scheduler.random.randint(1, count) if late and count else 0
        self._newest = None
        self._flying = deque(list(self._flying)[:kept])
        self._due_count = 0
        self._generation += 1
        self.flush()
        return count - kept

    def end(self, error: Exception | None) -> None:
        """Nothing follows what was sent but this end."""
        if not self._is_over:
            self._newest = None
            self._send(_End(error))
            self._is_over = True

    def postpone(self) -> None:
        """All that is in flight arrives much later."""
        if len(self._flying) > 1:
            self._network.count("late request")
        self._newest = None
        self._generation += 1
        self._due_count = 0
        self._is_held = False
        self._last = self._scheduler.now + (
            self._scheduler.random.random() * self._network.odds.late_seconds_max
        )
        self.flush()

    def hold(self) -> None:
        """From now on nothing arrives, and nothing is lost yet: a buffer somewhere fills."""
        self._is_held = True
        self._newest = None
        self._generation += 1
        self._due_count = 0

    def release(self) -> None:
        self._is_held = False
        self.flush()

    def die(self) -> None:
        """What was sent, and whatever will be, never arrives; not even an end does."""
        self.lose()
        self._is_dead = True

    def flush(self) -> None:
        """What was held back goes on its way, if it can."""
        if self._way in self._network.cuts:
            self._network.held[self] = None
        elif not self._is_held:
            while self._due_count < len(self._flying):
                self._due(self._network.delay())

    # ---- the receiver's side

    def _arrive(self, generation: int) -> None:
        if generation != self._generation or not self._flying:
            return
        packet = self._flying.popleft()
        self._due_count -= 1
        if isinstance(packet, _End):
            self._connection.note(self._is_to_server, f"end {packet.error!r}")
            self._target.ended(packet.error)
            return
        if packet is self._newest:
            self._newest = None
        network = self._network
        if len(packet) > 1 and self._scheduler.random.random() < network.odds.split_odds:
            size = self._scheduler.random.randrange(1, len(packet))
            self._flying.appendleft(packet[size:])
            self._due_count += 1
            self._last = max(self._scheduler.now + network.delay(), self._last)
            self._target.process.call_at(self._last, self._arrive, generation)
            packet = packet[:size]
        self._connection.note(self._is_to_server, f"{len(packet)} bytes")
        self._target.received(packet)

    def read(self, size: int) -> None:
        """The receiver has taken so many bytes."""
        self._unread_bytes -= size
        self._source.drained()


class Connection:
    """One connection between a client and a server process."""

    def __init__(
        self, network: Network, number: int, client_end: SimTransport, server_end: SimTransport
    ) -> None:
        self.network = network
        self.number = number
        self.client_end = client_end
        self.server_end = server_end
        #: Names of the machines.
        self.client = client_end.process.machine
        self.server = server_end.process.machine
        self.to_server = client_end.pipe = Pipe(self, client_end, server_end)
        self.to_client = server_end.pipe = Pipe(self, server_end, client_end)
        self.to_server.other, self.to_client.other = self.to_client, self.to_server
        network.connections[number] = self

    @property
    def is_open(self) -> bool:
        """Neither side has ended it, nor has the network."""
        return self.number in self.network.connections

    def note(self, to_server: bool, text: str) -> None:
        self.network.scheduler.note(f"c{self.number} {'>' if to_server else '<'} {text}")

    def side_ended(self) -> None:
        self.network.connections.pop(self.number, None)

    def reset(self, *, late: bool = False) -> None:
        """The network ends it. `late`: what the client has sent arrives much later all the same."""
        if not self.is_open:
            return
        network = self.network
        self.note(True, f"is reset late={late}")
        lost = self.to_client.lose()
        if late:
            self.to_server.hold()
        else:
            lost += self.to_server.lose()
            self.to_server.abandon()
            self._notice(self.server_end)
        if lost:
            network.count("lost in flight")
        self.to_client.abandon()
        seconds = network.scheduler.random.random() * network.odds.notice_seconds_max
        network.scheduler.after(seconds, self._client_notices, late)

    def _notice(self, end: SimTransport) -> None:
        network = self.network
        seconds = network.scheduler.random.random() * network.odds.notice_seconds_max
        error = ConnectionResetError("the network ended the connection")
        end.process.call_later(seconds, end.lost, error)

    def _client_notices(self, late: bool) -> None:
        error = ConnectionResetError("the network ended the connection")
        self.client_end.process.call_soon(self.client_end.lost, error)
        if late:
            self.to_server.lose(late=True)
            self.to_server.end(ConnectionResetError("the connection ended"))
            self.to_server.postpone()

    def go_silent(self) -> None:
        """Half open: nothing passes any more, and nobody is told."""
        for pipe in (self.to_server, self.to_client):
            pipe.lose()
            pipe.hold()
        self.note(True, "goes silent")
        self.network.connections.pop(self.number, None)
        self.network.silent.append(self)

    def half_open(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """From now on these directions drop everything. No healing tells either side."""
        self.note(to_server, f"is half open to_server={to_server} to_client={to_client}")
        if to_server:
            self.to_server.die()
        if to_client:
            self.to_client.die()
        self.network.connections.pop(self.number, None)

    def hold(self, *, to_server: bool = True) -> None:
        """From now on nothing arrives, until `release`."""
        (self.to_server if to_server else self.to_client).hold()

    def release(self, *, to_server: bool = True) -> None:
        (self.to_server if to_server else self.to_client).release()

    def side_died(self, end: SimTransport, *, lose: bool, silent: bool) -> None:
        """The process at one end was killed."""
        if silent:
            self.go_silent()
            return
        pipe = end.pipe
        if lose and pipe.lose():
            self.network.count("lost in flight")
        pipe.end(ConnectionResetError("the peer's process died"))
        pipe.other.lose()
        self.side_ended()


class Network:
    """All connections of a world."""

    def __init__(
        self,
        scheduler: Scheduler,
        odds: NetworkOdds | None = None,
        count: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`count` is told of what happened, for worlds that want it to happen."""
        self.scheduler = scheduler
        self.odds = NetworkOdds() if odds is None else odds
        self.count = count
        #: Those that neither side has given up, oldest first.
        self.connections: dict[int, Connection] = {}
        #: Those that ended without a word to anybody.
        self.silent: list[Connection] = []
        #: Ways from one machine to another on which nothing passes, and how often each is cut.
        self.cuts: dict[tuple[str, str], int] = {}
        self.listeners: dict[tuple[str, int], SimServer] = {}
        #: What waits for a way to be mended.
        self.held: dict[Pipe, None] = {}
        self._dials: list[Callable[[], None]] = []
        self._number = 0
        self._port = _PORT
        scheduler.network = self

    def delay(self) -> float:
        random, odds = self.scheduler.random.random, self.odds
        low, high = odds.slow_seconds if random() < odds.slow_odds else odds.delay_seconds
        return low + (high - low) * random()

    def is_late(self) -> bool:
        odds = self.odds.late_odds
        return odds > 0.0 and self.scheduler.random.random() < odds

    # ---- connecting

    def listen(
        self, process: Process, factory: Callable[[], Any], host: str, port: int
    ) -> SimServer:
        if port == 0:
            self._port += 1
            port = self._port
        address = (host, port)
        if address in self.listeners:
            raise OSError(98, f"{host}:{port} is in use")
        server = self.listeners[address] = SimServer(self, process, factory, address)
        return server

    async def connect(self, process: Process, host: str, port: int) -> SimTransport:
        """A client dials; raises ConnectionRefusedError if nobody listens there."""
        answered: asyncio.Future[SimTransport] = process.create_future()
        self.scheduler.after(self.delay(), self._dial, process, (host, port), answered)
        return await answered

    def _dial(
        self, process: Process, address: tuple[str, int], answered: asyncio.Future[SimTransport]
    ) -> None:
        if process.dead or answered.done():
            return
        ways = ((process.machine, address[0]), (address[0], process.machine))
        if any(way in self.cuts for way in ways):
            self._dials.append(lambda: self._dial(process, address, answered))
            return
        listener = self.listeners.get(address)
        if listener is None:
            error = ConnectionRefusedError(111, f"nobody listens at {address}")
            process.call_later(self.delay(), _settle, answered, None, error)
            return
        self._number += 1
        self._port += 1
        own = (process.machine, self._port)
        client_end = SimTransport(process, own, address)
        server_end = SimTransport(listener.process, address, own)
        connection = Connection(self, self._number, client_end, server_end)
        self.scheduler.note(f"c{self._number} {process.name} to {listener.process.name}")
        listener.process.call_soon(lambda: server_end.begin(listener.factory()))
        process.call_later(self.delay(), _settle, answered, connection, None)

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from one machine to another until it is mended as often."""
        self.cuts[source, target] = self.cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        left = self.cuts.pop((source, target), 0) - 1
        if left > 0:
            self.cuts[source, target] = left
        else:
            self._flush()

    def heal(self) -> None:
        """Mend all ways; connections that are silent are reset; late is late no more."""
        self.cuts.clear()
        self.odds.late_odds = 0.0
        silent, self.silent = self.silent, []
        for connection in silent:
            for end in (connection.client_end, connection.server_end):
                connection._notice(end)
        self._flush()

    def _flush(self) -> None:
        held, self.held = self.held, {}
        for pipe in held:
            pipe.flush()
        dials, self._dials = self._dials, []
        for dial in dials:
            dial()

    def process_died(self, process: Process, *, lose: bool, silent: bool) -> None:
        for listener in list(self.listeners.values()):
            if listener.process is process:
                listener.close()
        for connection in list(self.connections.values()):
            for end in (connection.client_end, connection.server_end):
                if end.process is process:
                    connection.side_died(end, lose=lose, silent=silent)


def _settle(
    answered: asyncio.Future[SimTransport],
    connection: Connection | None,
    error: Exception | None,
) -> None:
    if answered.done():
        if connection is not None:
            connection.to_server.abort()  # whoever dialled has given up
    elif connection is None:
        assert error is not None
        answered.set_exception(error)
    else:
        answered.set_result(connection.client_end)
