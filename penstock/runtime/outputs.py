"""What a task has to say: rows to entries, by who reads them. Pure.

Rows between stages become one entry per task that reads them, tagged with every virtual node that
it holds rows of: whoever owns a virtual node subscribes to its tag, and nothing here changes when
that moves. Rows of the result are one entry (more if they are large) of the result's stream.
Law: rows of one commit keep their order per reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import TooLarge
from penstock.limits import ENTRY_TAGS_MAX, PAYLOAD_BYTES_MAX
from penstock.log.records import NewEntry
from penstock.ops.api import Delta
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.payloads import encode_delta
from penstock.plan.stages import Stage
from penstock.protocol.names import keyed_tag, node_tag
from penstock.runtime.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, dead_letter_rows
from penstock.runtime.inputs import join_deltas
from penstock.runtime.spec import QuerySpec
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.stream.batches import encode_trusted, split_batch
from penstock.stream.registration import stream_tag

#: The column of a result that takes rows back: how often the row counts from here on, more or less.
RESULT_WEIGHT: Final = "_weight"

assert VIRTUAL_NODES <= ENTRY_TAGS_MAX


def result_schema(schema: pa.Schema, *, changing: bool) -> pa.Schema:
    """The schema of a stream that takes a query's result."""
    return (
        schema.append(pa.field(RESULT_WEIGHT, pa.int64(), nullable=False)) if changing else schema
    )


class Outputs:
    """Rows that wait for the next commit."""

    def __init__(self, spec: QuerySpec, stage: Stage) -> None:
        self._spec = spec
        self._stage = stage
        self._deltas: list[Delta] = []
        self.rows = 0
        self.bytes = 0
        self._keys = [compile_expr(key, stage.root.schema) for key in stage.keys or ()]
        self._owners = 1 if stage.keys is None else spec.readers(stage.id)
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

    def add(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if len(delta):
                self._deltas.append(delta)
                self.rows += len(delta)
                self.bytes += delta.batch.nbytes

    def take(self, dead: Sequence[DeadLetter]) -> list[NewEntry]:
        """The data entries of all rows, and of rows that failed."""
        deltas, self._deltas, self.rows, self.bytes = self._deltas, [], 0, 0
        entries: list[NewEntry] = []
        if deltas and len(deltas[0].batch.schema):
            deltas = [join_deltas(deltas)]
        for delta in deltas:
            entries += self._result(delta) if self._stage.keys is None else self._keyed(delta)
        stream = self._spec.settings.dead_letter
        if dead and stream is not None:
            rows = dead_letter_rows(dead, DEAD_LETTER_SCHEMA)
            entries += _cut(rows, (stream_tag(stream),))
        return entries

    def _result(self, delta: Delta) -> list[NewEntry]:
        columns = list(delta.batch.columns)
        if self._stage.changing:
            columns.append(pa.array(delta.all_weights()))
        elif delta.weights is not None:
            columns = list(delta.once_each().batch.columns)
        schema = self._spec.to_schema
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        return _cut(
            pa.RecordBatch.from_arrays(columns, schema=schema), (stream_tag(self._spec.to),)
        )

    def _keyed(self, delta: Delta) -> list[NewEntry]:
        values = [as_array(key(delta.batch), len(delta)) for key in self._keys]
        nodes = virtual_nodes(hash_columns(values, len(delta)))
        present = np.flatnonzero(np.bincount(nodes)).tolist()
        entries: list[NewEntry] = []
        for owner in sorted({node % self._owners for node in present}):
            tags = tuple(self._tags[node] for node in present if node % self._owners == owner)
            whole = len(tags) == len(present)
            part = delta if whole else delta.where(nodes % self._owners == owner)
            entries += self._encode(part, tags)
        return entries

    def _encode(self, part: Delta, tags: tuple[str, ...]) -> list[NewEntry]:
        changing = self._stage.changing
        if not changing:
            part = part.once_each()
        payload = encode_delta(part, changing=changing)
        if len(payload) <= PAYLOAD_BYTES_MAX:
            return [NewEntry(payload, tags, rows=len(part))]
        if len(part) == 1:
            raise TooLarge(
                f"a row between stages takes {len(payload)} bytes, an entry at most "
                f"{PAYLOAD_BYTES_MAX}: drop its large columns before grouping or joining"
            )
        half = len(part) // 2
        places = np.arange(len(part))
        return [
            *self._encode(part.take(places[:half]), tags),
            *self._encode(part.take(places[half:]), tags),
        ]


def _cut(rows: pa.RecordBatch, tags: tuple[str, ...]) -> list[NewEntry]:
    pieces = split_batch(rows, PAYLOAD_BYTES_MAX)
    return [NewEntry(encode_trusted(piece), tags, rows=piece.num_rows) for piece in pieces]
