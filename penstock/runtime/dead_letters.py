"""Rows that make a query fail, set aside: which ones, why, and where they came from. Pure.

Owns the dead-letter stream's schema. A row can be set aside if it fails in a step that looks at
each row alone, wherever that stands in the query, or in a step with state (trials.py). Where rows
are taken back, a step with state must fail even when the state is empty: what fails only together
with it stops the query as it would without a dead-letter stream. So does what fails because time
passed. A row of a result that fails for a moment only, such as a ratio whose divisor passes through
zero, is set aside for that moment: the result does not show it then.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import EvaluationFailed
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.ops.api import Delta

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
    #: The row as JSON: as the stage read it or, in a stage that keeps state, as the failing step
    #: did.
    row: str
    error: str
    message: str
    traceback: str


def letter_of_row(row: Delta, error: Exception, *, origin: str, lsn: Lsn, task: str) -> DeadLetter:
    """For one row that made a step fail."""
    cause = error
    if isinstance(error, EvaluationFailed) and isinstance(error.__cause__, Exception):
        cause = error.__cause__  # what the user's function raised
    values = {
        name.rpartition("#")[0] or name: value for name, value in row.batch.to_pylist()[0].items()
    }
    return DeadLetter(
        task=task,
        origin=origin,
        lsn=lsn,
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
