"""Two players, two targets and a few entries: one state of that world, and all that can happen.

Owns the steps. Players are states of the shipped core (small_player.py); the first is a zombie as
soon as the second is started. Targets are a model of api.py. Between a player and a target there is
a wire (small_wires.py). An answer is heard when it is given: that it waits is a message that waits,
unless something else happens to the target meanwhile, or to the connection; that costs a *delay*.

Laws, in every state: the rows of a target are those of the log below its position, each once and in
order (I14); a position goes back only where a backup is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from penstock.delivery.player_core import Limits
from penstock.ids import Lsn
from penstock.protocol.shards import Shards
from simulation.delivery.small_player import LOG, OVER, Automaton, Log, Outcome, Told
from simulation.delivery.small_wires import IDLE, Message, Wires

#: What a target does before it applies a batch.
#:   compare  its position must be the batch's `after`: what ships (api.py)
#:   nothing  it applies what comes: LogPlayer 2.1, "targets do not need to check"
#:   terms    it refuses what is of an older player, or an older connection of the same
Rule = Literal["compare", "nothing", "terms"]
#: What happens: a player, if it is one who does it, a verb, and what it concerns.
Step = tuple[Any, ...]
#: `own` must happen in the end; `late` may; a `fault` costs something.
Kind = Literal["own", "late", "fault"]
#: Numbers of players, of wires by player and shard, and of targets; faults and delays to come.
State = tuple[int, ...]
Happening = tuple[Kind, Step, State]


@dataclass(frozen=True)
class Scope:
    """How much can happen."""

    log: Log = LOG
    #: Where rows move; None: nowhere.
    layout: Shards | None = None
    players: int = 2
    rule: Rule = "compare"
    #: Whether targets refuse older players. Without it nothing but the comparison is left.
    knows_terms: bool = True
    faults: int = 1
    #: Which of them there are.
    #:   cut       a connection is
    #:   crash     a target is gone, and back with what it has stored
    #:   restore   a target has what it had earlier
    #:   kill      the newest player ends, and another follows
    #:   disorder  a message comes twice, or before its turn; an answer is heard twice
    kinds: frozenset[str] = frozenset({"cut", "crash", "restore", "kill", "disorder"})
    #: Answers before which something else happens.
    delays: int = 1
    #: Whether what is left of earlier connections may still come.
    late: bool = True
    queue_bytes_max: int = 1
    window: int = 1


class Target(NamedTuple):
    """What it has stored."""

    position: int = 0
    rows: tuple[int, ...] = ()
    term: int = 0
    #: Of the connection that was last opened, of the player with that term (rule "terms").
    age: int = 0


class Broken(Exception):
    """A law is."""


class SmallWorld:
    """All that can happen from a state."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        limits = Limits(scope.queue_bytes_max, batch_bytes_max=2, window=scope.window)
        self.players = Automaton(scope.log, limits, scope.layout)
        self.wires = Wires()
        self._news = {self.players.new(term): term for term in (1, 2, 3)}
        self._targets: list[Target] = []
        self._target_numbers: dict[Target, int] = {}
        count = scope.players
        self._players = range(count)
        self._shards = range(len(scope.log[0]))
        first = range(count, count * (1 + len(self._shards)), len(self._shards))
        self._wires = [[place + shard for shard in self._shards] for place in first]
        self._target = [first.stop + shard for shard in self._shards]
        self._reached: dict[tuple[int, int, int, Message], tuple[int, Message]] = {}
        self._fold = cache(self._fold_anew)

    def first(self) -> State:
        targets = [self._number(Target(self._birth(shard))) for shard in self._shards]
        wires = [IDLE] * (self.scope.players * len(self._shards))
        state = [*list(self._news)[: self.scope.players], *wires, *targets]
        state += [self.scope.faults, self.scope.delays]
        return self._tell(state, 0, ("start",))

    def _birth(self, shard: int) -> int:
        return 0 if self.scope.layout is None else self.scope.layout.birth(shard, Lsn(0))

    def is_done(self, state: State) -> bool:
        end = len(self.scope.log)
        return all(self._targets[state[place]].position == end for place in self._target)

    def _number(self, target: Target) -> int:
        number = self._target_numbers.setdefault(target, len(self._targets))
        if number == len(self._targets):
            self._targets.append(target)
        return number

    # ---- what can happen

    def steps(self, state: State) -> Iterator[Happening]:
        for player in self._players:
            number = state[player]
            if number in self._news and number != OVER:
                yield "own", (player, "starts"), self._tell(list(state), player, ("start",))
            elif number != OVER:
                for told, outcome in self.players.local(number):
                    yield "own", (player, *told), self._perform(list(state), player, outcome)
                for shard in self._shards:
                    yield from self._on_wire(state, player, shard)
            if self.scope.late:
                for shard in self._shards:
                    yield from self._left_behind(state, player, shard)
        if state[-2]:
            yield from self._faults((*state[:-2], state[-2] - 1, state[-1]))

    def _on_wire(self, state: State, player: int, shard: int) -> Iterator[Happening]:
        place = self._wires[player][shard]
        number = state[place]
        wire = self.wires[number]
        if wire.read is not None:
            start, end = wire.read
            for upto in (start + 1, end) if end - start > 1 else (end,):
                told = ("read", shard, 0, start, upto)
                after = _put(state, place, self.wires.without_read(number))
                yield "own", (player, *told), self._tell(after, player, told)
        if wire.back:
            after = _put(state, place, self.wires.without_answer(number))
            step = (player, "hears", shard, wire.back[0])
            yield "own", step, self._hear(after, player, shard, 0, wire.back[0])
        if wire.to:
            after = _put(state, place, self.wires.without_message(number, 0))
            answer = self._reach(after, shard, 0, wire.to[0])
            step = (player, "reaches", shard, wire.to[0])
            delayed = _put(after, place, self.wires.with_answer(after[place], answer))
            if wire.back:
                yield "own", step, tuple(delayed)
                return
            yield "own", step, self._hear(after, player, shard, 0, answer)
            if state[-1]:
                delayed[-1] -= 1
                yield "fault", (*step, "and is not heard"), tuple(delayed)

    def _left_behind(self, state: State, player: int, shard: int) -> Iterator[Happening]:
        """What is left of earlier connections comes."""
        place = self._wires[player][shard]
        for which, (age, message) in enumerate(self.wires[state[place]].late):
            after = _put(state, place, self.wires.without_late(state[place], which))
            step = (player, "late", shard, age, message)
            if message[0] not in ("hello", "apply"):
                yield "late", step, self._hear(after, player, shard, age, message)
                continue
            answer = self._reach(after, shard, age, message)
            yield "late", step, self._settled(after)
            if state[player] != OVER:
                yield "late", (*step, answer), self._hear(after, player, shard, age, answer)

    def _faults(self, state: State) -> Iterator[Happening]:
        kinds = self.scope.kinds
        for player in self._players:
            if state[player] != OVER and state[player] not in self._news:
                for shard in self._shards:
                    if "cut" in kinds:
                        after = self._tell(list(state), player, ("cut", shard))
                        yield "fault", (player, "is cut off", shard), after
                    if "disorder" in kinds:
                        yield from self._disorder(state, player, shard)
        for shard in self._shards:
            if "crash" in kinds:
                yield "fault", ("crash", shard), self._settled(self._crash(state, shard))
            position = self._targets[state[self._target[shard]]].position
            for earlier in range(self._birth(shard), position if "restore" in kinds else 0):
                after = self._restore(self._crash(state, shard), shard, earlier)
                yield "fault", ("restore", shard, earlier), after
        newest = self._players[-1]
        if "kill" in kinds and state[newest] != OVER and state[newest] not in self._news:
            term = self.players.term(state[newest])
            if term < len(self._news):
                killed = self._end(list(state), newest)
                killed[newest] = self.players.new(term + 1)
                yield "fault", ("kill", newest), self._settled(killed)

    def _disorder(self, state: State, player: int, shard: int) -> Iterator[Happening]:
        """A message comes twice, or before its turn; an answer is heard twice."""
        place = self._wires[player][shard]
        wire = self.wires[state[place]]
        for which, message in enumerate(wire.to):
            after = list(state)
            answer = self._reach(after, shard, 0, message)
            after[place] = self.wires.with_answer(after[place], answer)
            yield "fault", (player, "reaches", shard, message, "twice"), self._settled(after)
            if which:
                after[place] = self.wires.without_message(after[place], which)
                yield "fault", (player, "reaches", shard, message, "early"), self._settled(after)
        for answer in wire.back[:1]:
            step = (player, "hears", shard, answer, "twice")
            yield "fault", step, self._hear(list(state), player, shard, 0, answer)

    # ---- what it does

    def _reach(self, state: list[int], shard: int, age: int, message: Message) -> Message:
        """A target gets a message; its answer."""
        place = self._target[shard]
        key = (state[place], shard, age, message)
        found = self._reached.get(key)
        if found is None:
            target, answer = self._answer(self._targets[state[place]], shard, age, message)
            found = self._reached[key] = self._number(target), answer
        self._check_moves(state, shard, self._targets[found[0]].position)
        state[place] = found[0]
        return found[1]

    def _check_moves(self, state: list[int], shard: int, position: int) -> None:
        """A row that moves is in one table at most, also if both are one. (A target that gave it
        away may be restored to before that.)"""
        layout = self.scope.layout
        before = self._targets[state[self._target[shard]]].position
        if layout is None or "restore" in self.scope.kinds:
            return
        for cut, givers, takers in zip(layout.cuts, layout.givers, layout.takers, strict=True):
            if shard in takers and before <= cut < position:
                for giver in givers:
                    if self._targets[state[self._target[giver]]].position <= cut:
                        raise Broken(f"target {shard} takes rows that target {giver} still has")

    def _answer(
        self, target: Target, shard: int, age: int, message: Message
    ) -> tuple[Target, Message]:
        kind, term = message[:2]
        if self.scope.knows_terms and term < target.term:
            return target, ("fenced",)
        if self.scope.rule == "terms" and term == target.term and age > target.age:
            return target, ("fenced",)
        if kind == "hello":
            return target._replace(term=max(term, target.term), age=age), ("at", target.position)
        after, upto, rows = message[2:]
        if self.scope.rule == "compare" and target.position != after:
            return target, ("ack", target.position)
        if upto < target.position:
            raise Broken(f"target {shard} goes back from {target.position} by {message}")
        rows, expected = (*target.rows, *rows), self._fold(shard, upto)
        if rows != expected:
            raise Broken(f"target {shard} has {rows} by {message}, not {expected}")
        return target._replace(position=upto, rows=rows), ("ack", upto)

    def _fold_anew(self, shard: int, position: int) -> tuple[int, ...]:
        return tuple(row for entry in self.scope.log[:position] for row in entry[shard])

    def _hear(self, state: list[int], player: int, shard: int, age: int, answer: Message) -> State:
        return self._tell(state, player, (answer[0], shard, age, *answer[1:]))

    def _tell(self, state: list[int], player: int, told: Told) -> State:
        if state[player] == OVER:
            return self._settled(state)
        return self._perform(state, player, self.players.tell(state[player], told))

    def _perform(self, state: list[int], player: int, outcome: Outcome) -> State:
        self._do(state, player, outcome)
        return self._settled(state)

    def _do(self, state: list[int], player: int, outcome: Outcome) -> None:
        for shard, begun, orders in outcome.shards:
            place = self._wires[player][shard]
            state[place] = self.wires.ordered(state[place], begun, orders)
            if begun and self.scope.rule == "terms":
                target = self._targets[state[self._target[shard]]]
                if target.term == self.players.term(state[player]):
                    older = target._replace(age=target.age + begun)
                    state[self._target[shard]] = self._number(older)
        state[player] = outcome.player
        if outcome.player == OVER:
            self._end(state, player)

    def _end(self, state: list[int], player: int) -> list[int]:
        """The player is over. What it has sent may still come."""
        state[player] = OVER
        for place in self._wires[player]:
            state[place] = self.wires.left_alone(state[place])
        return state

    def _crash(self, state: State, shard: int) -> list[int]:
        """A target is gone, and comes back with what it has stored."""
        after = list(state)
        for player in self._players:
            if after[player] != OVER and after[player] not in self._news:
                self._do(after, player, self.players.tell(after[player], ("cut", shard)))
        return after

    def _restore(self, state: list[int], shard: int, position: int) -> State:
        target = self._targets[state[self._target[shard]]]
        restored = target._replace(position=position, rows=self._fold(shard, position))
        state[self._target[shard]] = self._number(restored)
        return self._settled(state)

    def _settled(self, state: list[int]) -> State:
        """Without what can do nothing any more: batches below a position that never goes back."""
        if self.scope.rule == "compare":
            is_forward = not (state[-2] and "restore" in self.scope.kinds)
            for places in self._wires:
                for shard, place in enumerate(places):
                    if self.wires[state[place]].late:
                        target = self._targets[state[self._target[shard]]]
                        floor = target.position if is_forward else 0
                        state[place] = self.wires.pruned(state[place], target.term, floor)
        return tuple(state)


def _put(state: State | list[int], place: int, number: int) -> list[int]:
    made = list(state)
    made[place] = number
    return made
