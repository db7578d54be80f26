"""The server's shell in the simulation: connections, requests and the way up and down.

Mirrors penstock/log/server/connection.py and server.py; what the log does is the owner's (owner.py
here and there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.errors import Overloaded, PenstockError, Trimmed
from penstock.ids import Lsn
from penstock.log.core.sessions import Sessions
from penstock.log.core.tails import Deliver, SubscriptionId
from penstock.log.group_format import check_new_body, decode_body
from penstock.log.records import Flush
from penstock.log.storage.reader import find_time, read_last
from penstock.wire import messages as m
from penstock.wire.errors import error_code
from simulation.log.machine import MachineDisk, ProcessDied
from simulation.log.network import Connection, Packet
from simulation.log.owner import Outcome, SimOwner

if TYPE_CHECKING:
    from simulation.log.world import World

#: A subscription: which connection, and its number there.
Subscriber = tuple[Connection, int]


class SimServer:
    """One server process at a time; `life` counts them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.life = 0
        self.up = False
        self.disk: MachineDisk
        self.owner: SimOwner
        self._connections: dict[int, Connection] = {}
        self._subscriptions: dict[int, set[int]] = {}
        self._sessions: Sessions[Connection] = Sessions()
        self._turn_due = False

    # ---- life

    def start(self) -> None:
        """A new process: create or recover the log, then listen."""
        self.life += 1
        self._connections, self._subscriptions = {}, {}
        self._sessions = Sessions()
        self._turn_due = False
        self.disk = MachineDisk(self._world.disk)
        self._world.arm(self.disk)
        try:
            self.owner = SimOwner(
                self._world,
                self.disk,
                deliver=self._deliver,
                fail_subscription=self._fail_subscription,
                died=self._died,
            )
        except ProcessDied as death:
            self._died(f"in recovery, {death}", death.power_cut)
            return
        except OSError as error:
            if not self.disk.sync_failed:
                raise
            self._died(f"in recovery, {error}", False)
            return
        self.up = True
        self._world.note(f"life {self.life} serves at {self.owner.sequencer.durable_lsn}")
        self.owner.start()

    def _died(self, cause: str, power_cut: bool) -> None:
        """The process is gone, or the whole machine with it; somebody starts it again later."""
        self._world.note(f"life {self.life} dies power_cut={power_cut}: {cause}")
        self._end(died=power_cut or self._world.random.random() < 0.5)
        self._world.server_died(power_cut=power_cut)

    def stop(self) -> None:
        """An operator stops the server."""
        self.owner.stop(self._stopped)

    def _stopped(self) -> None:
        self._world.note(f"life {self.life} stopped cleanly")
        self._end(died=False)
        self._world.server_stopped()

    def _end(self, *, died: bool) -> None:
        self.up = False
        for connection in list(self._connections.values()):
            connection.close_by_server(died=died)
        self._connections, self._subscriptions = {}, {}

    # ---- connections

    def accept(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._subscriptions[connection.number] = set()

    def connection_lost(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._sessions.close(connection.client_name, connection)
            for number in sorted(self._subscriptions.pop(connection.number)):
                self.owner.tails.unsubscribe((connection, number))

    def _send(
        self, connection: Connection, request: int, message: m.Message, body: bytes = b""
    ) -> None:
        if connection.server_open:
            self._world.count(f"message {type(message).__name__}")
            connection.to_client.send(Packet.of(request, message, body))

    def _fail(self, connection: Connection, request: int, error: PenstockError) -> None:
        self._world.count(f"answer {type(error).__name__}")
        self._send(connection, request, m.Failed(error_code(error), str(error)))

    def receive(
        self, connection: Connection, request: int, message: m.Message, body: bytes
    ) -> None:
        if connection.number not in self._connections:
            return
        self._world.count(f"message {type(message).__name__}")
        try:
            self._dispatch(connection, request, message, body)
        except Overloaded as error:
            self._fail(connection, request, error)
        self.owner.check()
        if not self._turn_due:
            self._turn_due = True
            self.owner.later((0, 0), "turn", self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.owner.pump()

    def _dispatch(
        self, connection: Connection, request: int, message: m.Message, body: bytes
    ) -> None:
        owner = self.owner
        match message:
            case m.Hello():
                self._hello(connection, request, message)
            case m.Append():
                self._append(connection, request, message, body)
            case m.Subscribe():
                self._subscribe(connection, message)
            case m.Credit():
                owner.perform(owner.tails.credit((connection, message.subscription), message.bytes))
            case m.Unsubscribe():
                owner.tails.unsubscribe((connection, message.subscription))
                self._subscriptions[connection.number].discard(message.subscription)
            case m.GetProducer():
                known = owner.sequencer.state.producers.get(message.producer)
                answer = m.Producer(known.instance, known.next_seq) if known else m.Producer(0, 0)
                owner.sequencer.ask(lambda _: self._send(connection, request, answer))
            case m.GetMetadata():
                self._metadata(connection, request, message)
            case m.GetBounds():
                point = owner.storage.manifest.trim_point
                self._send(connection, request, m.LogBounds(point, owner.sequencer.durable_lsn))
            case m.ReadLast() | m.FindTime() | m.Trim():
                owner.answer_from_files(
                    lambda: self._answer(connection, request, message),
                    lambda error: self._fail(connection, request, error),
                )
            case _:
                raise AssertionError(f"{message} is not for a server")

    def _answer(
        self, connection: Connection, request: int, message: m.ReadLast | m.FindTime | m.Trim
    ) -> None:
        storage = self.owner.storage
        match message:
            case m.ReadLast():
                record = read_last(storage, message.tag, message.end)
                self._send(connection, request, m.LastEntry(), record or b"")
            case m.FindTime():
                self._send(connection, request, m.Position(find_time(storage, message.time_ms)))
            case m.Trim():
                self._send(connection, request, m.Position(self.owner.trim(message.lsn)))

    def _hello(self, connection: Connection, request: int, message: m.Hello) -> None:
        connection.client_name = message.session
        older = self._sessions.open(message.session, connection)
        if older is not None:
            self._world.count("connection silenced")
            self.connection_lost(older)
            older.close_by_server(died=True)
        manifest = self.owner.storage.manifest
        tail = self.owner.sequencer.durable_lsn
        welcome = m.Welcome(manifest.log_id, manifest.epoch, tail, manifest.trim_point)
        self._send(connection, request, welcome)

    def _append(self, connection: Connection, request: int, message: m.Append, data: bytes) -> None:
        if self._world.is_overloaded():
            raise Overloaded("too many bytes of unanswered appends")
        body = decode_body(data)
        check_new_body(body)

        def reply(outcome: Outcome) -> None:
            if isinstance(outcome, PenstockError):
                self._fail(connection, request, outcome)
                return
            self._world.count("answer duplicate" if outcome.duplicate else "answer appended")
            done = m.AppendDone(outcome.first_lsn, outcome.count, outcome.duplicate)
            self._send(connection, request, done)

        self.owner.append(reply, body, message.guards, Flush(message.flush_ms))

    def _metadata(self, connection: Connection, request: int, message: m.GetMetadata) -> None:
        found = sorted(
            (key, value)
            for key, value in self.owner.sequencer.state.metadata.items()
            if (key == message.prefix if message.exact else key.startswith(message.prefix))
        )
        values = tuple(m.MetadataValue(key, value.data, value.lsn) for key, value in found)
        self.owner.sequencer.ask(lambda _: self._send(connection, request, m.Metadata(values)))

    # ---- subscriptions

    def _subscribe(self, connection: Connection, message: m.Subscribe) -> None:
        number = message.subscription
        point = self.owner.storage.manifest.trim_point
        if message.start < point:
            error = Trimmed(f"lsn {message.start} is below the trim point {point}")
            self._fail(connection, number, error)
            return
        self._subscriptions[connection.number].add(number)
        effects = self.owner.tails.subscribe(
            (connection, number),
            None if message.tags is None else frozenset(message.tags),
            start=Lsn(message.start),
            end=Lsn(message.end),
            credit=message.credit,
        )
        self.owner.perform(effects)

    def _deliver(self, effect: Deliver) -> None:
        connection, number = cast(Subscriber, effect.id)
        delivery = m.Delivery(number, effect.looked_up_to, effect.done)
        self._send(connection, 0, delivery, b"".join(effect.records))
        if effect.done:
            self._subscriptions[connection.number].discard(number)

    def _fail_subscription(self, id: SubscriptionId, error: PenstockError) -> None:
        connection, number = cast(Subscriber, id)
        self._subscriptions.get(connection.number, set()).discard(number)
        self._fail(connection, number, error)
