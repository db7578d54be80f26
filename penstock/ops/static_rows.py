"""Rows of static tables that a query shows by themselves: in a union with a stream, and in a join
that keeps them.

They are there before the first row of any stream, once in a query's life. Each is shown by one
task: in a union by whoever owns its values, in a join by the owner of its key. What a join has to
know of them later is state: a restart takes none of them from the table again. Tasks that begin at
different starts of a query may have read the table in different orders, and say the same of a row.

Law: the rows emitted, added up by weight, are those of the union or join of the static rows and the
stream's rows so far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.ops.aggregates.api import Ints, fold_add
from penstock.ops.api import Delta, Operator, batch_of
from penstock.ops.join import JoinLogic, Pairs
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.equal_rows import group_rows
from penstock.state.keys import hash_columns, normalise_floats

#: So many at a time.
_ROWS_AT_ONCE = 10_000
_NUMBER = "#row"
_COUNT = "count"


class StaticSource(Operator):
    """The rows of a static table, as the first ones of a stream."""

    def __init__(self, rows: Callable[[], pa.Table], state: State) -> None:
        self._rows = rows
        self._state = state

    def on_start(self) -> list[Delta]:
        table = self._rows()
        columns = [_whole(column) for column in table.columns if not _has_interval(column.type)]
        owned = self._state.owns(hash_columns(columns, table.num_rows))
        return _in_parts(table, np.flatnonzero(owned))

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        raise AssertionError("a leaf has no input")


class KeepingJoin(Operator):
    """A join of a stream with a static table that shows rows of the table by themselves.

    Those have a number, which tells rows of one key apart. Under both the number of their partners
    is kept while it is not zero.
    """

    def __init__(self, node: n.Join, rows: Callable[[], pa.Table], port: int, state: State) -> None:
        self._logic = JoinLogic(node)
        self._table = rows
        self._state = state
        self._port, self._static = port, 1 - port
        #: Whether a row is shown while it has a partner, not while it has none.
        self._is_semi = node.kind == "semi"
        self._shows_alone = self._logic.keeps(port)
        schema = node.children[self._static].schema
        names = (node.left_keys, node.right_keys)[self._static]
        self._keys_at = [schema.get_field_index(key.name) for key in names]
        numbered = schema.append(pa.field(_NUMBER, pa.int64()))
        self._schema = numbered
        self._rows = state.row_set("static", numbered, self._keys_at, None, self._keys_at)
        # Named by their places: one column may be two keys.
        fields = [pa.field(f"key{at}", schema.field(i).type) for at, i in enumerate(self._keys_at)]
        self._partners = state.table(
            "partners",
            pa.schema([*fields, numbered.field(_NUMBER)]),
            {_COUNT: pa.int64()},
            list(range(len(fields))),
        )

    def on_start(self) -> list[Delta]:
        table = self._table()
        arrays = [*table.columns, _numbers(table)]
        numbered = pa.Table.from_arrays(arrays, schema=self._schema)
        keys = [normalise_floats(_whole(numbered.column(at))) for at in self._keys_at]
        hashes = hash_columns(keys, table.num_rows)
        out: list[Delta] = []
        owned = np.broadcast_to(self._state.owns(hashes), table.num_rows)
        for part in _in_parts(numbered, np.flatnonzero(owned)):
            self._rows.insert(part.batch, None)
            out += [] if self._is_semi else self._logic.lone(self._static, part)
        return out

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        pairs = self._logic.match(self._port, delta.batch, self._rows)
        out = self._logic.joined(self._port, delta, pairs)
        if self._shows_alone:
            counts = fold_add(pairs.weights, pairs.own, len(delta))
            out += self._logic.lone(self._port, delta.where(counts == 0))
        return out + self._transitions(delta, pairs)

    def _transitions(self, delta: Delta, pairs: Pairs) -> list[Delta]:
        """Static rows whose number of partners left or reached zero by this batch."""
        if not len(pairs.own):
            return []
        told_apart = [*self._keys_at, self._schema.get_field_index(_NUMBER)]
        columns = [normalise_floats(pairs.other.column(at)) for at in told_apart]
        first, groups = group_rows(columns, pairs.other.num_rows)
        rows = pairs.other.take(pa.array(first))
        steps: Ints = fold_add(delta.all_weights()[pairs.own], groups, len(first)).astype(np.int64)
        slots, _ = self._partners.locate([column.take(pa.array(first)) for column in columns])
        before = self._partners.read(_COUNT, slots).astype(np.int64)
        after = before + steps
        self._partners.write(_COUNT, slots, after)
        self._partners.touch(slots)
        if (after == 0).any():
            self._partners.delete(slots[after == 0])
        signs = (after == 0).astype(np.int64) - (before == 0).astype(np.int64)
        if self._is_semi:
            signs = -signs
        moved = np.flatnonzero(signs)
        if not len(moved):
            return []
        return self._logic.lone(self._static, Delta(rows.take(pa.array(moved)), signs[moved]))


def _numbers(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows))


def _has_interval(kind: pa.DataType) -> bool:
    """Whether values of a type have no hash."""
    fields = (kind.field(at) for at in range(kind.num_fields))
    return pa.types.is_interval(kind) or any(_has_interval(field.type) for field in fields)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _in_parts(table: pa.Table, rows: Ints) -> list[Delta]:
    """Some rows of a table, not too many at once; a table without columns has rows, too."""
    parts = [rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE)]
    return [
        Delta(batch_of([_whole(column) for column in chosen.columns], table.schema, len(part)))
        for part in parts
        for chosen in [table.take(pa.array(part)) if table.columns else table]
    ]
