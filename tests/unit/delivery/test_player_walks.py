"""Random walks of the player's core against targets that compare positions.

Goal: whatever is lost, late or restored, each target has exactly its rows below its position, in
order (I14), and in the end all of them. Method: a toy log with one row per LSN, two targets, and
every step drawn from a seed: reads, answers, lost answers, crashes of targets, restored backups,
players that are replaced without knowing it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from delivery_steps import span

from penstock.delivery.messages import Ack, Apply, Bye, Failure, Hello
from penstock.delivery.player_core import (
    Drained,
    Effect,
    End,
    Event,
    Follow,
    Limits,
    Opened,
    PlayerCore,
    Read,
    ReadDone,
    Started,
    Tailed,
    Ticked,
)
from penstock.delivery.routing import Span
from penstock.errors import Fenced, Unavailable
from penstock.ids import Lsn

SHARDS = 2


@dataclass
class ToyTarget:
    """Rows and position change together, if the position is the batch's `after`."""

    shard: int
    compares: bool = True
    position: Lsn = Lsn(0)
    term: int = 0
    rows: list[int] = field(default_factory=list)
    backup: tuple[Lsn, list[int]] = (Lsn(0), [])

    def hello(self, term: int) -> Lsn:
        if term < self.term:
            raise Fenced(f"term {self.term} was here")
        self.term = term
        return self.position

    def apply(self, batch: Apply) -> Lsn:
        if self.compares and batch.after != self.position:
            return self.position
        for piece in batch.pieces:
            for rows in piece.rows:
                self.rows += rows["lsn"].to_pylist()
        self.position = batch.upto
        return self.position

    def check(self, log: list[int]) -> None:
        expected = [lsn for lsn, shard in enumerate(log[: self.position]) if shard == self.shard]
        assert self.rows == expected, f"shard {self.shard} at {self.position}"


class ToyPlayer:
    """A core; its messages wait in one queue per target and direction."""

    def __init__(self, world: Walk, term: int) -> None:
        limits = Limits(queue_bytes_max=100, batch_bytes_max=30, window=world.random.choice([1, 3]))
        self.core = PlayerCore(SHARDS, term=term, limits=limits)
        self.world = world
        self.to: list[deque[Hello | Apply | Bye]] = [deque() for _ in range(SHARDS)]
        self.back: list[deque[Event]] = [deque() for _ in range(SHARDS)]
        self.reads: list[Read] = []
        self.has_ended = False
        self.tell(Started())

    def tell(self, event: Event) -> None:
        effects = self.core.handle(event, self.world.now)
        self.core.check()
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Hello | Apply | Bye):
            self.to[effect.shard].append(effect)
        elif isinstance(effect, Read):
            self.reads.append(effect)
        elif isinstance(effect, End):
            self.has_ended = True
        else:
            assert isinstance(effect, Follow)

    def steps(self) -> list[str]:
        steps = [f"to{shard}" for shard in range(SHARDS) if self.to[shard]]
        steps += [f"back{shard}" for shard in range(SHARDS) if self.back[shard]]
        steps += ["read"] * bool(self.reads)
        if self.core.wants_tail and self.core.tail < len(self.world.log):  # type: ignore[operator]
            steps.append("tail")
        if self.core.due is not None:
            steps.append("tick")
        return [] if self.has_ended else steps

    def do(self, step: str) -> None:
        world = self.world
        if step == "tail":
            assert self.core.tail is not None
            self.tell(Tailed(world.span(self.core.tail, len(world.log))))
        elif step == "tick":
            world.now = max(world.now, self.core.due or 0)
            self.tell(Ticked())
        elif step == "read":
            read = self.reads.pop(world.random.randrange(len(self.reads)))
            end = world.random.randint(read.start + 1, read.end)
            self.tell(ReadDone(read.shard, read.connection, world.span(read.start, end)))
        elif step.startswith("back"):
            self.tell(self.back[int(step[4:])].popleft())
        else:
            shard = int(step[2:])
            self.reach(world.targets[shard], self.to[shard].popleft())

    def reach(self, target: ToyTarget, message: Hello | Apply | Bye) -> None:
        """The target hears it; a faulty way loses the message, or the answer."""
        if isinstance(message, Bye):
            return
        names = message.shard, message.connection
        fault = self.world.random.random() if self.world.is_faulty else 1.0
        if fault < 0.05:
            self.back[target.shard].append(Failure(*names, Unavailable("lost on the way")))
            return
        answer: Event
        try:
            if isinstance(message, Hello):
                position = target.hello(message.term)
                answer = Opened(*names, position, Lsn(len(self.world.log)))
            else:
                answer = Ack(*names, target.apply(message))
        except Fenced as error:
            answer = Failure(*names, error)
        if fault < 0.1:
            answer = Failure(*names, Unavailable("the answer is lost"))
        self.back[target.shard].append(answer)


class Walk:
    """One seed's world."""

    def __init__(self, seed: int, *, compares: bool = True) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        #: The shard of the row at each LSN; -1: an entry of others.
        self.log: list[int] = []
        self.targets = [ToyTarget(shard, compares) for shard in range(SHARDS)]
        self.is_faulty = True
        self.term = 1
        self.players = [ToyPlayer(self, 1)]

    def span(self, start: int, end: int) -> Span:
        end = min(end, start + self.random.randint(1, 8))
        rows = {lsn: self.log[lsn] for lsn in range(start, end) if self.log[lsn] >= 0}
        return span(start, end, rows)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            for target in self.targets:
                target.check(self.log)

    def step(self) -> None:
        drawn = self.random.random()
        if drawn < 0.15:
            self.log.append(self.random.choice([-1, 0, 0, 1]))
        elif drawn < 0.16:
            target = self.random.choice(self.targets)
            target.backup = (target.position, list(target.rows))
        elif drawn < 0.165:
            target = self.random.choice(self.targets)
            target.position, rows = target.backup
            target.rows = list(rows)
        elif drawn < 0.17:
            self.term += 1
            self.players.append(ToyPlayer(self, self.term))  # the old one does not know
        else:
            player = self.random.choice(self.players[-2:])
            if steps := player.steps():
                player.do(self.random.choice(steps))

    def settle(self) -> None:
        """No more faults: all that is in the log arrives."""
        self.is_faulty = False
        for _ in range(20_000):
            living = [player for player in self.players[-2:] if not player.has_ended]
            busy = [(player, step) for player in living for step in player.steps()]
            if all(target.position == len(self.log) for target in self.targets):
                return
            if not busy:
                self.log.append(-1)
                self.log += [0, 1]  # rows for both: positions of quiet shards may stay behind
                continue
            player, step = self.random.choice(busy)
            player.do(step)
            for target in self.targets:
                target.check(self.log)
        raise AssertionError("the targets do not get everything")


@pytest.mark.parametrize("seed", range(60))
def test_every_target_has_its_rows_once_and_in_order(seed: int) -> None:
    walk = Walk(seed)
    walk.run(1500)
    walk.settle()

    assert len(walk.log) > 100
    for target in walk.targets:
        assert target.rows


def test_targets_that_do_not_compare_are_seen_to_fail() -> None:
    failed = 0
    for seed in range(20):
        try:
            Walk(seed, compares=False).run(1500)
        except AssertionError:
            failed += 1

    assert failed > 15


def test_a_player_that_drains_ends_whatever_it_was_at() -> None:
    for seed in range(20):
        walk = Walk(seed)
        walk.run(300)
        player = walk.players[-1]
        if player.has_ended:
            continue
        player.tell(Drained())
        walk.is_faulty = False
        while not player.core.is_drained:
            steps = [step for step in player.steps() if step[:2] in ("to", "ba")]
            assert steps, "nothing is under way, but it is not drained"
            player.do(steps[0])
