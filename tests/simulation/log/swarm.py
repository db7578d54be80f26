"""What a seed draws before anything happens: the faults of a world, and how small its limits are.

`small_limits` shrinks the product's own limits, so that a few hundred entries roll, evict,
slice and fall behind as gigabytes would.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from random import Random

from harness import disk

from penstock import config
from penstock.log.client import appender_core
from penstock.log.client import client as client_module
from penstock.log.client import reader as client_reader
from penstock.log.core import producers, tails
from penstock.log.core.sequencer import Sequencer
from penstock.log.server import owner, server
from penstock.log.serving import group_commit
from penstock.log.storage import log_storage, reader, recover
from simulation.kernel.seeded import draw_kinds, draw_mean
from simulation.kernel.shipped import Change, changed


class Fault(StrEnum):
    """Kinds of faults."""

    CUT = "cut"  # a connection ends, and what was in flight is lost
    LATE = "late"  # a connection ends, and the server gets what was in flight much later
    KILL = "kill"  # the server process dies, the page cache stays
    POWER_CUT = "power cut"  # the machine dies, unsynced writes may be lost or torn
    CRASH_POINT = "crash point"  # either of the two, at a disk operation
    FSYNC = "fsync error"  # one fsync fails and drops what it should have written
    CLOCK = "clock jump"  # the wall clock is set forward or back
    OVERLOAD = "overload"  # the server takes no appends for a moment
    SLOW_DISK = "slow disk"  # writes take much longer for a while
    CLEAN_STOP = "clean stop"  # the server is stopped as an operator would
    READ_ERROR = "read error"  # one read for a subscription fails
    HALF_OPEN = "half open"  # a connection drops all, one way or both, and nobody is ever told
    CROWD = "crowd"  # some connect and say nothing; there are few descriptors


#: How often quiet readers hear of progress: a little less often than in earnest, to save steps.
_PROGRESS_MS = 30
#: Bounds of the mean time between two faults of a kind, in milliseconds.
_MEAN_MS = (150, 3000)
_HALF_OPEN_ODDS = 0.25
_CROWD_ODDS = 0.1
#: In earnest it is longer than most worlds last.
_PULSE_SECONDS = 0.3
_DEAF_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Swarm:
    """One world's draw. Sizes in bytes, times in virtual milliseconds."""

    #: Mean time between faults, by kind; what is missing never happens.
    mean_ms: dict[Fault, int] = field(default_factory=dict)
    #: Client whose connections are cut before anybody else's; "" if there is none.
    unlucky: str = ""
    #: Length of the phase with faults.
    safety_ms: int = 3000
    segment_bytes: int = 4000
    segment_ms: int = 10**9
    write_bytes_max: int = 1 << 20
    #: Writes up to this size are done on the loop and not by a thread; -1: none.
    inline_bytes: int = -1
    housekeeping_ms: int = 100
    fsync_us_max: int = 3000
    allocate_bytes: int = 4096
    sector_bytes: int = 512
    #: What a power cut does to each unsynced change.
    odds: disk.Odds = disk.SOME_LOST
    # Clients.
    named: int = 1
    zombies: int = 0
    anonymous: int = 1
    counters: int = 1
    locks: int = 0
    readers: int = 2
    scanners: int = 0
    trimmers: int = 0
    operations: int = 20
    timeout_ms: int = 3000
    #: Trimmers may trim what the archive has not read yet.
    trim_freely: bool = False
    ttl_ms: int = 0
    #: Not None: there is a cold store, and at most so many bytes of sealed segments stay local.
    local_bytes_max: int | None = None
    # Limits of the product, made small.
    recent_bytes: int = 8 << 20
    piece_bytes: int = 1 << 20
    matches_max: int = 4096
    probe_bytes: int = 4096
    credit_bytes: int = 4 << 20
    window_groups: int = 16
    recent_groups: int = 32
    coalesce_bytes: int = 512 << 10
    rewrite_bytes: int = 4 << 20
    index_cache_bytes: int = 64 << 20
    file_cache_count: int = 64

    @property
    def pulse_seconds(self) -> float:
        """See `Endpoint.pulse_seconds`."""
        has_dead = Fault.HALF_OPEN in self.mean_ms
        return _PULSE_SECONDS if has_dead else client_module.PULSE_SECONDS

    @property
    def clients_max(self) -> int:
        writers = self.named + self.zombies + self.anonymous + self.counters + self.locks
        return writers + self.readers + self.scanners + self.trimmers + 1


def draw_swarm(random: Random) -> Swarm:
    swarm = _draw_swarm(random)
    # Drawn apart: worlds without them are what their seeds made of them before they were known.
    apart = Random(repr(swarm))
    mean_ms = dict(swarm.mean_ms)
    if apart.random() < _HALF_OPEN_ODDS:
        mean_ms[Fault.HALF_OPEN] = int(draw_mean(apart, _MEAN_MS))
    if apart.random() < _CROWD_ODDS:
        mean_ms[Fault.CROWD] = int(draw_mean(apart, _MEAN_MS))
    return replace(swarm, mean_ms=mean_ms)


def _draw_swarm(random: Random) -> Swarm:
    window = random.choice((2, 4, 16))
    return Swarm(
        mean_ms=_draw_faults(random),
        unlucky=random.choice(("", "", "anon0", "lock0", "count0", "z0", "w0")),
        safety_ms=random.randint(1500, 5000),
        segment_bytes=random.choice((300, 1000, 3000, 12000)),
        segment_ms=random.choice((10**9, 1500)),
        write_bytes_max=random.choice((200, 2000, 1 << 20)),
        inline_bytes=random.choice((-1, -1, 300, 1 << 20)),
        housekeeping_ms=random.choice((50, 200, 500)),
        fsync_us_max=random.choice((300, 5000, 40_000)),
        allocate_bytes=random.choice((512, 4096)),
        sector_bytes=random.choice((16, 64, 512)),
        odds=random.choice((disk.ALL_LOST, disk.SOME_LOST, disk.Odds(lost=0.05, torn=0.9))),
        named=random.randint(1, 2),
        zombies=random.choice((0, 0, 1, 2)),
        anonymous=random.randint(0, 2),
        counters=random.randint(0, 2),
        locks=random.choice((0, 2)),
        readers=random.randint(1, 3),
        scanners=random.randint(0, 1),
        trimmers=random.choice((0, 1)),
        operations=random.randint(8, 30),
        timeout_ms=random.choice((400, 3000)),
        trim_freely=random.random() < 0.2,
        ttl_ms=random.choice((0, 0, 0, 2000)),
        local_bytes_max=random.choice((None, None, 0, 2000)),
        recent_bytes=random.choice((1, 1000, 8 << 20)),
        piece_bytes=random.choice((1, 300, 1 << 20)),
        matches_max=random.choice((1, 3, 4096)),
        probe_bytes=random.choice((64 + 48, 4096)),
        credit_bytes=random.choice((1, 400, 4 << 20)),
        window_groups=window,
        recent_groups=window * random.choice((1, 2)),
        coalesce_bytes=random.choice((1, 400, 512 << 10)),
        rewrite_bytes=random.choice((100, 4 << 20)),
        index_cache_bytes=random.choice((1, 64 << 20)),
        file_cache_count=random.choice((1, 64)),
    )


def _draw_faults(random: Random) -> dict[Fault, int]:
    known = [kind for kind in Fault if kind not in (Fault.HALF_OPEN, Fault.CROWD)]
    kinds = draw_kinds(random, known, none=0.06, each=0.4)
    return {kind: int(draw_mean(random, _MEAN_MS)) for kind in kinds}


def small_limits(swarm: Swarm) -> AbstractContextManager[None]:
    """Give the product's modules the world's limits for as long as it runs."""
    sequencer = partial(Sequencer, write_bytes_max=swarm.write_bytes_max)
    changes: list[Change] = [
        (config, "SEGMENT_BYTES_MIN", 1),
        (config, "SEGMENT_MS_MAX", 10**9),
        (server, "Sequencer", sequencer),
        (owner, "INLINE_BYTES", swarm.inline_bytes),
        (owner, "HOUSEKEEPING_SECONDS", swarm.housekeeping_ms / 1000),
        (owner, "PROGRESS_MS", _PROGRESS_MS),
        (group_commit, "INLINE_SECONDS", 1.0),
        (client_module, "DEAF_SECONDS", _DEAF_SECONDS),
        (client_reader, "CREDIT_BYTES_DEFAULT", swarm.credit_bytes),
        (disk, "SECTOR_BYTES", swarm.sector_bytes),
        (tails, "RECENT_BYTES", swarm.recent_bytes),
        (tails, "PIECE_BYTES", swarm.piece_bytes),
        (reader, "MATCHES_MAX", swarm.matches_max),
        (reader, "PROBE_BYTES", swarm.probe_bytes),
        (appender_core, "WINDOW_GROUPS", swarm.window_groups),
        (appender_core, "COALESCE_BYTES", swarm.coalesce_bytes),
        (producers, "PRODUCER_RECENT_GROUPS", swarm.recent_groups),
        (recover, "_REWRITE_BYTES", swarm.rewrite_bytes),
        (log_storage, "INDEX_CACHE_BYTES", swarm.index_cache_bytes),
        (log_storage, "FILE_CACHE_COUNT", swarm.file_cache_count),
    ]
    return changed(changes)
