"""What to send of a producer's appends, when to send it again, and what to say of it. Pure.

Owns seqs, coalescing, the window of unanswered groups and resending. Knows no sockets and no clock.
Independent appends that wait at the same time become one group (natural batching); a guarded append
is a group of its own and waits until it is alone, since a refusal must not leave a gap in the seqs.

Laws: (I7) a group keeps its bytes and its seq until it is answered, so sending it again is safe
(R20); (I22) a submission is settled once: with its LSNs, with an error that means never visible, or
with Unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import (
    BadRequest,
    DeadlineExceeded,
    Fenced,
    Forbidden,
    GuardFailed,
    PenstockError,
    Refused,
    Retryable,
    TooLarge,
    Unknown,
)
from penstock.ids import Lsn
from penstock.limits import (
    ENTRY_TAGS_MAX,
    FLUSH_MS_MAX,
    FRAME_HEAD_BYTES_MAX,
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GROUP_TAGS_MAX,
    GUARDS_MAX,
    KEY_BYTES_MAX,
    KIB,
    PAYLOAD_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    PRODUCER_INFLIGHT_GROUPS_MAX,
)
from penstock.log.client.packing import group_bytes
from penstock.log.group_format import BODY_HEADER_BYTES, RETIRE, encode_body
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, Kind, NewEntry, check_tag
from penstock.wire.messages import Append, encode_message

# A guard's key, with lengths, is well below what `_check_head` allows for it.
assert 4 * KEY_BYTES_MAX < 2 * KIB

#: Coalesced groups stay near this size: large enough for one system call, small enough to pipeline.
COALESCE_BYTES = 512 * KIB
#: Unanswered groups; fewer than the server remembers, enough to keep a disk busy.
WINDOW_GROUPS = 16
assert WINDOW_GROUPS <= PRODUCER_INFLIGHT_GROUPS_MAX

_KINDS = frozenset(Kind)

Ticket = object


@dataclass(frozen=True, slots=True)
class Submission:
    """Entries that must be appended together, and who waits for them."""

    ticket: Ticket
    entries: tuple[NewEntry, ...]
    guards: tuple[Guard, ...]
    flush: Flush
    bytes: int
    #: Tags of all entries, those named by several counted as often.
    tags: int


@dataclass(frozen=True, slots=True)
class SendGroup:
    """Send this group; `seq` names it in the answer."""

    seq: int
    body: bytes
    guards: tuple[Guard, ...]
    flush: Flush


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell the submitter."""

    ticket: Ticket
    outcome: Appended | PenstockError


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close this connection and open another: later groups on it would only be refused as gaps."""

    cause: str


@dataclass(slots=True)
class _Group:
    send: SendGroup
    parts: tuple[Submission, ...]
    sent: bool = False


class AppenderCore:
    """One producer's appends. The producer was claimed before (`instance`, `next_seq`)."""

    def __init__(self, *, producer: str, instance: int, next_seq: int) -> None:
        self.producer = producer
        self.instance = instance
        #: Seq of the next group that is made.
        self.next_seq = next_seq
        self._waiting: deque[Submission] = deque()
        #: Unanswered groups in seq order.
        self._groups: dict[int, _Group] = {}
        #: Set once the producer can never append again.
        self.broken: PenstockError | None = None
        self.pending_bytes = 0

    def submit(
        self,
        ticket: Ticket,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        flush: Flush = IMMEDIATE,
    ) -> list[Settle]:
        """Take in an append. Entries were checked (`check_submission`)."""
        if self.broken is not None:
            return [Settle(ticket, self.broken)]
        size = group_bytes(entries)
        tags = count_tags(entries)
        self._waiting.append(Submission(ticket, tuple(entries), tuple(guards), flush, size, tags))
        self.pending_bytes += size
        return []

    def take_sends(self) -> list[SendGroup]:
        """Groups to send now, in order."""
        sends = [group.send for group in self._groups.values() if not group.sent]
        for group in self._groups.values():
            group.sent = True
        while self._waiting and self.broken is None and self._may_open():
            group = self._next_group()
            group.sent = True
            self._groups[group.send.seq] = group
            sends.append(group.send)
        return sends

    def _may_open(self) -> bool:
        if self._waiting[0].guards:
            return not self._groups
        guarded = any(group.send.guards for group in self._groups.values())
        return not guarded and len(self._groups) < WINDOW_GROUPS

    def _next_group(self) -> _Group:
        first = self._waiting.popleft()
        parts = [first]
        count, size, tags = len(first.entries), first.bytes, first.tags
        while self._waiting and not first.guards:
            more = self._waiting[0]
            if (
                more.guards
                or more.flush != first.flush
                or size + more.bytes > COALESCE_BYTES
                or count + len(more.entries) > GROUP_ENTRIES_MAX
                or tags + more.tags > GROUP_TAGS_MAX
            ):
                break
            parts.append(self._waiting.popleft())
            count += len(more.entries)
            size += more.bytes
            tags += more.tags
        entries = first.entries if len(parts) == 1 else [e for part in parts for e in part.entries]
        body = encode_body(
            producer=self.producer,
            instance=self.instance,
            first_seq=self.next_seq,
            entries=entries,
        )
        send = SendGroup(self.next_seq, body, first.guards, first.flush)
        self.next_seq += count
        return _Group(send, tuple(parts))

    def answered(self, seq: int, outcome: Appended | PenstockError) -> list[Settle | Reconnect]:
        """The server answered the group `seq`."""
        group = self._groups.get(seq)
        if group is None:
            return []
        if isinstance(outcome, Retryable):
            return [Reconnect(str(outcome))]
        del self._groups[seq]
        self.pending_bytes -= sum(part.bytes for part in group.parts)
        if isinstance(outcome, Appended):
            return list(self._settle_done(group, outcome))
        if isinstance(outcome, GuardFailed | Forbidden) and not self._groups:
            self.next_seq = seq  # it was alone: its seq was not used
        elif self.broken is None:
            self.broken = outcome  # the first cause: what follows is refused because of it
        settled: list[Settle | Reconnect] = [Settle(part.ticket, outcome) for part in group.parts]
        return settled + (self._settle_waiting(outcome) if self.broken is not None else [])

    def _settle_done(self, group: _Group, outcome: Appended) -> list[Settle]:
        settled = []
        lsn = outcome.first_lsn
        for part in group.parts:
            count = len(part.entries)
            settled.append(Settle(part.ticket, Appended(lsn, count, outcome.duplicate)))
            lsn = Lsn(lsn + count)
        return settled

    def _settle_waiting(self, error: PenstockError) -> list[Settle]:
        """What was never sent is definitely not in the log."""
        outcome: PenstockError = error
        if not isinstance(error, Refused | Fenced | DeadlineExceeded):
            outcome = DeadlineExceeded(f"never sent: {error}")
        settled = [Settle(submission.ticket, outcome) for submission in self._waiting]
        self.pending_bytes -= sum(submission.bytes for submission in self._waiting)
        self._waiting.clear()
        return settled

    def disconnected(self) -> None:
        """Nothing more will be answered on the old connection: send all again on the next."""
        for group in self._groups.values():
            group.sent = False

    def give_up(self, cause: str) -> list[Settle]:
        """The caller's deadline passed: what was sent is unknown, the rest was never sent."""
        error = Unknown(f"no answer for producer {self.producer}: {cause}")
        settled = [
            Settle(part.ticket, error) for group in self._groups.values() for part in group.parts
        ]
        self._groups.clear()
        self.broken = error
        settled += self._settle_waiting(DeadlineExceeded(f"never sent: {cause}"))
        self.pending_bytes = 0
        return settled

    @property
    def in_flight(self) -> int:
        """Unanswered groups."""
        return len(self._groups)

    @property
    def is_idle(self) -> bool:
        return not self._groups and not self._waiting

    def check(self) -> None:
        """Assert what can be seen from here."""
        assert len(self._groups) <= WINDOW_GROUPS
        seqs = list(self._groups)
        assert seqs == sorted(seqs)
        assert all(seq < self.next_seq for seq in seqs)
        pending = sum(part.bytes for group in self._groups.values() for part in group.parts)
        pending += sum(submission.bytes for submission in self._waiting)
        assert pending == self.pending_bytes


def retire_body(producer: str, instance: int, next_seq: int) -> bytes:
    """The group by which a producer says that it will never write again."""
    return encode_body(
        producer=producer,
        instance=instance,
        first_seq=next_seq,
        entries=[NewEntry(b"", (), Kind.CONTROL)],
        flags=RETIRE,
    )


def count_tags(entries: Sequence[NewEntry]) -> int:
    return sum([len(entry.tags) for entry in entries])


def check_submission(entries: Sequence[NewEntry], guards: Sequence[Guard]) -> None:
    """Raise what a server would refuse anyway, before a seq is spent on it."""
    if len(guards) > GUARDS_MAX:
        raise TooLarge(f"{len(guards)} guards: the limit is {GUARDS_MAX}")
    if guards:
        _check_head(guards)
    if not 0 < len(entries) <= GROUP_ENTRIES_MAX:
        raise TooLarge(f"group of {len(entries)} entries: 1 to {GROUP_ENTRIES_MAX} allowed")
    for entry in entries:
        if len(entry.payload) > PAYLOAD_BYTES_MAX:
            raise TooLarge(
                f"payload of {len(entry.payload)} bytes: the limit is {PAYLOAD_BYTES_MAX}"
            )
        if not 0 <= entry.rows < 2**32 or entry.kind not in _KINDS:
            raise BadRequest(f"entry of kind {entry.kind} with {entry.rows} rows")
        if entry.tags:
            _check_tags(entry.tags)
    spare_bytes = GROUP_BYTES_MAX - BODY_HEADER_BYTES - PRODUCER_BYTES_MAX
    if group_bytes(entries) > spare_bytes or count_tags(entries) > GROUP_TAGS_MAX:
        # Beyond the limit by estimate: encode it once for an answer that holds for any producer.
        encode_body(producer="x" * PRODUCER_BYTES_MAX, instance=0, first_seq=0, entries=entries)


def _check_head(guards: Sequence[Guard]) -> None:
    """Guards travel in a frame's head, with what they expect."""
    expected_bytes = sum(len(guard.expected or b"") for guard in guards)
    if expected_bytes + GUARDS_MAX * KIB * 2 <= FRAME_HEAD_BYTES_MAX:
        return
    size = len(encode_message(Append(tuple(guards), FLUSH_MS_MAX)))
    if size > FRAME_HEAD_BYTES_MAX:
        raise TooLarge(f"guards of {size} bytes: the limit is {FRAME_HEAD_BYTES_MAX}")


@lru_cache(maxsize=4096)
def _check_tags(tags: tuple[str, ...]) -> None:
    """Writers use few sets of tags over and over."""
    if len(tags) > ENTRY_TAGS_MAX:
        raise TooLarge(f"entry with {len(tags)} tags: the limit is {ENTRY_TAGS_MAX}")
    if len(set(tags)) != len(tags):
        raise BadRequest(f"an entry names a tag twice: {tags}")
    for tag in tags:
        check_tag(tag)
