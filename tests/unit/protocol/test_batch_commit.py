"""What a driver does with its batch, given what the log has of the query."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadFormat, BadRequest, Fenced, PenstockError
from penstock.protocol.batch_commit import (
    Batch,
    Committed,
    Step,
    decide,
    decode_committed,
    encode_committed,
)


def batch(
    number: int,
    checkpoint: str | None = "/a",
    *,
    take_over: bool = False,
    streams: tuple[str, ...] = ("s",),
    rows: int | None = 9,
) -> Batch:
    return Batch("q", number, checkpoint, take_over, streams, rows)


LAST = Committed(4, "/a", ("s",), 9)


MOVED: dict[str, Any] = {"checkpoint": "/b", "take_over": True}


@pytest.mark.parametrize(
    ("last", "given", "step"),
    [
        (None, batch(0), Step.COMMIT),
        (None, batch(7), Step.COMMIT),  # its earlier batches went elsewhere
        (LAST, batch(5), Step.COMMIT),
        (LAST, batch(9), Step.COMMIT),  # a function need not write every batch
        (LAST, batch(4), Step.SKIP),
        (LAST, batch(4, rows=10), Step.SKIP),  # a query that is not deterministic
        (LAST, batch(5, **MOVED), Step.COMMIT),
        (LAST, batch(4, **MOVED), Step.SKIP),
    ],
    ids=str,
)
def test_what_the_log_does_not_have_is_committed_and_the_last_one_skipped(
    last: Committed | None, given: Batch, step: Step
) -> None:
    assert decide(last, given) is step


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        *((batch(number), Fenced, "comes late") for number in (0, 3)),
        *((batch(n, place), Fenced, "takeOver") for n in (3, 4, 5) for place in ("/b", None)),
        (batch(4, rows=10, **MOVED), Fenced, "a copy from before that batch"),
        (batch(3, **MOVED), Fenced, "comes late"),
        # Or the second of two writers would be taken for a replay of the first.
        (batch(4, streams=("t",)), BadRequest, "One writer writes all streams"),
    ],
    ids=str,
)
def test_a_late_batch_another_directory_and_a_second_writer_are_refused(
    given: Batch, error: type[PenstockError], words: str
) -> None:
    with pytest.raises(error, match=words):
        decide(LAST, given)


def test_what_the_log_keeps_is_what_was_committed() -> None:
    kept = decode_committed(encode_committed(batch(3, None, streams=("s", "t"), rows=0)))
    assert kept == Committed(3, None, ("s", "t"), 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":2,"batch":1,"checkpoint":null,"streams":[],"rows":1}',
        b'{"version":1,"batch":-1,"checkpoint":null,"streams":[],"rows":1}',
        b'{"version":1,"batch":1,"checkpoint":7,"streams":[],"rows":1}',
        b'{"version":1,"batch":1,"checkpoint":null,"streams":[1],"rows":1}',
        b'{"version":1,"batch":1,"checkpoint":null,"streams":[],"rows":null}',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_committed(data)
