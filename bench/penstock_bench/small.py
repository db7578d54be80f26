"""`penstock bench small`: what an event costs in small batches, where nearly all of it is calls.

NEXMark's queries as `penstock nexmark run` starts them, their tasks in this process over a list
that stands for the log: entries are decoded, operators run, results, changes and markers are
encoded, and every batch is committed by itself. So it is the processor time of the engine alone,
without the log server, sockets and Spark. Each query runs as it does for one worker, and with its
stages apart. Rounds go through all queries in turn, so that a machine that drifts favours none; the
least counts, since whatever else the machine does only adds to it.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.ids import Lsn
from penstock.log.records import Entry, NewEntry
from penstock.plan.stages import Query
from penstock.protocol.committed import read_entries
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Source, count_tasks, join_stages
from penstock.runtime.task_core import TaskCore
from penstock.spark.frontend import Planned, plan
from penstock.spark.session import local_session
from penstock.stream.batches import encode_trusted
from penstock.stream.lanes import Lanes
from penstock.testing.oracle import streaming_frames
from penstock_bench.measure import busy_load
from penstock_bench.nexmark.driver import timed_frame
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.timed import MODES
from penstock_bench.report import Report, Say

_STREAM: Final = "events"
_RATE: Final = 10_000


@dataclass(frozen=True, slots=True)
class SmallBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    queries: tuple[str, ...] = ("q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9")
    batch_events: tuple[int, ...] = (25, 50, 500)
    #: Of each round; so many more come before the clock starts.
    events: int = 50_000
    warm_events: int = 20_000
    rounds: int = 3


FULL: Final = SmallBenchSizes()
QUICK: Final = SmallBenchSizes(("q1", "q8"), (50,), 1_000, 500, 1)


def run_bench(plan: SmallBenchSizes, say: Say) -> Report:
    report = Report("small", parameters={"plan": repr(plan), "load": busy_load(say)})
    planned = _plan_all(plan.queries)
    found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for _ in range(plan.rounds):
        for size in plan.batch_events:
            warm, timed = _make_entries(plan, size)
            for name, one in planned.items():
                for form in ("joined", "apart"):
                    seconds = _measure(one, warm, timed, is_joined=form == "joined")
                    found[name, size, form].append(seconds / plan.events * 1e6)
                say(f"{name}, {size} events a batch: {found[name, size, 'joined'][-1]:.1f} CPU s/M")
    report.figures = {
        f"{name}, {size} events a batch": {
            f"cpu_s_per_million_{form}": round(min(found[name, size, form]), 1)
            for form in ("joined", "apart")
        }
        for name in planned
        for size in plan.batch_events
    }
    return report


def _plan_all(names: Sequence[str]) -> dict[str, Planned]:
    sample = pa.Table.from_batches([Generator().events(np.arange(1))])
    with local_session("penstock-bench") as spark:
        frames = streaming_frames(spark, {_STREAM: sample})
        modes: dict[str, Any] = {name: MODES[name] for name in names}
        return {
            name: plan(timed_frame(name, mode, frames[_STREAM], 0), mode=mode)
            for name, mode in modes.items()
        }


def _make_entries(plan: SmallBenchSizes, size: int) -> tuple[list[NewEntry], list[NewEntry]]:
    generator = Generator(Parameters(events_per_s=_RATE))
    entries = []
    for first in range(0, plan.warm_events + plan.events, size):
        rows = generator.events(np.arange(first, first + size))
        entries.append(NewEntry(encode_trusted(rows), Lanes(_STREAM).tags(0), rows=rows.num_rows))
    warm = plan.warm_events // size
    return entries[:warm], entries[warm:]


def _measure(
    planned: Planned, warm: list[NewEntry], timed: list[NewEntry], *, is_joined: bool
) -> float:
    """Processor seconds for the timed entries, each of them committed by all stages in turn."""
    run = _Run(_spec_of(planned.query, is_joined=is_joined))
    for entry in warm:
        run.put_through(entry)
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for entry in timed:
        run.put_through(entry)
    seconds = time.process_time() - began
    gc.unfreeze()
    return seconds


def _spec_of(query: Query, *, is_joined: bool) -> QuerySpec:
    counts = count_tasks(query, 1)
    return QuerySpec(
        name="q",
        version=1,
        fingerprint="bench",
        query=query,
        statics={},
        sources={_STREAM: Source(Generator().events(np.arange(1)).schema, Lsn(0))},
        to="out",
        to_schema=result_schema(query.schema, changing=query.stages[-1].changing),
        tasks=join_stages(query, counts) if is_joined else counts,
    )


class _Run:
    """One task per stage that runs, over one list of entries; nothing is read twice."""

    def __init__(self, spec: QuerySpec) -> None:
        self._cores = [TaskCore(spec, task, 1, _now_ms) for task in spec.task_ids]
        self._tags = [frozenset(core.tags) for core in self._cores]
        self._committed = [read_entries(Lsn(0)) for _ in self._cores]
        self._end = 0
        for core in self._cores:
            core.begin(None)

    def put_through(self, entry: NewEntry) -> None:
        new = list(self._append("user", [entry]))
        for place, core in enumerate(self._cores):
            new += self._run(place, core, new)

    def _run(self, place: int, core: TaskCore, new: list[Entry]) -> Iterator[Entry]:
        for entry in new:
            if not self._tags[place].isdisjoint(entry.tags):
                core.take(entry, self._committed[place].take(entry))
        core.looked(Lsn(self._end))
        core.work()
        commit = core.take_commit()
        if commit is None:
            return
        cut: Any = commit.cut()
        assert not cut.ahead, "a commit of a small batch is one group"
        yield from self._append(core.task.producer, cut.group([]))

    def _append(self, producer: str, entries: Sequence[NewEntry]) -> Iterator[Entry]:
        for entry in entries:
            lsn, self._end = Lsn(self._end), self._end + 1
            yield Entry(lsn, entry.kind, entry.tags, producer, 1, 0, 0, entry.rows, entry.payload)


def _now_ms() -> int:
    return 0
