"""Watermarks, late rows and idle inputs, through a whole driver."""

from __future__ import annotations

import pyarrow as pa

from penstock.ops.api import Delta
from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Literal
from penstock.plan.stages import cut

TIMESTAMP = pa.timestamp("us", tz="UTC")


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    """Rows of (key, second)."""
    keys = [key for key, _ in pairs]
    times = pa.array([second * 1_000_000 for _, second in pairs]).cast(TIMESTAMP)
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "ts": times})


def stream(name: str, id: int, delay_ms: int = 0) -> n.Watermark:
    schema = pa.schema([(f"k#{id}", pa.int64()), (f"ts#{id + 1}", TIMESTAMP)])
    scan = n.Scan(schema=schema, stream=name, columns=("k", "ts"))
    return n.Watermark(schema=schema, child=scan, column=f"ts#{id + 1}", delay_ms=delay_ms)


def counts(child: n.Node) -> n.Aggregate:
    """Rows per event time, shown when the watermark has passed it."""
    name = child.schema.names[1]
    return n.Aggregate(
        schema=pa.schema([(name, TIMESTAMP), ("c#90", pa.int64())]),
        child=child,
        keys=(Column(name, TIMESTAMP),),
        calls=(n.AggregateCall("Count", (Literal(pa.scalar(1)),), pa.int64()),),
        event_time=name,
        emit="finals",
    )


def shown(driver: Driver) -> list[tuple[int, int]]:
    rows = driver.result().to_pylist()
    return sorted((int(row["t"].timestamp()), row["c"]) for row in rows)


def counting(child: n.Node, **named: object) -> Driver:
    return Driver(cut(counts(child), "append", ("t", "c")), {}, **named)  # type: ignore[arg-type]


def test_a_key_is_shown_once_the_watermark_has_passed_it() -> None:
    driver = counting(stream("s", 1, delay_ms=2000))
    driver.feed("s", rows((1, 10), (1, 10), (2, 11)))
    assert shown(driver) == []
    driver.feed("s", rows((1, 12)))
    assert shown(driver) == [(10, 2)]
    driver.finish()
    assert shown(driver) == [(10, 2), (11, 1), (12, 1)]


def test_late_rows_are_counted_and_handed_over() -> None:
    late: list[Delta] = []
    driver = counting(stream("s", 1), on_late=lambda operator, rows: late.append(rows))
    driver.feed("s", rows((1, 10)))
    driver.feed("s", rows((2, 9), (3, 10), (4, 11)))
    assert driver.late == {"aggregate": 2}
    assert [row["k#1"] for delta in late for row in delta.batch.to_pylist()] == [2, 3]
    driver.finish()
    assert shown(driver) == [(10, 1), (11, 1)]


def test_rows_of_the_batch_that_moves_the_watermark_are_not_late() -> None:
    driver = counting(stream("s", 1))
    driver.feed("s", rows((1, 100), (1, 5)))
    assert not driver.late
    assert shown(driver) == [(5, 1), (100, 1)]


def union() -> n.Node:
    left, right = stream("fast", 1), stream("slow", 11)
    return n.Union(schema=left.schema, inputs=(left, right))


def test_the_slowest_input_holds_time_back() -> None:
    driver = counting(union())
    driver.feed("fast", rows((1, 50)))
    driver.feed("fast", rows((1, 60)))
    assert shown(driver) == [], "the slow stream has said nothing yet"
    driver.feed("slow", rows((1, 55)))
    assert shown(driver) == [(50, 1), (55, 1)]


def test_an_idle_input_steps_aside_and_time_never_goes_back() -> None:
    driver = counting(union())
    driver.feed("fast", rows((1, 50)))
    driver.idle = {"slow"}
    driver.feed("fast", rows((1, 60)))
    assert shown(driver) == [(50, 1), (60, 1)]
    driver.idle = set()
    driver.feed("slow", rows((1, 40), (1, 61)))
    assert driver.late == {"aggregate": 1}
    driver.finish()
    assert shown(driver) == [(50, 1), (60, 1), (61, 1)]


def test_inputs_that_fall_idle_together_hold_nobody_back() -> None:
    """The time of the one that spoke counts, also if it steps aside as it tells it."""
    driver = counting(union())
    driver.idle = {"fast", "slow"}
    driver.feed("fast", rows((1, 50), (1, 60)))
    assert shown(driver) == [(50, 1), (60, 1)]


def test_what_passed_is_forgotten_after_a_restart_too() -> None:
    driver = counting(stream("s", 1))
    driver.feed("s", rows((1, 10), (1, 12)))
    again = counting(stream("s", 1), resume=driver.snapshot())
    again.feed("s", rows((2, 10), (2, 13)))
    assert again.late == {"aggregate": 1}
