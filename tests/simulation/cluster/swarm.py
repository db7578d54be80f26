"""What a seed draws before anything happens: faults, quorums, clients, and small limits.

`small_limits` shrinks the product's own limits, so
that a few dozen entries roll segments, cut snapshots into pieces and fall out of caches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from penstock.log.client import appender_core, client, cluster, reader
from penstock.log.core import producers, tails
from penstock.log.node import client as node_client
from penstock.log.node import config as node_config
from penstock.log.node import owner as node_owner
from penstock.log.node import registration
from penstock.log.node import requests as node_requests
from penstock.log.proxy import (
    auditor,
    block_source,
    housekeeping,
    logs,
    open_log,
    open_segment,
    owned_log,
)
from penstock.log.proxy import config as proxy_config
from penstock.log.proxy import session as proxy_session
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.open_log import Replication
from penstock.log.replication.node_core import NodeCore
from penstock.log.serving import group_commit, served_log
from simulation.kernel.seeded import draw_kinds, draw_mean
from simulation.kernel.shipped import Change, changed


class Fault(StrEnum):
    """Kinds of faults."""

    BREAK = "connection broken"
    CUT = "cut"  # both ways, between two machines or around one
    ONE_WAY = "one-way cut"
    HALF_OPEN = "half open"  # a connection drops all, one way or both, and nobody is ever told
    NODE_KILL = "node killed"  # what was written stays
    NODE_POWER = "node power cut"  # what was not synced may be lost or torn
    ALL_POWER = "power cut of all nodes"
    NODE_PAUSE = "node paused"
    NODE_SLOW = "node slow"
    NODE_FSYNC = "node fsync error"
    NODE_WIPE = "node wiped"
    NODE_DAMAGE = "block damaged"
    PROXY_KILL = "proxy killed"
    PROXY_PAUSE = "proxy paused"
    PROXY_STOP = "proxy let its log go"
    META_CUT = "metadata cut"
    META_EXPIRE = "session expired"
    META_REPLY = "metadata reply lost"
    META_REQUEST = "metadata request lost"
    CLOCK = "clock jump"
    TWO_FLIPS = "a bit flipped on each of two nodes"  # in different blocks of one segment
    FILE_GONE = "segment file vanished"


#: Faults that only the worlds of their own protocol have.
_LOSSES = (Fault.TWO_FLIPS, Fault.FILE_GONE)
_COMMON = tuple(kind for kind in Fault if kind not in (*_LOSSES, Fault.HALF_OPEN))
_HALF_OPEN_ODDS = 0.2
#: Bounds of the mean time between two faults of a kind, in seconds.
_MEAN_SECONDS = (0.2, 4.0)
#: Ensemble, write quorum, ack quorum; and how many nodes there are at least.
_QUORUMS = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (5, 3, 2), (5, 5, 3), (3, 3, 3), (3, 2, 1))
_TINY = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 1, 1))


@dataclass(frozen=True, slots=True)
class ClusterSwarm:
    """One world's draw. Sizes in bytes, times in virtual seconds."""

    #: Mean time between faults, by kind; what is missing never happens.
    mean_seconds: dict[Fault, float] = field(default_factory=dict)
    replication: Replication = field(default_factory=Replication)
    nodes: int = 4
    regions: int = 1
    proxies: int = 3
    #: So many times somebody takes the log without asking whose it is.
    rivals: int = 0
    #: Of the nodes that may lose their disks, one stays away for good after the faults.
    leave_down: bool = False
    session_seconds: float = 1.0
    safety_seconds: float = 4.0
    #: Delays of messages up to, mostly.
    network_seconds: float = 0.002
    disk_seconds: float = 0.002
    metadata_seconds: float = 0.004
    #: How often what was on a broken connection arrives all the same.
    late_odds: float = 0.3
    node_write_bytes: int = 1 << 20
    journal_bytes: int = 1 << 20
    node_trim_seconds: float = 0.5
    #: Writes are done on the event loop of a node, in no time.
    is_inline: bool = False
    housekeeping_seconds: float = 30.0
    audit_seconds: float = 30.0
    # Clients.
    has_archive: bool = True
    writers: int = 2
    zombies: int = 0
    counters: int = 1
    readers: int = 2
    scanners: int = 1
    trimmers: int = 0
    trim_freely: bool = False
    trim_seconds: float = 0.6
    operations: int = 10
    pace_seconds: float = 0.3
    timeout_seconds: float = 30.0
    # Limits of the product, made small.
    cache_bytes: int = 1 << 20
    piece_bytes: int = 1 << 20
    snapshot_bytes: int = 8 << 20
    writes_max: int = 16
    replace_seconds: float = 0.5
    read_bytes: int = 1 << 16
    recent_bytes: int = 8 << 20
    credit_bytes: int = 4 << 20
    window_groups: int = 16
    recent_groups: int = 32
    coalesce_bytes: int = 512 << 10
    # Large groups and a large state: payloads and values, and the limits that they meet.
    payload_factor: int = 1
    value_bytes: int = 0
    link_bytes: int = 32 << 20
    log_bytes: int = 16 << 20
    node_bytes: int = 256 << 20
    block_cost_bytes: int = 0
    #: Nodes refuse blocks when they hold more unanswered bytes, as an older version does; 0: never.
    refuse_bytes: int = 0

    @property
    def expendable(self) -> int:
        """How many nodes may lose their disks: nothing acknowledged is lost by that, and the rest
        can still recover."""
        rule = self.replication
        return min(rule.ack_quorum - 1, rule.write_quorum - rule.ack_quorum)


def draw_swarm(random: Random) -> ClusterSwarm:
    ensemble, write_quorum, ack_quorum = random.choice(_QUORUMS if random.random() < 0.9 else _TINY)
    window = random.choice((2, 4, 16))
    regions = random.choice((1, 1, 2, 3))
    #: Two nodes in each of three regions can keep the law of two regions per ack quorum.
    wide = regions == 3 and (ensemble, write_quorum, ack_quorum) == (3, 3, 2)
    replication = Replication(
        ensemble,
        write_quorum,
        ack_quorum,
        min_regions=2 if wide else 1,
        segment_bytes=random.choice((300, 1000, 4000, 64000)),
        segment_seconds=random.choice((3600.0, 3600.0, 1.0)),
    )
    return ClusterSwarm(
        mean_seconds=draw_faults(random),
        replication=replication,
        nodes=6 if wide else ensemble + random.choice((0, 1, 2)),
        regions=regions,
        proxies=random.choice((2, 3)),
        rivals=random.choice((0, 0, 0, 3)),
        leave_down=random.random() < 0.3,
        session_seconds=random.choice((0.6, 1.0, 2.0)),
        safety_seconds=random.uniform(2.0, 5.0),
        network_seconds=random.choice((0.0005, 0.003, 0.03)),
        disk_seconds=random.choice((0.0005, 0.005, 0.03)),
        metadata_seconds=random.choice((0.001, 0.02)),
        late_odds=random.choice((0.0, 0.3, 1.0)),
        node_write_bytes=random.choice((300, 1 << 20)),
        journal_bytes=random.choice((1000, 10_000, 1 << 20)),
        node_trim_seconds=random.choice((0.5, 2.0)),
        is_inline=random.random() < 0.15,
        housekeeping_seconds=random.choice((0.4, 30.0)),
        audit_seconds=random.choice((0.5, 2.0, 30.0)),
        writers=random.randint(1, 3),
        zombies=random.choice((0, 0, 1)),
        counters=random.randint(0, 2),
        readers=random.randint(1, 3),
        scanners=random.randint(0, 1),
        trimmers=random.choice((0, 0, 1)),
        trim_freely=random.random() < 0.3,
        operations=random.randint(4, 16),
        pace_seconds=random.choice((0.02, 0.2, 0.5)),
        timeout_seconds=random.choice((1.0, 30.0, 30.0)),
        cache_bytes=random.choice((1, 2000, 1 << 20)),
        piece_bytes=random.choice((200, 1 << 20)),
        snapshot_bytes=random.choice((400, 3000, 8 << 20)),
        writes_max=random.choice((1, 3, 16)),
        replace_seconds=random.choice((0.1, 0.5)),
        read_bytes=random.choice((1, 1000, 1 << 16)),
        recent_bytes=random.choice((1, 1000, 8 << 20)),
        credit_bytes=random.choice((400, 4 << 20)),
        window_groups=window,
        recent_groups=window * random.choice((1, 2)),
        coalesce_bytes=random.choice((1, 400, 512 << 10)),
    )


def draw_faults(random: Random, kinds: tuple[Fault, ...] = _COMMON) -> dict[Fault, float]:
    chosen = draw_kinds(random, kinds, none=0.05, each=0.35)
    return {kind: draw_mean(random, _MEAN_SECONDS) for kind in chosen}


def small_limits(swarm: ClusterSwarm) -> AbstractContextManager[None]:
    """Give the product's modules the world's limits for as long as it runs."""
    changes: list[Change] = [
        (owned_log, "PIECE_BYTES", swarm.piece_bytes),
        (owned_log, "SNAPSHOT_BYTES", swarm.snapshot_bytes),
        (owned_log, "SNAPSHOT_FACTOR", 1),
        (owned_log, "BLOCK_COST_BYTES", swarm.block_cost_bytes),
        (housekeeping, "PIECE_BYTES", swarm.piece_bytes),
        (open_log, "SNAPSHOT_BYTES", swarm.snapshot_bytes),
        (open_log, "WRITES_MAX", swarm.writes_max),
        (open_segment, "RETRY_SECONDS", swarm.replace_seconds / 2),
        (open_segment, "REPLACE_SECONDS", swarm.replace_seconds),
        (block_source, "READ_BYTES_MIN", swarm.read_bytes),
        (block_source, "DEADLINE_MS", 2000.0),
        _default(BlockSource.__init__, cache_bytes=swarm.cache_bytes),
        (tails, "RECENT_BYTES", swarm.recent_bytes),
        (appender_core, "WINDOW_GROUPS", swarm.window_groups),
        (appender_core, "COALESCE_BYTES", swarm.coalesce_bytes),
        (producers, "PRODUCER_RECENT_GROUPS", swarm.recent_groups),
        (reader, "CREDIT_BYTES_DEFAULT", swarm.credit_bytes),
        # A silent peer is given up soon: seconds of a world are few.
        (client, "CONNECT_SECONDS", 2.0),
        (cluster, "PULSE_SECONDS", 0.6),
        (node_client, "INFLIGHT_BYTES_MAX", swarm.link_bytes),
        (node_requests, "SERVER_INFLIGHT_BYTES_MAX", swarm.node_bytes),
        (open_log, "LOG_INFLIGHT_BYTES_MAX", swarm.log_bytes),
        (node_client, "CONNECT_SECONDS", 1.0),
        (node_client, "REQUEST_SECONDS", 1.0),
        (node_client, "SILENCE_SECONDS", 0.8),
        (node_client, "BACKOFF_SECONDS_MAX", 0.2),
        (registration, "RETRY_SECONDS", 0.1),
        (proxy_session, "RETRY_SECONDS", 0.1),
        (logs, "OPEN_SECONDS", 20.0),
        (logs, "HOUSE_SECONDS", swarm.housekeeping_seconds),
        (auditor, "ROUND_SECONDS", swarm.audit_seconds),
        (auditor, "GONE_SECONDS", 3.0),
        # What only tells readers that there is nothing is told less often: it is most of the work.
        (logs, "PROGRESS_MS", 50),
        (served_log, "PROGRESS_MS", 50),
        (node_owner, "NOTE_DELAY_MS", 200),
        (group_commit, "NOTE_DELAY_MS", 200),
        (group_commit, "INLINE_SECONDS", 1e9 if swarm.is_inline else -1.0),
        (node_config, "BLOCK_BYTES_MAX", 1),
        (proxy_config, "SEGMENT_BYTES_MIN", 1),
        _default(NodeCore.__init__, write_bytes_max=swarm.node_write_bytes),
    ]
    return changed(changes)


def _default(function: Callable[..., None], **values: object) -> tuple[object, str, object]:
    """Other defaults of keyword arguments, as a change."""
    return function, "__kwdefaults__", {**(function.__kwdefaults__ or {}), **values}


_NODE_FAULTS = (
    Fault.BREAK,
    Fault.CUT,
    Fault.ONE_WAY,
    Fault.NODE_KILL,
    Fault.NODE_POWER,
    Fault.ALL_POWER,
    Fault.NODE_PAUSE,
    Fault.NODE_SLOW,
    Fault.NODE_FSYNC,
    Fault.NODE_WIPE,
    Fault.NODE_DAMAGE,
)
_OWNER_FAULTS = (Fault.PROXY_KILL, Fault.PROXY_PAUSE, Fault.PROXY_STOP, Fault.META_EXPIRE)
_METADATA_FAULTS = (Fault.META_CUT, Fault.META_EXPIRE, Fault.META_REPLY, Fault.META_REQUEST)


def draw_for(protocol: str, random: Random) -> ClusterSwarm:
    """A swarm that stresses one protocol of the replicated log (reliability 2.3)."""
    swarm = _draw_for(protocol, random)
    # Drawn apart: worlds without it are what their seeds made of them before it was known.
    apart = Random(repr(swarm))
    if apart.random() >= _HALF_OPEN_ODDS:
        return swarm
    half_open = {Fault.HALF_OPEN: draw_mean(apart, _MEAN_SECONDS)}
    return replace(swarm, mean_seconds=swarm.mean_seconds | half_open)


def _draw_for(protocol: str, random: Random) -> ClusterSwarm:
    drawn = draw_swarm(random)
    match protocol:
        case "P1":  # append, ack quorum, LAC: one owner, and nodes that fail in all their ways
            faults = draw_faults(random, (*_NODE_FAULTS, Fault.CLOCK))
            return replace(drawn, mean_seconds=faults, rivals=0, operations=random.randint(8, 20))
        case "P2":  # fence, recovery, seal: owners come and go, some without asking
            faults = draw_faults(random, (*_NODE_FAULTS, *_OWNER_FAULTS))
            rivals = random.choice((0, 2, 6))
            return replace(drawn, mean_seconds=faults, rivals=rivals, proxies=3)
        case "P3":  # ownership, roll, compare-and-set: small segments, metadata that is not sure
            faults = draw_faults(random, (*_METADATA_FAULTS, *_OWNER_FAULTS, Fault.NODE_KILL))
            rule = replace(drawn.replication, segment_bytes=random.choice((200, 300, 1000)))
            return replace(drawn, mean_seconds=faults, replication=rule, proxies=3)
        case "P4":  # tags, indexes, trim, slow readers and small caches
            faults = draw_faults(random, (*_NODE_FAULTS, *_OWNER_FAULTS, Fault.META_CUT))
            rule = replace(drawn.replication, segment_bytes=random.choice((300, 1000, 4000)))
            return replace(
                drawn,
                mean_seconds=faults,
                replication=rule,
                readers=4,
                trimmers=1,
                trim_seconds=random.choice((0.1, 0.6)),
                housekeeping_seconds=0.3,
                cache_bytes=random.choice((1, 2000)),
                recent_bytes=random.choice((1, 1000)),
            )
        case "P6":  # idempotent producers over failovers and snapshots
            kinds = (*_OWNER_FAULTS, *_METADATA_FAULTS, Fault.BREAK, Fault.CLOCK)
            faults = draw_faults(random, kinds)
            return replace(
                drawn,
                mean_seconds=faults,
                writers=3,
                zombies=random.choice((0, 1, 2)),
                snapshot_bytes=random.choice((400, 1500)),
                late_odds=random.choice((0.3, 1.0)),
                pace_seconds=0.05,
            )
        case "losses":
            return _draw_losses(random, drawn)
        case "limits":
            return _draw_limits(random, drawn)
    raise ValueError(protocol)


def _draw_losses(random: Random, drawn: ClusterSwarm) -> ClusterSwarm:
    """Two damaged copies, vanished files: owners and nodes come and go."""
    faults = draw_faults(random, (*_NODE_FAULTS, *_OWNER_FAULTS))
    losses = {kind: draw_mean(random, (0.2, 1.0)) for kind in _LOSSES}
    rule = replace(drawn.replication, segment_bytes=random.choice((1000, 64000)))
    return replace(
        drawn,
        mean_seconds=faults | losses,
        replication=rule,
        journal_bytes=random.choice((300, 1000, 1 << 20)),
        operations=random.randint(8, 20),
    )


def _draw_limits(random: Random, drawn: ClusterSwarm) -> ClusterSwarm:
    """Large groups and a large state: every limit on bytes in flight is met."""
    faults = draw_faults(random, (*_NODE_FAULTS, *_OWNER_FAULTS))
    return replace(
        drawn,
        mean_seconds=faults,
        writers=3,
        counters=1,
        operations=random.randint(8, 16),
        pace_seconds=0.02,
        timeout_seconds=30.0,  # where one block is under way at a time, all is slow
        piece_bytes=200,
        snapshot_bytes=random.choice((400, 3000)),
        writes_max=16,
        window_groups=16,
        recent_groups=32,
        payload_factor=random.choice((1, 20)),
        value_bytes=random.choice((0, 2000, 4000)),
        # A block counts for 2 KiB more than it has.
        link_bytes=random.choice((1, 6000, 20_000)),
        log_bytes=random.choice((1, 4000, 16 << 20)),
        node_bytes=random.choice((6000, 20_000, 256 << 20)),
        refuse_bytes=random.choice((0, 0, 6000, 20_000)),
        block_cost_bytes=random.choice((0, 200)),
    )
