"""Records of the transaction stream: what a transaction coordinator has promised. Pure.

    begun     these streams may get entries of transaction n
    prepared  all of them are there: n is committed, these commit records are still to be written
    done      they are

As JSON: version 1, state, number, streams, records ([tags, marker] each). One stream per task, as a
Kafka transactional id has its place in the transaction log. A commit record is a marker, one for
every stream, since without tags no entry can stand in two streams at once: under T/<task> the
one whose ranges are the changes; under a reader's first virtual node, or the result's stream, one
whose ranges are its data. All of a commit have one number.

Law: decode_record(encode_record(r)) equals r; any other bytes raise BadFormat.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.errors import BadFormat
from penstock.protocol.names import TaskId

VERSION: Final = 1
State = Literal["begun", "prepared", "done"]
_STATES: Final = ("begun", "prepared", "done")


def transaction_tag(task: TaskId) -> str:
    """What the task's transaction coordinator notes."""
    return f"X/{task}"


def position_tag(task: TaskId) -> str:
    """The task's stream of positions."""
    return f"O/{task}"


def commit_record_tag(task: TaskId) -> str:
    """The task's commit records, whatever stream each is for."""
    return f"R/{task}"


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A marker that is to be written under these tags."""

    tags: tuple[str, ...]
    marker: str


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    state: State
    #: The number of the commit's marker.
    number: int
    #: Streams that take part, by tag; only when it begins.
    streams: tuple[str, ...] = ()
    #: Only when it is prepared.
    records: tuple[CommitRecord, ...] = ()


def encode_record(record: TransactionRecord) -> bytes:
    return json.dumps(
        {
            "version": VERSION,
            "state": record.state,
            "number": record.number,
            "streams": record.streams,
            "records": [[one.tags, one.marker] for one in record.records],
        },
        separators=(",", ":"),
    ).encode()


def decode_record(payload: bytes) -> TransactionRecord:
    try:
        found: Any = json.loads(payload)
        if found["version"] != VERSION or found["state"] not in _STATES:
            raise ValueError(f"version {found['version']}, state {found['state']!r}")
        if type(found["number"]) is not int:
            raise TypeError(f"number {found['number']!r}")
        return TransactionRecord(
            found["state"],
            found["number"],
            _texts(found["streams"]),
            tuple(CommitRecord(_texts(tags), *_texts([text])) for tags, text in found["records"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFormat(f"bytes that are no transaction record: {error}") from error


def _texts(found: Any) -> tuple[str, ...]:
    if type(found) is not list or any(type(one) is not str for one in found):
        raise TypeError(f"{found!r} is no list of texts")
    return tuple(found)
