"""Aggregation before the exchange: where it pays, and nowhere that it would change a result."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from plan_samples import WINDOW, count_by, scan

from penstock.plan import nodes as n
from penstock.plan.partial import aggregate_early

WINDOWED = pa.schema([("window#7", WINDOW), ("auction#1", pa.int64())])


def buffers(call: n.AggregateCall) -> dict[str, pa.DataType] | None:
    return {"count": pa.int64()} if call.function == "Count" else None


def is_split(root: n.Node) -> bool:
    found = aggregate_early(root, buffers)
    if not isinstance(found, n.Aggregate) or not found.merges:
        return False
    assert isinstance(found.child, n.PartialAggregate)
    assert found.schema == root.schema
    return True


def test_totals_and_windows_are_folded_early() -> None:
    assert is_split(count_by(scan()))
    assert is_split(count_by(scan("bids", WINDOWED), "window#7"))


def test_other_keys_are_not_because_nothing_says_that_there_are_few() -> None:
    assert not is_split(count_by(scan(), "auction#1"))
    assert not is_split(count_by(scan("bids", WINDOWED), "window#7", "auction#1"))


def test_not_where_rows_may_be_late_because_they_are_counted_and_handed_over() -> None:
    timed = replace(count_by(scan("bids", WINDOWED), "window#7"), event_time="window#7")
    assert not is_split(timed)


def test_not_over_rows_that_are_taken_back() -> None:
    assert not is_split(count_by(count_by(scan(), "auction#1")))


def test_not_if_a_function_cannot_be_folded_in_parts() -> None:
    root = count_by(scan())
    mixed = replace(root, calls=(*root.calls, replace(root.calls[0], function="Average")))
    assert not is_split(mixed)
