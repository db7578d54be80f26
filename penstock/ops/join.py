"""Joins of two streams, either of which may take rows back; and of a stream with a static table.

Both sides are kept as row sets by key. A batch on one side is matched with what the other side has
kept, then kept itself: every pair is found exactly once, by whichever row came later.

Outer, semi and anti joins also need to know when a row's number of partners leaves or reaches zero.
For the rows of the batch that is the number just found. For rows of the other side that the batch
touches, it is counted anew before and after, so nothing but the rows is ever stored. With finals, a
row without partners is shown when its time has passed: until then it is also among the undecided
ones, and plan/time_bounds.py keeps partners around for as long as that takes.

Law: the emitted rows, added up by weight, are the join of the rows received so far (emit =
changes), or that join's rows that no later row can change (emit = finals).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.aggregate import partition_positions
from penstock.ops.aggregates.api import Ints, fold_add
from penstock.ops.api import Delta, OnLate, Operator, batch_of
from penstock.ops.expressions import compile_predicate, true_mask
from penstock.ops.functions.registry import Compiled
from penstock.ops.watermarks import LateFilter
from penstock.plan import nodes as n
from penstock.plan.exprs import columns
from penstock.state.api import Found, RowSet, State
from penstock.state.equal_rows import group_rows
from penstock.state.keys import normalise_floats, words_column
from penstock.state.memory_row_set import MemoryRowSet

_LEFT, _RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class Pairs:
    """Matches of a batch: row of the batch, row of the other side, and the other's weight."""

    own: Ints
    other: pa.RecordBatch
    weights: Ints


@dataclass(frozen=True, slots=True)
class _Sides:
    """Columns of a batch and of its partners, side by side."""

    #: Those of the batch, and of the partners.
    own: list[int]
    others: list[int]
    #: Whether it is the batch's, column by column.
    is_own: list[bool]

    def columns(
        self, batch: pa.RecordBatch, rows: Ints, others: Sequence[pa.Array]
    ) -> list[pa.Array]:
        """The columns: these rows of the batch, and those of their partners."""
        own = batch.select(self.own)
        if not _are_all(rows, batch.num_rows):
            own = own.take(words_column(rows))
        gathered, partners = iter(own.columns), iter(others)
        return [next(gathered) if is_own else next(partners) for is_own in self.is_own]


class JoinOperator(Operator):
    """A join of two streams."""

    def __init__(self, node: n.Join, state: State, on_late: OnLate) -> None:
        self._node = node
        self._logic = JoinLogic(node)
        self._finals = node.emit == "finals"
        times = (node.left_time, node.right_time)
        self._times = times
        self._late: list[LateFilter | None] = []
        self._sides: list[RowSet] = []
        #: Rows that are yet to be shown alone or not at all, by side.
        self._undecided: list[RowSet | None] = []
        for port, child in enumerate(node.children):
            keys = (node.left_keys, node.right_keys)[port]
            positions = [child.schema.get_field_index(key.name) for key in keys]
            placed = partition_positions(child, [key.name for key in keys])
            time = times[port]
            time_at = None if time is None else child.schema.get_field_index(time.column)
            self._late.append(None if time_at is None else LateFilter("join", time_at, on_late))
            side, partition = ("left", "right")[port], [positions[i] for i in placed]
            self._sides.append(state.row_set(side, child.schema, positions, time_at, partition))
            waits = self._finals and node.kind != "semi" and self._logic.keeps(port)
            self._undecided.append(
                state.row_set(f"{side}_undecided", child.schema, positions, time_at, partition)
                if waits
                else None
            )

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        late = self._late[port]
        if late is not None:
            delta = late.keep(delta)
        if not len(delta):
            return []
        own, other = self._sides[port], self._sides[1 - port]
        pairs = self._logic.match(port, delta.batch, other)
        out = self._logic.joined(port, delta, pairs)
        out += self._alone(port, delta, pairs)
        if self._logic.keeps(1 - port):
            out += self._transitions(port, delta, pairs)
        own.insert(delta.batch, delta.weights)
        undecided = self._undecided[port]
        if undecided is not None:
            undecided.insert(delta.batch, delta.weights)
        return out

    def _alone(self, port: int, delta: Delta, pairs: Pairs) -> list[Delta]:
        """Rows of the batch that are shown alone, because of how many partners they have."""
        if not self._logic.keeps(port):
            return []
        counts = fold_add(pairs.weights, pairs.own, len(delta)).astype(np.int64)
        if self._node.kind == "semi":
            return self._logic.lone(port, delta.where(counts > 0))
        if self._finals:
            return []
        return self._logic.lone(port, delta.where(counts == 0))

    def _transitions(self, port: int, delta: Delta, pairs: Pairs) -> list[Delta]:
        """Rows of the other side whose number of partners left or reached zero by this batch."""
        if not len(pairs.own):
            return []
        steps = delta.all_weights()[pairs.own]
        rows, weights, added = _sum_by_row(pairs, steps)
        partners = self._logic.match(1 - port, rows, self._sides[port])
        before = fold_add(partners.weights, partners.own, rows.num_rows).astype(np.int64)
        after = before + added
        signs = (before == 0).astype(np.int64) - (after == 0).astype(np.int64)
        if self._node.kind != "semi":
            if self._finals:
                return []
            signs = -signs
        moved = np.flatnonzero(signs)
        if not len(moved):
            return []
        changed = Delta(rows.take(pa.array(moved)), (signs * weights)[moved])
        return self._logic.lone(1 - port, changed)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        out: list[Delta] = []
        for port, time in enumerate(self._times):
            late = self._late[port]
            if time is None or late is None:
                continue
            late.watermark_ms = watermark_ms
            undecided = self._undecided[port]
            if undecided is not None:
                out += self._decide(port, undecided, (watermark_ms - time.reach_ms) * 1000)
        for port, time in enumerate(self._times):
            if time is not None:
                self._sides[port].evict((watermark_ms - time.keep_ms) * 1000)
        return out

    def _decide(self, port: int, undecided: RowSet, bound_us: int) -> list[Delta]:
        """Rows without partner, for which the watermark says that none can come any more."""
        rows, weights = undecided.expired(bound_us)
        if not rows.num_rows:
            return []
        undecided.evict(bound_us)
        partners = self._logic.match(port, rows, self._sides[1 - port])
        counts = fold_add(partners.weights, partners.own, rows.num_rows)
        return self._logic.lone(port, Delta(rows, weights).where(counts == 0))


class StaticJoinOperator(Operator):
    """A join of a stream with a table that does not change; nothing of the stream is kept."""

    def __init__(self, node: n.Join, table: pa.Table, port: int) -> None:
        self._node = node
        self._logic = JoinLogic(node)
        self._port = port
        child = node.children[1 - port]
        keys = (node.left_keys, node.right_keys)[1 - port]
        positions = tuple(child.schema.get_field_index(key.name) for key in keys)
        self._table = MemoryRowSet(child.schema, positions, None, positions)
        for batch in table.to_batches():
            rows = batch_of(batch.columns, child.schema, batch.num_rows)
            self._table.insert(rows, None)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        pairs = self._logic.match(self._port, delta.batch, self._table)
        if self._node.kind == "existence":
            return self._with_answer(delta, pairs)
        out = self._logic.joined(self._port, delta, pairs)
        if self._logic.keeps(self._port):
            counts = fold_add(pairs.weights, pairs.own, len(delta))
            wanted = counts > 0 if self._node.kind == "semi" else counts == 0
            out += self._logic.lone(self._port, delta.where(wanted))
        return out

    def _with_answer(self, delta: Delta, pairs: Pairs) -> list[Delta]:
        """Every row, and whether it has a partner: that is in the column that it has not."""
        found = pa.array(fold_add(pairs.weights, pairs.own, len(delta)) > 0)
        schema = self._node.schema
        places = [delta.batch.schema.get_field_index(name) for name in schema.names]
        columns = [found if at < 0 else delta.batch.column(at) for at in places]
        return [Delta(batch_of(columns, schema, len(delta)), delta.weights)]


class JoinLogic:
    """Tells which rows are a pair; makes output rows of pairs, and of rows without partner."""

    def __init__(self, node: n.Join) -> None:
        self._node = node
        self._schemas = (node.left.schema, node.right.schema)
        self._keys = [
            [schema.get_field_index(key.name) for key in keys]
            for schema, keys in zip(self._schemas, (node.left_keys, node.right_keys), strict=True)
        ]
        nothing = np.zeros(0, np.int64)
        #: By the port of a batch that has found no partners.
        self._no_pairs = [
            Pairs(nothing, pa.RecordBatch.from_pylist([], schema=schema), nothing)
            for schema in reversed(self._schemas)
        ]
        both = pa.schema([*node.left.schema, *node.right.schema])
        #: Where each output column is, by the port of a batch; none if pairs are not shown.
        self._shown: tuple[_Sides, ...] = ()
        if node.kind not in ("semi", "anti", "existence"):
            self._shown = self._sides([both.get_field_index(name) for name in node.schema.names])
        #: The columns that the condition looks at, likewise.
        self._asked: tuple[_Sides, ...] = ()
        self._condition: Compiled | None = None
        if node.condition is not None:
            used = columns(node.condition)
            asked = [i for i, name in enumerate(both.names) if name in used]
            self._asked = self._sides(asked)
            self._asked_schema = pa.schema([both.field(i) for i in asked])
            self._condition = compile_predicate(node.condition, self._asked_schema)

    def _sides(self, wanted: list[int]) -> tuple[_Sides, ...]:
        """Columns of both sides, left ones counted first, as a batch at either port sees them."""
        width = len(self._schemas[_LEFT])
        sides = [(_LEFT, at) if at < width else (_RIGHT, at - width) for at in wanted]
        return tuple(
            _Sides(
                [column for side, column in sides if side == port],
                [column for side, column in sides if side != port],
                [side == port for side, _ in sides],
            )
            for port in (_LEFT, _RIGHT)
        )

    def keeps(self, port: int) -> bool:
        """Whether a row of this side can be shown alone, without a partner."""
        wanted = {
            "inner": (),
            "left": (_LEFT,),
            "right": (_RIGHT,),
            "full": (_LEFT, _RIGHT),
            "semi": (_LEFT,),
            "anti": (_LEFT,),
            "existence": (),
        }
        return port in wanted[self._node.kind]

    def match(self, port: int, batch: pa.RecordBatch, other: RowSet) -> Pairs:
        """All pairs of the batch's rows with rows of the other side."""
        keys = [normalise_floats(batch.column(index)) for index in self._keys[port]]
        rows = np.arange(batch.num_rows)
        if not keys:
            found = other.find([])
            count = len(found.probe)
            places = np.tile(np.arange(count), batch.num_rows)
            return self._pairs(port, batch, np.repeat(rows, count), found, places)
        usable = self._usable(keys)
        if usable is not None:
            rows = rows[usable]
            keys = [key.filter(pa.array(usable)) for key in keys]
        found = other.find(keys)
        return self._pairs(port, batch, rows[found.probe], found, None)

    def _pairs(
        self, port: int, batch: pa.RecordBatch, own: Ints, found: Found, places: Ints | None
    ) -> Pairs:
        """The pairs of these rows with those found, at these places, that meet the condition.

        What the condition does not ask for is gathered only of those that do, and in order.
        """
        if self._condition is not None and len(own):
            sides = self._asked[port]
            others = found.columns(sides.others)
            if places is not None:
                others = [column.take(words_column(places)) for column in others]
            wide = batch_of(sides.columns(batch, own, others), self._asked_schema, len(own))
            mask = true_mask(self._condition(wide), len(own))
            if not mask.all():
                passed = mask.nonzero()[0]
                own, places = own[passed], passed if places is None else places[passed]
        if not len(own):
            return self._no_pairs[port]
        if (own[1:] < own[:-1]).any():
            order = own.argsort(kind="stable")
            own, places = own[order], order if places is None else places[order]
        weights = found.weights if places is None else found.weights[places]
        return Pairs(own, found.take(places), weights)

    def _usable(self, keys: list[pa.Array]) -> npt.NDArray[np.bool_] | None:
        """A null key matches nothing, unless compared null-safely."""
        usable: npt.NDArray[np.bool_] | None = None
        for key, safe in zip(keys, self._node.null_safe, strict=True):
            if not safe and key.null_count:
                valid = key.is_valid().to_numpy(zero_copy_only=False)
                usable = valid if usable is None else usable & valid
        return usable

    def joined(self, port: int, delta: Delta, pairs: Pairs) -> list[Delta]:
        """The pairs as output rows; semi and anti joins show none."""
        if not self._shown or not len(pairs.own):
            return []
        sides = self._shown[port]
        others = [pairs.other.column(at) for at in sides.others]
        chosen = sides.columns(delta.batch, pairs.own, others)
        batch = batch_of(chosen, self._node.schema, len(pairs.own))
        weights: Ints | None = pairs.weights
        if delta.weights is not None:
            weights = pairs.weights * delta.weights[pairs.own]
        elif (pairs.weights == 1).all():
            weights = None
        return [Delta(batch, weights)]

    def lone(self, port: int, delta: Delta) -> list[Delta]:
        """Rows of one side without partners, with nulls in the columns of the other side."""
        delta = delta.once_each()
        if not len(delta):
            return []
        own = self._schemas[port]
        arrays = []
        for field in self._node.schema:
            index = own.get_field_index(field.name)
            if index >= 0:
                arrays.append(delta.batch.column(index))
            else:
                arrays.append(pa.nulls(len(delta), field.type))
        return [Delta(batch_of(arrays, self._node.schema, len(delta)), delta.weights)]


def _are_all(rows: Ints, count: int) -> bool:
    """Whether these are all rows of a batch, in order: each has found one partner."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _sum_by_row(pairs: Pairs, steps: Ints) -> tuple[pa.RecordBatch, Ints, Ints]:
    """The distinct rows of the other side, how often each is there, and the sum of its steps.

    `steps` has the weight of the batch's row of each pair. Equal rows may be kept apart, each with
    a weight of its own, and then meet the same row of the batch more than once.
    """
    firsts, groups = group_rows(pairs.other.columns, pairs.other.num_rows)
    with_first = pairs.own == pairs.own[firsts][groups]
    there = fold_add(pairs.weights * with_first, groups, len(firsts)).astype(np.int64)
    total = fold_add(pairs.weights * steps, groups, len(firsts)).astype(np.int64)
    return pairs.other.take(pa.array(firsts)), there, total // there
