"""The driver's commit: one append of one marker that names what the winning tasks staged.

Owns what is done when the answer to a commit is lost: it may be in the log, or may still come to
it. The next try has the same guards, so at most one of them takes effect, and the log then says
which. What a marker names has not been trimmed: the reservation that holds trimming
back is there until the batch is decided, and a commit whose reservation is gone is refused. Law
(I8): all rows of a batch count at the marker's place, on all its streams, or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from penstock.connector.staging import Staged
from penstock.errors import (
    BadRequest,
    GuardFailed,
    PenstockError,
    Retryable,
    TooLarge,
    Trimmed,
    Unknown,
)
from penstock.ids import Lsn
from penstock.limits import PAYLOAD_BYTES_MAX
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

_GIVEN_UP: Final = (
    "the reservation of what was staged is gone, so that it may have been trimmed: nothing of it "
    "counts. Run it again"
)

_TRIES: Final = 5


def commit_batch(
    client: BlockingLog, batch: Batch, streams: Sequence[str], staged: Sequence[Staged]
) -> bool:
    """Commit a micro-batch; False if it took effect before. Raises Fenced, Trimmed, Unknown."""
    _check_log(client, staged)
    batch = replace(batch, streams=tuple(sorted(streams)), rows=sum(each.rows for each in staged))
    key = batch_key(batch.query)
    reservation_key = staging_key(batch.query, batch.number)
    entries = _marker(batch.query, batch.number, streams, staged, f"T/{batch_writer(batch.query)}")

    def attempt() -> bool:
        # Together: a round trip costs more than an answer. The reservation first: if it is gone
        # because another driver committed, the key says so.
        ask_reservation = client.ask(lambda log: log.get(reservation_key))
        ask_value = client.ask(lambda log: log.get(key))
        ask_bounds = client.ask(lambda log: log.bounds())
        reservation, value, bounds = ask_reservation.wait(), ask_value.wait(), ask_bounds.wait()
        last = None if value is None else decode_committed(value.data)
        if decide(last, batch) is Step.SKIP:
            forget_staged(client, reservation_key)
            return False
        _check_not_trimmed(bounds, staged)
        if entries and reservation is None:
            raise Trimmed(_GIVEN_UP)
        sets = [SetKey(key, encode_committed(batch))]
        if reservation is not None:
            sets.append(SetKey(reservation_key, None))
        guards = [_as_it_is(key, value), _as_it_is(reservation_key, reservation)]
        client.append(entries, guards=guards, sets=sets)
        return True

    return _until_sure(
        attempt,
        f"Start query {batch.query} again: it goes on from what the log has of batch "
        f"{batch.number}",
    )


def was_committed(client: BlockingLog, batch: Batch, streams: Sequence[str]) -> bool:
    """Whether there is nothing left to do, before anything is staged. Raises Fenced.

    Not of a query that moved: its rows must be counted.
    """
    value = client.get(batch_key(batch.query))
    last = None if value is None else decode_committed(value.data)
    step = decide(last, replace(batch, streams=tuple(sorted(streams))))
    return step is Step.SKIP and not batch.take_over


def commit_write(
    client: BlockingLog, id: str, streams: Sequence[str], staged: Sequence[Staged]
) -> None:
    """Commit a batch write, whose id was made for it alone. Raises Trimmed, Unknown."""
    _check_log(client, staged)
    key = staging_key(id)
    entries = _marker(id, 0, streams, staged, BATCH_WRITES_TAG)
    first = client.get(key)
    if first is None:
        if entries:
            raise Trimmed(_GIVEN_UP)
        return

    def attempt() -> None:
        reservation = client.get(key)
        if reservation is None or reservation.data != first.data:
            # An attempt took effect and removed it; another one is of a task that came too late.
            return forget_staged(client, key)
        _check_not_trimmed(client.bounds(), staged)
        client.append(entries, guards=[_as_it_is(key, reservation)], sets=[SetKey(key, None)])

    _until_sure(attempt, f"Look at what is in the stream before you run batch write {id} again")


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
    if doubt is None:
        raise GuardFailed(f"others changed it {_TRIES} times meanwhile. {what_to_do}")
    raise Unknown(
        f"no answer from the log in {_TRIES} tries, the commit may or may not have taken effect. "
        f"{what_to_do}"
    ) from doubt


def forget_staged(client: BlockingLog, key: str) -> None:
    """What was staged under this reservation, and is not named yet, can be named no more."""
    try:
        reservation = client.get(key)
        if reservation is not None:
            client.compare_and_set(key, expected=reservation.data, value=None)
    except PenstockError:
        pass  # it only keeps trimming back


def _as_it_is(key: str, value: Value | None) -> Guard:
    return Guard(key, None if value is None else value.data)


def _marker(
    id: str, number: int, streams: Sequence[str], staged: Sequence[Staged], writer_tag: str
) -> list[NewEntry]:
    ranges = join_ranges(
        sorted(
            (named for written in staged for named in written.ranges),
            key=lambda named: named.first_lsn,
        )
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
        rows_out=sum(each.rows for each in staged),
    )
    tags = (writer_tag, *with_naming([stream_tag(stream) for stream in streams]))
    payload = encode_marker(marker)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(
            f"{marker.rows_out} rows in {len(ranges)} groups are too many for one commit: write "
            "them in several, or with fewer tasks"
        )
    return [NewEntry(payload, tags, Kind.MARKER)]


def _check_log(client: BlockingLog, staged: Sequence[Staged]) -> None:
    """Positions of another log would name whatever stands there in this one."""
    others = {each.log for each in staged if each.ranges} - {client.log_id}
    if others:
        raise BadRequest(
            f"the tasks wrote to log {', '.join(sorted(others))}, the driver is connected to "
            f"{client.log_id}: nothing of it counts. A data directory is one machine's; for more "
            "machines give the option log an address, penstock://host:port"
        )


def _check_not_trimmed(bounds: Bounds, staged: Sequence[Staged]) -> None:
    """A marker that names what is gone would stop every reader of the stream."""
    lowest = min((named.first_lsn for each in staged for named in each.ranges), default=None)
    if lowest is not None and bounds.trim_point > lowest:
        raise Trimmed(
            f"the log was trimmed to {bounds.trim_point} while a batch was written whose rows "
            f"begin at {lowest}: nothing of it counts. Run it again"
        )
