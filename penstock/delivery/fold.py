"""What a batch changes in a table: rows that come and go become at most one change per key. Pure.

    weights of equal rows are summed first          +a −a +a  is  +a
    then by key: a row that is left is an upsert    −old +new is  upsert new
    a key that has only lost rows is a delete       −old      is  delete its key
    without a key, of a changing stream: a multiset, each distinct row with the sum of its weights

Rows and keys are equal as grouping has it: nulls alike, NaNs alike, -0.0 like 0.0.

Law: whole commits may be cut into batches at will. Folding each batch and applying the folds one
after the other gives the same table, as long as no commit leaves two rows with one key. In a
multiset, or if nothing is taken back, it always does. Where a key has two rows after all, the later
one in log order wins; `strict` notices it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.equal_rows import first_equal

Ints = npt.NDArray[np.int64]
#: The column of a changing stream that says how often a row is added; negative: taken back.
WEIGHT: Final = "_weight"


@dataclass(frozen=True, slots=True)
class Changes:
    """Of a table by key, or of one to which rows are only added."""

    #: Whole rows, in log order; with a key, one for each key.
    upserts: pa.RecordBatch
    #: Keys without a row from now on, none of which is among the upserts. If strict: the whole rows
    #: that must be there and go, before upserts are added.
    deletes: pa.RecordBatch
    #: The index in the batch of each of them, for messages.
    upsert_places: Ints
    delete_places: Ints


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a multiset: how many more (or fewer) there are of each row; never 0."""

    rows: pa.RecordBatch
    deltas: Ints
    places: Ints


class KeyTwice(Exception):
    """Strict: a key has two rows after the batch, or loses two in it; the index of one of them."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def fold(
    rows: pa.RecordBatch, *, key: Sequence[str], changing: bool, strict: bool
) -> Changes | Counts:
    """The net changes of rows in log order, whole commits of them. Strict: may raise KeyTwice."""
    if not changing:
        return _fold_added(rows, key, strict)
    weights = rows.column(WEIGHT).to_numpy(zero_copy_only=False)
    rows = rows.drop_columns([WEIGHT])
    places, totals = _net(rows, weights)
    if not key:
        return Counts(_take(rows, places), totals, places)
    added, taken = places[totals > 0], places[totals < 0]
    if strict:
        if (np.abs(totals) > 1).any():
            raise KeyTwice(int(places[np.abs(totals) > 1][0]))
        for side in (added, taken):
            _check_keys_differ(rows, key, side)
        return Changes(_take(rows, added), _take(rows, taken), added, taken)
    return _by_key(rows, key, added, taken)


def _fold_added(rows: pa.RecordBatch, key: Sequence[str], strict: bool) -> Changes:
    places = np.arange(rows.num_rows, dtype=np.int64)
    none = places[:0]
    if not key:
        return Changes(rows, rows.slice(0, 0), places, none)
    if strict:
        _check_keys_differ(rows, key, places)
        return Changes(rows, rows.slice(0, 0), places, none)
    return _by_key(rows, key, places, none)


def _net(rows: pa.RecordBatch, weights: Ints) -> tuple[Ints, Ints]:
    """Distinct rows whose weights do not cancel: where each is, and the sum. In log order.

    Of equal rows, the last that has the sum's sign stands for them: equal is not the same, -0.0 is
    not 0.0.
    """
    count = rows.num_rows
    first = first_equal(rows.columns, count)
    totals = np.zeros(count, np.int64)
    np.add.at(totals, first, weights)
    last = np.zeros(count, np.int64)
    speaks = np.flatnonzero((weights > 0) == (totals[first] > 0))
    last[first[speaks]] = speaks  # of several, NumPy keeps the one that is assigned last
    kept = np.flatnonzero(totals)
    order = last[kept].argsort(kind="stable")
    return last[kept][order], totals[kept][order]


def _by_key(rows: pa.RecordBatch, key: Sequence[str], added: Ints, taken: Ints) -> Changes:
    places = np.concatenate([added, taken])
    keys = rows.select(list(key))
    codes = first_equal(keys.take(pa.array(places)).columns, len(places))
    winner = np.full(len(places), -1, np.int64)
    winner[codes[: len(added)]] = added  # in log order: the last one wins
    upserts = np.sort(winner[winner >= 0])
    lost = np.unique(codes[len(added) :])
    deletes = np.sort(places[lost[winner[lost] < 0]])
    return Changes(_take(rows, upserts), _take(keys, deletes), upserts, deletes)


def _check_keys_differ(rows: pa.RecordBatch, key: Sequence[str], places: Ints) -> None:
    keys = _take(rows, places).select(list(key))
    repeated = first_equal(keys.columns, len(places)) != np.arange(len(places))
    if repeated.any():
        raise KeyTwice(int(places[repeated][0]))


def _take(rows: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """The rows at these places, which differ and are in order."""
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places))
