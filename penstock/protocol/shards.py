"""Which shard of a delivery has which virtual node, from one position of the log to the next. Pure.

A *cut* is the LSN of the entry that gave the delivery other shards. What counts below it is routed
as before, what counts above by the new route. At the cut itself the rows of virtual nodes that move
count: in their old shard they go, in their new one they come. So what a shard has at a position is
a function of the log, whoever delivers it, however often.

    shard 0   ──── nodes 0 to 63 ───►│cut│──── nodes 0 to 31 ────►    gives: the rows go
    shard 1                          │cut│──── nodes 32 to 63 ───►    takes: the rows come

Laws: (I14) at every position above a cut each virtual node is in one shard. At one cut no shard
both gives and takes, so that who takes can wait for all who give, and nobody waits for himself. A
number of a shard is never given again: a shard that has given all it had is over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.errors import BadRequest
from penstock.ids import Lsn

#: How often a delivery can be given other shards.
CUTS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Shards:
    """All routes of a delivery, the oldest first. Make one with `shards_of`."""

    #: How many there ever were.
    count: int
    #: Where each route but the last ends. Rising.
    cuts: tuple[Lsn, ...]
    #: The shard of each virtual node.
    routes: tuple[tuple[int, ...], ...]
    #: Of each cut: the shards that give rows away there, and those that take some.
    givers: tuple[tuple[int, ...], ...]
    takers: tuple[tuple[int, ...], ...]

    def route_at(self, lsn: int) -> tuple[int, ...]:
        """By which what counts at this place is routed."""
        return self.routes[bisect_right(self.cuts, lsn)]

    def next_cut(self, shard: int, lsn: int) -> Lsn | None:
        """The first cut from `lsn` on at which rows come to the shard or go; None: there is none.

        The last cut of a shard that has nothing afterwards is among them.
        """
        for number, cut in enumerate(self.cuts):
            if cut >= lsn and (shard in self.givers[number] or shard in self.takers[number]):
                return cut
        return None

    def waits_for(self, shard: int, cut: Lsn) -> tuple[int, ...]:
        """The shards that must be past the cut before this one may take its rows there."""
        number = self.cuts.index(cut)
        if shard not in self.takers[number]:
            return ()
        nodes = [node for node, owner in enumerate(self.routes[number + 1]) if owner == shard]
        return tuple(
            giver
            for giver in self.givers[number]
            if any(self.routes[number][node] == giver for node in nodes)
        )

    def moves(self, cut: Lsn) -> list[tuple[int, int, int]]:
        """Virtual nodes that move there: which, from which shard, to which."""
        number = self.cuts.index(cut)
        pairs = zip(self.routes[number], self.routes[number + 1], strict=True)
        return [(node, was, now) for node, (was, now) in enumerate(pairs) if was != now]

    def birth(self, shard: int, start: Lsn) -> Lsn:
        """Where a shard begins that has no position; `start`: where the delivery does."""
        for number, takers in enumerate(self.takers):
            if shard in takers and shard not in self.routes[number]:
                return self.cuts[number]
        return start

    def is_over(self, shard: int, position: int) -> bool:
        """Whether it has given away all that it had, and stands behind that."""
        if shard in self.routes[-1]:
            return False
        gave = [cut for cut, givers in zip(self.cuts, self.givers, strict=True) if shard in givers]
        return bool(gave) and position > gave[-1]

    @property
    def live(self) -> tuple[int, ...]:
        """Those that have virtual nodes from the last cut on."""
        return tuple(sorted(set(self.routes[-1])))


def shards_of(count: int, cuts: Sequence[int], routes: Sequence[Sequence[int]]) -> Shards:
    """Raises ValueError if they cannot be routes of a delivery."""
    if len(routes) != len(cuts) + 1 or list(cuts) != sorted(set(cuts)):
        raise ValueError("not one route more than there are cuts, or cuts that do not rise")
    if any(len(route) != len(routes[0]) for route in routes):
        raise ValueError("routes of different length")
    if max(map(max, routes)) >= count:
        raise ValueError("a route to no target")
    givers, takers = [], []
    seen = set(routes[0])
    for before, after in pairwise(routes):
        moved = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
        givers.append(tuple(sorted({was for was, _ in moved})))
        takers.append(tuple(sorted({now for _, now in moved})))
        if set(givers[-1]) & set(takers[-1]):
            raise ValueError("a shard gives and takes at one cut")
        if (set(after) - set(before)) & seen:
            raise ValueError("a shard that was over comes back")
        seen |= set(after)
    lsns = tuple(Lsn(cut) for cut in cuts)
    return Shards(count, lsns, tuple(map(tuple, routes)), tuple(givers), tuple(takers))


def next_route(route: Sequence[int], shards: Sequence[int]) -> tuple[int, ...]:
    """For these shards from now on, some of which are new: as few virtual nodes move as can.

    Their numbers of virtual nodes differ by one at most.
    """
    if not 1 <= len(shards) <= len(route) or len(set(shards)) < len(shards):
        raise BadRequest(f"{len(shards)} targets: a delivery has 1 to {len(route)}, each once")
    nodes: dict[int, list[int]] = {shard: [] for shard in shards}
    free: list[int] = []
    for node, shard in enumerate(route):
        nodes.get(shard, free).append(node)
    least, more = divmod(len(route), len(shards))
    # Who has most keeps one more: so nobody who gives takes.
    by_size = sorted(shards, key=lambda shard: (-len(nodes[shard]), shard))
    wanted = {shard: least + (place < more) for place, shard in enumerate(by_size)}
    for shard in shards:
        free += nodes[shard][wanted[shard] :]
        del nodes[shard][wanted[shard] :]
    for shard in shards:
        missing = wanted[shard] - len(nodes[shard])
        nodes[shard] += free[:missing]
        del free[:missing]
    made = {node: shard for shard, owned in nodes.items() for node in owned}
    return tuple(made[node] for node in range(len(route)))
