"""Rows wait in log order; neighbours of one leaf are joined, and nothing else is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import SOURCE, pairs, scan
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.ops.api import Delta
from penstock.plan import nodes as n
from penstock.runtime.inputs import Arrival, Arrivals, decode_source, join_deltas
from penstock.stream.batches import encode_trusted


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
