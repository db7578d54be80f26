"""What the log knows of its deliveries: registered, last heard of, how far each target is.

Nothing here asks a player or a database: everything is read from the log, so it is the same from
any machine. An ack comes every few seconds at least (protocol/deliveries.py); a player that was
silent for longer has died, or has no log.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import time_text
from penstock.delivery.registration import list_deliveries
from penstock.errors import NotFound
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.protocol.deliveries import (
    ALIVE_SECONDS,
    Delivered,
    RegisteredDelivery,
    needed_from,
)

if TYPE_CHECKING:
    from penstock.runtime.lag import Lag

#: Three signs of life are missing.
SILENCE_MS: Final = int(3000 * ALIVE_SECONDS)


class State(Enum):
    """How a delivery was last heard of."""

    RUNNING = "running"
    STOPPED = "stopped"
    #: It stopped by itself; its last ack says why.
    FAILED = "failed"
    #: No ack for a while, and no goodbye.
    LOST = "lost"
    #: Registered; no player has said anything yet.
    NEW = "new"


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """One delivery, as of now."""

    registered: RegisteredDelivery
    ack: Delivered | None
    state: State
    lag: Lag

    @property
    def name(self) -> str:
        return self.registered.name

    @property
    def source(self) -> str:
        one = self.registered
        if one.query is None:
            return f"stream {one.stream}"
        return f"query {one.query} version {one.version}, stream {one.stream}"

    @property
    def position(self) -> int:
        """All below it is applied by every target."""
        return needed_from(self.registered, self.ack)

    @property
    def positions(self) -> list[int | None]:
        """By shard, as last told."""
        told: Sequence[int | None] = () if self.ack is None else self.ack.positions
        count = self.registered.shards
        return [told[shard] if shard < len(told) else None for shard in range(count)]

    @property
    def problems(self) -> list[str | None]:
        told = [] if self.ack is None else self.ack.problems
        count = self.registered.shards
        return [told[shard] if shard < len(told) else None for shard in range(count)]

    @property
    def rows(self) -> list[int | None]:
        """By shard, applied since the player began."""
        told = [] if self.ack is None else self.ack.rows
        count = self.registered.shards
        return [told[shard] if shard < len(told) else None for shard in range(count)]

    def targets(self) -> list[dict[str, Any]]:
        """Each target, as last told."""
        return [
            {
                "shard": shard,
                "target": uri,
                "position": at,
                "rows": rows,
                "problem": problem,
                "moves": self._moves(shard, at),
            }
            for shard, (uri, at, rows, problem) in enumerate(
                zip(self.registered.targets, self.positions, self.rows, self.problems, strict=True)
            )
        ]

    def _moves(self, shard: int, position: int | None) -> str | None:
        """Whether rows come to a target or go, at a cut that it is not past."""
        layout = self.registered.layout
        at = layout.birth(shard, Lsn(self.registered.start)) if position is None else position
        if layout.is_over(shard, at):
            return "gave all its rows away"
        cut = layout.next_cut(shard, at)
        if cut is None:
            return None
        takes = shard in layout.takers[layout.cuts.index(cut)]
        return f"{'takes' if takes else 'gives'} rows at LSN {cut}"

    def as_json(self) -> dict[str, Any]:
        ack = self.ack
        found = asdict(self.registered)
        del found["route"], found["past"]
        return {
            **found,
            "targets": self.targets(),
            "state": self.state.value,
            "last_ack": None if ack is None else time_text(ack.time_ms),
            "term": None if ack is None else ack.term,
            "error": None if ack is None else ack.error,
            "position": self.position,
            "lag": {
                "records": self.lag.records,
                "seconds": round(self.lag.seconds, 3),
                "is_lower_bound": self.lag.is_lower_bound,
            },
        }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def list_facts(client: BlockingLog, stream: str | None = None) -> list[DeliveryFacts]:
    """All deliveries that are registered, or those of one stream, by name."""
    return [
        facts_of(client, registered, ack)
        for registered, ack in list_deliveries(client)
        if stream in (None, registered.stream)
    ]


def find_delivery(client: BlockingLog, name: str) -> DeliveryFacts:
    """NotFound, with names that are close, if there is none."""
    known = list_deliveries(client)
    for registered, ack in known:
        if registered.name == name:
            return facts_of(client, registered, ack)
    names = [registered.name for registered, _ in known]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
    hint = f"there are {', '.join(close)}" if close else "`penstock deliver` registers one"
    raise NotFound(f"no delivery {name}: {hint}")


def facts_of(
    client: BlockingLog, registered: RegisteredDelivery, ack: Delivered | None
) -> DeliveryFacts:
    """How a delivery stands, of which these are known."""
    from penstock.runtime.lag import measure_lag  # only here: it brings Arrow

    at, position = now_ms(), needed_from(registered, ack)
    lag = client.run(lambda log: measure_lag(log, registered.stream, position, now_ms=at))
    return DeliveryFacts(registered, ack, judge_state(ack, at), lag)


def judge_state(ack: Delivered | None, at_ms: int) -> State:
    """By the player's last word."""
    if ack is None:
        return State.NEW
    if not ack.is_running:
        return State.STOPPED if ack.error is None else State.FAILED
    return State.RUNNING if at_ms - ack.time_ms <= SILENCE_MS else State.LOST


def lag_words(lag: Lag) -> str:
    """Like `250+ rows 1.5 s`."""
    return f"{lag.records:,}{'+' if lag.is_lower_bound else ''} rows {lag.seconds:.1f} s"
