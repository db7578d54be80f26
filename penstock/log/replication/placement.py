"""Choose the storage nodes of a segment: regions first, then racks, then load.

Nodes are spread evenly over regions, within a region evenly over racks, then by load; the seed
decides between equals. A node that is being drained takes nothing new, and no machine stands twice
in an ensemble, whatever its cookies.

Law (R50, DistributedLog V-A): no combination of nodes satisfies the ack quorum with fewer than
`min_regions` regions, for every write set, also after a replacement. What cannot keep it is
refused with `Unavailable`, never placed badly. `check_placement` is the same law in the plainest
form, for tests and for whoever doubts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations

from penstock.errors import BadRequest, Unavailable
from penstock.ids import NodeId
from penstock.log.replication.manifest import LogManifest, Segment
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.quorum import check_quorums, write_set, write_sets

#: Steps of one search for an order of regions. Possible orders are found in about one step per
#: node, so that this bounds only the proof that there is none.
_STEPS_MAX = 20_000


def draw(seed: int, text: str) -> int:
    """A number that looks random and is the same in every process, for ties."""
    return int.from_bytes(blake2b(f"{seed}/{text}".encode(), digest_size=8).digest(), "little")


def machine_of(node: NodeId) -> str:
    """The name of the machine, whose other lives have other cookies."""
    return node.rpartition(":")[0] or node


def choose_ensemble(
    nodes: Mapping[NodeId, NodeInfo],
    *,
    size: int,
    write_quorum: int,
    ack_quorum: int,
    min_regions: int = 1,
    load: Mapping[NodeId, int] | None = None,
    seed: int,
) -> tuple[NodeId, ...]:
    """Nodes for a new ensemble, in their order. Raises Unavailable if the law cannot be kept.

    `load` is any number that grows with what a node has to do, e.g. its segments.
    """
    check_quorums(size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
    law = _Law(size, write_quorum, ack_quorum, min_regions)
    by_region = _by_region(nodes, load or {}, seed)
    order = _order_regions(law, by_region, _even_counts(by_region, size, load or {}, seed))
    if order is None:
        raise Unavailable(_why_not(law, by_region, nodes))
    left = {region: iter(found) for region, found in by_region.items()}
    return _part_racks([next(left[region]) for region in order], nodes, write_quorum)


def choose_replacement(
    ensemble: Sequence[NodeId],
    failed: NodeId,
    nodes: Mapping[NodeId, NodeInfo],
    *,
    write_quorum: int,
    ack_quorum: int,
    min_regions: int = 1,
    load: Mapping[NodeId, int] | None = None,
    seed: int,
    known: Mapping[NodeId, NodeInfo] | None = None,
    leaving: Collection[NodeId] = (),
) -> NodeId | None:
    """The node to stand in the place of `failed`; None if there is no free node at all.

    `known`: what was known of members that are not registered now. A member of which nothing is
    known may be in any region, and is counted as if it were in the worst. `leaving`: members that
    will be replaced as well and do not count: only for those that cannot acknowledge any more.
    Raises Unavailable if there are free nodes, but none of them keeps the law.
    """
    law = _Law(len(ensemble), write_quorum, ack_quorum, min_regions)
    infos = {**(known or {}), **nodes}
    staying = [node for node in ensemble if node != failed and node not in leaving]
    machines = {machine_of(node) for node in ensemble if node != failed}
    free = [
        info
        for node, info in nodes.items()
        if not info.draining and node not in ensemble and info.name not in machines
    ]
    if not free:
        return None

    place = list(ensemble).index(failed)
    homes = [infos[node].region if node in infos else None for node in ensemble]
    skipped = [at for at, node in enumerate(ensemble) if node in leaving and node != failed]
    fit = [
        info
        for info in free
        if law.holds([*homes[:place], info.region, *homes[place + 1 :]], skipped)
    ]
    if not fit:
        raise Unavailable(_why_no_replacement(law, failed, staying, infos, free))
    regions = Counter(infos[node].region for node in staying if node in infos)
    racks = Counter((infos[node].region, infos[node].rack) for node in staying if node in infos)
    best = min(
        fit,
        key=lambda info: (
            regions[info.region],
            racks[info.region, info.rack],
            (load or {}).get(info.id, 0),
            draw(seed, info.id),
        ),
    )
    return best.id


def check_placement(
    ensemble: Sequence[NodeId],
    nodes: Mapping[NodeId, NodeInfo],
    *,
    write_quorum: int,
    ack_quorum: int,
    min_regions: int,
) -> list[str]:
    """What is wrong with an ensemble, in words: the law read aloud, every ack quorum tried."""
    problems = []
    machines = Counter(nodes[node].name for node in ensemble)
    problems += [f"{name} stands {n} times in it" for name, n in machines.items() if n > 1]
    for block in range(len(ensemble)):
        for quorum in combinations(write_set(ensemble, block, write_quorum), ack_quorum):
            regions = sorted({nodes[node].region for node in quorum})
            if len(regions) < min_regions:
                problems.append(
                    f"block {block} may be acknowledged by {', '.join(quorum)}: only in "
                    f"{', '.join(regions)}"
                )
    return problems


def would_lose_quorum(
    manifests: Mapping[str, LogManifest],
    node: NodeId,
    alive: Mapping[NodeId, NodeInfo],
    *,
    min_regions: int = 1,
) -> list[str]:
    """What would go wrong if the node were taken away now, in words; empty if nothing would.

    `manifests` are all logs by name. Only what the manifests promise is looked at: whether the
    nodes hold what they should is the auditor's business (`repair`).
    """
    problems = []
    for log, manifest in manifests.items():
        for segment in manifest.segments:
            said = [*_lost_copies(segment, node, alive)]
            said += _lost_places(segment, node, alive, min_regions)
            problems += [f"log {log}, segment {segment.id}: {words}" for words in said]
    return problems


# ---- the law


class _Law:
    """The law, counted instead of tried: any `min_regions - 1` regions are too few to acknowledge.

    In every write set, the nodes of the `min_regions - 1` regions that have most of it must be
    fewer than an ack quorum.
    """

    def __init__(self, size: int, write_quorum: int, ack_quorum: int, min_regions: int) -> None:
        if not 1 <= min_regions <= ack_quorum:
            raise BadRequest(f"an ack quorum of {ack_quorum} cannot span {min_regions} regions")
        self.size = size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.min_regions = min_regions
        #: Each node is in `write_quorum` of the `size` write sets, hence the largest
        #: `min_regions - 1` regions can have no more nodes of the ensemble than this.
        self.largest_max = size * (ack_quorum - 1) // write_quorum

    def largest(self, counts: Mapping[str, int]) -> int:
        """Nodes of the regions that are one too few."""
        return sum(sorted(counts.values(), reverse=True)[: self.min_regions - 1])

    def holds_within(self, homes: Iterable[str | None]) -> bool:
        """Whether the law holds for one write set, or a part of one; None is an unknown region."""
        if self.min_regions == 1:
            return True
        counts = Counter(homes)
        unknown = counts.pop(None, 0)
        known = {home: count for home, count in counts.items() if home is not None}
        return self.largest(known) + unknown < self.ack_quorum

    def holds(self, homes: Sequence[str | None], skipped: Collection[int] = ()) -> bool:
        """Whether it holds for every write set, given the region at each place that counts."""
        turns = 1 if self.write_quorum == self.size else self.size
        for turn in range(turns):
            places = ((turn + step) % self.size for step in range(self.write_quorum))
            if not self.holds_within(homes[place] for place in places if place not in skipped):
                return False
        return True

    def __str__(self) -> str:
        return (
            f"an ensemble of {self.size} nodes of which any {self.ack_quorum} of "
            f"{self.write_quorum} span {self.min_regions} regions"
        )


# ---- the choice


def _by_region(
    nodes: Mapping[NodeId, NodeInfo], load: Mapping[NodeId, int], seed: int
) -> dict[str, list[NodeId]]:
    """The usable nodes of each region, in the order in which they should be taken.

    The n-th node of a rack comes after the (n-1)-th of every other, so that each beginning of the
    list is spread over the racks as evenly as can be.
    """
    machines: dict[str, NodeId] = {}
    for node in sorted(nodes):
        if not nodes[node].draining:
            machines[nodes[node].name] = node

    def preference(node: NodeId) -> tuple[int, int]:
        return load.get(node, 0), draw(seed, node)

    usable = sorted(machines.values(), key=preference)
    in_rack: Counter[tuple[str, str]] = Counter()
    turns: dict[NodeId, int] = {}
    for node in usable:
        rack = (nodes[node].region, nodes[node].rack)
        turns[node] = in_rack[rack]
        in_rack[rack] += 1
    found: dict[str, list[NodeId]] = {}
    for node in sorted(usable, key=lambda node: (turns[node], *preference(node))):
        found.setdefault(nodes[node].region, []).append(node)
    return found


def _even_counts(
    by_region: Mapping[str, Sequence[NodeId]], size: int, load: Mapping[NodeId, int], seed: int
) -> Counter[str]:
    """How many nodes to take from each region: as evenly as their numbers allow."""
    turns = [
        (turn, load.get(node, 0), draw(seed, node), region)
        for region, found in by_region.items()
        for turn, node in enumerate(found)
    ]
    return Counter(region for _, _, _, region in sorted(turns)[:size])


def _order_regions(
    law: _Law, by_region: Mapping[str, Sequence[NodeId]], wanted: Counter[str]
) -> list[str] | None:
    """A region for each place of the ensemble so that the law holds; None if there is none.

    No other choice of so many nodes has smaller largest regions than the even one, so that if it
    has too many of them, all have. Else it is tried depth first, even counts first.
    """
    if wanted.total() < law.size or law.largest(wanted) > law.largest_max:
        return None
    # Load and seed decided the order of `wanted`; it stays among equals, as sorting is stable.
    regions = [*wanted, *(region for region in by_region if region not in wanted)]
    order: list[str] = []
    taken: Counter[str] = Counter()
    steps = 0

    def preference(region: str) -> tuple[bool, int, int]:
        recent = order[-law.write_quorum + 1 :] if law.write_quorum > 1 else []
        left = wanted[region] - taken[region]
        return left <= 0, recent.count(region), -left

    def fill() -> bool:
        nonlocal steps
        if len(order) == law.size:
            return law.holds(order)
        for region in sorted(regions, key=preference):
            steps += 1
            if taken[region] == len(by_region[region]) or steps > _STEPS_MAX:
                continue
            order.append(region)
            taken[region] += 1
            if law.holds_within(order[-law.write_quorum :]) and fill():
                return True
            order.pop()
            taken[region] -= 1
        return False

    return order if fill() else None


def _part_racks(
    ensemble: list[NodeId], nodes: Mapping[NodeId, NodeInfo], write_quorum: int
) -> tuple[NodeId, ...]:
    """The same nodes and regions, with nodes of one rack in as few common write sets as possible.

    Swaps two nodes of a region as long as that helps.
    """

    def neighbours() -> int:
        pairs = 0
        for members in write_sets(ensemble, write_quorum):
            racks = Counter((nodes[node].region, nodes[node].rack) for node in members)
            pairs += sum(count * (count - 1) for count in racks.values())
        return pairs

    least = neighbours()
    swaps = [
        (one, other)
        for one, other in combinations(range(len(ensemble)), 2)
        if nodes[ensemble[one]].region == nodes[ensemble[other]].region
    ]
    improved = write_quorum < len(ensemble)
    while improved:
        improved = False
        for one, other in swaps:
            ensemble[one], ensemble[other] = ensemble[other], ensemble[one]
            now = neighbours()
            if now < least:
                least, improved = now, True
            else:
                ensemble[one], ensemble[other] = ensemble[other], ensemble[one]
    return tuple(ensemble)


def _why_not(
    law: _Law, by_region: Mapping[str, Sequence[NodeId]], nodes: Mapping[NodeId, NodeInfo]
) -> str:
    usable = sum(len(found) for found in by_region.values())
    if usable < law.size:
        problem = f"{law.size - usable} more storage nodes are missing"
    elif len(by_region) < law.min_regions:
        problem = f"{law.min_regions - len(by_region)} more regions with storage nodes are missing"
    else:
        problem = "more regions, or more storage nodes in the small ones, are missing"
    return f"cannot make {law}: {problem}; {_census(by_region, nodes)}"


def _census(by_region: Mapping[str, Sequence[NodeId]], nodes: Mapping[NodeId, NodeInfo]) -> str:
    """What there is, for messages: `usable nodes: east 2, west 1; only draining ones: south`."""
    there = ", ".join(f"{region} {len(found)}" for region, found in sorted(by_region.items()))
    drained = sorted({info.region for info in nodes.values()} - set(by_region))
    words = f"usable nodes: {there or 'none'}"
    return f"{words}; only draining ones: {', '.join(drained)}" if drained else words


def _why_no_replacement(
    law: _Law,
    failed: NodeId,
    staying: Sequence[NodeId],
    infos: Mapping[NodeId, NodeInfo],
    free: Sequence[NodeInfo],
) -> str:
    members = Counter(infos[node].region if node in infos else "unknown" for node in staying)
    left = ", ".join(f"{region} {count}" for region, count in sorted(members.items()))
    offered = ", ".join(sorted({info.region for info in free}))
    missing = f" of {infos[failed].region}" if failed in infos else ""
    return (
        f"no replacement for {failed} keeps {law}: its ensemble still has nodes in "
        f"{left or 'no region'}, free nodes are only in {offered}; a node{missing} or of another "
        "region is missing"
    )


# ---- the decommission check


def _lost_copies(segment: Segment, node: NodeId, alive: Mapping[NodeId, NodeInfo]) -> Iterator[str]:
    """For each ensemble, the worst that happens to a block of the node."""
    for number, ensemble in enumerate(segment.ensembles):
        if node not in ensemble.nodes:
            continue
        found = []
        for name, block in _blocks_to_try(segment, number):
            members = write_set(ensemble.nodes, block, segment.write_quorum)
            if node in members:
                copies = sum(member in alive and member != node for member in members)
                found.append((copies, f"{name} {block}"))
        copies, name = min(found, default=(segment.ack_quorum, ""))
        if copies == 0:
            yield f"{name} would have no living copy"
        elif copies < segment.ack_quorum:
            yield (
                f"{name} would have {copies} living {'copy' if copies == 1 else 'copies'}, "
                f"the ack quorum is {segment.ack_quorum}"
            )


def _blocks_to_try(segment: Segment, number: int) -> Iterator[tuple[str, int]]:
    """Blocks of an ensemble with every write set that it has, or may have if it is written to."""
    ensemble, is_last = segment.ensembles[number], number + 1 == len(segment.ensembles)
    first = ensemble.first_block
    end = first + len(ensemble.nodes)
    if not is_last:
        end = min(end, segment.ensembles[number + 1].first_block)
    if segment.sealed:
        end = min(end, segment.blocks)
    yield from (("block", block) for block in range(first, end))
    if is_last:
        index_end = min(segment.index_blocks, len(ensemble.nodes))
        yield from (("index block", block) for block in range(index_end))


def _lost_places(
    segment: Segment, node: NodeId, alive: Mapping[NodeId, NodeInfo], min_regions: int
) -> Iterator[str]:
    """Whether some other node could take its place in each ensemble."""
    others = {found: info for found, info in alive.items() if found != node}
    for ensemble in segment.ensembles:
        if node not in ensemble.nodes:
            continue
        gone = [member for member in ensemble.nodes if member not in alive]
        try:
            found = choose_replacement(
                ensemble.nodes,
                node,
                others,
                write_quorum=segment.write_quorum,
                ack_quorum=segment.ack_quorum,
                # An old segment may have been made when less was asked for.
                min_regions=min(min_regions, segment.ack_quorum),
                seed=0,
                known={node: alive[node]} if node in alive else {},
                leaving=gone,
            )
        except Unavailable as error:
            yield str(error)
            continue
        if found is None:
            yield f"no other node is free to take the place of {node}"
