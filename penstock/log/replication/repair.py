"""The auditor's decisions: which blocks to copy where, so that every one has all its copies again.

    manifests + living nodes + what they hold ──plan_repairs──► Replacement: copy, then change the
                                                                manifest · Refill: copy only
A member that is gone or is being drained is replaced by another node, which gets every block that
the member should have; a member that lacks some gets those. Draining nodes still are sources.

Laws: only sealed segments are touched. Nothing is deleted, and no member is taken out of a manifest
unless all its blocks have another source: it may come back with the last copy (R40). The new node
was not in the ensemble, and every ack quorum spans `min_regions` as before (R50). What is about to
be lost comes first: fewest living copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import Unavailable, VersionConflict
from penstock.ids import BlockId, NodeId
from penstock.log.replication.block_ranges import Range, count, owed, subtract, union
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment, SegmentKey
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.placement import choose_replacement, draw

#: What each living node says it holds of a part of a segment; who is not in it has said nothing.
Held = Mapping[SegmentKey, Mapping[NodeId, Sequence[Range]]]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy these blocks of a part, each whole and checked, from any of `sources`."""

    key: SegmentKey
    first: int
    end: int
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Refill:
    """A member lacks some of its blocks: copy them, nothing else changes."""

    log: str
    segment: int
    target: NodeId
    copies: tuple[Copy, ...]
    #: Living copies of the block that has fewest.
    living: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """Copy all blocks to `target`; only after that, let it stand in the place of `old`."""

    log: str
    segment: int
    #: Which ensemble of the segment.
    first_block: BlockId
    old: NodeId
    target: NodeId
    copies: tuple[Copy, ...]
    living: int

    def apply(self, manifest: LogManifest) -> LogManifest:
        """The manifest to store after the copies. Raises VersionConflict if it has moved on."""
        segment = manifest.find(self.segment)
        if segment is None or not segment.sealed:
            raise VersionConflict(f"log {self.log} has no sealed segment {self.segment} any more")
        ensembles = tuple(map(self._changed, segment.ensembles))
        if ensembles == segment.ensembles:
            raise VersionConflict(
                f"segment {self.segment} of log {self.log} is not on {self.old} any more"
            )
        return manifest.with_segment(replace(segment, ensembles=ensembles))

    def _changed(self, ensemble: Ensemble) -> Ensemble:
        nodes = ensemble.nodes
        if ensemble.first_block != self.first_block or self.old not in nodes:
            return ensemble
        if self.target in nodes:
            raise VersionConflict(f"{self.target} is in that ensemble already")
        return replace(
            ensemble, nodes=tuple(self.target if node == self.old else node for node in nodes)
        )


Repair = Replacement | Refill


@dataclass(frozen=True, slots=True)
class RepairPlan:
    #: In the order in which to do them.
    repairs: tuple[Repair, ...]
    #: Blocks of each segment, of both parts, for which fewer nodes than the write quorum stay and
    #: say that they have it. Segments without any are left out.
    under_replicated: dict[tuple[str, int], int]
    #: What cannot be repaired now, in words.
    stuck: tuple[str, ...]
    #: Repairs that are possible but beyond the bound of this plan.
    left_over: int


def plan_repairs(
    manifests: Mapping[str, LogManifest],
    alive: Mapping[NodeId, NodeInfo],
    held: Held,
    *,
    min_regions: int = 1,
    repairs_max: int = 64,
    seed: int,
) -> RepairPlan:
    """At most `repairs_max` repairs, and at most one replacement per ensemble.

    The next plan is made from the manifests and answers as they are then.
    """
    load = Counter(
        node
        for manifest in manifests.values()
        for segment in manifest.segments
        for ensemble in segment.ensembles
        for node in ensemble.nodes
    )
    wounds: list[_Wound] = []
    under_replicated = {}
    for log, manifest in manifests.items():
        for segment in manifest.segments:
            if segment.sealed:
                found, missing = _examine(log, segment, alive, held)
                wounds += found
                if missing:
                    under_replicated[log, int(segment.id)] = missing
    wounds.sort(key=lambda wound: wound.urgency)
    repairs: list[Repair] = []
    stuck: list[str] = []
    touched: set[tuple[str, int, int]] = set()
    left_over = 0
    for wound in wounds:
        place = (wound.log, int(wound.segment.id), int(wound.ensemble.first_block))
        if len(repairs) >= repairs_max or (wound.leaves and place in touched):
            left_over += 1
            continue
        repair = _repair(wound, alive, held, load, min_regions, seed)
        if isinstance(repair, str):
            stuck.append(f"log {wound.log}, segment {wound.segment.id}: {repair}")
            continue
        repairs.append(repair)
        load[repair.target] += 1
        if wound.leaves:
            touched.add(place)
    return RepairPlan(tuple(repairs), under_replicated, tuple(stuck), left_over)


# ---- what is missing


@dataclass(frozen=True, slots=True)
class _Wound:
    """A member of an ensemble that leaves, or lacks blocks that it should have."""

    log: str
    segment: Segment
    ensemble: Ensemble
    node: NodeId
    #: It is gone or being drained: another node must take its place.
    leaves: bool
    #: The blocks to be copied, by part.
    blocks: tuple[tuple[SegmentKey, tuple[Range, ...]], ...]
    living: int

    @property
    def urgency(self) -> tuple[int, str, int, int, str]:
        return (self.living, self.log, self.segment.id, self.ensemble.first_block, self.node)


def _examine(
    log: str, segment: Segment, alive: Mapping[NodeId, NodeInfo], held: Held
) -> tuple[list[_Wound], int]:
    """What is wrong with a sealed segment, and how many of its blocks lack a copy."""
    wounds = []
    lacking: dict[SegmentKey, list[Range]] = {}
    for number, ensemble in enumerate(segment.ensembles):
        parts = _parts(log, segment, number)
        for place, node in enumerate(ensemble.nodes):
            leaves = node not in alive or alive[node].draining
            shares = {
                key: owed(bounds, place, len(ensemble.nodes), segment.write_quorum)
                for key, bounds in parts.items()
            }
            # A member that has said nothing has nothing to show, but is not known to lack it.
            has = {key: held.get(key, {}).get(node, ()) for key in parts}
            is_heard = all(node in held.get(key, {}) for key in parts if shares[key])
            missing = {
                key: blocks if leaves else subtract(blocks, has[key])
                for key, blocks in shares.items()
            }
            for key, blocks in missing.items():
                lacking.setdefault(key, []).extend(blocks)
            if leaves or (is_heard and any(missing.values())):
                living = min(
                    (
                        len(sources)
                        for key, blocks in missing.items()
                        for _, _, sources in _runs(blocks, _living(held, key, alive))
                    ),
                    default=_NOTHING_TO_LOSE,
                )
                blocks_by_part = tuple((key, tuple(found)) for key, found in missing.items())
                wounds.append(_Wound(log, segment, ensemble, node, leaves, blocks_by_part, living))
    return wounds, sum(count(union(ranges)) for ranges in lacking.values())


#: Living copies of what has no blocks: it comes last.
_NOTHING_TO_LOSE = 1_000_000


def _parts(log: str, segment: Segment, number: int) -> dict[SegmentKey, Range]:
    """The blocks of each part that an ensemble has. The index is on the last ensemble."""
    first = int(segment.ensembles[number].first_block)
    if number + 1 < len(segment.ensembles):
        end = min(int(segment.ensembles[number + 1].first_block), segment.blocks)
        return {SegmentKey(log, segment.id): (first, end)}
    return {
        SegmentKey(log, segment.id): (first, segment.blocks),
        SegmentKey(log, segment.id, 1): (0, segment.index_blocks),
    }


def _living(
    held: Held, key: SegmentKey, alive: Mapping[NodeId, NodeInfo]
) -> dict[NodeId, Sequence[Range]]:
    return {node: ranges for node, ranges in held.get(key, {}).items() if node in alive}


# ---- what to do


def _repair(
    wound: _Wound,
    alive: Mapping[NodeId, NodeInfo],
    held: Held,
    load: Mapping[NodeId, int],
    min_regions: int,
    seed: int,
) -> Repair | str:
    """The repair of a wound, or why there is none."""
    segment, ensemble = wound.segment, wound.ensemble
    target: NodeId | None = wound.node
    if wound.leaves:
        leaving = [n for n in ensemble.nodes if n not in alive or alive[n].draining]
        try:
            target = choose_replacement(
                ensemble.nodes,
                wound.node,
                alive,
                write_quorum=segment.write_quorum,
                ack_quorum=segment.ack_quorum,
                # An old segment may have been made when less was asked for.
                min_regions=min(min_regions, segment.ack_quorum),
                load=load,
                seed=seed,
                leaving=leaving,
            )
        except Unavailable as error:
            return str(error)
        if target is None:
            return f"no node is free to take the place of {wound.node}"
    assert target is not None
    copies = []
    for key, blocks in wound.blocks:
        sources = _living(held, key, alive)
        own = sources.pop(target, ())
        for first, end, nodes in _runs(subtract(blocks, own), sources):
            if not nodes:
                part = "index blocks" if key.part else "blocks"
                return (
                    f"no living node says that it has {part} {first} to {end - 1}, which "
                    f"{wound.node} should have: nothing is changed until one does"
                )
            # Each source in its turn, so that many repairs do not all read from one node.
            order = sorted(nodes, key=lambda node: draw(seed, f"{key}/{wound.node}/{node}"))
            copies.append(Copy(key, first, end, tuple(order)))
    if not wound.leaves:
        return Refill(wound.log, int(segment.id), target, tuple(copies), wound.living)
    return Replacement(
        wound.log,
        int(segment.id),
        ensemble.first_block,
        wound.node,
        target,
        tuple(copies),
        wound.living,
    )


# ---- runs


def _runs(
    blocks: Sequence[Range], holders: Mapping[NodeId, Sequence[Range]]
) -> Iterator[tuple[int, int, tuple[NodeId, ...]]]:
    """The blocks, cut so that all of a run are on the same nodes; none at all is possible."""
    # A sweep over all places where something begins or ends.
    changes: list[tuple[int, int, str]] = []
    for node, ranges in holders.items():
        for first, end in union(ranges):
            changes += [(first, 1, node), (end, -1, node)]
    for first, end in union(blocks):
        changes += [(first, 1, ""), (end, -1, "")]
    changes.sort()
    here: dict[str, None] = {}
    last = 0
    for at, step, who in changes:
        if at > last and "" in here:
            yield last, at, tuple(sorted(NodeId(node) for node in here if node))
        last = at
        if step == 1:
            here[who] = None
        else:
            del here[who]
