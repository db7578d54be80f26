"""The order of rows, as Spark has it: one place for windows, top-n and sorted results.

A term of an ORDER BY becomes integers that compare as Spark compares its values
(functions/ordering.py), nulls standing where the term says. They are of one batch: integers of two
batches must not be compared.

Law: rows that are equal under all terms are told apart by all of their columns, so that their order
is a function of the rows and not of how they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import Ints as Ints
from penstock.ops.functions.alignment import as_array, valid_mask
from penstock.ops.functions.ordering import order_keys
from penstock.plan.nodes import Order


class Ordering:
    """ORDER BY over batches of one schema."""

    def __init__(self, order: tuple[Order, ...], schema: pa.Schema) -> None:
        self._terms = [(compile_expr(term.expr, schema), term) for term in order]

    def keys(self, batch: pa.RecordBatch) -> list[Ints]:
        """Rows as numbers to compare, the first array first; equal numbers are peers."""
        keys: list[Ints] = []
        for evaluate, term in self._terms:
            column = as_array(evaluate(batch), batch.num_rows)
            keys += _term_keys(column, term.descending, term.nulls_first)
        return keys

    def sort(
        self, batch: pa.RecordBatch, major: Sequence[Ints], sides: Ints | None = None
    ) -> tuple[Ints, list[Ints]]:
        """The rows in order of `major`, then of the terms; and the sorted keys of the terms.

        `sides`: rows of sides -1 and 1 are never seen together, so they need no order among them.
        """
        keys = self.keys(batch)
        order = sort_rows([*major, *keys, *([] if sides is None else [sides])], batch.num_rows)
        ordered = [key[order] for key in keys]
        begins = differs_from_previous([*(key[order] for key in major), *ordered], batch.num_rows)
        if sides is not None:
            # Of peers, those of side 0 stand between the two others.
            begins[1:] |= sides[order[1:]] * sides[order[:-1]] < 0
        if not begins.all():
            ties = [part for column in batch.columns for part in _term_keys(column, False, True)]
            order = sort_rows([*major, *keys, *ties], batch.num_rows)
        return order, ordered  # sorting peers leaves the keys as they are


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


def _term_keys(column: pa.Array, descending: bool, nulls_first: bool) -> list[Ints]:
    values = order_keys(column)
    if descending:
        values = ~values
    if not column.null_count:
        return [values]
    present = valid_mask(column)
    first = present if nulls_first else ~present
    return [first.astype(np.int64), np.where(present, values, 0)]
