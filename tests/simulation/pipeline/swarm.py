"""What a seed draws: the faults of a world of tasks, its query, and how small its limits are.

`small_limits` shrinks the engine's own limits, so that a few hundred rows flush
early, fill up and checkpoint as gigabytes would.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from random import Random

from penstock_bench.protocols import aligned, aligned_conductor
from penstock_bench.protocols.choosing import ProtocolName

from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.log.client import client, packing
from penstock.log.core import producers
from penstock.log.serving import group_commit
from penstock.protocol import shared_time
from penstock.protocol.committed import read_entries
from penstock.runtime import (
    checkpoints,
    coordinator,
    coordinator_core,
    outputs,
    standby,
    task,
    task_core,
    trail,
    worker,
)
from simulation.kernel.seeded import draw_kinds, draw_mean
from simulation.kernel.shipped import Change, changed
from simulation.pipeline.queries import SHAPES


class Fault(StrEnum):
    """Kinds of faults."""

    LOST = "lost"  # a connection ends; what was on its way is lost, and is sent again
    LATE = "late"  # a connection ends; what was sent arrives much later, and is sent again before
    KILL = "kill"  # a worker dies; Spark starts another in its slot
    PAUSE = "pause"  # a worker sleeps, often past its lease, and wakes up as a zombie
    DRIVER = "driver"  # the driver dies; its workers linger; another driver takes the query
    DRIVER_PAUSE = "driver pause"  # another driver takes over while the first only sleeps
    LOG = "log restart"  # the log dies; of what was in flight some groups were durable
    CHECKPOINT = "checkpoint damage"  # a checkpoint is damaged, or lost
    STORE = "store error"  # a checkpoint cannot be written
    RESCALE = "rescale"  # somebody wants another number of workers; drawn by no seed
    SUSPEND = "suspend"  # somebody wants no workers for a while; the same
    BALANCE = "balance"  # virtual nodes seem to be hot, and are to get other tasks; the same
    VACATE = "executor to go"  # Spark lets a worker's executor go, in good time; the same
    REPORT = "strange report"  # a worker reports nonsense, or of tasks that are gone; the same
    MOVE = "move"  # somebody wants a task to run elsewhere; only where there are standbys


#: Those that no seed draws: worlds ask for them.
ASKED_FOR = (Fault.RESCALE, Fault.SUSPEND, Fault.BALANCE, Fault.VACATE, Fault.REPORT)
#: Those that strike now and then; the others have odds.
STRIKES = (Fault.KILL, Fault.PAUSE, Fault.DRIVER, Fault.DRIVER_PAUSE, Fault.LOG, Fault.CHECKPOINT)
_MEAN_MS = (80, 600)


@dataclass(frozen=True, slots=True)
class Swarm:
    """One world's draw. Times in virtual milliseconds unless they say otherwise."""

    #: Mean time between faults, by kind; what is missing never happens.
    mean_ms: dict[Fault, int] = field(default_factory=dict)
    #: How often a write of a checkpoint, or (about) a request to the log, meets this.
    odds: dict[Fault, float] = field(default_factory=dict)
    slow_odds: float = 0.0
    protocol: ProtocolName = "marker"
    #: Which query: "count", "window" or "join".
    shape: str = "count"
    safety_ms: int = 1500
    #: Of changes that a task holds for its next checkpoint; more are read from the log.
    trail_bytes: int = trail.TRAIL_BYTES_MAX
    entries: int = 40
    rows_max: int = 8
    workers: int = 2
    fsync_us_max: int = 1000
    pulse_us: int = 25_000
    #: 0: a task commits again as soon as it can.
    commit_interval_ms: int = 0
    trims: bool = True
    checkpoints: bool = True
    checkpoint_interval_ms: int = 40
    checkpoint_us_max: int = 20_000
    # Limits of the engine, made small.
    kept_bytes: int = 8 << 20
    waiting_max: int = 64
    payload_bytes: int = PAYLOAD_BYTES_MAX
    checkpoint_bytes_min: int = 1
    group_entries: int = 9999
    pending_bytes_max: int = 2 << 20
    rows_at_once: int = 16_384
    pulses_missed_max: int = 4
    recent_groups: int = 32
    #: Of each source; and tasks of a stage, where several may share it.
    lanes: int = 1
    tasks: int = 2
    #: Whether its rows are in lanes by key, so that stages run where they are read.
    keyed: bool = False
    #: Workers that keep a copy of a task's state.
    replicas: int = 0
    pulses_per_report: int = 4


def draw_swarm(random: Random, protocol: ProtocolName = "marker") -> Swarm:
    """The same draws for every protocol, but for what it cannot or need not meet."""
    swarm = _draw(random)
    # By a number that is drawn anyway: another draw would make other worlds of all seeds.
    trail_bytes = 100 if swarm.safety_ms % 3 == 0 else trail.TRAIL_BYTES_MAX
    swarm = replace(swarm, protocol=protocol, trail_bytes=trail_bytes)
    if protocol == "marker":
        return swarm
    # They append more, and more slowly: shorter worlds cost as much.
    swarm = replace(
        swarm,
        safety_ms=swarm.safety_ms * 2 // 3,
        entries=swarm.entries * 2 // 3,
        payload_bytes=random.choice((800, *[PAYLOAD_BYTES_MAX] * 4)),
    )
    if protocol != "aligned":
        return swarm
    return replace(
        swarm,
        # It has one copy of its state: what damages it ends the query.
        mean_ms={k: ms for k, ms in swarm.mean_ms.items() if k is not Fault.CHECKPOINT},
        checkpoints=True,
        checkpoint_us_max=min(swarm.checkpoint_us_max, 20_000),
        commit_interval_ms=random.choice((5, 20, 40)),
    )


def _draw(random: Random) -> Swarm:
    mean_ms, odds = _draw_faults(random)
    return Swarm(
        mean_ms=mean_ms,
        odds=odds,
        slow_odds=random.choice((0.0, 0.02, 0.2)),
        shape=random.choice(SHAPES),
        safety_ms=random.randint(600, 1200),
        entries=random.randint(20, 40),
        rows_max=random.choice((3, 8, 16)),
        workers=random.choice((1, 2, 2, 3)),
        fsync_us_max=random.choice((200, 1000, 5000)),
        pulse_us=random.choice((15_000, 25_000)),
        commit_interval_ms=random.choice((0, 0, 10)),
        trims=random.random() < 0.7,
        checkpoints=random.random() < 0.7,
        checkpoint_interval_ms=random.choice((0, 30, 100)),
        checkpoint_us_max=random.choice((500, 20_000, 150_000)),
        checkpoint_bytes_min=random.choice((1, 2000)),
        group_entries=random.choice((1, 2, 3, 9999)),
        pending_bytes_max=random.choice((1, 300, 2 << 20)),
        rows_at_once=random.choice((1, 16_384)),
        pulses_missed_max=random.choice((3, 6)),
        recent_groups=random.choice((1, 32)),
        kept_bytes=random.choice((0, 500, 8 << 20)),
        waiting_max=random.choice((1, 64)),
        lanes=random.choice((1, 4, 4)),
        tasks=random.choice((2, 2, 3)),
    )


def _draw_faults(random: Random) -> tuple[dict[Fault, int], dict[Fault, float]]:
    drawn: list[Fault] = [kind for kind in Fault if kind not in ASKED_FOR]
    kinds = draw_kinds(random, drawn, none=0.06, each=0.5)
    mean_ms = {kind: int(draw_mean(random, _MEAN_MS)) for kind in kinds if kind in STRIKES}
    odds = {kind: random.choice((0.01, 0.05, 0.2)) for kind in kinds if kind not in STRIKES}
    return mean_ms, odds


def small_limits(swarm: Swarm) -> AbstractContextManager[None]:
    """Give the engine's modules the world's limits for as long as it runs."""
    pulse = swarm.pulse_us / 1e6
    changes: list[Change] = [
        (task_core, "ROWS_AT_ONCE", swarm.rows_at_once),
        (task_core, "PENDING_BYTES_MAX", swarm.pending_bytes_max),
        (checkpoints, "CHECKPOINT_BYTES_MIN", swarm.checkpoint_bytes_min),
        (trail, "TRAIL_BYTES_MAX", swarm.trail_bytes),
        (task, "read_entries", partial(read_entries, bytes_max=swarm.kept_bytes)),
        # The law of what was heard knows of no bound.
        (shared_time, "AHEAD_MAX", 10**6),
        (task, "TICK_SECONDS", 0.02),
        (task, "REFRESH_SECONDS", 0.1),
        (outputs, "PAYLOAD_BYTES_MAX", swarm.payload_bytes),
        (packing, "GROUP_ENTRIES", swarm.group_entries),
        (aligned, "WAITING_MAX", swarm.waiting_max),
        (aligned_conductor, "_UNPLACED_SECONDS", 0.005),
        (standby, "LOOK_SECONDS", pulse),
        (standby, "READY_SECONDS", 4 * pulse),
        (standby, "REACH_SECONDS", 20 * pulse),
        (worker, "BEAT_SECONDS", pulse),
        (worker, "REPORT_SECONDS", 4 * pulse),
        (coordinator, "PULSE_SECONDS", pulse),
        (coordinator, "PULSES_PER_TRIM", 3),
        (coordinator, "PULSES_PER_REPORT", swarm.pulses_per_report),
        (coordinator, "GATHER_SECONDS", 10 * pulse),
        (coordinator, "PREPARE_SECONDS", 20 * pulse),
        (coordinator_core, "PULSES_MISSED_MAX", swarm.pulses_missed_max),
        (coordinator_core, "PULSES_GATHERING", 3),
        # Faults are far denser here than any cause of futile instances.
        (coordinator_core, "FUTILE_MAX", 10**6),
        (producers, "PRODUCER_RECENT_GROUPS", swarm.recent_groups),
        # A slow disk is written to apart from the server's event loop, a fast one on it.
        (group_commit, "INLINE_SECONDS", 1.0 if swarm.fsync_us_max < 500 else -1.0),
        (client, "BACKOFF_SECONDS", (0.001, 0.002, 0.005, 0.01, 0.02)),
    ]
    return changed(changes)
