"""The laws that only a replicated log has, over manifests, node contents and what was told.

`Ledger` is told of every record that a node made durable, of every manifest, of every
acknowledgement and delivery, and raises `Violation` at once. What clients saw is checked by
simulation/checkers at the end (I1 to I4, I7, I8, I15, I22).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

from penstock.log.block_format import BlockKind, decode_block_header
from penstock.log.proxy.open_log import Replication
from penstock.log.replication.manifest import LogManifest, Segment, SegmentKey
from penstock.log.replication.node_core import AddRecord, Record
from penstock.log.replication.quorum import replicas, write_sets
from simulation.checkers import Violation


class Ledger:
    """What is durable where, and how the manifest went."""

    def __init__(self, rule: Replication, regions: dict[str, str]) -> None:
        self._rule = rule
        #: By machine.
        self._regions = regions
        #: Machines on which a block ever was durable, and the block.
        self.copies: dict[tuple[SegmentKey, int], set[str]] = {}
        self._data: dict[tuple[SegmentKey, int], bytes] = {}
        #: By LSN: the data blocks that hold it.
        self._places: dict[int, list[tuple[SegmentKey, int]]] = {}
        self.manifest: LogManifest | None = None
        self._segments_max = -1
        #: All below was told to somebody, and found durable.
        self.told_lsn = 0

    # ---- I1, I4: told only when durable

    def wrote(self, machine: str, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, AddRecord):
                self._took(machine, record)

    def _took(self, machine: str, record: AddRecord) -> None:
        place = (record.key, record.block)
        data = bytes(record.data)
        known = self._data.setdefault(place, data)
        if known != data:
            raise Violation("I2", f"{machine} has another block {place} than the others")
        holders = self.copies.get(place)
        if holders is None:
            holders = self.copies[place] = set()
            header = decode_block_header(data)
            if header.kind == BlockKind.DATA:
                for lsn in range(header.base_lsn, header.end_lsn):
                    self._places.setdefault(lsn, []).append(place)
        holders.add(machine)

    def told(self, end_lsn: int, what: str) -> None:
        """Somebody was told that all below `end_lsn` is durable."""
        for lsn in range(self.told_lsn, end_lsn):
            most = max((len(self.copies[p]) for p in self._places.get(lsn, [])), default=0)
            if most < self._rule.ack_quorum:
                raise Violation("I4", f"{what}: lsn {lsn} is durable on {most} nodes only")
        self.told_lsn = max(self.told_lsn, end_lsn)

    # ---- I6: sealed segments never change

    def manifest_is(self, new: LogManifest) -> None:
        new.check()
        old = self.manifest
        self.manifest = new
        before = {} if old is None else {segment.id: segment for segment in old.segments}
        for segment in new.segments:
            if segment != before.get(segment.id):
                self._check_placement(segment)
        if old is None:
            self._segments_max = max((s.id for s in new.segments), default=-1)
            return
        if new.epoch < old.epoch or (new.epoch == old.epoch and new.owner != old.owner):
            raise Violation("I5", f"epoch {old.epoch} of {old.owner} became {new.epoch}")
        if new.trim_point < old.trim_point or new.first_segment < old.first_segment:
            raise Violation("I15", f"trimming goes back: {old} {new}")
        for was in old.segments:
            self._check_kept(was, new)
        for segment in new.segments:
            if segment.id not in before:
                self._check_new(segment, new)

    def _check_kept(self, was: Segment, new: LogManifest) -> None:
        now = new.find(was.id)
        if now == was:
            return
        if now is None:
            if was.sealed and was.id >= new.first_segment:
                raise Violation("I6", f"sealed segment {was.id} is gone")
            if was.sealed and was.end_lsn > new.trim_point:
                raise Violation("I15", f"segment {was.id} is gone, trim point {new.trim_point}")
            return
        if was.sealed and _fixed(was) != _fixed(now):
            raise Violation("I6", f"sealed segment changed: {was} to {now}")
        if (was.id, was.epoch, was.base_lsn) != (now.id, now.epoch, now.base_lsn):
            raise Violation("I6", f"segment changed: {was} to {now}")
        if now.sealed and not was.sealed:
            self._check_sealed(now, new)

    def _check_sealed(self, segment: Segment, manifest: LogManifest) -> None:
        """Its end is at or above all that was told, or somebody follows that holds the rest."""
        is_last = manifest.segments[-1].id == segment.id
        if is_last and segment.end_lsn < self.told_lsn:
            raise Violation("I6", f"sealed below lsn {self.told_lsn}: {segment}")
        for block in range(segment.blocks):
            if (SegmentKey("main", segment.id), block) not in self.copies:
                raise Violation("I6", f"block {block} is nowhere: {segment}")

    def _check_new(self, segment: Segment, manifest: LogManifest) -> None:
        if segment.id <= self._segments_max:
            raise Violation("I6", f"the id of segment {segment.id} was used before")
        self._segments_max = segment.id
        if segment.epoch != manifest.epoch:
            raise Violation("I5", f"segment {segment.id} of epoch {segment.epoch} is new")
        if segment.base_lsn < self.told_lsn:
            raise Violation("I6", f"{segment} opens below lsn {self.told_lsn}, which was told")

    def _check_placement(self, segment: Segment) -> None:
        """R50: every ack quorum spans enough regions and as many machines."""
        for ensemble in segment.ensembles:
            machines = [node.partition(":")[0] for node in ensemble.nodes]
            if len(set(ensemble.nodes)) != len(ensemble.nodes):
                raise Violation("R50", f"a node stands twice in {ensemble}")
            for nodes in write_sets(ensemble.nodes, segment.write_quorum):
                names = [node.partition(":")[0] for node in nodes]
                for quorum in combinations(names, segment.ack_quorum):
                    found = {self._regions[name] for name in quorum}
                    if len(found) < self._rule.min_regions:
                        raise Violation("R50", f"{quorum} of {machines} is in {found}")

    # ---- the end

    def check_copies(self, lost: set[tuple[SegmentKey, int, str]]) -> None:
        """Every block of a sealed segment lies on an ack quorum of its nodes, or did before a disk
        was lost: repair can make it whole again."""
        assert self.manifest is not None
        for segment in self.manifest.segments:
            for block in range(segment.blocks if segment.sealed else 0):
                key = SegmentKey("main", segment.id)
                names = {node.partition(":")[0] for node in replicas(segment, block)}
                held = self.copies[key, block] & names
                if len(held) < segment.ack_quorum:
                    raise Violation("I1", f"block {block} of {segment} is on {held} only")
                if all((key, block, name) in lost for name in held):
                    raise Violation("I1", f"block {block} of {segment} was lost with {held}")


def _fixed(segment: Segment) -> Segment:
    """What never changes of a sealed segment: its copies may move."""
    return replace(segment, ensembles=(), index_blocks=0, cold=False)
