"""Rhino's queries under fire while they are rescaled and balanced: exactly once all the same.

NBQ5, NBQ8 and NBQX run at once on real processes, go from two workers to four and back, and their
hot virtual nodes move, while workers, executors, the log's server and the driver are killed at
moments that a seed decides. In the end every result equals batch Spark's over the same rows, and
the log keeps every law.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from fire import Stand
from fire_queries import RHINO, closing_rows
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
#: Until all have the tasks that were asked for, once nothing is killed any more.
CALM_SECONDS = 240.0


def run_under_fire(directory: Path, seed: int) -> tuple[str, dict[str, object], list[Entry]]:
    began = time.monotonic()
    with Stand(directory, master=MASTER, queries=list(RHINO), workers=2) as stand:
        stand.events_per_s = 400
        stand.feeding.set()
        stand.start_driver().wait_for("running")
        stand.wait_placed()
        nemesis = Nemesis(stand, random.Random(seed))
        for _ in range(ROUNDS):
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
        outcome: dict[str, object] = stand.driver.wait_for("verified", 600.0)["outcome"]
        entries = stand.log.client.read()
        assert stand.errors == []
        assert stand.failures == []
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(nemesis.counts.items()))
        table = (
            f"Rhino's queries under fire, seed {seed}, {time.monotonic() - began:.0f} s: {kills}; "
            f"{stand.events} events; rows of results {outcome}"
        )
    return table, outcome, entries


def layouts(entries: list[Entry]) -> list[tuple[str, bool]]:
    """The query of each change of a layout, and whether virtual nodes alone moved."""
    found = []
    tags = {meta_tag(layout_key(name)): name for name in RHINO}
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


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_rhinos_results_are_batch_sparks_whatever_moves_and_whoever_dies(
    tmp_path: Path, tables: list[str]
) -> None:
    for seed in fresh_seeds():
        table, outcome, entries = run_under_fire(tmp_path / str(seed), seed)
        found = layouts(entries)
        moved = sum(is_balanced for _, is_balanced in found)
        table += f"; {len(found)} changes of layouts, {moved} of virtual nodes alone"
        print(table)
        tables.append(table)

        assert check_engine(entries) == []
        assert {name: one for name, one in outcome.items() if not isinstance(one, int)} == {}
        assert outcome.keys() == RHINO.keys() and all(outcome.values())
        assert {name for name, _ in found} == RHINO.keys() and moved
