"""The player of a delivery: what to read, what to send to whom, and when to try again. Pure.

Owns all targets of a delivery, the place of the shared tail, connections and their numbers, and
retries. Knows no log, no socket, no thread, no clock: the shell passes `now` in seconds and does
what it is told, in order.

    event                          effects
    Started                        Hello to every target
    Opened (an At and the tail)    Follow (the first time), Read, Apply
    Tailed, ReadDone               Apply, Read
    Ack, Answers                   Apply, Read
    Failure                        Bye, and Hello some time later; SetAside; End
    Resharded                      Hello to targets that are new
    Drained                        Bye to each target that has no batch in flight

Laws: (I14) `after` of every batch of a connection is `upto` of the one before, and of the first the
position that the target itself told; so a target that compares it with its own position applies
everything once, in order, whatever is lost, late or repeated. A target that answers another
position than expected is asked again: its own word decides, be it ahead (an ack was lost) or behind
(it was restored from a backup). A target that is slow, gone, stopped or behind delays no other:
the shared tail waits only while nobody on it has room. Answers of another connection than the
current are not heard. LogPlayer 2.2 to 2.6, with the comparison that its targets lack (api.py).

Where the delivery was given other shards (protocol/shards.py), a target to which rows come or from
which they go leaves the tail at the cut, and reads by itself: up to the cut, the cut alone, and on.
Law: who takes rows at a cut goes on there only after all who give them said that they are past it,
so no row is in two tables, even if both are one. Targets that are not concerned notice nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from penstock.delivery.messages import Ack, Apply, Bye, Failure, Hello
from penstock.delivery.routing import Span
from penstock.delivery.target_queue import State, TargetQueue
from penstock.errors import BadRow, Fenced, PenstockError, Refused, Trimmed
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.protocol.shards import Shards

#: Waits before a target is opened again, in seconds; the last one repeats. An applied batch begins
#: them anew.
BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: How long the shared tail waits for targets that were never heard of, once one was.
BEGIN_SECONDS: Final = 1.0
#: How often a position may be moved without rows.
QUIET_SECONDS: Final = 1.0
#: Everything that waits becomes one batch, up to about this. Databases gain little beyond it.
BATCH_BYTES_MAX: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is held and sent, for each target."""

    #: Bytes of rows, as they are in the log. A target that has more waiting reads by itself later.
    queue_bytes_max: int = 16 * MIB
    batch_bytes_max: int = BATCH_BYTES_MAX
    #: Batches without an answer. A database takes one transaction after the other: 1 lets what
    #: comes meanwhile become one batch. Where the way is long, more hide it.
    window: int = 1


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The player has claimed its name."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A target told its position; `tail` is the log's, read after that."""

    shard: int
    connection: int
    position: Lsn
    tail: Lsn


@dataclass(frozen=True, slots=True)
class Answers:
    """Acks that came together, in their order: what is due then is looked for once."""

    acks: Sequence[Ack]


@dataclass(frozen=True, slots=True)
class Tailed:
    """The shared tail brought the next span."""

    span: Span


@dataclass(frozen=True, slots=True)
class TailTrimmed:
    """What the shared tail was to read next is gone."""

    error: Trimmed = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A target's own read: from its start as far as it came."""

    shard: int
    connection: int
    span: Span


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A target's own read found the log trimmed."""

    shard: int
    connection: int
    error: Trimmed = field(compare=False)


@dataclass(frozen=True, slots=True)
class WasSetAside:
    """A row stands in the dead-letter stream: go on without it."""

    shard: int
    connection: int


@dataclass(frozen=True, slots=True)
class Resharded:
    """The delivery has these shards. Told before what the tail brings from the last cut on, and
    before an answer of a target that is past it."""

    layout: Shards


@dataclass(frozen=True, slots=True)
class FlushAsked:
    """Positions are wanted at this LSN soon, also where there are no rows."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed: `due` came."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The player is to end: nothing new is sent."""


Event = (
    Started | Opened | Tailed | TailTrimmed | ReadDone | ReadFailed | WasSetAside | Resharded
    | FlushAsked | Ticked | Drained | Answers | Ack | Failure
)  # fmt: skip


# ---- effects, beside messages to targets


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow the log from here: the shared tail. An earlier one ends."""

    start: Lsn


@dataclass(frozen=True, slots=True)
class Read:
    """Read [start, end) for one target, or as much of it as makes a fair piece.

    A read that begins at a cut of the target is of nothing else, and brings the rows that move.
    """

    shard: int
    connection: int
    start: Lsn
    end: Lsn


@dataclass(frozen=True, slots=True)
class SetAside:
    """Write a row that the target refuses to the dead-letter stream, once for ever."""

    shard: int
    connection: int
    batch: Apply = field(repr=False)
    #: Its number in the batch; where it counts, and which of the rows there it is.
    number: int
    lsn: Lsn
    row: int
    error: BadRow = field(compare=False)


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more can be done: a newer player is there, or no target is left."""

    error: PenstockError = field(compare=False)


Effect = Hello | Apply | Bye | Follow | Read | SetAside | End


class Link(Enum):
    """How a target stands."""

    #: Waits for its time to be opened.
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    #: A row of it is being set aside.
    SETTING_ASIDE = "setting a row aside"
    #: Until the player is started again.
    STOPPED = "stopped"
    #: It has given away all its rows: never opened again.
    RETIRED = "retired"


#: Of nothing is there anything to do for such a target.
_DONE: Final = (Link.STOPPED, Link.RETIRED)


@dataclass(slots=True)
class _Target:
    shard: int
    queue: TargetQueue
    link: Link = Link.CLOSED
    #: Number of the connection; answers of others are not heard.
    connection: int = 0
    #: CLOSED: when to open it.
    retry_at: float = 0.0
    #: Connections since all was well: a batch was applied, or one stood for a while.
    attempts: int = 0
    opened_at: float = 0.0
    #: Whether a first outcome of opening it is known.
    was_heard: bool = False
    #: When a batch was last sent; the next without rows is due a while later.
    sent_at: float = float("-inf")
    #: Rows that are left out: where they count, and which of those there.
    aside: list[tuple[Lsn, int]] = field(default_factory=list)
    #: When it was asked what it has not answered yet; None: nothing is asked.
    asked_at: float | None = None
    problem: str | None = None
    problem_since: float = 0.0
    error: PenstockError | None = None
    rows: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """How a target stands, for people."""

    shard: int
    link: Link
    state: State
    #: All of the shard's rows below it are applied; None: it was not told yet.
    position: Lsn | None
    queued_bytes: int
    in_flight: int
    #: Applied since the player began.
    rows: int
    batches: int
    #: What is wrong, in words, and since when.
    problem: str | None
    problem_since: float
    error: PenstockError | None
    #: Since when it owes an answer; None: it owes none.
    asked_at: float | None = None


class PlayerCore:
    """One life of a player. See the module's picture; call `handle` with each event."""

    def __init__(
        self,
        shards: int,
        *,
        term: int,
        limits: Limits,
        sets_aside: bool = False,
        layout: Shards | None = None,
        retired: Iterable[int] = (),
    ) -> None:
        """`retired`: shards that are over, as an earlier player was told."""
        self._term = term
        self._sets_aside = sets_aside
        self._limits = limits
        #: None: it has the shards that it began with.
        self._layout = layout
        self._targets = [self._new_target(shard) for shard in range(shards)]
        for shard in retired:
            self._targets[shard].link = Link.RETIRED
            self._targets[shard].was_heard = True
        #: Where the shared tail is; None: it did not begin.
        self.tail: Lsn | None = None
        #: When the tail begins without those that were not heard of.
        self._begin_at: float | None = None
        self._flush_to = Lsn(0)
        self._is_started = False
        self._is_draining = False
        self._has_ended = False

    def _new_target(self, shard: int) -> _Target:
        limits = self._limits
        queue = TargetQueue(
            bytes_max=limits.queue_bytes_max,
            batch_bytes_max=limits.batch_bytes_max,
            window=limits.window,
        )
        return _Target(shard, queue)

    # ---- what the shell asks

    @property
    def wants_tail(self) -> bool:
        """Whether the shared tail should be read on: somebody on it has room, or waits for it."""
        if self.tail is None or self._is_draining:
            return False
        for target in self._targets:
            queue = target.queue
            if queue.state in (State.NORMAL, State.JOINING) and queue.has_room:
                return True
            if queue.state is State.READING and queue.looked > self.tail:
                return True
        return False

    @property
    def is_drained(self) -> bool:
        """Whether nothing is under way any more."""
        gone = (Link.CLOSED, *_DONE)
        return self._is_draining and all(target.link in gone for target in self._targets)

    @property
    def due(self) -> float | None:
        """When to say `Ticked`, if nothing else happens before."""
        times = []
        if self._is_started and not self._is_draining:
            is_open = any(target.link is Link.OPEN for target in self._targets)
            if self.tail is None and self._begin_at is not None and is_open:
                times.append(self._begin_at)
            for target in self._targets:
                if target.link is Link.CLOSED:
                    times.append(target.retry_at)
                elif target.link is Link.OPEN and target.queue.is_quiet:
                    times.append(target.sent_at + QUIET_SECONDS)
        return min(times, default=None)

    def is_past(self, cut: Lsn) -> bool:
        """Whether nobody needs the rows that move there any more, as far as is known."""
        concerned = [one for one in self._targets if self._next_cut(one, cut) == cut]
        return all(_has_passed(target, cut) for target in concerned)

    @property
    def positions(self) -> list[Lsn | None]:
        """Of each shard that is not over, as its target last told it."""
        there = [one for one in self._targets if one.link is not Link.RETIRED]
        return [target.queue.position for target in there]

    @property
    def errors(self) -> list[PenstockError]:
        """What stopped targets."""
        return [target.error for target in self._targets if target.error is not None]

    def facts(self) -> list[TargetFacts]:
        return [
            TargetFacts(
                one.shard, one.link, one.queue.state, one.queue.position, one.queue.bytes,
                one.queue.in_flight, one.rows, one.batches, one.problem, one.problem_since,
                one.error, one.asked_at,
            )
            for one in self._targets
        ]  # fmt: skip

    # ---- events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about it, in order."""
        effects: list[Effect] = []
        match event:
            case Started():
                self._is_started = True
            case Tailed(span):
                self._take_span(span)
            case Answers(acks):
                for ack in acks:
                    effects += self._hear(ack, now)
            case TailTrimmed(error):
                effects += self._lose_tail(error, now)
            case Resharded(layout):
                self._layout = layout
                known = len(self._targets)
                self._targets += map(self._new_target, range(known, layout.count))
            case FlushAsked(lsn):
                self._flush_to = Lsn(max(self._flush_to, lsn))
            case Ticked():
                pass
            case Drained():
                self._is_draining = True
            case _:
                effects += self._hear(event, now)
        return effects + self._advance(now)

    def _hear(
        self, event: Opened | ReadDone | ReadFailed | WasSetAside | Ack | Failure, now: float
    ) -> list[Effect]:
        """An answer, if it is one of the current connection."""
        target = self._targets[event.shard]
        if event.connection != target.connection:
            return []
        match event:
            case Opened(position=position, tail=tail):
                return self._opened(target, position, tail, now)
            case Ack(position=position):
                return self._acked(target, position, now)
            case Failure(error=error):
                return self._failed(target, error, now)
            case ReadDone(span=span):
                self._take_read(target, span)
                return []
            case ReadFailed(error=error):
                return self._stop(target, _trimmed(target, error), now)
            case WasSetAside():
                if target.link is Link.SETTING_ASIDE:
                    target.link, target.retry_at = Link.CLOSED, now
                return []
        assert_never(event)

    def _opened(self, target: _Target, position: Lsn, tail: Lsn, now: float) -> list[Effect]:
        if target.link is not Link.OPENING:
            return []
        target.was_heard = True
        target.link = Link.OPEN
        if position > tail:
            return self._stop(
                target,
                Refused(
                    f"target {target.shard} stands at LSN {position}, but the log ends at {tail}: "
                    "it was filled from another log; give it an empty table or another name"
                ),
                now,
            )
        target.queue.open(position)
        target.asked_at = None
        target.opened_at = now
        target.problem = None
        if self._is_over(target):
            return self._retire(target)
        if self._begin_at is None:
            self._begin_at = now + BEGIN_SECONDS
        return []

    def _acked(self, target: _Target, position: Lsn, now: float) -> list[Effect]:
        if target.link is not Link.OPEN:
            return []
        expected = target.queue.oldest
        applied = target.queue.answered(position)
        if applied is None:
            wanted = "nothing" if expected is None else f"LSN {expected.upto}"
            return self._retry(target, f"it answered LSN {position} where {wanted} was due", now)
        target.attempts = 1
        target.problem = None
        target.asked_at = now if target.queue.in_flight else None
        target.batches += len(applied)
        target.rows += sum(batch.rows for batch in applied)
        done = target.queue.position
        assert done is not None
        target.aside = [one for one in target.aside if one[0] >= done]
        return self._retire(target) if self._is_over(target) else []

    def _failed(self, target: _Target, error: Exception, now: float) -> list[Effect]:
        target.was_heard = True
        if target.link not in (Link.OPENING, Link.OPEN):
            return []
        if isinstance(error, Fenced):
            return self._end(error)
        if isinstance(error, BadRow):
            return self._refuse_row(target, error, now)
        if isinstance(error, Refused):
            return self._stop(target, error, now)
        words = (
            str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        )
        return self._retry(target, words, now)

    def _refuse_row(self, target: _Target, error: BadRow, now: float) -> list[Effect]:
        batch = target.queue.oldest
        number = error.row
        place = None if batch is None or number is None else batch.locate(number)
        if batch is None or number is None or place is None:
            where = "" if batch is None else f" of LSN {batch.after} to {batch.upto - 1}"
            return self._stop(target, BadRow(f"a row{where} is refused: {error}"), now)
        lsn, row = place
        if not self._sets_aside:
            problem = (
                f"row {row} of LSN {lsn} is refused: {error}; mend the target, or give "
                "dead_letter= to set such rows aside"
            )
            return self._stop(target, BadRow(problem), now)
        effects = self._close(target)
        target.link = Link.SETTING_ASIDE
        target.aside.append(place)
        self._complain(target, f"row {row} of LSN {lsn} is set aside: {error}", now)
        connection = target.connection
        return [*effects, SetAside(target.shard, connection, batch, number, lsn, row, error)]

    # ---- the shared tail, and own reads

    def _take_span(self, span: Span) -> None:
        assert span.after == self.tail, f"the tail is at {self.tail}, not at {span.after}"
        self.tail = span.upto
        if self._is_draining:
            return
        for target in self._targets:
            cut = self._next_cut(target, span.after)
            if cut is not None and cut < span.upto:
                target.queue.leave()
                continue
            piece = span.pieces.get(target.shard)
            target.queue.push(piece, span.upto, span.commits)

    def _take_read(self, target: _Target, span: Span) -> None:
        queue = target.queue
        if queue.is_reading:
            queue.read(span.pieces.get(target.shard), span.upto, span.commits)

    def _lose_tail(self, error: Trimmed, now: float) -> list[Effect]:
        """Who is on the tail needs what is gone. The others find out by themselves."""
        effects: list[Effect] = []
        self.tail = None
        for target in self._targets:
            if target.queue.state in (State.NORMAL, State.JOINING):
                effects += self._stop(target, _trimmed(target, error), now)
        return effects

    def _begin(self, now: float) -> list[Effect]:
        """Follow the log from where the foremost target is: the others read up to there."""
        if self.tail is not None or self._begin_at is None or self._is_draining:
            return []
        if now < self._begin_at and not all(target.was_heard for target in self._targets):
            return []
        places = [one.queue.looked for one in self._targets if one.link is Link.OPEN]
        if not places:
            return []
        self.tail = max(places)
        return [Follow(self.tail)]

    # ---- cuts

    def _next_cut(self, target: _Target, lsn: Lsn) -> Lsn | None:
        return None if self._layout is None else self._layout.next_cut(target.shard, lsn)

    def _is_over(self, target: _Target) -> bool:
        position = target.queue.position
        assert position is not None
        return self._layout is not None and self._layout.is_over(target.shard, position)

    def _retire(self, target: _Target) -> list[Effect]:
        effects = self._close(target)
        target.link = Link.RETIRED
        return effects

    def _place(self, target: _Target) -> tuple[Lsn, Lsn] | None:
        """What the target is to read by itself now, if anything; see TargetQueue.place."""
        if self.tail is None:
            return None
        queue = target.queue
        cut = self._next_cut(target, queue.looked)
        if cut is None or self._layout is None or queue.looked < cut:
            return queue.place(self.tail, cut)
        givers = self._layout.waits_for(target.shard, cut)
        if not all(_has_passed(self._targets[giver], cut) for giver in givers):
            return None
        return queue.place(self.tail, Lsn(cut + 1))

    def _passes_cut(self, queue: TargetQueue, target: _Target) -> bool:
        """Others may wait for it: that there are no rows to move is said at once, too."""
        cut = self._next_cut(target, queue.sent)
        return cut is not None and cut < queue.looked

    # ---- what is due

    def _advance(self, now: float) -> list[Effect]:
        if not self._is_started or self._has_ended:
            return []
        effects = self._begin(now)
        for target in self._targets:
            if self._is_draining:
                if target.link in (Link.OPEN, Link.OPENING) and not target.queue.in_flight:
                    effects += self._close(target)
            elif target.link is Link.CLOSED:
                if target.retry_at <= now:
                    effects.append(self._open(target, now))
            elif target.link is Link.OPEN:
                effects += self._serve(target, now)
        return effects

    def _open(self, target: _Target, now: float) -> Effect:
        target.link = Link.OPENING
        target.asked_at = now
        target.connection += 1
        target.attempts += 1
        return Hello(target.shard, target.connection, self._term)

    def _serve(self, target: _Target, now: float) -> Iterable[Effect]:
        queue = target.queue
        names = target.shard, target.connection
        effects: list[Effect] = []
        if (place := self._place(target)) is not None:
            effects.append(Read(*names, *place))
        while (batch := queue.next_batch(*names, self._term)) is not None:
            effects.append(self._send(target, batch, now))
        is_due = queue.is_quiet and now >= target.sent_at + QUIET_SECONDS
        if is_due or queue.sent < self._flush_to or self._passes_cut(queue, target):
            empty = queue.empty_batch(*names, self._term)
            if empty is not None:
                effects.append(self._send(target, empty, now))
        return effects

    def _send(self, target: _Target, batch: Apply, now: float) -> Apply:
        target.sent_at = now
        target.asked_at = now if target.asked_at is None else target.asked_at
        if not target.aside:
            return batch
        pieces = list(batch.pieces)
        for lsn, row in target.aside:
            pieces = [piece.without(lsn, row) for piece in pieces]
        return target.queue.amend(tuple(pieces))

    # ---- ends of connections

    def _close(self, target: _Target) -> list[Effect]:
        target.queue.suspend()
        target.link = Link.CLOSED
        target.asked_at = None
        return [Bye(target.shard, target.connection)]

    def _retry(self, target: _Target, problem: str, now: float) -> list[Effect]:
        if target.link is Link.OPEN and now - target.opened_at >= BACKOFF_SECONDS[-1]:
            target.attempts = 1
        effects = self._close(target)
        target.retry_at = now + BACKOFF_SECONDS[min(target.attempts, len(BACKOFF_SECONDS)) - 1]
        self._complain(target, problem, now)
        return effects

    def _stop(self, target: _Target, error: PenstockError, now: float) -> list[Effect]:
        effects = self._close(target)
        target.link = Link.STOPPED
        target.error = error
        self._complain(target, str(error), now)
        if all(one.link in _DONE for one in self._targets):
            effects += self._end(error)
        return effects

    def _complain(self, target: _Target, problem: str, now: float) -> None:
        if target.attempts <= 1:
            target.problem_since = now
        target.problem = problem

    def _end(self, error: PenstockError) -> list[Effect]:
        if self._has_ended:
            return []
        self._has_ended = True
        return [End(error)]

    def check(self) -> None:
        """Assert what can be seen from here."""
        for target in self._targets:
            target.queue.check()
            is_open = target.queue.state is not State.SUSPENDED
            assert is_open == (target.link is Link.OPEN)
            assert (target.error is not None) == (target.link is Link.STOPPED)
            if target.queue.state is State.NORMAL:
                assert target.queue.looked == self.tail or self._is_draining


def _has_passed(target: _Target, cut: Lsn) -> bool:
    """Whether its own word was that it is past a cut; of one that is over, an earlier word."""
    position = target.queue.position
    if position is None:
        return target.link is Link.RETIRED
    return position > cut


def _trimmed(target: _Target, error: Trimmed) -> Trimmed:
    return Trimmed(
        f"target {target.shard} stands at LSN {target.queue.position}, and what it needs next was "
        f"trimmed from the log ({error}): restore it from a newer backup, or deliver anew under "
        "another name into an empty table"
    )
