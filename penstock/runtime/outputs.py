"""What a task has to say: rows to entries, by who reads them. Pure.

Rows between stages become one entry per task that reads them, tagged with every virtual node that
it holds rows of: whoever owns a virtual node subscribes to its tag, and nothing here changes when
that moves. Rows of the result are one entry of the result's stream, in the next of its lanes; they
are more if they are large, or the stream has a key.
Law: rows of one commit keep their order per reader. Where the order of a source counts and several
tasks read it, each row also says its place in it (row_merge.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import TooLarge
from penstock.limits import ENTRY_TAGS_MAX, PAYLOAD_BYTES_MAX
from penstock.log.records import NewEntry
from penstock.ops.api import Delta, join_deltas
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.payloads import encode_delta, encode_placed
from penstock.plan.stages import Stage
from penstock.protocol.names import keyed_tag, node_tag
from penstock.runtime.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, dead_letter_rows
from penstock.runtime.layout import Share
from penstock.runtime.row_merge import Places
from penstock.runtime.spec import QuerySpec
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.stream.batches import ARRAY_LENGTH_MAX, encode_trusted, split_batch
from penstock.stream.lanes import Lanes
from penstock.stream.registration import stream_tag

#: The column of a result that takes rows back: how often the row counts from here on, more or less.
RESULT_WEIGHT: Final = "_weight"

assert VIRTUAL_NODES <= ENTRY_TAGS_MAX


def result_schema(schema: pa.Schema, *, changing: bool) -> pa.Schema:
    """The schema of a stream that takes a query's result."""
    return (
        schema.append(pa.field(RESULT_WEIGHT, pa.int64(), nullable=False)) if changing else schema
    )


def _owners(readers: Sequence[Share]) -> npt.NDArray[np.int64]:
    owners = np.zeros(VIRTUAL_NODES, np.int64)
    for rank, share in enumerate(readers):
        owners[sorted(share.nodes)] = rank
    return owners


class Outputs:
    """Rows that wait for the next commit."""

    def __init__(self, spec: QuerySpec, stage: Stage, *, first_turn: int = 0) -> None:
        self._spec = spec
        self._stage = stage
        self._turn = first_turn
        self._types = spec.to_schema.types
        self._deltas: list[Delta] = []
        #: Whether rows say their places, and those of each delta.
        self._is_placed = spec.orders(stage.id)
        self._places: list[int] = []
        self.rows = 0
        self.bytes = 0
        #: By virtual node, rows that were ever written to it.
        self.node_rows = np.zeros(VIRTUAL_NODES, np.int64)
        self._keys = [compile_expr(key, stage.root.schema) for key in stage.keys or ()]
        #: By virtual node, which of the tasks that read it has it.
        self._owners = _owners(() if stage.keys is None else spec.reading(stage.id))
        self._tags = [
            node_tag(spec.name, spec.version, stage.id, node) for node in range(VIRTUAL_NODES)
        ]

    def marker_tags(self, dead: Sequence[DeadLetter]) -> tuple[str, ...]:
        """Who must see the next marker."""
        stream = self._spec.settings.dead_letter
        more = (stream_tag(stream),) if dead and stream is not None else ()
        if self._stage.keys is None:
            return (stream_tag(self._spec.to), *more)
        return (keyed_tag(self._spec.name, self._spec.version, self._stage.id), *more)

    def add(self, deltas: Sequence[Delta], place: int = 0) -> None:
        """Rows that came of the source's rows at one place, if that counts."""
        for delta in deltas:
            if len(delta):
                if self._is_placed:
                    delta = delta.once_each()
                    self._places.append(place)
                self._deltas.append(delta)
                self.rows += len(delta)
                self.bytes += pa.ipc.get_record_batch_size(delta.batch)

    def take(self, dead: Sequence[DeadLetter]) -> list[NewEntry]:
        """The data entries of all rows, and of rows that failed."""
        deltas, self._deltas, self.rows, self.bytes = self._deltas, [], 0, 0
        entries: list[NewEntry] = []
        if self._is_placed and deltas:
            places = np.repeat(self._places, [len(delta) for delta in deltas])
            self._places = []
            entries += self._keyed(join_deltas(deltas), places)
            deltas = []
        if deltas and len(deltas[0].batch.schema):
            deltas = [join_deltas(deltas)]
        for delta in deltas:
            entries += self._result(delta) if self._stage.keys is None else self._keyed(delta)
        stream = self._spec.settings.dead_letter
        if dead and stream is not None:
            rows = dead_letter_rows(dead, DEAD_LETTER_SCHEMA)
            entries += self._cut(rows, stream)
        return entries

    def _result(self, delta: Delta) -> list[NewEntry]:
        schema, rows = self._spec.to_schema, delta.batch
        if self._stage.changing:
            weights = pa.array(delta.all_weights())
            rows = rows.append_column(pa.field(RESULT_WEIGHT, weights.type), weights)
        elif delta.weights is not None:
            rows = delta.once_each().batch
        if rows.schema.types == self._types:
            return self._cut(rows.rename_columns(schema.names), self._spec.to)
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(rows.columns, schema, strict=True)
        ]
        return self._cut(pa.RecordBatch.from_arrays(columns, schema=schema), self._spec.to)

    def _cut(self, rows: pa.RecordBatch, stream: str) -> list[NewEntry]:
        """The entries of a stream, each in its lane."""
        lanes = self._spec.lanes.get(stream) or Lanes(stream)
        entries: list[NewEntry] = []
        for whole in split_batch(rows, PAYLOAD_BYTES_MAX):
            self._turn += 1
            for piece, tags in lanes.split(whole, self._turn):
                entries.append(NewEntry(encode_trusted(piece), tags, rows=piece.num_rows))
        return entries

    def _keyed(self, delta: Delta, places: Places | None = None) -> list[NewEntry]:
        values = [as_array(key(delta.batch), len(delta)) for key in self._keys]
        nodes = virtual_nodes(hash_columns(values, len(delta)))
        counts = np.bincount(nodes, minlength=VIRTUAL_NODES)
        self.node_rows += counts
        present = np.flatnonzero(counts)
        owners = self._owners[present]
        entries: list[NewEntry] = []
        for owner in np.unique(owners).tolist():
            tags = tuple(self._tags[node] for node in present[owners == owner].tolist())
            whole = len(tags) == len(present)
            mask = self._owners[nodes] == owner
            part = delta if whole else delta.where(mask)
            entries += self._encode(part, tags, None if places is None else places[mask])
        return entries

    def _encode(self, part: Delta, tags: tuple[str, ...], places: Places | None) -> list[NewEntry]:
        if places is not None:
            payload = encode_placed(part, places)
        else:
            changing = self._stage.changing
            if not changing:
                part = part.once_each()
            payload = encode_delta(part, changing=changing)
        if len(payload) <= PAYLOAD_BYTES_MAX and len(part) <= ARRAY_LENGTH_MAX:
            return [NewEntry(payload, tags, rows=len(part))]
        if len(part) == 1:
            raise TooLarge(
                f"a row between stages takes {len(payload)} bytes, an entry at most "
                f"{PAYLOAD_BYTES_MAX}: drop its large columns before grouping or joining"
            )
        half = len(part) // 2
        rows = np.arange(len(part))
        return [
            entry
            for cut in (rows[:half], rows[half:])
            for entry in self._encode(part.take(cut), tags, None if places is None else places[cut])
        ]
