"""Rows are found by their keys, whatever else is in the batches that they came in."""

from __future__ import annotations

import pyarrow as pa

from penstock.state import equal_rows
from penstock.state.memory_row_set import MemoryRowSet

WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])


def test_a_null_struct_beside_a_key_does_not_hide_it() -> None:
    schema = pa.schema([("id", pa.int64()), ("window", WINDOW)])
    rows = MemoryRowSet(schema, (0, 1), None, (0, 1))
    window = {"start": 1, "end": 2}
    given = [{"id": 7, "window": window}, {"id": 7, "window": None}]
    rows.insert(pa.RecordBatch.from_pylist(given, schema=schema), None)

    for sought in (given[:1], given[1:], given):
        batch = pa.RecordBatch.from_pylist(sought, schema=schema)
        _, found, _ = rows.fetch(batch.columns)

        assert found.to_pylist() == sought


def test_a_null_key_is_not_the_number_that_stands_for_it() -> None:
    schema = pa.schema([("id", pa.int64()), ("place", pa.int64())])
    as_number = int(equal_rows._NULL.astype("int64"))
    for kept, sought in ((None, as_number), (as_number, None)):
        rows = MemoryRowSet(schema, (0,), None, (0,))
        given = [{"id": kept, "place": 0}]
        rows.insert(pa.RecordBatch.from_pylist(given, schema=schema), None)

        _, found, _ = rows.fetch([pa.array([sought], pa.int64())])
        _, same, _ = rows.fetch([pa.array([kept], pa.int64())])

        assert found.num_rows == 0
        assert same.to_pylist() == given


def test_rows_wait_until_their_own_key_is_sought() -> None:
    schema = pa.schema([("id", pa.int64())])
    rows = MemoryRowSet(schema, (0,), None, (0,))
    for number in range(5):
        rows.insert(pa.RecordBatch.from_pylist([{"id": number}], schema=schema), None)
        assert rows.fetch([pa.array([number + 1])])[1].num_rows == 0

    assert rows.fetch([pa.array([3, 0])])[1].to_pylist() == [{"id": 3}, {"id": 0}]
