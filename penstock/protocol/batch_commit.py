"""Whether a micro-batch is new, was committed before, or belongs to somebody else. Pure.

The log keeps, for each query of Spark's own engine, the last batch that was committed and the
checkpoint directory that the query runs from. Spark plans a batch once per directory (its offset
log) and runs it until its own commit log has it, so in one directory a batch number means the same
rows each time: a batch that the log has already is skipped. A copy of a directory plans its own
batches from there on, under the same query id and the same numbers: it is fenced.

Law: of all runs of all drivers, each batch takes effect once or its driver is told `Fenced`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from penstock.errors import BadFormat, Fenced

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


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch of a query that the log has."""

    number: int
    checkpoint: str | None


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
    if batch.number == last.number + 1:
        return Step.COMMIT
    if batch.number == last.number:
        return Step.SKIP
    if batch.number < last.number:
        raise Fenced(
            f"query {batch.query}: batch {batch.number} comes late, the log has batch "
            f"{last.number}: another driver runs this query, or its checkpoint is an old copy. "
            "Stop this one, or start it with a new checkpoint"
        )
    raise Fenced(
        f"query {batch.query}: batch {batch.number}, but the log has only batch {last.number}: the "
        "batches between were written elsewhere. Start it with the log that it wrote before, or "
        "with a new checkpoint"
    )


def encode_committed(batch: Batch) -> bytes:
    """What the log keeps once the batch took effect."""
    value = {"version": _VERSION, "batch": batch.number, "checkpoint": batch.checkpoint}
    return json.dumps(value, separators=(",", ":")).encode()


def decode_committed(data: bytes) -> Committed:
    try:
        found: Any = json.loads(data)
        number, checkpoint = found["batch"], found["checkpoint"]
        if found["version"] != _VERSION or type(number) is not int or number < 0:
            raise ValueError(f"version {found['version']}, batch {number!r}")
        if checkpoint is not None and not isinstance(checkpoint, str):
            raise ValueError(f"checkpoint {checkpoint!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no last batch of a query: {error}") from error
    return Committed(number, checkpoint)


def _place(checkpoint: str | None) -> str:
    return "a directory of Spark's choice" if checkpoint is None else checkpoint
