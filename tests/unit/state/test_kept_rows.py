"""Rows come out of a run as they went in, however they are kept in between."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.state.kept_rows import ArrowRows, WordRows, join_rows, keep_rows

_TIME = pa.timestamp("us", "UTC")


def _words(ids: list[int | None], times: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "time": pa.array(times, _TIME)})


@pytest.mark.parametrize(
    "batch",
    [
        _words([1, -2, 3], [10, 20, 30]),
        _words([1, None, 3], [None, 20, 30]),
        _words([], []),
        _words([7, 8, 9, 10], [None, 1, 2, 3]).slice(1, 2),
    ],
)
def test_words_come_out_as_they_went_in(batch: pa.RecordBatch) -> None:
    kept = keep_rows(batch)
    assert isinstance(kept, WordRows)
    assert kept.batch().equals(batch)
    kept.batch().validate(full=True)


def test_rows_with_text_or_without_columns_stay_with_arrow() -> None:
    for batch in (
        pa.record_batch({"id": [1, 2], "name": ["a", None]}),
        pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([]))),
    ):
        kept = keep_rows(batch)
        assert isinstance(kept, ArrowRows)
        assert kept.batch().num_rows == batch.num_rows
        assert kept.batch().equals(batch)


def test_rows_are_taken_by_their_places() -> None:
    batch = _words([1, None, 3, 4], [10, 20, None, 40])
    places = np.array([3, 1, 1, 2])
    assert keep_rows(batch).take(places).batch().equals(batch.take(pa.array(places)))


def test_rows_with_and_without_nulls_are_joined_in_order() -> None:
    whole, holed = _words([1, 2], [10, 20]), _words([None, 4], [30, None])
    for parts in ([whole, holed], [holed, whole], [whole, whole], [holed]):
        joined = join_rows([keep_rows(part) for part in parts])
        assert joined.batch().equals(pa.concat_batches(parts))
