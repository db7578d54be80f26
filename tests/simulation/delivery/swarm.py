"""What a seed draws: faults of a world of deliveries, its rows, and how small its limits are."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from random import Random

from penstock.delivery import acks, claim, player, player_core, source, target_queue
from penstock.delivery.local_host import LocalHost
from penstock.log.client import client
from penstock.log.serving import group_commit
from simulation.kernel.seeded import draw_kinds, draw_mean
from simulation.kernel.shipped import changed


class Fault(StrEnum):
    """Kinds of faults."""

    LOST = "lost"  # a connection to the log ends; what was on its way is lost
    LATE = "late"  # a connection to the log ends; what was sent arrives much later
    LOG = "log restart"  # the log dies; of what was in flight some groups were durable
    KILL = "kill"  # the player dies; another is started
    PAUSE = "pause"  # the player sleeps while another is started, and wakes up as a zombie
    TAKEOVER = "takeover"  # another player is started beside it
    CRASH = "crash"  # a target is away for a while
    RESTORE = "restore"  # a target is restored from a backup
    ERROR = "error"  # a call of a target fails, and has done nothing
    ANSWER = "lost answer"  # a call of a target fails, but was done
    SLOW = "slow"  # a call of a target takes long
    FLIGHT = "in flight"  # a batch arrives long after its connection was lost
    TWICE = "twice"  # a batch arrives once more, long after


#: Those that strike now and then; the others have odds.
STRIKES = (
    Fault.LOST, Fault.LATE, Fault.LOG, Fault.KILL, Fault.PAUSE, Fault.TAKEOVER, Fault.CRASH,
    Fault.RESTORE,
)  # fmt: skip
_MEAN_MS = (60, 600)


@dataclass(frozen=True, slots=True)
class Swarm:
    """One world's draw. Times in virtual milliseconds unless they say otherwise."""

    #: Mean time between faults, by kind; what is missing never happens.
    mean_ms: dict[Fault, int] = field(default_factory=dict)
    #: How often a call of a target meets this.
    odds: dict[Fault, float] = field(default_factory=dict)
    safety_ms: int = 800
    shards: int = 4
    #: Entries and transactions of the writer.
    commits: int = 40
    rows_max: int = 6
    #: Whether only the query's rows are delivered, not those of another writer of the stream.
    of_query: bool = False
    #: Whether there are rows that targets refuse.
    bad_rows: bool = False
    #: Whether targets refuse older players; without it the comparison is all that they do.
    knows_terms: bool = True
    trims: bool = True
    #: Whether the delivery gets other targets now and then.
    reshards: bool = False
    call_us_max: int = 2_000
    fsync_us_max: int = 1_000
    # Limits of the player, made small.
    queue_bytes: int = 4_000
    batch_bytes: int = 1_000
    read_bytes: int = 1_000
    quiet_lsns: int = 20
    #: Batches of a target that may be under way.
    window: int = 1
    #: Entries of the log that are looked at in one go.
    entries_at_once: int = 256


def draw_swarm(random: Random) -> Swarm:
    kinds = draw_kinds(random, list(Fault), none=0.06, each=0.5)
    drawn = Swarm(
        mean_ms={kind: int(draw_mean(random, _MEAN_MS)) for kind in kinds if kind in STRIKES},
        odds={kind: random.choice((0.02, 0.1, 0.3)) for kind in kinds if kind not in STRIKES},
        safety_ms=random.randint(400, 1000),
        shards=random.choice((1, 2, 4, 4)),
        commits=random.randint(20, 50),
        rows_max=random.choice((2, 6, 12)),
        of_query=random.random() < 0.3,
        bad_rows=random.random() < 0.3,
        knows_terms=random.random() < 0.7,
        trims=random.random() < 0.7,
        call_us_max=random.choice((200, 2_000, 30_000)),
        fsync_us_max=random.choice((200, 1_000, 5_000)),
        queue_bytes=random.choice((1, 1_500, 8_000)),
        batch_bytes=random.choice((1, 1_500, 8_000)),
        read_bytes=random.choice((1, 1_500, 8_000)),
        quiet_lsns=random.choice((1, 20)),
        window=random.choice((1, 1, 3)),
    )
    # Drawn last, so that older worlds stay as they were. A row that was refused would be refused
    # again where it comes to, and be written down twice.
    reshards = random.random() < 0.4
    return replace(
        drawn,
        reshards=reshards,
        bad_rows=drawn.bad_rows and not reshards,
        entries_at_once=random.choice((1, 3, 256)),
    )


def small_limits(swarm: Swarm) -> AbstractContextManager[None]:
    """Give the player's modules the world's limits for as long as it runs."""
    pause = 0.01
    return changed(
        [
            (player, "QUEUES_BYTES", swarm.queue_bytes),
            (player, "QUEUE_BYTES_MIN", swarm.queue_bytes),
            (player, "READ_BYTES", swarm.read_bytes),
            (player, "Limits", partial(player_core.Limits, batch_bytes_max=swarm.batch_bytes)),
            (LocalHost, "window", swarm.window),
            (player, "ACK_SECONDS", 0.04),
            (acks, "ACK_SECONDS", 0.04),
            (source, "PAUSE_SECONDS", pause),
            (source, "ENTRIES_AT_ONCE", swarm.entries_at_once),
            (source, "OWN_ENTRIES_AT_ONCE", swarm.entries_at_once),
            (claim, "PAUSE_SECONDS", pause),
            (player_core, "BACKOFF_SECONDS", (0.001, 0.005, 0.02)),
            (player_core, "BEGIN_SECONDS", 0.03),
            (player_core, "QUIET_SECONDS", 0.03),
            (target_queue, "QUIET_LSNS", swarm.quiet_lsns),
            (group_commit, "INLINE_SECONDS", 1.0 if swarm.fsync_us_max < 500 else -1.0),
            (client, "BACKOFF_SECONDS", (0.001, 0.002, 0.005, 0.01, 0.02)),
        ]
    )
