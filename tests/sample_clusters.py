"""Clusters for tests: nodes in regions and racks, and segments on them, in one line each."""

from __future__ import annotations

from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment
from penstock.log.replication.node_api import NodeInfo

Nodes = dict[NodeId, NodeInfo]


def node(name: str, place: str = "r1/k1", *, cookie: str = "c", draining: bool = False) -> NodeInfo:
    region, _, rack = place.partition("/")
    return NodeInfo(name, cookie, "h", 1, region=region, rack=rack or "k1", draining=draining)


def nodes_of(*infos: NodeInfo) -> Nodes:
    return {info.id: info for info in infos}


def nodes_at(*places: str) -> Nodes:
    """Nodes n0, n1, … at `region/rack` each."""
    return nodes_of(*(node(f"n{number}", place) for number, place in enumerate(places)))


def without(nodes: Nodes, *gone: NodeId) -> Nodes:
    return {node: info for node, info in nodes.items() if node not in gone}


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"n{n}:c") for n in numbers)


def segment(
    id: int,
    *ensembles: tuple[int, tuple[NodeId, ...]],
    quorums: tuple[int, int] = (3, 2),
    blocks: int | None = None,
    index: int = 0,
) -> Segment:
    """Ensembles are (first block, nodes). A segment that says how many blocks it has is sealed."""
    return Segment(
        SegmentId(id),
        Epoch(1),
        Lsn(10 * id),
        tuple(Ensemble(BlockId(first), nodes) for first, nodes in ensembles),
        *quorums,
        sealed=blocks is not None,
        end_lsn=Lsn(10 * id + 10),
        blocks=blocks or 0,
        index_blocks=index,
    )


def log_of(*segments: Segment) -> LogManifest:
    manifest = LogManifest(bytes(16), Epoch(1), "p", Lsn(0), SegmentId(0), segments)
    manifest.check()
    return manifest
