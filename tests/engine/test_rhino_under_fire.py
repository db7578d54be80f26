"""Rhino's queries under fire while they are rescaled and balanced: exactly once all the same.

NBQ5, NBQ8 and NBQX run at once on real processes, go from two workers to four and back, and their
hot virtual nodes move, while workers, executors, the log's server and the driver are killed at
moments that a seed decides. In the end every result equals batch Spark's over the same rows, and
the log keeps every law. The same with NBQ8 alone, whose state is many times what its workers may
keep of it in memory.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from fire import Stand
from fire_queries import LARGE, RHINO, closing_rows
from harness.engine_checkers import check_engine
from harness.soak import fresh_seeds
from nemesis import Nemesis

from penstock.log.group_format import decode_sets
from penstock.log.records import Entry, meta_tag
from penstock.protocol.names import layout_key

#: Two executors with cores for all workers, should the other be lost.
MASTER = "local-cluster[2,14,1024]"
#: While all queries go from two workers to four; while virtual nodes move; and back to two.
GROWING = Counter(worker=3, executor=1, server=1)
MOVING = Counter(worker=2, balance=3, zombie=1)
SHRINKING = Counter(worker=2, server=1)
ROUNDS = 2
FIRE_SECONDS = 40.0
#: Of NBQ8 alone; and how many times the bounds of four workers its state is at least.
LARGE_EVENTS_PER_S = 8_000
LARGE_TIMES_MIN = 3
#: Until all have the tasks that were asked for, once nothing is killed any more.
CALM_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run was, and what is in the log."""

    table: str
    #: Rows by query, or what is wrong with them.
    results: dict[str, object]
    entries: list[Entry]
    #: The most that was told of the state of each query.
    state_bytes: dict[str, int]


def run_under_fire(
    directory: Path, seed: int, queries: Collection[str], events_per_s: int, rounds: int
) -> Outcome:
    began = time.monotonic()
    with Stand(directory, master=MASTER, queries=list(queries), workers=2) as stand:
        stand.events_per_s = events_per_s
        stand.feeding.set()
        stand.start_driver().wait_for("running")
        stand.wait_placed()
        nemesis = Nemesis(stand, random.Random(seed))
        for _ in range(rounds):
            nemesis.rescale(4)
            nemesis.run(list(GROWING.elements()), time.monotonic() + FIRE_SECONDS)
            stand.wait_layouts(4, CALM_SECONDS)
            time.sleep(3.0)  # it takes two reports to know what virtual nodes get
            nemesis.balance()
            nemesis.run(list(MOVING.elements()), time.monotonic() + FIRE_SECONDS)
            nemesis.rescale(2)
            nemesis.run(list(SHRINKING.elements()), time.monotonic() + FIRE_SECONDS)
            nemesis.driver()
            stand.wait_layouts(2, CALM_SECONDS)
        stand.stop_feeding()
        stand.append(closing_rows())
        stand.driver.ask(command="verify", events=stand.events)
        results: dict[str, object] = stand.driver.wait_for("verified", 900.0)["outcome"]
        entries = stand.log.client.read()
        assert stand.errors == []
        assert stand.failures == []
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(nemesis.counts.items()))
        table = (
            f"Rhino's queries under fire, seed {seed}, {time.monotonic() - began:.0f} s: {kills}; "
            f"{stand.events} events; rows of results {results}"
        )
        sizes = {name: stand.most_state_bytes(name) for name in queries}
    return Outcome(table, results, entries, sizes)


def layouts(entries: list[Entry], queries: Collection[str]) -> list[tuple[str, bool]]:
    """The query of each change of a layout, and whether virtual nodes alone moved."""
    found = []
    tags = {meta_tag(layout_key(name)): name for name in queries}
    before: dict[str, list[list[object]]] = {}
    for entry in entries:
        for name in [tags[tag] for tag in entry.tags if tag in tags]:
            for change in decode_sets(entry.payload):
                if change.key == layout_key(name) and change.value is not None:
                    stages = json.loads(change.value)["stages"]
                    counts = [len(shares) for shares in stages]
                    was = before.get(name)
                    found.append((name, was is not None and counts == [*map(len, was)]))
                    before[name] = stages
    return found


def check(outcome: Outcome, queries: Collection[str], tables: list[str]) -> None:
    """No law is broken, and the results are batch Spark's."""
    found = layouts(outcome.entries, queries)
    moved = sum(is_balanced for _, is_balanced in found)
    table = f"{outcome.table}; {len(found)} changes of layouts, {moved} of virtual nodes alone"
    print(table)
    tables.append(table)

    assert check_engine(outcome.entries) == []
    assert {name: one for name, one in outcome.results.items() if not isinstance(one, int)} == {}
    assert outcome.results.keys() == {*queries} and all(outcome.results.values())
    assert {name for name, _ in found} == {*queries} and moved


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_rhinos_results_are_batch_sparks_whatever_moves_and_whoever_dies(
    tmp_path: Path, tables: list[str]
) -> None:
    for seed in fresh_seeds():
        check(run_under_fire(tmp_path / str(seed), seed, RHINO, 400, ROUNDS), RHINO, tables)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_state_of_many_times_the_memory_moves_and_survives(
    tmp_path: Path, tables: list[str]
) -> None:
    outcome = run_under_fire(tmp_path, next(fresh_seeds()), LARGE, LARGE_EVENTS_PER_S, 1)

    check(outcome, LARGE, tables)
    for name, query in LARGE.items():
        assert query.state_memory is not None
        size = outcome.state_bytes[name]
        tables.append(f"state of {name}: at most {size:,} bytes, {query.state_memory:,} a worker")
        assert size >= LARGE_TIMES_MIN * 4 * query.state_memory
