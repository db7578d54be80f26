"""Drive one log on one disk, synchronously, and check it against what was sent to it.

Owns no decisions of the log: the real sequencer, storage, recovery and reader run here, without a
server, a thread or a clock. `Sent` remembers every group and what is known of it, over all
reopenings; `LogDriver.check` compares the log with it.

    sent ──acknowledged──────────────► placed: there for ever, at this LSN, once, whole
      └──no answer, then a reopening─► found there, hence placed; or gone for ever

Laws checked: I1, I2 (placed groups), I3 (each tag, and pairs of tags), I7 (a retry answers the
first LSN), I8 (a group is whole or absent), and that the state is the fold of the placed groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.ids import Lsn
from penstock.log.core.sequencer import OldDuplicate, SegmentLimits, Sequencer, decide_duplicate
from penstock.log.group_format import (
    CLAIM,
    Body,
    check_new_body,
    decode_body,
    encode_body,
    meta_entry,
)
from penstock.log.record_format import decode_header, decode_record
from penstock.log.records import Appended, Entry, Guard, Kind, NewEntry, SetKey, Value
from penstock.log.storage.cold import ColdStore
from penstock.log.storage.disk import Disk
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.reader import find_group, find_time, read_last, read_piece
from penstock.log.storage.recover import create_log, recover

#: Identity of driven logs, unless the test needs another one.
LOG_ID = bytes(range(16))
#: Segments that roll after a few groups.
SMALL_SEGMENTS = SegmentLimits(bytes=4096, ms=2**40)
#: A segment that never rolls.
ONE_SEGMENT = SegmentLimits(bytes=2**30, ms=2**40)
#: Small enough that a read of a small log takes several pieces.
PIECE_BYTES = 1500
#: Later than every append: whatever waits is due.
_FAR_MS = 2**60


@dataclass(frozen=True, slots=True)
class Attempt:
    """A group as it was sent."""

    body: Body
    entries: tuple[NewEntry, ...]
    sets: tuple[SetKey, ...]
    time_ms: int

    def seen(self, first_lsn: int) -> list[Entry]:
        """What a reader must see of it."""
        body = self.body
        step = 0 if body.flags & CLAIM else 1
        return [
            Entry(
                Lsn(first_lsn + place),
                entry.kind,
                entry.tags,
                body.producer,
                body.instance,
                body.first_seq + step * place,
                self.time_ms,
                entry.rows,
                entry.payload,
            )
            for place, entry in enumerate(self.entries)
        ]


@dataclass(slots=True)
class Sent:
    """What was sent to a log, over all its reopenings."""

    #: Groups that are in the log for certain, in LSN order, from LSN 0 and without a gap.
    placed: list[Attempt] = field(default_factory=list)
    #: Groups without an answer, in the order in which they were sent.
    doubtful: list[Attempt] = field(default_factory=list)
    #: End of the placed groups.
    tail: int = 0
    #: The trim point lies between what was confirmed and what was asked for.
    trim_confirmed: int = 0
    trim_asked: int = 0

    def place(self, attempt: Attempt) -> None:
        self.placed.append(attempt)
        self.tail += attempt.body.count

    def placed_at(self) -> list[tuple[int, Attempt]]:
        """Placed groups with their first LSNs."""
        lsn = 0
        found = []
        for attempt in self.placed:
            found.append((lsn, attempt))
            lsn += attempt.body.count
        return found

    def entries(self) -> list[Entry]:
        return [entry for lsn, attempt in self.placed_at() for entry in attempt.seen(lsn)]

    def metadata(self) -> dict[str, Value]:
        """Metadata as it must be, folded here and not by the code under test."""
        found: dict[str, Value] = {}
        for lsn, attempt in self.placed_at():
            for change in attempt.sets:
                if change.value is None:
                    found.pop(change.key, None)
                else:  # the entry that sets keys is the last one of its group
                    found[change.key] = Value(change.value, Lsn(lsn + attempt.body.count - 1))
        return found

    def producer(self, name: str) -> tuple[int, int]:
        """Instance and next seq of a producer; (0, 0) if it never claimed."""
        instance = next_seq = 0
        for attempt in self.placed:
            if attempt.body.producer == name:
                instance = attempt.body.instance
                if not attempt.body.flags & CLAIM:
                    next_seq += attempt.body.count
        return instance, next_seq

    def copy(self) -> Sent:
        return replace(self, placed=list(self.placed), doubtful=list(self.doubtful))


#: Told "sent" and "acked" as it happens, for a trace.
Listener = Callable[[str, Attempt], None]


class LogDriver:
    """An open log. A new one is made for each opening; `sent` goes from one to the next."""

    def __init__(
        self,
        disk: Disk,
        *,
        sent: Sent | None = None,
        limits: SegmentLimits = SMALL_SEGMENTS,
        log_id: bytes = LOG_ID,
        cold: ColdStore | None = None,
        listener: Listener = lambda event, attempt: None,
    ) -> None:
        """Create the log if there is none, recover it, and settle what was in doubt."""
        self.disk = disk
        self.sent = Sent() if sent is None else sent
        self._limits = limits
        self._cold = cold
        self._listener = listener
        #: The clock; every group takes the next millisecond.
        self.now_ms = 1_000_000 + len(self.sent.placed)
        store = FileManifestStore(disk)
        if store.read() is None:
            create_log(disk, store, log_id=log_id, now_ms=self.now_ms)
        recovered = recover(disk, store)
        self.torn_bytes = recovered.torn_bytes
        self.storage = LogStorage(disk, store, recovered, cold=cold, now_ms=lambda: self.now_ms)
        self.sequencer = Sequencer(
            recovered.state,
            limits=limits,
            segment_bytes=limits.bytes if self.storage.is_outdated else self.storage.open_bytes,
            segment_ms=self.storage.open_ms,
        )
        self.now_ms = max(self.now_ms, recovered.state.time_ms) + 1
        self._settle()

    def reopen(self, disk: Disk | None = None) -> LogDriver:
        """The same log, opened again after this one was closed, abandoned or killed."""
        return LogDriver(
            self.disk if disk is None else disk,
            sent=self.sent,
            limits=self._limits,
            cold=self._cold,
            listener=self._listener,
        )

    # ---- writing

    def claim(self, producer: str = "p") -> Appended:
        instance, next_seq = self.sent.producer(producer)
        nonce = (instance + 1).to_bytes(8, "little")
        entry = NewEntry(nonce, (), Kind.CONTROL)
        return self.append([entry], producer=producer, _claim=(instance + 1, next_seq))

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        producer: str = "p",
        sets: Sequence[SetKey] = (),
        guards: Sequence[Guard] = (),
        _claim: tuple[int, int] | None = None,
    ) -> Appended:
        """Append one group and wait for it; raises what refused it or what broke."""
        attempt = self.send(entries, producer=producer, sets=sets, guards=guards, _claim=_claim)
        outcome = self.pump().get(id(attempt))
        if outcome is None:
            raise Unavailable("no answer: the log stopped after a failed write")
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    def send(
        self,
        entries: Sequence[NewEntry],
        *,
        producer: str = "p",
        sets: Sequence[SetKey] = (),
        guards: Sequence[Guard] = (),
        _claim: tuple[int, int] | None = None,
    ) -> Attempt:
        """Order one group; several of them share the write of the next `pump`."""
        if _claim is None:
            known = self.sequencer.state.producers[producer]
            instance, first_seq, flags = known.instance, known.next_seq, 0
        else:
            (instance, first_seq), flags = _claim, CLAIM
        all_entries = (*entries, meta_entry(sets)) if sets else tuple(entries)
        data = encode_body(
            producer=producer,
            instance=instance,
            first_seq=first_seq,
            entries=all_entries,
            flags=flags,
        )
        body = decode_body(data)
        check_new_body(body)
        self.now_ms += 1
        attempt = Attempt(body, all_entries, tuple(sets), self.now_ms)
        self.sent.doubtful.append(attempt)
        self._listener("sent", attempt)
        self.sequencer.append(attempt, body, guards=guards, now_ms=self.now_ms)
        return attempt

    def pump(self) -> dict[int, Appended | PenstockError]:
        """Write all that was ordered; returns outcomes by the identity of their attempts."""
        outcomes: dict[int, Appended | PenstockError] = {}
        while (write := self.sequencer.take_write(_FAR_MS)) is not None:
            try:
                self.storage.write(write)
            except BaseException:
                self.sequencer.write_failed()
                raise
            self.sequencer.written(write)
            self._take_answers(outcomes)
        self._take_answers(outcomes)
        self.sequencer.check()
        return outcomes

    def _take_answers(self, outcomes: dict[int, Appended | PenstockError]) -> None:
        for answer in self.sequencer.take_answers():
            attempt, outcome = answer.cause, answer.outcome
            assert isinstance(attempt, Attempt) and not isinstance(outcome, OldDuplicate)
            assert self.sent.doubtful[0] is attempt, "answers come in the order of the requests"
            del self.sent.doubtful[0]
            if isinstance(outcome, Appended):
                expected = Appended(Lsn(self.sent.tail), attempt.body.count)
                assert outcome == expected, (outcome, expected)
                self.sent.place(attempt)
                self._listener("acked", attempt)
            outcomes[id(attempt)] = outcome

    def retry(self, attempt: Attempt) -> Appended:
        """Send a placed group again, as a client does that lost the answer."""
        self.sequencer.append(attempt, attempt.body, now_ms=self.now_ms)
        (answer,) = self.sequencer.take_answers()
        outcome = answer.outcome
        if isinstance(outcome, OldDuplicate):
            group = find_group(self.storage, outcome.producer, outcome.first_seq)
            return decide_duplicate(outcome.instance, outcome.count, group)
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    # ---- housekeeping

    def keep_house(self) -> None:
        """What a server does now and then: indexes, snapshots and cold copies."""
        for segment in self.storage.unfinished():
            self.storage.finish_sealed(segment)

    def trim(self, lsn: int) -> Lsn:
        self.sent.trim_asked = max(self.sent.trim_asked, lsn)
        point = self.storage.trim(lsn)
        self.sent.trim_confirmed = max(self.sent.trim_confirmed, point)
        return point

    def close(self) -> None:
        """A clean stop."""
        self.storage.close()

    def abandon(self) -> None:
        """Let go as a killed process does; on a SimDisk, call its `kill` instead."""
        self.storage.abandon()

    # ---- checking

    @property
    def trim_point(self) -> Lsn:
        return self.storage.manifest.trim_point

    def read(self, tags: Iterable[str] | None = None, start: int | None = None) -> list[Entry]:
        """All entries (with any of the tags), read in small pieces."""
        return [entry for group in self._read_groups(tags, start) for entry in group]

    def _read_groups(self, tags: Iterable[str] | None, start: int | None) -> list[list[Entry]]:
        wanted = None if tags is None else frozenset(tags)
        at = int(self.trim_point if start is None else start)
        end = self.storage.durable_lsn
        found = []
        while at < end:
            piece = read_piece(self.storage, wanted, at, end, PIECE_BYTES)
            assert piece.looked_up_to > at, "a piece that makes no progress"
            at = piece.looked_up_to
            data = memoryview(b"".join(piece.records))  # a buffer may hold several records
            while data:
                size = decode_header(data).record_bytes
                header, body = decode_record(data[:size])
                data = data[size:]
                found.append(list(body.entries(header.first_lsn, header.time_ms)))
        return found

    def _settle(self) -> None:
        """Groups without an answer are in the log, in order and whole, or gone for good."""
        assert self.storage.durable_lsn >= self.sent.tail, "acknowledged groups are gone"
        for group in self._read_groups(None, self.sent.tail):
            assert self.sent.doubtful, f"nobody sent the group at lsn {group[0].lsn}"
            attempt = self.sent.doubtful.pop(0)
            assert group == attempt.seen(group[0].lsn), "a group that is not what was sent"
            self.sent.place(attempt)
        self.sent.doubtful.clear()
        assert self.storage.durable_lsn == self.sent.tail

    def check(self) -> None:
        """Raise AssertionError or Damaged unless the log is exactly what was placed in it."""
        sent, point = self.sent, self.trim_point
        assert sent.trim_confirmed <= point <= sent.trim_asked
        expected = [entry for entry in sent.entries() if entry.lsn >= point]
        assert self.read() == expected, "a full read differs from what was sent"
        self._check_tags(expected)
        self._check_state()
        for lsn, attempt in sent.placed_at():
            self._check_retry(lsn, attempt)

    def _check_tags(self, expected: list[Entry]) -> None:
        tags = sorted({tag for entry in expected for tag in entry.tags})
        for wanted in [*((tag,) for tag in tags), *pairwise(tags)]:
            matching = [entry for entry in expected if not set(wanted).isdisjoint(entry.tags)]
            assert self.read(wanted) == matching, f"a read of {wanted} differs from the full read"
            if len(wanted) == 1:
                record = read_last(self.storage, wanted[0], self.storage.durable_lsn)
                assert record is not None
                header, body = decode_record(record)
                assert list(body.entries(header.first_lsn, header.time_ms)) == matching[-1:]
        assert self.read(["never used"]) == []
        if expected:
            first = expected[0]
            assert find_time(self.storage, first.time_ms) == first.lsn
            assert find_time(self.storage, expected[-1].time_ms + 1) == self.storage.durable_lsn

    def _check_state(self) -> None:
        state = self.sequencer.state
        assert state.next_lsn == self.sent.tail
        assert state.metadata == self.sent.metadata(), "metadata is not the fold of the log"
        for name, known in state.producers.items():
            assert (known.instance, known.next_seq) == self.sent.producer(name), name
        assert set(state.producers) == {attempt.body.producer for attempt in self.sent.placed}

    def _check_retry(self, lsn: int, attempt: Attempt) -> None:
        body = attempt.body
        if body.flags & CLAIM:
            newest, _ = self.sent.producer(body.producer)
            if body.instance < newest:
                return  # fenced, and rightly so
        try:
            outcome = self.retry(attempt)
        except NotFound:
            assert lsn < self.trim_point, f"the group at lsn {lsn} was forgotten"
            return
        assert outcome == Appended(Lsn(lsn), body.count, duplicate=True), (lsn, outcome)
