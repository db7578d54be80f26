"""The order of rows, as Spark has it: one place for windows, top-n and sorted results.

A column becomes codes: integers that compare as Spark compares its values. Nulls stand where the
term says; NaN is the largest number, -0.0 equals 0.0; text goes by its bytes; structs go field by
field and arrays element by element, nulls inside them first. Codes of two columns, or of two
batches, must not be compared.

Law: rows that are equal under all terms are told apart by all of their columns, so that their order
is a function of the rows and not of how they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.expressions import as_array, compile_expr
from penstock.plan.nodes import Order
from penstock.state.keys import canonical_ints

Ints = npt.NDArray[np.int64]
_ALL_BUT_SIGN: Final = np.int64(2**63 - 1)


class Ordering:
    """ORDER BY over batches of one schema."""

    def __init__(self, order: tuple[Order, ...], schema: pa.Schema) -> None:
        self._terms = [(compile_expr(term.expr, schema), term) for term in order]

    def keys(self, batch: pa.RecordBatch) -> list[Ints]:
        """Rows as numbers to compare, the first array first; equal numbers are peers."""
        found: list[Ints] = []
        for evaluate, term in self._terms:
            column = as_array(evaluate(batch), batch.num_rows)
            found += _term_keys(column, term.descending, term.nulls_first)
        return found

    def sort(self, batch: pa.RecordBatch, major: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
        """The rows in order of `major`, then of the terms; and the sorted keys of the terms."""
        keys = self.keys(batch)
        order = sort_rows([*major, *keys], batch.num_rows)
        if _any_peers([key[order] for key in (*major, *keys)], batch.num_rows):
            ties = [part for column in batch.columns for part in _term_keys(column, False, True)]
            order = sort_rows([*major, *keys, *ties], batch.num_rows)
        return order, [key[order] for key in keys]


def sort_rows(keys: Sequence[Ints], rows: int) -> Ints:
    """Positions of the rows in the order of the keys, the first key first; stable."""
    return np.lexsort(keys[::-1]) if keys else np.arange(rows)


def differs_from_previous(
    keys: Sequence[npt.NDArray[np.generic]], rows: int
) -> npt.NDArray[np.bool_]:
    """Of sorted rows, those that are not equal to the row before; the first never is."""
    differs = np.zeros(rows, bool)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return differs


def _any_peers(keys: Sequence[Ints], rows: int) -> bool:
    return not differs_from_previous(keys, rows).all()


def _term_keys(column: pa.Array, descending: bool, nulls_first: bool) -> list[Ints]:
    values = codes(column)
    if descending:
        values = ~values
    if not column.null_count:
        return [values]
    present = column.is_valid().to_numpy(zero_copy_only=False)
    values[~present] = 0
    return [(present if nulls_first else ~present).astype(np.int64), values]


def codes(column: pa.Array) -> Ints:
    """Numbers that compare as the column's values do; what a null gets means nothing."""
    kind = column.type
    if pt.is_null(kind):
        return np.zeros(len(column), np.int64)
    if pt.is_floating(kind):
        bits = canonical_ints(column)
        return np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits)
    if pt.is_struct(kind):
        parts = [part for f in column.flatten() for part in _term_keys(f, False, True)]
        return _dense(parts, len(column))
    if pt.is_list(kind) or pt.is_map(kind):
        return _list_codes(column)
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_decimal(kind):
        ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
        return ranks.to_numpy().astype(np.int64)
    if pt.is_interval(kind):
        return _object_codes(column.to_pylist())
    return canonical_ints(column).copy()


def _dense(keys: list[Ints], rows: int) -> Ints:
    """One number per row that compares as the keys do."""
    ranks = np.zeros(rows, np.int64)
    order = sort_rows(keys, rows)
    ranks[order] = np.cumsum(differs_from_previous([key[order] for key in keys], rows))
    return ranks


def _list_codes(column: pa.Array) -> Ints:
    """Arrays compare like tuples of their elements' ranks; Python's tuples do just that."""
    if pt.is_map(column.type):
        # Spark does not order maps; their entries tell rows apart that are equal otherwise.
        column = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))
    entries = pc.list_flatten(column)
    ranks = _dense(_term_keys(entries, False, True), len(entries)).tolist()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    return _object_codes(
        [tuple(ranks[start:end]) for start, end in zip(starts, ends, strict=False)]
    )


def _object_codes(values: list[object]) -> Ints:
    """Ranks of Python values; only for types that no kernel can compare."""
    known = sorted({value for value in values if value is not None})  # type: ignore[type-var]
    ranks = {value: rank for rank, value in enumerate(known)}
    return np.fromiter((ranks.get(value, 0) for value in values), np.int64, len(values))
