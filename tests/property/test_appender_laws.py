"""A producer's appends over a network that loses requests and answers (laws I7, I22; R20).

Laws: each ticket is settled exactly once and truly; what is sent again has identical bytes; a
guarded group is alone in flight; seqs are dense.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import (
    DeadlineExceeded,
    Fenced,
    GuardFailed,
    Overloaded,
    PenstockError,
    Refused,
    StaleInstance,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.client.appender_core import (
    WINDOW_GROUPS,
    AppenderCore,
    Reconnect,
    SendGroup,
    Settle,
)
from penstock.log.group_format import decode_body
from penstock.log.records import Appended, Flush, Guard, NewEntry

#: Done; never visible; unknown; never sent.
SETTLED = (Appended, Refused, Fenced, Unknown, DeadlineExceeded)
FLUSHES = st.sampled_from([0, 0, 5, 40]).map(Flush)


def tickets_of(send: SendGroup) -> set[int]:
    return {int(entry.payload.split(b"-")[0]) for entry in decode_body(send.body).entries(0, 0)}


class AppenderMachine(RuleBasedStateMachine):
    """Submissions, sends, answers, lost connections, giving up; a server that keeps the seqs."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AppenderCore(producer="p", instance=2, next_seq=5)
        self.tickets = 0
        self.guarded: set[int] = set()
        self.outcomes: dict[int, Appended | PenstockError] = {}
        #: On their way to the server, and answers on their way back.
        self.to_server: list[SendGroup] = []
        self.answers: list[tuple[int, Appended | PenstockError]] = []
        #: The server's log: payload of each entry, from LSN 100 on, and the bytes by first seq.
        self.log: list[bytes] = []
        self.groups: dict[int, tuple[int, bytes]] = {}
        self.next_seq = 5
        #: Bytes last sent for a seq that is not known to be free again.
        self.sent: dict[int, SendGroup] = {}
        self.fenced = False
        #: The server has ended the connection, and the client has not heard of it yet.
        self.hung_up = False

    @rule(
        asked=st.lists(st.tuples(st.integers(1, 3), st.booleans(), FLUSHES), max_size=3),
        send=st.booleans(),
    )
    def submit_some(self, asked: list[tuple[int, bool, Flush]], send: bool) -> None:
        for each in asked:
            self.submit(*each)
            if send:
                self.send()

    def submit(self, count: int, guarded: bool, flush: Flush) -> None:
        ticket, self.tickets = self.tickets, self.tickets + 1
        entries = [NewEntry(b"%d-%d" % (ticket, index)) for index in range(count)]
        guards = [Guard("k", b"v")] if guarded else []
        self.guarded |= {ticket} if guarded else set()
        self.settle(self.core.submit(ticket, entries, guards=guards, flush=flush))

    @rule()
    def send(self) -> None:
        for send in self.core.take_sends():
            before = self.sent.setdefault(send.seq, send)
            assert before == send, "a group was sent again with other bytes"
            tickets = tickets_of(send)
            assert bool(send.guards) == bool(tickets & self.guarded)
            assert not send.guards or len(tickets) == 1
            if not self.hung_up:
                self.to_server.append(send)
        flying = [send for send in self.sent.values() if send.seq in self.core._groups]
        if any(send.guards for send in flying):
            assert len(flying) == 1
        assert len(flying) <= WINDOW_GROUPS

    @rule(
        fates=st.lists(st.sampled_from(["take", "take", "guard", "guard", "busy"]), max_size=4),
        answers=st.integers(0, 4),
    )
    def serve_some(self, fates: list[str], answers: int) -> None:
        """The server handles some requests, and some of its answers arrive."""
        self.send()
        for fate in fates:
            if self.to_server:
                self.serve(fate)
        for _ in range(answers):
            if self.answers:
                self.answer()

    def serve(self, fate: str) -> None:
        """The oldest request: a group is never handled before its turn."""
        send = self.to_server.pop(0)
        body = decode_body(send.body)
        outcome: Appended | PenstockError
        if send.seq in self.groups:
            lsn, data = self.groups[send.seq]
            assert data == send.body, "another group was taken for a duplicate"
            outcome = Appended(Lsn(lsn), body.count, True)
        elif self.fenced:
            outcome = StaleInstance("a newer instance")
        elif fate == "busy":
            outcome = Overloaded("later")
            # The connection ends with it: what follows would be a gap.
            self.to_server.clear()
            self.hung_up = True
        elif fate == "guard" and send.guards:
            outcome = GuardFailed("k is w")
        else:
            assert send.seq == self.next_seq, "a gap"
            self.groups[send.seq] = (100 + len(self.log), send.body)
            outcome = Appended(Lsn(100 + len(self.log)), body.count)
            self.log += [bytes(body.payload(index)) for index in range(body.count)]
            self.next_seq += body.count
        self.answers.append((send.seq, outcome))

    def answer(self) -> None:
        seq, outcome = self.answers.pop(0)
        if isinstance(outcome, GuardFailed):
            del self.sent[seq]  # told, hence free for the next group
        effects = self.core.answered(seq, outcome)
        if any(isinstance(effect, Reconnect) for effect in effects):
            self.disconnect()
        self.settle([effect for effect in effects if isinstance(effect, Settle)])

    @rule()
    def disconnect(self) -> None:
        """Requests and answers on their way are lost; the core sends all again."""
        self.to_server.clear()
        self.answers.clear()
        self.hung_up = False
        self.core.disconnected()

    @rule(how=st.sampled_from([*[None] * 8, "fence", "give up"]))
    def end(self, how: str | None) -> None:
        """Seldom: after it there is little to try."""
        if how == "fence":
            self.fenced = True
        elif how == "give up":
            self.disconnect()
            self.settle(self.core.give_up("no answer"))
            assert self.core.is_idle

    def settle(self, effects: Sequence[Settle]) -> None:
        for effect in effects:
            assert isinstance(effect.ticket, int)
            assert effect.ticket not in self.outcomes, "settled twice"
            assert isinstance(effect.outcome, SETTLED)
            self.outcomes[effect.ticket] = effect.outcome
            prefix = b"%d-" % effect.ticket
            places = [at for at, each in enumerate(self.log) if each.startswith(prefix)]
            if isinstance(effect.outcome, Appended):
                first = effect.outcome.first_lsn - 100
                assert places == list(range(first, first + effect.outcome.count))
            elif not isinstance(effect.outcome, Unknown):
                assert places == [], "told as never visible"
            if isinstance(effect.outcome, DeadlineExceeded):
                assert not any(effect.ticket in tickets_of(send) for send in self.sent.values())

    @invariant()
    def checked(self) -> None:
        self.core.check()

    def teardown(self) -> None:
        """With a working server and network, every ticket is settled once."""
        for _ in range(200):
            self.disconnect()
            self.send()
            while self.to_server:
                self.serve("take")
            while self.answers:
                self.answer()
            if self.core.is_idle:
                break
        assert sorted(self.outcomes) == list(range(self.tickets))
        for ticket, outcome in self.outcomes.items():
            if not isinstance(outcome, Appended | Unknown):
                assert not any(each.startswith(b"%d-" % ticket) for each in self.log)


class TestAppender(AppenderMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(stateful_step_count=50)
