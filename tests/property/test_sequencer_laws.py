"""The sequencer against a slow, obvious model, over random stories (Impeller 3.1 and 3.4).

The model keeps the whole history in a list and looks through all of it for each decision. Laws:
answers come in order, once, and never before they are durable (DistributedLog III-A); a periodic
flush waits and shares one write (II-D); segments roll only where a group starts, with the state
below it; what was told survives every crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sample_groups import claim, group, retire

from penstock.errors import GuardFailed, PenstockError, SeqGap, SeqMismatch, StaleInstance
from penstock.ids import Lsn
from penstock.log.core import producers as producers_module
from penstock.log.core.sequencer import (
    Answer,
    OldDuplicate,
    OrderedGroup,
    SegmentLimits,
    Sequencer,
    Write,
)
from penstock.log.core.state import LogState
from penstock.log.group_format import CLAIM, RETIRE, Body, decode_sets
from penstock.log.record_format import RECORD_HEADER_BYTES
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, Kind, NewEntry, SetKey

WRITE_BYTES = 700
LIMITS = SegmentLimits(bytes=2500, ms=500)
#: Groups that the producer table remembers, in place of 32: retries are soon older.
RECENT_GROUPS = 4


@dataclass
class Ordered:
    """One group of the model's log."""

    first_lsn: int
    body: Body
    time_ms: int


class LogModel:
    """The whole history, looked through from its start for every decision."""

    def __init__(self) -> None:
        self.log: list[Ordered] = []

    @property
    def next_lsn(self) -> int:
        return self.log[-1].first_lsn + self.log[-1].body.count if self.log else 0

    def life(self, producer: str) -> list[Ordered]:
        """The producer's groups since it was first claimed or last retired."""
        groups: list[Ordered] = []
        for each in self.log:
            if each.body.producer == producer:
                groups = [] if each.body.flags & RETIRE else [*groups, each]
        return groups

    def next_seq(self, producer: str) -> int:
        return sum(each.body.count for each in self.life(producer) if not each.body.flags & CLAIM)

    def instance(self, producer: str) -> int:
        return max((each.body.instance for each in self.life(producer)), default=0)

    def value(self, key: str) -> bytes | None:
        value = None
        for each in self.log:
            for change in sets_of(each.body):
                if change.key == key:
                    value = change.value
        return value

    def state_below(self, lsn: int) -> LogState:
        state = LogState()
        for each in self.log:
            if each.first_lsn < lsn:
                state.apply(each.body, first_lsn=each.first_lsn, time_ms=each.time_ms)
        return state

    def decide(
        self, body: Body, guards: Sequence[Guard]
    ) -> Appended | OldDuplicate | type[PenstockError]:
        life = self.life(body.producer)
        claims = [each for each in life if each.body.flags & CLAIM]
        data = [each for each in life if not each.body.flags & CLAIM]
        if body.flags & CLAIM:
            if claims and body.instance <= claims[-1].body.instance:
                same = claims[-1].body.data == body.data
                return Appended(Lsn(claims[-1].first_lsn), 1, True) if same else StaleInstance
        elif not claims:
            return SeqGap
        elif body.first_seq < self.next_seq(body.producer):
            return self._decide_used(body, data)
        elif body.instance != claims[-1].body.instance:
            return StaleInstance
        elif body.first_seq > self.next_seq(body.producer):
            return SeqGap
        if any(self.value(guard.key) != guard.expected for guard in guards):
            return GuardFailed
        return Appended(Lsn(self.next_lsn), body.count)

    def _decide_used(
        self, body: Body, data: list[Ordered]
    ) -> Appended | OldDuplicate | type[PenstockError]:
        recent = data[-RECENT_GROUPS:]
        if body.first_seq < recent[0].body.first_seq:
            return OldDuplicate(body.producer, body.instance, body.first_seq, body.count)
        each = [each for each in recent if each.body.first_seq <= body.first_seq][-1]
        if each.body.instance > body.instance:
            return StaleInstance
        same = (each.body.first_seq, each.body.count) == (body.first_seq, body.count)
        return Appended(Lsn(each.first_lsn), body.count, True) if same else SeqMismatch


def sets_of(body: Body) -> list[SetKey]:
    """The metadata that a group changes."""
    return [
        change
        for index, row in enumerate(body.rows)
        if row[0] == Kind.META
        for change in decode_sets(body.payload(index))
    ]


PRODUCERS = st.sampled_from(["p", "q"])
KEYS = st.sampled_from(["k", "j"])
VALUES = st.sampled_from([None, b"", b"1", b"2"])
FLUSHES = st.sampled_from([0, 5, 40]).map(Flush)


class SequencerMachine(RuleBasedStateMachine):
    """Appends, guards, duplicates, gaps, claims, retirements, flush policies, rolls, crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(producers_module, "PRODUCER_RECENT_GROUPS", RECENT_GROUPS)
        self.model = LogModel()
        self.now_ms = 1000
        #: Per cause: the outcome that the model expects, and what must be durable before it.
        self.expected: list[tuple[object, int]] = []
        self.answered = 0
        #: What was told: LSN and body, to be looked for after every crash.
        self.told: list[tuple[int, Body]] = []
        #: Every group that waits, and the times at which it may; `rushed` if it stayed behind from
        #: an earlier write, or if an answer rests on it.
        self.waiting: list[tuple[Ordered, range]] = []
        self.rushed = False
        self.write: Write | None = None
        self.segment_bytes = 0
        self.segment_ms = 0
        self.start(LogState())

    def start(self, state: LogState) -> None:
        self.core = Sequencer(
            state,
            limits=LIMITS,
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            write_bytes_max=WRITE_BYTES,
        )

    # ---- requests

    def request(self, body: Body, guards: Sequence[Guard] = (), flush: Flush = IMMEDIATE) -> None:
        expected = self.model.decide(body, guards)
        if isinstance(expected, Appended) and not expected.duplicate:
            time_ms = max(self.now_ms, self.model.log[-1].time_ms if self.model.log else 0)
            each = Ordered(self.model.next_lsn, body, time_ms)
            self.model.log.append(each)
            self.waiting.append((each, range(self.now_ms, self.now_ms + flush.delay_ms)))
        else:
            self.rushed = bool(self.waiting)  # who was refused accepted no delay
        self.core.append(len(self.expected), body, guards=guards, flush=flush, now_ms=self.now_ms)
        self.expected.append((expected, self.model.next_lsn))
        self.take_answers()

    @initialize()
    def open_both(self) -> None:
        for name in ("p", "q"):
            self.claim(name, 1, 0)

    @rule(name=PRODUCERS, ahead=st.sampled_from([1, 1, 0, 0, -1, 2]), nonce=st.integers(0, 1))
    def claim(self, name: str, ahead: int, nonce: int) -> None:
        instance = max(self.model.instance(name) + ahead, 0)
        self.request(claim(name, instance, nonce=nonce, seq=0))

    @rule(
        name=PRODUCERS,
        parts=st.lists(st.tuples(st.integers(1, 3), FLUSHES), min_size=1, max_size=3),
        size=st.sampled_from([1, 1, 1, 300, 3000]),
        sets=st.dictionaries(KEYS, VALUES, max_size=1),
    )
    def append(
        self,
        name: str,
        parts: list[tuple[int, Flush]],
        size: int,
        sets: dict[str, bytes | None],
    ) -> None:
        """What the producer's newest instance would send next."""
        changes = [SetKey(*each) for each in sets.items()]
        for count, flush in parts:
            entries = [NewEntry(bytes(size))] * count
            self.request(self.next_group(name, entries, changes), flush=flush)

    def next_group(
        self, name: str, entries: list[NewEntry] | int = 1, sets: Sequence[SetKey] = ()
    ) -> Body:
        seq, instance = self.model.next_seq(name), self.model.instance(name)
        return group(name, seq, entries, instance=instance, sets=sets)

    @rule(name=PRODUCERS, key=KEYS, expected=VALUES, value=VALUES, right=st.booleans())
    def append_guarded(
        self, name: str, key: str, expected: bytes | None, value: bytes | None, right: bool
    ) -> None:
        if right:
            expected = self.model.value(key)
        body = self.next_group(name, sets=[SetKey(key, value)])
        self.request(body, [Guard(key, expected), Guard("never", None)])

    @rule(
        name=PRODUCERS,
        shift=st.sampled_from([-3, -2, -1, 0, 1, 2]),
        behind=st.sampled_from([-1, 0, 0, 1, 2]),
        count=st.integers(1, 3),
    )
    def append_wrong(self, name: str, shift: int, behind: int, count: int) -> None:
        """Another seq, another instance, another shape."""
        seq = max(self.model.next_seq(name) + shift, 0)
        self.request(group(name, seq, count, instance=max(self.model.instance(name) - behind, 0)))

    @rule(back=st.integers(1, 15), behind=st.sampled_from([0, 0, 0, 1, -1]))
    def append_again(self, back: int, behind: int) -> None:
        """A retry: the very same bytes, however old; or from another instance."""
        if back <= len(self.model.log):
            body = self.model.log[-back].body
            if behind and not body.flags:
                instance = max(body.instance - behind, 0)
                body = group(body.producer, body.first_seq, body.count, instance=instance)
            self.request(body)

    @rule(name=PRODUCERS, behind=st.sampled_from([None, None, None, 0, 1]))
    def retire(self, name: str, behind: int | None) -> None:
        if behind is None:
            return  # producers live long, or there is little to try
        instance = max(self.model.instance(name) - behind, 0)
        self.request(retire(name, instance, seq=self.model.next_seq(name)))

    @rule(ms=st.sampled_from([3, 5, 40, 600, -50]))
    def pass_time(self, ms: int) -> None:
        self.now_ms = max(self.now_ms + ms, 0)

    @rule()
    def ask(self) -> None:
        self.core.ask(len(self.expected))
        self.rushed = bool(self.waiting)
        self.expected.append((Appended(Lsn(self.model.next_lsn), 0), self.model.next_lsn))
        self.take_answers()

    # ---- writes

    @rule(times=st.integers(0, 3))
    def write_some(self, times: int) -> None:
        for _ in range(times):
            self.take_write()
            if self.write is not None:
                self.written()

    @rule()
    def take_write(self) -> None:
        write = self.core.take_write(self.now_ms)
        size = sum(RECORD_HEADER_BYTES + len(each.body.data) for each, _ in self.waiting)
        due = self.rushed or any(self.now_ms not in early for _, early in self.waiting)
        wanted = self.write is None and bool(self.waiting) and (due or size >= WRITE_BYTES)
        assert (write is not None) == wanted
        if write is None:
            return
        self.check_write(write)
        self.waiting = self.waiting[len(write.groups) :]
        self.rushed = bool(self.waiting)
        self.write = write

    def check_write(self, write: Write) -> None:
        """The oldest waiting groups, as they were ordered; a roll only at the start."""
        taken = [each for each, _ in self.waiting[: len(write.groups)]]
        assert write.durable_lsn == self.core.durable_lsn == taken[0].first_lsn
        for index, (found, each) in enumerate(zip(write.groups, taken, strict=True)):
            assert (found.first_lsn, found.body, found.time_ms) == (
                each.first_lsn,
                each.body,
                each.time_ms,
            )
            self.check_roll(found, index)
        sizes = [RECORD_HEADER_BYTES + len(each.body.data) for each in taken]
        assert write.bytes == sum(sizes)
        assert sum(sizes[:-1]) < WRITE_BYTES

    def check_roll(self, found: OrderedGroup, index: int) -> None:
        size = RECORD_HEADER_BYTES + len(found.body.data)
        full = self.segment_bytes + len(found.body.data) > LIMITS.bytes
        old = found.time_ms - self.segment_ms >= LIMITS.ms
        rolls = self.segment_bytes > 0 and (full or old)
        assert found.rolls is rolls
        if rolls:
            assert index == 0
            assert found.snapshot == self.model.state_below(found.first_lsn)
        if rolls or not self.segment_bytes:
            self.segment_bytes, self.segment_ms = 0, found.time_ms
        self.segment_bytes += size

    @precondition(lambda self: self.write is not None)
    @rule()
    def written(self) -> None:
        assert self.write is not None
        self.core.written(self.write)
        assert self.core.durable_lsn == self.write.end_lsn
        self.write = None
        self.take_answers()

    @rule(really=st.sampled_from([False, False, True]))
    def crash(self, really: bool) -> None:
        """What was not durable is gone; what was told must still be there."""
        if not really:
            return
        durable = self.core.durable_lsn
        self.model.log = [each for each in self.model.log if each.first_lsn < durable]
        for lsn, body in self.told:
            assert any(
                each.first_lsn == lsn and each.body.data == body.data for each in self.model.log
            )
        self.answered = len(self.expected)  # nobody will answer those before
        self.waiting, self.write, self.rushed = [], None, False
        self.start(self.model.state_below(durable))

    def teardown(self) -> None:
        self.patch.undo()

    # ---- answers

    def take_answers(self) -> None:
        """In the order of the requests, each once, none before what it rests on is durable."""
        answers: list[Answer] = self.core.take_answers()
        assert [answer.cause for answer in answers] == list(
            range(self.answered, self.answered + len(answers))
        )
        for answer in answers:
            expected, needs = self.expected[self.answered]
            assert needs <= self.core.durable_lsn
            if isinstance(answer.outcome, PenstockError):
                assert type(answer.outcome) is expected
            else:
                assert answer.outcome == expected
                if isinstance(answer.outcome, Appended) and answer.outcome.count:
                    self.remember(answer.outcome)
            self.answered += 1
        if self.answered < len(self.expected):
            assert self.expected[self.answered][1] > self.core.durable_lsn

    def remember(self, outcome: Appended) -> None:
        for each in self.model.log:
            if each.first_lsn == outcome.first_lsn:
                self.told.append((each.first_lsn, each.body))

    @invariant()
    def state_is_the_fold_of_what_was_ordered(self) -> None:
        self.core.check()
        assert self.core.state.next_lsn == self.model.next_lsn
        for key in ("k", "j"):
            held = self.core.state.metadata.get(key)
            assert (None if held is None else held.data) == self.model.value(key)
        for name in ("p", "q"):
            known = self.core.state.producers.get(name)
            assert (known is None) == (not self.model.life(name))
            if known is not None:
                assert known.next_seq == self.model.next_seq(name)
                assert known.instance == self.model.instance(name)


class TestSequencer(SequencerMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(stateful_step_count=100)
