"""Rows become entries for their readers, in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import column, count_by, pairs, scan, spec_of

from penstock.errors import TooLarge
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import Delta
from penstock.ops.payloads import decode_delta
from penstock.plan import nodes as n
from penstock.protocol.names import node_tag
from penstock.runtime import outputs
from penstock.runtime.outputs import RESULT_WEIGHT, Outputs, result_schema
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.stream.batches import decode_batch

TEXT = pa.schema([("k", pa.int64()), ("t", pa.string())])


def keyed(tasks: int = 1) -> Outputs:
    spec = spec_of(count_by(scan(), 0), tasks=tasks)
    return Outputs(spec, spec.query.stages[0])


def rows(*keys: int) -> Delta:
    return Delta(
        pa.RecordBatch.from_arrays(pairs(*((k, k) for k in keys)).columns, schema=scan().schema)
    )


def nodes_of(*keys: int) -> list[int]:
    found = virtual_nodes(hash_columns([pa.array(keys, pa.int64())], len(keys)))
    return [int(node) for node in found]


def keys_in(entry: NewEntry) -> list[int]:
    delta = decode_delta(entry.payload, scan().schema, changing=False)
    return [int(key) for key in delta.batch.column(0).to_pylist()]


def test_rows_between_stages_carry_the_tags_of_their_virtual_nodes() -> None:
    made = keyed()
    made.add([rows(1, 2), rows(3, 1)])
    assert made.rows == 4
    [entry] = made.take(())
    assert keys_in(entry) == [1, 2, 3, 1]
    assert (entry.kind, entry.rows) == (Kind.DATA, 4)
    wanted = {node_tag("q", 1, 0, node) for node in nodes_of(1, 2, 3)}
    assert set(entry.tags) == wanted and len(entry.tags) == len(wanted)
    assert made.rows == made.bytes == 0 and made.take(()) == []


def test_every_reader_has_an_entry_of_its_own_and_rows_keep_their_order() -> None:
    made = keyed(tasks=3)
    keys = [*range(20), *range(20)]
    made.add([rows(*keys)])
    entries = made.take(())
    assert len(entries) == 3
    for entry in entries:
        found = keys_in(entry)
        [owner] = {node % 3 for node in nodes_of(*found)}
        assert found == [key for key in keys if nodes_of(key)[0] % 3 == owner]


def test_a_large_delta_is_cut_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PAYLOAD_BYTES_MAX", 600)
    made = keyed()
    made.add([rows(*range(100))])
    entries = made.take(())
    assert len(entries) > 2
    assert all(len(entry.payload) <= 600 for entry in entries)
    assert [key for entry in entries for key in keys_in(entry)] == list(range(100))


def test_a_row_that_fits_no_entry_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PAYLOAD_BYTES_MAX", 100)
    made = keyed()
    made.add([rows(1, 2)])
    with pytest.raises(TooLarge, match="a row between stages takes"):
        made.take(())


def test_a_result_that_takes_rows_back_says_how_often_each_counts() -> None:
    spec = spec_of(count_by(scan(), 0))
    made = Outputs(spec, spec.query.stages[1])
    batch = pa.RecordBatch.from_arrays(
        pairs((1, 5)).columns, schema=spec.query.stages[1].root.schema
    )
    made.add([Delta(batch, np.array([-1])), Delta(batch)])
    [entry] = made.take(())
    found = decode_batch(entry.payload, spec.to_schema).to_pylist()
    assert [row[RESULT_WEIGHT] for row in found] == [-1, 1]
    assert entry.tags == ("s/out",)


def test_a_result_that_only_grows_repeats_rows_that_count_twice() -> None:
    spec = spec_of(scan(), mode="append")
    made = Outputs(spec, spec.query.stages[0])
    made.add([Delta(rows(1).batch, np.array([2]))])
    [entry] = made.take(())
    assert decode_batch(entry.payload, spec.to_schema).num_rows == 2


def test_rows_become_what_the_result_stream_says_they_are() -> None:
    source = scan("in", TEXT)
    schema = pa.schema([("t#9", pa.large_string())])
    root = n.Project(schema=schema, child=source, exprs=(column(source, 1),))
    spec = spec_of(root, mode="append")
    made = Outputs(spec, spec.query.stages[0])
    made.add([Delta(pa.RecordBatch.from_arrays([pa.array(["ä"])], ["t#9"]))])
    [entry] = made.take(())
    assert decode_batch(entry.payload, spec.to_schema).to_pylist() == [{"t_9": "ä"}]


def test_only_a_result_that_changes_has_weights() -> None:
    schema = pa.schema([("a", pa.int64())])
    assert result_schema(schema, changing=False) == schema
    assert result_schema(schema, changing=True).names == ["a", RESULT_WEIGHT]
