"""Rows wait in log order; neighbours of one leaf are joined, and nothing else is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, SOURCE, pairs, scan
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.ops.api import Delta, join_deltas
from penstock.plan import nodes as n
from penstock.runtime import inputs
from penstock.runtime.inputs import Arrival, Arrivals, SourceReader, decode_source
from penstock.stream.batches import decode_batch, encode_trusted
from penstock.stream.metadata import METADATA


def arrival(place: int, lsn: int, *keys: int) -> Arrival:
    return Arrival(place, Delta(pairs(*((key, 0) for key in keys))), Lsn(lsn), f"leaf {place}")


def drained(arrivals: Arrivals, *, whole: bool = False) -> list[tuple[int, int, list[int]]]:
    found = arrivals.drain(whole=whole)
    return [(one.place, one.lsn, one.delta.batch.column(0).to_pylist()) for one in found]


def entry(payload: bytes) -> Entry:
    return Entry(Lsn(7), Kind.DATA, ("s/in",), "p", 1, 0, 0, 0, payload)


def test_neighbours_of_one_leaf_are_joined() -> None:
    arrivals = Arrivals(10)
    for place, lsn in ((0, 1), (0, 2), (1, 3), (0, 4)):
        arrivals.add(arrival(place, lsn, lsn))
    assert len(arrivals) == 4
    assert drained(arrivals) == [(0, 2, [1, 2]), (1, 3, [3]), (0, 4, [4])]
    assert len(arrivals) == 0 and drained(arrivals) == []


def test_each_stays_whole_where_it_matters_which_row_is_bad() -> None:
    arrivals = Arrivals(10)
    arrivals.add(arrival(0, 1, 1))
    arrivals.add(arrival(0, 2, 2))
    assert drained(arrivals, whole=True) == [(0, 1, [1]), (0, 2, [2])]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=12))
def test_no_row_is_lost_or_moved(what: list[tuple[int, int]]) -> None:
    arrivals = Arrivals(5)
    wanted = []
    for lsn, (place, count) in enumerate(what):
        keys = [lsn * 10 + at for at in range(count)]
        arrivals.add(arrival(place, lsn, *keys))
        wanted += [(place, key) for key in keys]
    found = drained(arrivals)
    assert [(place, key) for place, _, keys in found for key in keys] == wanted
    assert all(len(keys) <= 5 for _, _, keys in found)


def test_rows_that_are_taken_back_stay_so_beside_others() -> None:
    plain, taken = Delta(pairs((1, 1))), Delta(pairs((2, 2), (3, 3)), np.array([-1, 2]))
    assert join_deltas([plain, taken]).all_weights().tolist() == [1, -1, 2]
    assert join_deltas([plain, plain]).weights is None
    assert join_deltas([taken]) is taken


def test_rows_without_columns_are_joined_too() -> None:
    bare = Delta(pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([]))))
    assert len(join_deltas([bare, bare])) == 6


def test_only_the_columns_that_are_read_come_under_the_plans_names() -> None:
    leaf = n.Scan(schema=pa.schema([("v#5", pa.int64())]), stream="in", columns=("v",))
    found = decode_source(entry(encode_trusted(pairs((1, 7)))), leaf, SOURCE)
    assert found.to_pylist() == [{"v#5": 7}]


def test_where_only_the_number_of_rows_is_asked_for_it_is_kept() -> None:
    leaf = n.Scan(schema=pa.schema([]), stream="in", columns=())
    found = decode_source(entry(encode_trusted(pairs((1, 7), (2, 8)))), leaf, SOURCE)
    assert (found.num_rows, found.num_columns) == (2, 0)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_rows_are_named_by_stream_and_lsn(payload: bytes) -> None:
    with pytest.raises(BadFormat, match="stream in, LSN 7: "):
        decode_source(entry(payload), scan(), SOURCE)


def test_metadata_columns_say_where_rows_count() -> None:
    names = ("k", "_lsn", "_time", "_producer", "_stream")
    fields = [("k#1", LONG), *((f"{name}#2", METADATA[name]) for name in names[1:])]
    leaf = n.Scan(schema=pa.schema(fields), stream="in", columns=names)
    rows = encode_trusted(pairs((7, 0), (8, 0)))
    entry = Entry(Lsn(5), Kind.STAGED, ("s/in",), "p", 1, 0, 1_000, 2, rows)

    here = decode_source(entry, leaf, SOURCE).to_pylist()
    marker = Entry(Lsn(9), Kind.MARKER, ("s/in",), "m", 1, 0, 2_000, 0, b"")
    at_marker = decode_source(entry, leaf, SOURCE, marker).to_pylist()

    assert [row["k#1"] for row in here] == [7, 8]
    assert {(row["_lsn#2"], row["_producer#2"]) for row in here} == {(5, "p")}
    assert here[0]["_stream#2"] == "in"
    assert here[0]["_time#2"].timestamp() == 1.0
    assert {(row["_lsn#2"], row["_producer#2"]) for row in at_marker} == {(9, "m")}
    assert at_marker[1]["_time#2"].timestamp() == 2.0


def test_an_entry_is_decoded_once_for_all_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def count(payload: bytes, schema: pa.Schema) -> pa.RecordBatch:
        decoded.append(payload)
        return decode_batch(payload, schema)

    monkeypatch.setattr(inputs, "decode_batch", count)
    reader = SourceReader()
    first, second = (entry(encode_trusted(pairs((1, value)))) for value in (7, 8))

    found = [reader.read(one, scan(id=id), SOURCE) for one in (first, second) for id in (1, 11)]

    assert [batch.column(1).to_pylist() for batch in found] == [[7], [7], [8], [8]]
    assert [batch.schema.names[0] for batch in found] == ["k#1", "k#11"] * 2
    assert len(decoded) == 2
