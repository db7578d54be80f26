"""The shipped player's core as an automaton with numbered states, for a search of all orders.

Owns what two states of a core have in common. A core decides by its state and the event alone, so
what it does is computed once for each pair, however many states of the world have it. What tells no
difference for what follows is made equal: counters for people, the size of connection numbers, and
how much time has passed. An event comes at time 0, at which nothing is due any more; a tick makes
one thing due, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

import pyarrow as pa

from penstock.delivery.messages import Ack, Apply, Bye, Failure, Hello, Piece, Places
from penstock.delivery.player_core import (
    Effect,
    End,
    Event,
    Limits,
    Link,
    Opened,
    PlayerCore,
    Read,
    ReadDone,
    Started,
    Tailed,
    Ticked,
    _Target,
)
from penstock.delivery.routing import Span
from penstock.delivery.target_queue import TargetQueue
from penstock.errors import Fenced, Unavailable
from penstock.ids import Lsn
from penstock.protocol.shards import Shards, shards_of

#: Rows by entry and shard. The first commit has two rows of shard 0, and what shard 1 needs to be
#: at the end is a batch without rows.
LOG: Final = (
    ((100, 101), (110,)),
    ((), (111,)),
    ((102,), ()),
)
#: The second entry is a cut: row 101 goes from shard 0, and comes to shard 1, which begins there.
MOVING_LOG: Final = (
    ((100, 101), ()),
    ((-101,), (101,)),
    ((102,), (111,)),
)
MOVING: Final = shards_of(2, [1], [(0, 0), (0, 1)])
#: One shard, one row in each entry.
NARROW_LOG: Final = (((100,),), ((101,),), ((102,),))

#: ("start",)                              the player has its claim
#: ("at", shard, age, position)            answers; `age` 0 is the newest connection
#: ("ack", shard, age, position)
#: ("fenced", shard, age)
#: ("cut", shard)                          the newest connection is lost
#: ("tail",)                               the shared tail brings one entry
#: ("read", shard, age, start, upto)       an own read has come
#: ("tick", shard)                         what shard is due; -1: the shared tail
Told = tuple[Any, ...]
#: ("hello", term) · ("apply", term, after, upto, rows) · ("bye",) · ("read", start, end)
Order = tuple[Any, ...]

Log = tuple[tuple[tuple[int, ...], ...], ...]
OVER: Final = -1

_LATER: Final = 1.0
_CONNECTION: Final = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a player that was told something."""

    #: Its state now; OVER: there is no such player any more.
    player: int
    #: For each shard that it does something about: which, how many connections were begun, and the
    #: orders.
    shards: tuple[tuple[int, int, tuple[Order, ...]], ...]


class Automaton:
    """All states of players that were met, by number."""

    def __init__(self, log: Log, limits: Limits, layout: Shards | None = None) -> None:
        self.log = log
        self.layout = layout
        self._cuts = () if layout is None else layout.cuts
        self.shards = len(log[0])
        self._limits = limits
        self._cores: list[PlayerCore] = []
        self._numbers: dict[object, int] = {}
        self._outcomes: dict[tuple[int, Told], Outcome] = {}
        #: By player: what can happen inside of it.
        self._local: dict[int, tuple[tuple[Told, Outcome], ...]] = {}
        #: States of queues that were met.
        self.queue_states: set[str] = set()

    def new(self, term: int) -> int:
        """A player that was not started."""
        core = PlayerCore(self.shards, term=term, limits=self._limits, layout=self.layout)
        return self._number(core)

    def term(self, player: int) -> int:
        return self._cores[player]._term

    def tell(self, player: int, told: Told) -> Outcome:
        outcome = self._outcomes.get((player, told))
        if outcome is None:
            outcome = self._outcomes[player, told] = self._tell(player, told)
        return outcome

    def local(self, player: int) -> tuple[tuple[Told, Outcome], ...]:
        """What a player can do without anybody, and that changes something."""
        found = self._local.get(player)
        if found is None:
            ticks: list[Told] = [("tick", shard) for shard in range(-1, self.shards)]
            tail = self._cores[player].tail
            if self._cores[player].wants_tail and tail is not None and tail < len(self.log):
                ticks.append(("tail",))
            outcomes = [(told, self.tell(player, told)) for told in ticks]
            found = tuple(
                (told, outcome)
                for told, outcome in outcomes
                if outcome.shards or outcome.player != player
            )
            self._local[player] = found
        return found

    def _tell(self, player: int, told: Told) -> Outcome:
        core = _clone(self._cores[player])
        if told[0] == "tick":
            sent_at = _only(core, told[1])
            if core.due is None or core.due > _LATER:
                return Outcome(player, ())
            effects = core.handle(Ticked(), _LATER)
            assert core.due is None or core.due > _LATER, f"{told} leaves undone what is due"
            _give_back(core, sent_at)
        else:
            effects = core.handle(self._event(core, told), 0.0)
        core.check()
        effects += _open_again(core)
        orders: list[list[Order]] = [[] for _ in core._targets]
        for effect in effects:
            if isinstance(effect, Hello | Apply | Bye | Read):
                orders[effect.shard].append(_order(effect))
        shards = []
        for target in core._targets:
            begun = target.connection - _CONNECTION
            if begun or orders[target.shard]:
                shards.append((target.shard, begun, tuple(orders[target.shard])))
        is_over = any(isinstance(effect, End) for effect in effects)
        return Outcome(OVER if is_over else self._number(core), tuple(shards))

    def _event(self, core: PlayerCore, told: Told) -> Event:
        match told:
            case ("start",):
                return Started()
            case ("at", shard, age, position):
                return Opened(shard, _CONNECTION - age, position, Lsn(len(self.log)))
            case ("ack", shard, age, position):
                return Ack(shard, _CONNECTION - age, position)
            case ("fenced", shard, age):
                return Failure(shard, _CONNECTION - age, Fenced("a newer player was here"))
            case ("cut", shard):
                return Failure(shard, _CONNECTION, Unavailable("the connection is lost"))
            case ("tail",):
                assert core.tail is not None
                span = _span(self.log, int(core.tail), int(core.tail) + 1, self._cuts)
                return Tailed(span)
            case ("read", shard, age, start, upto):
                # Rows that move are in no read of the stream, but in one of the cut alone.
                moves = upto == start + 1 and start in self._cuts
                span = _span(self.log, start, upto, () if moves else self._cuts)
                return ReadDone(shard, _CONNECTION - age, span)
        raise AssertionError(told)

    def _number(self, core: PlayerCore) -> int:
        _level(core)
        for target in core._targets:
            self.queue_states.add(target.queue.state.value)
        key = _freeze(core)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._cores)
            self._cores.append(core)
        return number


def _order(effect: Hello | Apply | Bye | Read) -> Order:
    match effect:
        case Hello():
            return "hello", effect.term
        case Apply():
            return "apply", effect.term, int(effect.after), int(effect.upto), _rows(effect.pieces)
        case Bye():
            return ("bye",)
        case Read():
            return "read", int(effect.start), int(effect.end)


# ---- spans of the small log


@cache
def _span(log: Log, after: int, upto: int, cuts: tuple[Lsn, ...]) -> Span:
    pieces: dict[int, Piece] = {}
    for shard in range(len(log[0])):
        lsns = [lsn for lsn in range(after, upto) if log[lsn][shard] and lsn not in cuts]
        rows = [row for lsn in lsns for row in log[lsn][shard]]
        if not rows:
            continue
        starts = [sum(len(log[lsn][shard]) for lsn in lsns[:place]) for place in range(len(lsns))]
        places = Places(tuple(map(Lsn, lsns)), tuple(starts))
        batch = pa.RecordBatch.from_pydict({"row": rows})
        pieces[shard] = Piece(Lsn(after), Lsn(upto), (batch,), len(rows), places)
    commits = sum(any(log[lsn]) for lsn in range(after, upto))
    return Span(Lsn(after), Lsn(upto), pieces, commits)


def _rows(pieces: Iterable[Piece]) -> tuple[int, ...]:
    return tuple(row for piece in pieces for rows in piece.rows for row in rows["row"].to_pylist())


# ---- states that are equal


def _open_again(core: PlayerCore) -> list[Effect]:
    """A target that waits to be opened again is as one that is being opened: nothing else can
    happen to it meanwhile."""
    effects: list[Effect] = []
    for target in core._targets:
        if target.link is Link.CLOSED and core._is_started and not core._has_ended:
            sent_at = _only(core, target.shard)
            effects += core.handle(Ticked(), target.retry_at)
            core.check()
            _give_back(core, sent_at)
    return effects


def _only(core: PlayerCore, shard: int) -> list[float]:
    """Time has come for this one only; returns what `_give_back` gives back to the others."""
    if shard != -1 and core._begin_at is not None:
        core._begin_at = float("inf")
    sent_at = [target.sent_at for target in core._targets]
    for target in core._targets:
        if target.shard != shard:
            target.retry_at = target.sent_at = float("inf")
    return sent_at


def _give_back(core: PlayerCore, sent_at: list[float]) -> None:
    for target in core._targets:
        if target.sent_at == float("inf"):
            target.sent_at = sent_at[target.shard]
        if target.retry_at == float("inf"):
            target.retry_at = _LATER


def _level(core: PlayerCore) -> None:
    """Make equal what tells no difference."""
    if core._begin_at is not None:
        core._begin_at = _LATER
    for target in core._targets:
        target.sent_at = min(target.sent_at, 0.0)
        target.retry_at = target.opened_at = target.problem_since = 0.0
        target.connection = _CONNECTION
        target.attempts = min(target.attempts, 1)
        target.problem = target.asked_at = None
        target.rows = target.batches = 0


def _clone(core: PlayerCore) -> PlayerCore:
    made = object.__new__(PlayerCore)
    made.__dict__ = dict(core.__dict__)
    made._targets = [_clone_target(target) for target in core._targets]
    return made


def _clone_target(target: _Target) -> _Target:
    made = object.__new__(_Target)
    for one in fields(target):
        value = getattr(target, one.name)
        setattr(made, one.name, list(value) if isinstance(value, list) else value)
    queue = made.queue = object.__new__(TargetQueue)
    queue.__dict__ = {
        name: deque(value) if isinstance(value, deque) else value
        for name, value in target.queue.__dict__.items()
    }
    return made


def _freeze(value: object) -> object:
    """All that a state consists of: an attribute that is added later is part of it."""
    if isinstance(value, Piece):
        return int(value.after), int(value.upto), _rows([value])
    if isinstance(value, list | tuple | deque):
        return tuple(_freeze(one) for one in value)
    if isinstance(value, Enum | int | float | str | None):
        return value
    if isinstance(value, Exception):
        return type(value).__name__
    if is_dataclass(value):
        return tuple(_freeze(getattr(value, one.name)) for one in fields(value))
    return tuple((name, _freeze(one)) for name, one in sorted(vars(value).items()))
