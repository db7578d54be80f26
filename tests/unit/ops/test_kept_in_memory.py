"""What stays in memory although state_memory is given is said before a query starts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from engine_samples import count_by, join, scan, spec_of
from harness.rooms import Forgetful

from penstock.ops.kept_in_memory import kept_in_memory, told_in_memory
from penstock.ops.pipeline import Pipeline
from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.state.memory import MemoryState

LONG = pa.int64()


def largest(kind: pa.DataType) -> n.Aggregate:
    rows = scan(schema=pa.schema([("k", LONG), ("v", kind)]))
    counted = count_by(rows, 0)
    value = rows.schema.field(1)
    call = n.AggregateCall("Max", (Column(value.name, value.type),), kind)
    fields = [counted.schema.field(0), pa.field("m#91", kind)]
    return n.Aggregate(schema=pa.schema(fields), child=rows, keys=counted.keys, calls=(call,))


@pytest.mark.parametrize("kind", [LONG, pa.timestamp("us"), pa.float32(), pa.date32()])
def test_counts_by_narrow_keys_are_on_disk(kind: pa.DataType) -> None:
    query = spec_of(count_by(scan(schema=pa.schema([("k", kind), ("v", LONG)])), 0)).query

    assert kept_in_memory(query) == []
    assert told_in_memory(query).endswith("is on disk")


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(9, 2), pa.list_(LONG)])
def test_keys_that_are_objects_stay_in_memory(kind: pa.DataType) -> None:
    query = spec_of(count_by(scan(schema=pa.schema([("k", kind), ("v", LONG)])), 0)).query

    (found,) = kept_in_memory(query)

    assert found.endswith("groups: key k")
    assert found in told_in_memory(query)


def test_values_that_are_objects_stay_in_memory() -> None:
    assert kept_in_memory(spec_of(largest(LONG)).query) == []
    assert len(kept_in_memory(spec_of(largest(pa.string())).query)) == 1


def test_rows_of_joins_are_on_disk_whatever_they_have() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.list_(pa.string()))])
    query = spec_of(join(scan("a", schema), scan("b", schema, 10))).query

    assert kept_in_memory(query) == []


@pytest.mark.parametrize("kind", [LONG, pa.string()])
def test_what_is_not_named_is_in_files(kind: pa.DataType) -> None:
    query = spec_of(count_by(scan(schema=pa.schema([("k", kind), ("v", LONG)])), 0)).query
    room = Forgetful()

    for stage in query.stages:
        Pipeline(stage.root, MemoryState(room=room), {})

    # Of a text's index nothing is in arrays, but its values are.
    assert room.bytes >= (16 * 4096 if kind == LONG else 8 * 1024)
