"""When virtual nodes should go from one task of a stage to another, and which. Pure.

A stage is uneven if its busiest task takes more than UNEVEN times as many rows as its tasks do on
average. Then virtual nodes go from the busiest to the idlest, each one that lessens the difference
most, until there is none that helps. Nothing moves that a virtual node alone is to blame for: it
has a key that is in most rows, and one key is never split. That is said in words instead.

By itself a query is balanced only if it was uneven REPORTS times in a row, if the busiest task then
takes GAIN less than before, and not within SECONDS of the last time: all tasks pause for a change.

Laws: a stage keeps its number of tasks, and each virtual node has one task (I13); a task that keeps
its virtual nodes stays; the busiest task never takes more than before; stages that read the same
rows have the same shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.names import TaskId
from penstock.runtime.commit_protocol import MARKERS
from penstock.runtime.layout import Share, Shares
from penstock.runtime.node_rates import ByNode
from penstock.runtime.spec import QuerySpec

UNEVEN: Final = 1.5
#: Of what is as even as this nothing moves any more.
EVEN: Final = 1.1
REPORTS: Final = 5
GAIN: Final = 0.2
SECONDS: Final = 60
#: What somebody asked for is done for less.
GAIN_BY_HAND: Final = 0.05
#: Below so many rows a second, shares say nothing.
ROWS_MIN: Final = 50.0
#: What is told of a change that was advised and not made.
GIVEN_UP: Final = "not balanced: its tasks were to change for another reason meanwhile; ask again"

Nodes = frozenset[int]


@dataclass(frozen=True, slots=True)
class MovedNode:
    """A virtual node that gets another task."""

    node: int
    left: TaskId
    to: TaskId
    #: Rows a second.
    rate: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What the next layout should be."""

    #: Of the layout that it is for.
    version: int
    shares: Shares
    moved: tuple[MovedNode, ...]
    #: Why, for people.
    why: str


def even_out(shares: Sequence[Nodes], rates: ByNode) -> list[Nodes]:
    """The same number of shares, as even as single moves of virtual nodes make them."""
    made = [set(nodes) for nodes in shares]
    loads = [sum(rates[node] for node in sorted(nodes)) for nodes in made]
    while True:
        hot = max(range(len(made)), key=lambda rank: (loads[rank], -rank))
        cool = min(range(len(made)), key=lambda rank: (loads[rank], rank))
        gap = loads[hot] - loads[cool]
        # One that gets next to nothing is not worth it, and there always is a larger one.
        able = [node for node in sorted(made[hot]) if gap / len(rates) < rates[node] < gap]
        if not able or loads[hot] * len(made) <= EVEN * sum(loads):
            return [frozenset(nodes) for nodes in made]
        # After it, neither of the two takes as much as the first did.
        node = min(able, key=lambda node: (abs(gap / 2 - rates[node]), node))
        made[hot].remove(node)
        made[cool].add(node)
        loads[hot] -= rates[node]
        loads[cool] += rates[node]


def groups(spec: QuerySpec) -> list[tuple[int, ...]]:
    """Stages that must have the same shares, since they read the same rows; of those that can be
    balanced: rows go to their tasks by virtual node alone."""
    if spec.settings.protocol.name != MARKERS.name or not spec.shares_sources:
        return []
    found: list[set[int]] = []
    for stage in spec.running_stages:
        upstream = {leaf.stage for leaf in spec.inputs(stage) if isinstance(leaf, StageInput)}
        mine = {stage}
        for other in [one for one in found if upstream & _read_by(spec, one)]:
            mine |= other
            found.remove(other)
        found.append(mine)
    return [tuple(sorted(one)) for one in found if all(_can_move(spec, stage) for stage in one)]


def _read_by(spec: QuerySpec, stages: set[int]) -> set[int]:
    leaves = [leaf for stage in sorted(stages) for leaf in spec.inputs(stage)]
    return {leaf.stage for leaf in leaves if isinstance(leaf, StageInput)}


def _can_move(spec: QuerySpec, stage: int) -> bool:
    """One whose stages run together has rows by the lanes of a key, wherever their nodes are."""
    is_apart = len(spec.running(stage)) == 1 and spec.tasks[stage] > 1
    return is_apart and any(
        isinstance(leaf, StageInput) or spec.sources[leaf.stream].lanes > 1
        for leaf in spec.inputs(stage)
        if isinstance(leaf, StageInput | n.Scan)
    )


@dataclass(frozen=True, slots=True)
class Weighed:
    """A group of stages: what each of its tasks takes, and could take."""

    stages: tuple[int, ...]
    rates: ByNode
    shares: tuple[Nodes, ...]
    next_shares: tuple[Nodes, ...]

    @property
    def times(self) -> float:
        """How many times the mean the busiest task takes."""
        return self._busiest(self.shares) * len(self.shares) / sum(self.rates)

    @property
    def gain(self) -> float:
        """By which part of it the busiest task takes less then."""
        return 1 - self._busiest(self.next_shares) / self._busiest(self.shares)

    def _busiest(self, shares: Sequence[Nodes]) -> float:
        return max(sum(self.rates[node] for node in sorted(nodes)) for nodes in shares)

    @property
    def hottest(self) -> int:
        """The virtual node with most rows."""
        return max(range(len(self.rates)), key=lambda node: (self.rates[node], -node))


def weigh(spec: QuerySpec, rates: Mapping[int, ByNode]) -> list[Weighed]:
    """The groups whose rates are known, and of which there is enough to say anything."""
    found = []
    for stages in groups(spec):
        if any(stage not in rates for stage in stages):
            continue
        summed = tuple(map(sum, zip(*(rates[stage] for stage in stages), strict=True)))
        shares = tuple(share.nodes for share in spec.layout.stages[stages[0]])
        alike = {tuple(share.nodes for share in spec.layout.stages[stage]) for stage in stages}
        if sum(summed) >= ROWS_MIN and len(alike) == 1:
            found.append(Weighed(stages, summed, shares, tuple(even_out(shares, summed))))
    return found


def advise(spec: QuerySpec, found: Sequence[Weighed], why: str) -> Advice:
    """The layout in which these groups are even."""
    shares: dict[int, tuple[Share, ...]] = {}
    moved: list[MovedNode] = []
    for one in found:
        for stage in one.stages:
            shares[stage] = spec.layout.share_anew(stage, one.next_shares)
            owner = {node: share for share in shares[stage] for node in sorted(share.nodes)}
            for old, new in zip(spec.layout.stages[stage], shares[stage], strict=True):
                moved += [
                    MovedNode(
                        node,
                        TaskId(spec.name, spec.version, stage, old.index),
                        TaskId(spec.name, spec.version, stage, owner[node].index),
                        one.rates[node],
                    )
                    for node in sorted(old.nodes - new.nodes)
                ]
    told = [
        f"the busiest task of stage {one.stages[-1]} took {one.times:.1f} times the mean"
        for one in found
    ]
    return Advice(spec.layout.version, shares, tuple(moved), f"{why}: {'; '.join(told)}")


def explain(spec: QuerySpec, rates: Mapping[int, ByNode], found: Sequence[Weighed]) -> str:
    """Why nothing moves."""
    if not found:
        return f"nothing to balance: {_why_nothing(spec, rates)}"
    worst = max(found, key=lambda one: one.times)
    if worst.times <= UNEVEN:
        return f"even: the busiest task of a stage takes {worst.times:.2f} times the mean"
    if worst.gain >= GAIN_BY_HAND:
        return (
            f"uneven: the busiest task of stage {worst.stages[-1]} takes {worst.times:.1f} times "
            f"the mean, and {worst.gain:.0%} less if virtual nodes move; by itself it is done for "
            f"{GAIN:.0%}, if it stays so, and not again within {SECONDS} s"
        )
    node, share = worst.hottest, worst.rates[worst.hottest] / sum(worst.rates)
    return (
        f"stage {worst.stages[-1]} stays uneven: virtual node {node} alone takes {share:.0%} of "
        "its rows. It has a key that is in so many, and rows of one key go to one task: aggregate "
        "in two steps, or add a column to the key"
    )


def _why_nothing(spec: QuerySpec, rates: Mapping[int, ByNode]) -> str:
    able = groups(spec)
    if not able:
        return "no stage has several tasks whose rows go to them by virtual node"
    if not any(all(stage in rates for stage in stages) for stages in able):
        return "no rows a second are known yet: ask again in a few seconds"
    return f"too few rows come to say anything (below {ROWS_MIN:g} rows/s)"


@dataclass(slots=True)
class Balancer:
    """Of one run of a query: watches its rates, and says when to balance it by itself."""

    is_automatic: bool = False
    #: What it found last, for people; None: it was not asked.
    told: str | None = None
    _uneven: dict[tuple[int, ...], int] = field(default_factory=dict)
    _changed_ms: int | None = None
    _version: int = 0

    def look(self, spec: QuerySpec, rates: Mapping[int, ByNode], now_ms: int) -> Advice | None:
        """Once for each report. None: nothing is to be done by itself."""
        if spec.layout.version != self._version:
            self._version, self._changed_ms, self._uneven = spec.layout.version, now_ms, {}
        if not self.is_automatic:
            return None
        found = weigh(spec, rates)
        self._uneven = {
            one.stages: self._uneven.get(one.stages, 0) + 1 for one in found if one.times > UNEVEN
        }
        self.told = explain(spec, rates, found)
        ripe = [one for one in found if self._uneven.get(one.stages, 0) >= REPORTS]
        worth = [one for one in ripe if one.gain >= GAIN]
        is_soon = self._changed_ms is not None and now_ms - self._changed_ms < SECONDS * 1000
        if not worth or is_soon:
            return None
        return advise(spec, worth, "automatically")

    def by_hand(self, spec: QuerySpec, rates: Mapping[int, ByNode]) -> Advice | None:
        """Now. None: nothing would be gained, and `told` says why."""
        found = weigh(spec, rates)
        worth = [one for one in found if one.gain >= GAIN_BY_HAND]
        self.told = None if worth else explain(spec, rates, found)
        return advise(spec, worth, "by hand") if worth else None

    def facts(self) -> dict[str, Any]:
        """For progress reports."""
        return {"automatic": self.is_automatic, "told": self.told}
