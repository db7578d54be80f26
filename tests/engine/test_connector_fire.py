"""Exactly once of micro-batches under fire: whatever is killed, each row of the input has its row.

Two queries run at once on real processes, from their checkpoint directories: one through the sink,
one through foreach_batch_writer into three streams. All kinds of processes are killed at random
moments while a feed appends and a reader checks, again and again, all that counts: nothing twice,
nothing half, nothing that was not in the input. In the end the results are those of the input.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from connector_fire import (
    Look,
    Nemesis,
    Stand,
    check_grown,
    check_plain,
    check_three,
    look_at_log,
    make_out,
)
from harness.soak import SOAK_SECONDS

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, encode_marker

SEED = 20261115
#: Why a query stops if another driver runs from its checkpoint: Spark says so, or the log.
TOLD_OF_A_RIVAL = {"CONCURRENT_STREAM_LOG_UPDATE", "Fenced"}


@dataclass(slots=True)
class Plan:
    """How much of what, in rounds: these faults, then one that takes the driver."""

    faults: Counter[str] = field(
        default_factory=lambda: Counter(worker=3, executor=1, server=1, planner=1)
    )
    drivers: tuple[str, ...] = ("commit", "driver", "staging")
    rows_per_s: int = 200
    #: Between two faults.
    gap_seconds: tuple[float, float] = (0.2, 1.0)
    #: Batches of both queries that are committed in peace before the next round.
    calm_batches: int = 0
    #: The rounds are repeated until so many batches of both are committed,
    batches: int = 0
    #: or for so long.
    seconds: float = 0.0


@dataclass(slots=True)
class Report:
    """What a run was like."""

    seed: int
    counts: Counter[str]
    seconds: float
    #: Seconds since the start, by what was done then.
    phases: dict[str, float]
    rows: int
    reads: int
    #: Why queries stopped by themselves, and how often.
    stops: Counter[str]
    unnoted: int
    look: Look

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        batches = " and ".join(map(str, self.look.batches.values()))
        stops = ", ".join(f"{count} {why}" for why, count in sorted(self.stops.items()))
        return "\n".join(
            [
                f"connector under fire, seed {self.seed}, {self.seconds:.0f} s: "
                + ", ".join(f"{what} {at:.0f}" for what, at in self.phases.items()),
                f"  kills                      {self.counts.total()}: {kills}",
                f"  batches                    {batches}",
                f"  queries started again      {self.stops.total()}: {stops or 'none'}",
                f"  in the log, not Spark's    {self.unnoted} batches when the driver was killed",
                f"  rows fed                   {self.rows}",
                f"  checks while it ran        {self.reads}",
                f"  entries staged             {self.look.staged}, of them never named "
                f"{self.look.staged - self.look.named}",
            ]
        )


def why_stopped(error: str) -> str:
    """The class of an error of ours, or else the condition that Spark names."""
    ours = re.search(r"penstock\.errors\.(\w+)", error)
    conditions = re.findall(r"\[([A-Z_]+(?:\.[A-Z_]+)?)\]", error)
    if "Multiple streaming queries are concurrently using" in error:
        conditions.append("CONCURRENT_STREAM_LOG_UPDATE")  # one place of Spark's has no name for it
    return ours[1] if ours else (conditions or [error[:80]])[-1]


def run_under_fire(directory: Path, seed: int, plan: Plan) -> Report:
    began = time.monotonic()
    phases: dict[str, float] = {}

    def reached(what: str) -> None:
        phases[what] = time.monotonic() - began

    with Stand(directory, rows_per_s=plan.rows_per_s) as stand:
        stand.start_feeding()
        stand.start_driver().wait_for("running")
        reached("running")
        nemesis = Nemesis(stand, random.Random(seed), plan.gap_seconds)
        for number in itertools.count():
            for last in plan.drivers:
                nemesis.run(list(plan.faults.elements()))
                reached(f"fire {number}")
                nemesis.run([last])
                reached(f"{last} {number}")
                stand.wait_batches(stand.count_batches() + plan.calm_batches)
            is_enough = stand.count_batches() >= plan.batches
            if stand.errors or is_enough or time.monotonic() - began > plan.seconds:
                break
        stand.stop_feeding()
        stand.driver.ask(command="flush")
        stand.driver.wait_for("flushed", 220.0)
        reached("flushed")
        assert stand.errors == []
        stops = Counter(why_stopped(one["error"]) for one in stand.failures)
        alone = not nemesis.counts.keys() & {"rival", "zombie"}
        assert not (alone and stops.keys() & TOLD_OF_A_RIVAL), "nobody else has the checkpoints"
        rows = stand.boundaries[-1]
        done, with_rows = stand.read_and_check()
        assert done == rows, f"of {rows} rows only {done} came through"
        assert with_rows > 1
        look = look_at_log(stand.log.client.read(), stand.last_batches())
        return Report(
            seed, nemesis.counts, time.monotonic() - began, phases, rows, stand.reads,
            stops, nemesis.unnoted, look,
        )  # fmt: skip


# ---- the checks themselves can fail


BOUNDARIES = [0, 40, 80, 120]


def plain_rows(count: int) -> tuple[Any, Any]:
    out = make_out(count)
    return out["id"].to_numpy().copy(), out["w"].to_numpy().copy()


def three_tables(*counts: int) -> dict[str, pa.Table]:
    """A batch for each count of rows of `in`."""
    ids, w = plain_rows(counts[-1])
    batch = np.searchsorted(np.array(counts), ids, side="right")
    even = ids % 2 == 0

    def table(kept: Any, sign: int) -> pa.Table:
        return pa.table({"batch": batch[kept], "id": ids[kept], "w": sign * w[kept]})

    return {"left": table(even, 1), "right": table(~even, 1), "both": table(ids >= 0, -1)}


def test_what_whole_appends_give_is_accepted() -> None:
    ids, w = plain_rows(80)

    assert check_plain(ids[::-1], w[::-1], BOUNDARIES) == 80
    assert check_plain(ids[:0], w[:0], BOUNDARIES) == 0
    assert check_three(three_tables(40, 80), BOUNDARIES) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda ids, w: (np.append(ids, ids[5]), np.append(w, w[5])), "there twice"),
        (lambda ids, w: (np.delete(ids, 5), np.delete(w, 5)), "missing before others"),
        (lambda ids, w: (ids[:-1], w[:-1]), "end inside an append"),
        (lambda ids, w: (np.append(ids, 3), np.append(w, 0)), "none of the input"),
        (lambda ids, w: (np.append(ids, 500), np.append(w, 0)), "none of the input"),
        (lambda ids, w: (ids, w + (ids == 8)), "another value"),
    ],
)
def test_anything_else_is_noticed(change: Callable[..., Any], complaint: str) -> None:
    ids, w = change(*plain_rows(80))

    with pytest.raises(AssertionError, match=complaint):
        check_plain(ids, w, BOUNDARIES)


@pytest.mark.parametrize("name", ["left", "right", "both"])
def test_a_batch_that_is_torn_between_streams_is_noticed(name: str) -> None:
    tables = three_tables(40, 80)
    tables[name] = tables[name].filter(pc.field("batch") == 0)

    with pytest.raises(AssertionError, match=r"batches \[1\] are not in all streams alike"):
        check_three(tables, BOUNDARIES)


def test_rows_of_a_batch_that_differ_between_streams_are_noticed() -> None:
    tables = three_tables(40, 80)
    ids = tables["both"]["id"].to_numpy().copy()
    ids[7] = 500
    tables["both"] = tables["both"].set_column(1, "id", pa.array(ids))

    with pytest.raises(AssertionError, match="other rows in one stream"):
        check_three(tables, BOUNDARIES)


def test_rows_that_vanish_or_move_are_noticed() -> None:
    table = three_tables(40, 80)["both"]

    check_grown(table.slice(0, 30), table)
    for after in (table.slice(1), table.slice(0, 20)):
        with pytest.raises(AssertionError, match="read before"):
            check_grown(table.slice(0, 30), after)


def marker(lsn: int, task: str, *ranges: Range) -> Entry:
    made = Marker(task, 0, 0, Lsn(0), 0, ranges)
    return entry(lsn, Kind.MARKER, encode_marker(made))


def entry(lsn: int, kind: Kind, payload: bytes = b"") -> Entry:
    return Entry(Lsn(lsn), kind, ("s/out",), "p", 0, lsn, 0, 0, payload)


def test_a_log_in_which_something_is_named_twice_is_noticed() -> None:
    staged = [entry(lsn, Kind.STAGED) for lsn in range(4)]
    one, two = Range(Lsn(0), 2), Range(Lsn(1), 2)

    look = look_at_log([*staged, marker(4, "q", one)], {"q": 0})
    assert (look.staged, look.named, look.batches) == (4, 2, {"q": 1})
    with pytest.raises(AssertionError, match="named twice"):
        look_at_log([*staged, marker(4, "q", one), marker(5, "q", two)], {"q": 1})
    with pytest.raises(AssertionError, match="q"):
        look_at_log([*staged, marker(4, "q", one), marker(5, "q")], {"q": 0})


# ---- the fire


@pytest.mark.soak  # in `make test`: each step of a commit, test_connector_commit_steps.py
@pytest.mark.timeout(300)
def test_each_row_counts_once_whatever_is_killed(tmp_path: Path, tables: list[str]) -> None:
    report = run_under_fire(tmp_path, SEED, Plan())
    print(report)
    tables.append(str(report))

    assert report.look.staged > report.look.named, "no attempt was lost: the fire was too mild"


@pytest.mark.soak
def test_each_row_counts_once_though_two_drivers_live_on_one_checkpoint(
    tmp_path: Path, tables: list[str]
) -> None:
    plan = Plan(faults=Counter(worker=1), drivers=("rival", "zombie"), calm_batches=4)
    report = run_under_fire(tmp_path, SEED, plan)
    print(report)
    tables.append(str(report))

    assert set(report.stops) <= TOLD_OF_A_RIVAL, report.stops


@pytest.mark.soak
def test_each_row_counts_once_over_two_hundred_batches(tmp_path: Path, tables: list[str]) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    plan = Plan(
        faults=Counter(worker=4, executor=2, server=2, planner=1),
        drivers=("commit", "driver", "rival"),
        gap_seconds=(0.3, 2.5),
        calm_batches=25,
        batches=200,
        seconds=max(SOAK_SECONDS, 600.0),
    )
    report = run_under_fire(tmp_path, seed, plan)
    print(report)
    tables.append(str(report))

    assert sum(report.look.batches.values()) >= 200
