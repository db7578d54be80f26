"""Four small queries, what is fed to them, and what a single thread makes of that.

    count   bids ─► by auction ─► count and sum, update mode       2 x 2 tasks
    window  bids, watermark ─► by auction ─► counts, append mode   2 x 2 tasks
    join    bids, asks, watermarks ─► by auction, time ─► join, counts per pair, append   2 + 2 + 2
    last    bids ─► by auction ─► the last and all of them, in order, update mode   2 x 2 tasks

Every row has a number of its own, which is a sum's summand: one row lost and another one taken in
twice do not cancel. The numbers of tasks are those of two workers, where tasks tell the time of a
source together. No row is later than its watermark's delay, so results depend on nothing but the
rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Final

import pyarrow as pa

from penstock.ids import Lsn
from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Literal
from penstock.plan.stages import Query, cut
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Settings, Source, count_tasks, join_stages
from penstock.stream.lanes import Lanes

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SOURCE: Final = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", TIMESTAMP)])
KEYS: Final = 9
DELAY_MS: Final = 3000
#: Rows of one entry are at most so far apart in event time; entries never go back by more.
_SPREAD_S: Final = 2
#: Those that a swarm draws.
SHAPES: Final = ("count", "window", "join", "last")


#: By which columns sources can be in lanes, so that no row has to move.
KEYS_OF: Final = {"count": ("k",), "window": ("k",), "join": ("k", "ts"), "last": ("k",)}


def make_spec(
    shape: str, settings: Settings, *, lanes: int = 1, workers: int = 2, keyed: bool = False
) -> QuerySpec:
    query = {"count": _count, "window": _window, "join": _join, "last": _last}[shape]()
    result = result_schema(query.schema, changing=query.stages[-1].changing)
    return QuerySpec(
        name=shape,
        version=1,
        fingerprint=shape,
        query=query,
        statics={},
        sources={name: Source(SOURCE, Lsn(0), lanes) for name in query.streams},
        to="out",
        to_schema=result,
        tasks=_tasks(query, settings, lanes, workers, KEYS_OF[shape] if keyed else ()),
        settings=settings,
        lanes={"out": Lanes("out", lanes)},
    )


def _tasks(
    query: Query, settings: Settings, lanes: int, workers: int, key: tuple[str, ...]
) -> tuple[int, ...]:
    """As `penstock.start` has it for one worker, or keyed sources. Else stages stay apart."""
    counts = count_tasks(query, workers, dict.fromkeys(query.streams, lanes), settings.protocol)
    if workers > 1 and not key:
        return counts
    return join_stages(query, counts, {name: Lanes(name, lanes, key) for name in query.streams})


def _scan(stream: str, id: int, *, watermark: bool) -> n.Node:
    schema = pa.schema(
        [field.with_name(f"{field.name}#{id + i}") for i, field in enumerate(SOURCE)]
    )
    scan = n.Scan(schema=schema, stream=stream, columns=tuple(SOURCE.names))
    if not watermark:
        return scan
    return n.Watermark(schema=schema, child=scan, column=f"ts#{id + 2}", delay_ms=DELAY_MS)


def _column(node: n.Node, name: str) -> Column:
    return Column(name, node.schema.field(name).type)


def _aggregate(child: n.Node, keys: tuple[str, ...], value: str, **options: object) -> n.Aggregate:
    columns = tuple(_column(child, key) for key in keys)
    fields = [*(child.schema.field(key) for key in keys)]
    return n.Aggregate(
        schema=pa.schema([*fields, ("n#90", pa.int64()), ("sum#91", pa.int64())]),
        child=child,
        keys=columns,
        calls=(
            n.AggregateCall("Count", (Literal(pa.scalar(1, pa.int64())),), pa.int64()),
            n.AggregateCall("Sum", (_column(child, value),), pa.int64()),
        ),
        **options,  # type: ignore[arg-type]
    )


def _count() -> Query:
    root = _aggregate(_scan("bids", 1, watermark=False), ("k#1",), "v#2")
    return cut(root, "update", ("k", "n", "sum"))


def _last() -> Query:
    bids = _scan("bids", 1, watermark=False)
    value = _column(bids, "v#2")
    calls = (
        n.AggregateCall("Last", (value,), pa.int64()),
        n.AggregateCall("CollectList", (value,), pa.list_(pa.int64())),
    )
    schema = pa.schema(
        [bids.schema.field("k#1"), ("last#90", calls[0].type), ("all#91", calls[1].type)]
    )
    root = n.Aggregate(schema=schema, child=bids, keys=(_column(bids, "k#1"),), calls=calls)
    return cut(root, "update", ("k", "last", "all"))


def _window() -> Query:
    bids = _scan("bids", 1, watermark=True)
    root = _aggregate(bids, ("k#1", "ts#3"), "v#2", event_time="ts#3", emit="finals")
    return cut(root, "append", ("k", "ts", "n", "sum"))


def _join() -> Query:
    bids, asks = _scan("bids", 1, watermark=True), _scan("asks", 11, watermark=True)
    join = n.Join(
        schema=pa.schema([*bids.schema, *asks.schema]),
        left=bids,
        right=asks,
        kind="inner",
        left_keys=(_column(bids, "k#1"), _column(bids, "ts#3")),
        right_keys=(_column(asks, "k#11"), _column(asks, "ts#13")),
        null_safe=(False, False),
        left_time=n.EventTime("ts#3", 0, 0),
        right_time=n.EventTime("ts#13", 0, 0),
        emit="finals",
    )
    root = _aggregate(join, ("k#1", "ts#3"), "v#12", event_time="ts#3", emit="finals")
    return cut(root, "append", ("k", "ts", "n", "sum"))


# -- rows


def make_entries(spec: QuerySpec, random: Random, entries: int, rows_max: int) -> Inputs:
    """By stream, the batches that its producer appends, one entry each."""
    found: Inputs = {}
    number = 0
    for stream in spec.query.streams:
        batches = []
        for at in range(entries):
            rows = random.randint(1, rows_max)
            number += rows
            seconds = [at // 2 - random.randint(0, _SPREAD_S) for _ in range(rows)]
            columns = [
                pa.array([random.randrange(KEYS) for _ in range(rows)], pa.int64()),
                pa.array(range(number - rows, number), pa.int64()),
                pa.array([1_000_000 * (1000 + s) for s in seconds], pa.int64()).cast(TIMESTAMP),
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=SOURCE))
        found[stream] = batches
    return found


Inputs = dict[str, list[pa.RecordBatch]]
Rows = Counter[tuple[object, ...]]


def run_oracle(spec: QuerySpec, inputs: Iterable[tuple[str, pa.RecordBatch]]) -> Rows:
    """What one thread makes of the input, in the order of the log."""
    driver = Driver(spec.query, {})
    for stream, batch in inputs:
        driver.feed(stream, batch)
    return Counter(tuple(map(_hashable, row.values())) for row in driver.result().to_pylist())


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def add_rows(result: Rows, batch: pa.RecordBatch, *, changing: bool) -> None:
    """Add an entry of the result stream to a result."""
    for row in batch.to_pylist():
        *values, weight = row.values() if changing else (*row.values(), 1)
        result[tuple(map(_hashable, values))] += weight
