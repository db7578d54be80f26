"""Groups for tests: bodies, claims and stored records in one line each."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.core.tails import DurableGroup
from penstock.log.group_format import CLAIM, RETIRE, Body, decode_body, encode_body, meta_entry
from penstock.log.record_format import RECORD_HEADER_BYTES, RecordHeader, encode_header
from penstock.log.records import Entry, Kind, NewEntry, SetKey

#: What a log stamps on its records, indexes and snapshots.
LOG_MARK = 0x0102030405060708


def group(
    producer: str = "p",
    seq: int = 0,
    entries: Sequence[NewEntry] | int = 1,
    *,
    instance: int = 1,
    sets: Sequence[SetKey] = (),
) -> Body:
    """A data group; `entries` may be a count."""
    made = [NewEntry(b"x")] * entries if isinstance(entries, int) else list(entries)
    if sets:
        made.append(meta_entry(sets))
    data = encode_body(producer=producer, instance=instance, first_seq=seq, entries=made)
    return decode_body(data)


def claim(producer: str = "p", instance: int = 1, *, nonce: int = 7, seq: int = 0) -> Body:
    return _control(producer, instance, seq, CLAIM, nonce.to_bytes(8, "little"))


def retire(producer: str = "p", instance: int = 1, *, seq: int = 0) -> Body:
    return _control(producer, instance, seq, RETIRE, b"")


def _control(producer: str, instance: int, seq: int, flags: int, payload: bytes) -> Body:
    entry = NewEntry(payload, (), Kind.CONTROL)
    data = encode_body(
        producer=producer, instance=instance, first_seq=seq, entries=[entry], flags=flags
    )
    return decode_body(data)


def header_of(body: Body, first_lsn: int, *, time_ms: int = 1000, segment: int = 0) -> RecordHeader:
    return RecordHeader(
        RECORD_HEADER_BYTES + len(body.data),
        body.table_crc,
        Lsn(first_lsn),
        Epoch(3),
        SegmentId(segment),
        time_ms,
        Lsn(first_lsn),
        LOG_MARK,
    )


def stored(body: Body, first_lsn: int, *, time_ms: int = 1000) -> DurableGroup:
    """The group as it stands in the log."""
    header = header_of(body, first_lsn, time_ms=time_ms)
    return DurableGroup(header, body, (encode_header(header), body.data))


def entries_of(groups: Sequence[DurableGroup]) -> list[Entry]:
    """Everything that the groups hold, as a reader would see it."""
    return [
        entry
        for group in groups
        for entry in group.body.entries(group.header.first_lsn, group.header.time_ms)
    ]
