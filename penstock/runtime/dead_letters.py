"""Rows that make a query fail, set aside: which ones, why, and where they came from. Pure.

Owns the dead-letter stream's schema. Bad rows are found by halving, on operators without state:
what fails there fails by itself. A row that fails only together with state is not found, and stops
the query as it would without a dead-letter stream.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import EvaluationFailed
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.ops.api import Delta
from penstock.runtime.inputs import Arrival

#: As Spark DDL: what `penstock.start(dead_letter=…)` creates.
DEAD_LETTER_DDL: Final = (
    "task string NOT NULL, origin string NOT NULL, lsn bigint NOT NULL, row string NOT NULL, "
    "error string NOT NULL, message string NOT NULL, traceback string NOT NULL"
)
_COLUMNS: Final = ("task", "origin", "lsn", "row", "error", "message", "traceback")
DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        pa.field(name, pa.int64() if name == "lsn" else pa.string(), nullable=False)
        for name in _COLUMNS
    ]
)
#: A traceback or row longer than this is cut: it must fit into an entry whatever it is.
TEXT_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One row that failed."""

    task: str
    origin: str
    lsn: Lsn
    #: The row as JSON, in the columns that the failing stage reads.
    row: str
    error: str
    message: str
    traceback: str


def find_bad_rows(
    arrival: Arrival, try_rows: Callable[[Delta], None], task: str
) -> tuple[Arrival, list[DeadLetter]]:
    """The arrival without the rows that fail, and those."""
    dead: list[DeadLetter] = []
    good = np.ones(len(arrival.delta), bool)

    def search(first: int, last: int) -> None:
        part = arrival.delta.take(np.arange(first, last))
        try:
            try_rows(part)
        except Exception as error:
            if last - first > 1:
                middle = (first + last) // 2
                search(first, middle)
                search(middle, last)
            else:
                good[first] = False
                dead.append(_letter(arrival, part, error, task))

    if len(good):
        search(0, len(good))
    return Arrival(arrival.place, arrival.delta.where(good), arrival.lsn, arrival.origin), dead


def _letter(arrival: Arrival, row: Delta, error: Exception, task: str) -> DeadLetter:
    cause = error
    if isinstance(error, EvaluationFailed) and isinstance(error.__cause__, Exception):
        cause = error.__cause__  # what the user's function raised
    values = {
        name.rpartition("#")[0] or name: value for name, value in row.batch.to_pylist()[0].items()
    }
    return DeadLetter(
        task=task,
        origin=arrival.origin,
        lsn=arrival.lsn,
        row=json.dumps(values, default=str)[:TEXT_MAX],
        error=type(cause).__name__,
        message=str(cause)[:TEXT_MAX],
        traceback="".join(traceback.format_exception(error))[-TEXT_MAX:],
    )


def letter_of_entry(entry: Entry, stream: str, error: Exception, task: str) -> DeadLetter:
    """For an entry whose bytes are no rows: the bytes themselves, in base64."""
    return DeadLetter(
        task=task,
        origin=stream,
        lsn=entry.lsn,
        row=base64.b64encode(entry.payload[: TEXT_MAX // 2]).decode(),
        error=type(error).__name__,
        message=str(error)[:TEXT_MAX],
        traceback="",
    )


def dead_letter_rows(dead: Sequence[DeadLetter], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([getattr(letter, field.name) for letter in dead], field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
