"""Whether a micro-batch is new, was committed before, or belongs to somebody else. Pure.

The log keeps, for each query of Spark's own engine, the last batch that was committed and the
checkpoint directory that the query runs from. Spark plans a batch once per directory (its offset
log) and runs it until its own commit log has it, so in one directory a batch number means the same
rows each time: a batch that the log has already is skipped. A copy of a directory plans its own
batches from there on, under the same query id and the same numbers: it is fenced. Numbers may leap,
since a user's function need not write every batch.

Law: of all runs of all drivers, each batch takes effect once or its driver is told `Fenced`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from penstock.errors import BadFormat, BadRequest, Fenced

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query, as a driver wants to commit it."""

    query: str
    number: int
    #: The checkpoint directory that it was planned in; None: Spark did not tell.
    checkpoint: str | None
    #: Whether the user says that the query moved to this directory for good.
    take_over: bool = False
    #: What it writes to, in order of their names.
    streams: tuple[str, ...] = ()
    #: None: not known yet.
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch of a query that the log has."""

    number: int
    checkpoint: str | None
    streams: tuple[str, ...] = ()
    rows: int | None = None


class Step(Enum):
    """What a driver does with its batch."""

    COMMIT = auto()
    #: It took effect before: this is Spark running it again.
    SKIP = auto()


def decide(last: Committed | None, batch: Batch) -> Step:
    """Raises Fenced if this driver must stop."""
    if last is None:
        return Step.COMMIT
    if last.checkpoint != batch.checkpoint and not batch.take_over:
        raise Fenced(
            f"query {batch.query} writes from checkpoint {_place(last.checkpoint)}, this one runs "
            f"from {_place(batch.checkpoint)}: a copy would write other rows under the same batch "
            "numbers. Run the query from its own directory; or, if it moved here for good "
            "and nothing runs there any more, start it with the option takeOver=true"
        )
    if batch.number > last.number:
        return Step.COMMIT
    if batch.number < last.number:
        raise Fenced(
            f"query {batch.query}: batch {batch.number} comes late, the log has batch "
            f"{last.number}: another driver runs this query, or its checkpoint is an old copy. "
            "Stop this one, or start it with a new checkpoint"
        )
    if batch.streams != last.streams:
        raise BadRequest(
            f"query {batch.query}: batch {batch.number} was written to {', '.join(last.streams)}, "
            f"and is now to be written to {', '.join(batch.streams)}. One writer writes all "
            "streams of a query: foreach_batch_writer with a function that returns "
            "{stream: DataFrame}"
        )
    moved = last.checkpoint != batch.checkpoint
    if moved and batch.rows is not None and batch.rows != last.rows:
        raise Fenced(
            f"query {batch.query}: batch {batch.number} has {batch.rows} rows here, and was "
            f"written with {last.rows} from checkpoint {_place(last.checkpoint)}: this directory "
            "is a copy from before that batch. Copy it again now that the query has stopped, or "
            "use a new one"
        )
    return Step.SKIP


def encode_committed(batch: Batch) -> bytes:
    """What the log keeps once the batch took effect."""
    value = {
        "version": _VERSION,
        "batch": batch.number,
        "checkpoint": batch.checkpoint,
        "streams": batch.streams,
        "rows": batch.rows,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_committed(data: bytes) -> Committed:
    try:
        values: Any = json.loads(data)
        number, checkpoint = values["batch"], values["checkpoint"]
        if values["version"] != _VERSION or type(number) is not int or number < 0:
            raise ValueError(f"version {values['version']}, batch {number!r}")
        streams, rows = tuple(values["streams"]), values["rows"]
        texts = [*streams, *([] if checkpoint is None else [checkpoint])]
        if not all(isinstance(text, str) for text in texts) or type(rows) is not int:
            raise ValueError(f"checkpoint {checkpoint!r}, streams {streams}, rows {rows!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no last batch of a query: {error}") from error
    return Committed(number, checkpoint, streams, rows)


def _place(checkpoint: str | None) -> str:
    return "a directory of Spark's choice" if checkpoint is None else checkpoint
