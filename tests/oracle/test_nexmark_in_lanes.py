"""NEXMark by tasks that share their sources gives what batch Spark gives, whoever is killed.

The tasks of the engine over a log in memory: each takes turns at random, and now and then another
instance takes its place. Sources in lanes, by turns or by key; one, two or four tasks read them,
and stages run where they would for users.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from engine_samples import Wired
from nexmark_events import Events, generated
from penstock_bench.nexmark import model
from penstock_bench.nexmark.queries import QUERIES, RHINO

from penstock.ids import Lsn
from penstock.plan import nodes as n
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Source, count_tasks, join_stages
from penstock.spark.frontend import plan
from penstock.stream.lanes import Lanes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, BATCH_EVENTS, LANES = 15_000, 500, 8
NAMES = [name for name in QUERIES if name not in ("q12", *RHINO)]
#: Those that group or join by the keys of their sources.
BY_ONE_KEY = ("q9", "q17", "q20")
KEYS = {"person": ("id",), "auction": ("seller",), "bid": ("auction",)}


def run(events: Events, df: DataFrame, name: str, tasks: int, *, keyed: bool) -> pa.Table:
    planned = plan(df, mode="update")
    query = planned.query
    lanes = {kind: Lanes(kind, LANES, key if keyed else ()) for kind, key in KEYS.items()}
    counts = count_tasks(query, tasks, dict.fromkeys(lanes, LANES))
    assert counts[0] == tasks or tasks == 1 or reads_two_clocks(query.stages[0].root)
    counts = join_stages(query, counts, lanes)
    if name in BY_ONE_KEY:
        assert (0 in counts) == (keyed or tasks == 1), "rows are where they are needed"
    wired = Wired(
        QuerySpec(
            name="q", version=1, fingerprint="f", query=query,
            statics=planned.static_rows(),
            sources={kind: Source(schema, Lsn(0), LANES) for kind, schema in model.KINDS.items()},
            to="out", to_schema=result_schema(query.schema, changing=query.stages[-1].changing),
            tasks=counts,
        )
    )  # fmt: skip
    chance = Random(f"{name} {tasks} {keyed}")
    for batch in events.batches:
        for kind, rows in batch.items():
            wired.feed(rows, lanes=lanes[kind])
        for task in chance.sample(list(wired.cores), max(1, len(wired.cores) // 2)):
            if chance.random() < 0.05:
                wired.start(task)
            wired.take(task)
            wired.commit(task)
    wired.settle()
    return wired.result()


def reads_two_clocks(root: n.Node) -> bool:
    """Then one task reads them (runtime/spec.py)."""
    return sum(isinstance(node, n.Watermark) for node in root.walk()) > 1


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    with generated(spark, EVENTS, BATCH_EVENTS) as made:
        yield made


@pytest.mark.parametrize(
    ("tasks", "keyed"),
    [
        (4, True),
        *(
            pytest.param(tasks, keyed, marks=pytest.mark.soak)
            for tasks in (1, 2, 4)
            for keyed in (False, True)
            if (tasks, keyed) != (4, True)
        ),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_tasks_that_share_sources_equal_batch_spark(
    events: Events, name: str, tasks: int, keyed: bool
) -> None:
    late = {kind: df.withWatermark("dateTime", "4 seconds") for kind, df in events.streams.items()}
    df = events.build(name, late)

    ours = run(events, df, name, tasks, keyed=keyed)

    events.assert_equals_spark(name, df, ours)
