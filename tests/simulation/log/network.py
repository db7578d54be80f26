"""Connections: two byte streams each, in order, with delays, that end at the worst moment.

Owns what is in flight. A connection ends for its two sides at different times. What a client sent
before the end may be lost, or may lie in a buffer and reach the server long after the client has
connected again and sent everything once more (*late*). Law: within one connection and direction,
what arrives is a prefix of what was sent, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.wire import messages as m

if TYPE_CHECKING:
    from simulation.log.world import World

#: Most packets take little; some take as long as a lost one that TCP sends again.
_DELAY_US = (20, 400)
_SLOW_US = (1000, 40_000)
_SLOW_ODDS = 0.03
#: How late the requests of a dead connection can arrive.
_LATE_US = (0, 2_500_000)
#: How long a side takes to notice that the other one has gone.
_NOTICE_US = (0, 60_000)


@dataclass(frozen=True, slots=True)
class Packet:
    """A frame: the message as bytes, and the body that travels with it."""

    kind: int
    request: int
    head: bytes
    body: bytes

    @staticmethod
    def of(request: int, message: m.Message, body: bytes = b"") -> Packet:
        return Packet(message.KIND, request, m.encode_message(message), body)

    def message(self) -> m.Message:
        return m.decode_message(self.kind, self.head)


class Side(Protocol):
    """Who is at an end of a connection."""

    def receive(
        self, connection: Connection, request: int, message: m.Message, body: bytes
    ) -> None: ...

    def connection_lost(self, connection: Connection) -> None: ...


class Pipe:
    """One direction."""

    def __init__(self, world: World, label: str, deliver: Callable[[Packet], None]) -> None:
        self._world = world
        self._label = label
        self._deliver = deliver
        self._flying: deque[Packet] = deque()
        self._last_us = 0
        self._generation = 0
        self._held = False
        self._dead = False

    def send(self, packet: Packet) -> None:
        if self._dead:
            self._world.count("sent in vain")
            return
        random = self._world.random
        slow = random.random() < _SLOW_ODDS
        self._flying.append(packet)
        if not self._held:
            self._schedule(random.randint(*(_SLOW_US if slow else _DELAY_US)))

    def hold(self) -> None:
        """From now on nothing arrives, and nothing is lost yet: a buffer somewhere fills."""
        self._held = True
        self._generation += 1

    def _schedule(self, delay_us: int) -> None:
        at = max(self._world.now_us + delay_us, self._last_us)
        self._last_us = at
        generation = self._generation
        self._world.after(
            at - self._world.now_us, self._label, lambda: self._arrive(generation), quiet=True
        )

    def _arrive(self, generation: int) -> None:
        if generation == self._generation and self._flying:
            self._deliver(self._flying.popleft())

    def lose(self) -> int:
        """What is in flight, or sent from now on, never arrives; returns how many were lost."""
        lost = len(self._flying)
        self._flying.clear()
        self._generation += 1
        self._dead = True
        return lost

    def release_late(self) -> int:
        """A prefix of what is in flight arrives much later; returns its length."""
        random = self._world.random
        self._held = False
        kept = list(self._flying)[: random.randint(1, len(self._flying))] if self._flying else []
        self.lose()
        self._flying.extend(kept)
        start = random.randint(*_LATE_US)
        for _ in kept:
            self._schedule(start + random.randint(0, 2000))
        return len(kept)

    @property
    def last_us(self) -> int:
        """When the last packet arrives."""
        return self._last_us


class Connection:
    """One connection between a client and one life of the server."""

    def __init__(self, world: World, number: int, client: Side, server: Side) -> None:
        self._world = world
        self.number = number
        self._client = client
        self._server = server
        self.client_open = True
        self.server_open = True
        #: What the client called itself in its Hello.
        self.client_name = ""
        self.to_server = Pipe(world, f"c{number} to server", self._at_server)
        self.to_client = Pipe(world, f"c{number} to client", self._at_client)

    def _at_server(self, packet: Packet) -> None:
        if self.server_open:
            message = packet.message()
            self._world.note(f"c{self.number} > {message} +{len(packet.body)}")
            self._server.receive(self, packet.request, message, packet.body)

    def _at_client(self, packet: Packet) -> None:
        if self.client_open:
            message = packet.message()
            self._world.note(f"c{self.number} < {message} +{len(packet.body)}")
            self._client.receive(self, packet.request, message, packet.body)

    def cut(self, *, late: bool) -> None:
        """The connection breaks. `late`: what the client has sent by then arrives much later."""
        notice_us = self._world.random.randint(*_NOTICE_US)
        lost = self.to_client.lose()
        if late:
            self.to_server.hold()
            self._world.after(notice_us, "client notices, late", self._client_notices_late)
            return
        if self.to_server.lose() + lost:
            self._world.count("lost in flight")
        self._world.after(notice_us, "client notices", self.client_notices)
        notice_us = self._world.random.randint(*_NOTICE_US)
        self._world.after(notice_us, "server notices", self.server_notices)

    def _client_notices_late(self) -> None:
        self.client_notices()
        self._release_late()

    def _release_late(self) -> None:
        if self.to_server.release_late():
            self._world.count("late request")
        wait_us = max(self.to_server.last_us - self._world.now_us, 0)
        self._world.after(wait_us + 1, "server notices", self.server_notices)

    def client_notices(self) -> None:
        if self.client_open:
            self.client_open = False
            self._client.connection_lost(self)

    def server_notices(self) -> None:
        if self.server_open:
            self.server_open = False
            self._server.connection_lost(self)

    def close_by_client(self) -> None:
        """The client lets go at once; what it sent before is still on its way."""
        if not self.client_open:
            return
        self.client_open = False
        self.to_client.lose()
        self._release_late()

    def close_by_server(self, *, died: bool) -> None:
        """The server ends; what it sent before arrives first, unless its machine died."""
        self.server_open = False
        self.to_server.lose()
        if died:
            self.to_client.lose()
        wait = max(self.to_client.last_us - self._world.now_us, 0)
        delay = wait + self._world.random.randint(*_NOTICE_US)
        self._world.after(delay, "client notices", self.client_notices)


class Network:
    """All connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0
        #: Connections that neither side has given up, oldest first.
        self._live: dict[int, Connection] = {}
        #: The client that most cuts hit; what needs several of them in a row then happens.
        self._unlucky = world.swarm.unlucky

    def connect(
        self, client: Side, made: Callable[[Connection], None], refused: Callable[[], None]
    ) -> None:
        """A client dials; the answer comes after a while."""
        delay = self._world.random.randint(*_DELAY_US)

        def dial() -> None:
            server = self._world.server
            if not server.up:
                refused()
                return
            self._count += 1
            connection = Connection(self._world, self._count, client, server)
            self._live[connection.number] = connection
            server.accept(connection)
            made(connection)

        self._world.after(delay, "dial", dial)

    def cut_one(self, *, late: bool) -> bool:
        """Cut a random live connection; False if there is none."""
        self._live = {
            number: connection
            for number, connection in self._live.items()
            if connection.client_open and connection.server_open
        }
        if not self._live:
            return False
        victims = list(self._live.values())
        unlucky = [each for each in victims if each.client_name == self._unlucky]
        victim = self._world.random.choice(unlucky or victims)
        del self._live[victim.number]
        self._world.note(f"c{victim.number} is cut late={late}")
        victim.cut(late=late)
        return True
