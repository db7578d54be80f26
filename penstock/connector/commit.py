"""The driver's commit: one append of one marker that names what the winning tasks staged.

Owns how a doubt ends. A commit whose answer is lost may or may not be in the log, and may still
come to it: the next try has the same guards, so at most one takes effect, and what the log says
then is the answer. An abort removes the batch's note, by which a commit on its way is refused, so
that it cannot name what was trimmed since. Law (I8): all rows of a batch count at the marker's
place, on all its streams, or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.connector.staging import Staged
from penstock.errors import GuardFailed, PenstockError, Retryable, Trimmed, Unknown
from penstock.ids import Lsn
from penstock.log.api import Bounds
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Guard, Kind, NewEntry, SetKey, Value
from penstock.protocol.batch_commit import (
    Batch,
    Step,
    decide,
    decode_committed,
    encode_committed,
)
from penstock.protocol.markers import Marker, encode_marker, join_ranges
from penstock.protocol.names import (
    BATCH_WRITES_TAG,
    batch_key,
    batch_writer,
    staging_key,
    with_naming,
)
from penstock.stream.registration import stream_tag

T = TypeVar("T")

_TRIES: Final = 5


def commit_batch(
    client: BlockingLog, batch: Batch, streams: Sequence[str], staged: Sequence[Staged]
) -> bool:
    """Commit a micro-batch; False if it took effect before. Raises Fenced, Trimmed, Unknown."""
    key = batch_key(batch.query)
    note_key = staging_key(batch.query, batch.number)
    entries = _marker(batch.query, batch.number, streams, staged, f"T/{batch_writer(batch.query)}")

    def attempt() -> bool:
        # Together: a round trip costs more than an answer.
        asked = client.ask(lambda log: log.get(key)), client.ask(lambda log: log.get(note_key))
        asked_bounds = client.ask(lambda log: log.bounds())
        value, note, bounds = asked[0].wait(), asked[1].wait(), asked_bounds.wait()
        last = None if value is None else decode_committed(value.data)
        if decide(last, batch) is Step.SKIP:
            forget_staged(client, note_key)
            return False
        _check_not_trimmed(bounds, staged)
        sets = [SetKey(key, encode_committed(batch))]
        if note is not None:
            sets.append(SetKey(note_key, None))
        guards = [_as_it_is(key, value), _as_it_is(note_key, note)]
        client.append(entries, guards=guards, sets=sets)
        return True

    return _until_sure(
        attempt,
        f"batch {batch.number} of query {batch.query}: start the query again, it goes on from "
        "what the log has",
    )


def commit_write(
    client: BlockingLog, id: str, streams: Sequence[str], staged: Sequence[Staged]
) -> None:
    """Commit a batch write, whose id was made for it alone. Raises Trimmed, Unknown."""
    key = staging_key(id)
    entries = _marker(id, 0, streams, staged, BATCH_WRITES_TAG)

    first = client.get(key)
    if first is None:
        return  # nothing was staged

    def attempt() -> None:
        note = client.get(key)
        if note is None or note.data != first.data:
            # An attempt took effect and removed it; another note is of a task that came too late.
            return forget_staged(client, key)
        _check_not_trimmed(client.bounds(), staged)
        client.append(entries, guards=[_as_it_is(key, note)], sets=[SetKey(key, None)])

    _until_sure(attempt, f"batch write {id}: compare what is in the stream before you write again")


def _until_sure(attempt: Callable[[], T], what_to_do: str) -> T:
    """What an attempt returns. Another is made after one that was refused by its guards, another
    driver's doing or that of the attempt before, or whose answer was lost."""
    doubt: PenstockError | None = None
    for _ in range(_TRIES):
        try:
            return attempt()
        except GuardFailed:
            pass
        except Unknown as error:
            doubt = error
        except Retryable as error:
            if doubt is None:
                raise
            doubt = error
    raise Unknown(
        f"no answer from the log in {_TRIES} tries, the commit may or may not have taken effect. "
        f"{what_to_do[:1].upper()}{what_to_do[1:]}"
    ) from doubt


def forget_staged(client: BlockingLog, key: str) -> None:
    """Give a batch up: nothing that was staged under this note can be named from here on."""
    note = client.get(key)
    if note is not None:
        try:
            client.compare_and_set(key, expected=note.data, value=None)
        except PenstockError:
            pass  # it only keeps trimming back, until the batch is run again


def _as_it_is(key: str, value: Value | None) -> Guard:
    return Guard(key, None if value is None else value.data)


def _marker(
    id: str, number: int, streams: Sequence[str], staged: Sequence[Staged], writer_tag: str
) -> list[NewEntry]:
    ranges = join_ranges(
        sorted((one for part in staged for one in part.ranges), key=lambda one: one.first_lsn)
    )
    if not ranges:
        return []
    marker = Marker(
        task=batch_writer(id),
        instance=0,
        number=number,
        position=Lsn(0),
        inline=0,
        ranges=ranges,
        rows_out=sum(part.rows for part in staged),
    )
    tags = (writer_tag, *with_naming([stream_tag(stream) for stream in streams]))
    return [NewEntry(encode_marker(marker), tags, Kind.MARKER)]


def _check_not_trimmed(bounds: Bounds, staged: Sequence[Staged]) -> None:
    """A marker that names what is gone would stop every reader of the stream."""
    lowest = min((one.first_lsn for part in staged for one in part.ranges), default=None)
    if lowest is not None and bounds.trim_point > lowest:
        raise Trimmed(
            f"the log was trimmed to {bounds.trim_point} while a batch was written whose rows "
            f"begin at {lowest}: nothing of it counts. Run it again"
        )
