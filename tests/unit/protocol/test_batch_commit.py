"""What a driver does with its batch, given what the log has of the query."""

from __future__ import annotations

import pytest

from penstock.errors import BadFormat, BadRequest, Fenced
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


def test_a_batch_that_the_log_does_not_have_is_committed() -> None:
    assert decide(None, batch(0)) is Step.COMMIT
    assert decide(None, batch(7)) is Step.COMMIT, "its earlier batches went elsewhere"
    assert decide(LAST, batch(5)) is Step.COMMIT
    assert decide(LAST, batch(9)) is Step.COMMIT, "a function need not write every batch"


def test_the_last_batch_again_is_skipped() -> None:
    assert decide(LAST, batch(4)) is Step.SKIP
    assert decide(LAST, batch(4, rows=10)) is Step.SKIP, "a query that is not deterministic"


@pytest.mark.parametrize("number", [0, 3])
def test_a_batch_that_comes_late_is_fenced(number: int) -> None:
    with pytest.raises(Fenced, match="comes late"):
        decide(LAST, batch(number))


@pytest.mark.parametrize("number", [3, 4, 5])
@pytest.mark.parametrize("checkpoint", ["/b", None])
def test_another_directory_is_fenced(number: int, checkpoint: str | None) -> None:
    with pytest.raises(Fenced, match="takeOver"):
        decide(LAST, batch(number, checkpoint))


def test_a_query_that_moved_goes_on_or_is_told_that_it_is_a_copy_from_before() -> None:
    assert decide(LAST, batch(5, "/b", take_over=True)) is Step.COMMIT
    assert decide(LAST, batch(4, "/b", take_over=True)) is Step.SKIP
    with pytest.raises(Fenced, match="a copy from before that batch"):
        decide(LAST, batch(4, "/b", take_over=True, rows=10))
    with pytest.raises(Fenced, match="comes late"):
        decide(LAST, batch(3, "/b", take_over=True))


def test_two_writers_of_one_batch_are_told_apart() -> None:
    """Or the second of them would be taken for a replay of the first."""
    with pytest.raises(BadRequest, match="One writer writes all streams"):
        decide(LAST, batch(4, streams=("t",)))


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
