"""Read records by tag from a log's segments, in pieces, at a cost that follows the matches.

Owns how matches become records: a run of groups that all match is copied as it lies on disk; a
group of which some entries match becomes a slice. Law: every entry in [start, looked_up_to) with
any of the tags is returned, once, in LSN order, and none at or above the durable tail. Headers and
tables are checked here; payload CRCs travel with the entries and are checked by whoever uses them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from penstock.errors import BadFormat, NotFound
from penstock.ids import Lsn
from penstock.limits import KIB, MIB
from penstock.log.core.producers import AppendedGroup
from penstock.log.core.tag_index import producer_tag
from penstock.log.group_format import BODY_HEADER_BYTES, TableView
from penstock.log.record_format import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_header,
    decode_record,
    slice_record,
    slice_rows,
)
from penstock.log.storage.views import NotHere, ReadableLog, SegmentView

#: Bytes read at once when all entries are wanted.
SCAN_BYTES = 1 * MIB
#: First read of a record of which only some entries are wanted: header, table and perhaps all.
PROBE_BYTES = 16 * KIB
#: Matches looked up in an index at once.
MATCHES_MAX = 4096
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Records found, and how far was looked: [start, looked_up_to) holds nothing else.

    A buffer may hold several records, one after the other.
    """

    records: list[bytes | memoryview]
    looked_up_to: Lsn


def read_piece(
    storage: ReadableLog, tags: frozenset[str] | None, start: int, end: int, bytes_max: int
) -> ReadPiece:
    """About `bytes_max` bytes of records with entries in [start, end); None as tags means all."""
    end = min(end, storage.durable_lsn)
    if start >= end:
        return ReadPiece([], Lsn(start))
    view = storage.segment_at(start)
    stop = min(end, view.end_lsn)
    if tags is None:
        return _scan(view, start, stop, bytes_max)
    return _select(view, tags, start, stop, bytes_max)


def _scan(view: SegmentView, start: int, stop: int, bytes_max: int) -> ReadPiece:
    span = view.index.span(start)
    chunk = view.file.read_at(span.start, min(SCAN_BYTES, bytes_max + RECORD_HEADER_BYTES))
    records: list[bytes | memoryview] = []
    at, size = 0, 0
    lsn = Lsn(start)
    first_lsn = int(span.first_lsn)
    while lsn < stop and size < bytes_max:
        if len(chunk) - at < RECORD_HEADER_BYTES:
            if at:
                break
            raise BadFormat(f"segment {view.info.id} ends at byte {span.start}")
        header = decode_header(chunk, at)
        if header.is_note:
            at += RECORD_HEADER_BYTES
            continue
        _check_place(view, header, first_lsn)
        if len(chunk) - at < header.record_bytes:
            if records:
                break
            chunk = view.file.read_at(span.start + at, header.record_bytes)
            at = 0
        record = memoryview(chunk)[at : at + header.record_bytes]
        at += header.record_bytes
        count = _checked_table(view, header, record).count
        if header.first_lsn < lsn or header.first_lsn + count > stop:
            record = memoryview(_cut(record, lsn, stop))
        records.append(record)
        size += len(record)
        first_lsn += count
        lsn = Lsn(min(first_lsn, stop))
    return ReadPiece(records, lsn)


def _check_place(view: SegmentView, header: RecordHeader, first_lsn: int) -> None:
    """An intact record of another place, segment or log must not be read as the one asked for."""
    if (header.first_lsn, header.segment, header.log_mark) != (
        first_lsn,
        view.info.id,
        view.log_mark,
    ):
        raise BadFormat(
            f"segment {view.info.id}: the record of lsn {first_lsn} is one of lsn "
            f"{header.first_lsn}, segment {header.segment}"
        )


def _cut(record: memoryview, start: int, stop: int) -> bytes:
    """The entries of a record in [start, stop)."""
    header, body = decode_record(record)
    keep = range(max(start - header.first_lsn, 0), min(stop - header.first_lsn, body.count))
    return slice_record(header, body, keep, [body.payload(index) for index in keep])


def _select(
    view: SegmentView, tags: frozenset[str], start: int, stop: int, bytes_max: int
) -> ReadPiece:
    found = view.index.entries(tags, start, stop, MATCHES_MAX)
    lsns: list[int] = found.tolist()
    if not lsns:
        return ReadPiece([], Lsn(stop))
    firsts, starts = view.index.starts(found)
    records: list[bytes] = []
    size = 0
    at = 0
    while at < len(lsns) and size < bytes_max:
        first, position = firsts[at], starts[at]
        end = bisect_right(firsts, first, at)
        try:
            header, body, data = _read_table(view, first, position)
            keep = [lsn - first for lsn in lsns[at:end]]
            record = _entries(view, position, header, body, data, keep)
        except NotHere:
            if not records:
                raise
            break
        records.append(record)
        size += len(record)
        at = end
    if at < len(lsns):
        looked = lsns[at]
    else:
        looked = lsns[-1] + 1 if len(lsns) == MATCHES_MAX else stop
    # Joined here, on the reader's thread: the event loop sends one buffer instead of hundreds.
    return ReadPiece([b"".join(records)] if records else [], Lsn(looked))


def _read_table(
    view: SegmentView, first_lsn: int, position: int
) -> tuple[RecordHeader, TableView, bytes]:
    data = view.file.read_at(position, PROBE_BYTES)
    header = decode_header(data)
    _check_place(view, header, first_lsn)
    if len(data) > header.record_bytes:
        data = data[: header.record_bytes]
    if header.record_bytes > len(data):
        at = RECORD_HEADER_BYTES + 4
        table = RECORD_HEADER_BYTES + int.from_bytes(data[at : at + 4], "little")
        if not RECORD_HEADER_BYTES + BODY_HEADER_BYTES <= table <= header.record_bytes:
            raise BadFormat(f"segment {view.info.id} at byte {position}: table length {table}")
        if table > len(data):
            data = view.file.read_at(position, table)
    return header, _checked_table(view, header, memoryview(data)), data


def _checked_table(view: SegmentView, header: RecordHeader, record: memoryview) -> TableView:
    table = TableView(record[RECORD_HEADER_BYTES:])
    if table.table_crc != header.table_crc:
        raise BadFormat(f"segment {view.info.id}, lsn {header.first_lsn}: header of another body")
    return table


def _entries(
    view: SegmentView,
    position: int,
    header: RecordHeader,
    body: TableView,
    data: bytes,
    keep: list[int],
) -> bytes:
    """The record with the kept entries: all of it, or a slice."""
    whole = len(keep) == body.count
    if whole:
        if len(data) < header.record_bytes:
            data = view.file.read_at(position, header.record_bytes)
        return data
    base = RECORD_HEADER_BYTES + body.payload_start
    picked = body.pick(keep)
    payloads = []
    for row in picked:
        right = base + row.end
        if right <= len(data):
            payloads.append(data[base + row.start : right])
        else:
            payloads.append(view.file.read_at(position + base + row.start, row.end - row.start))
    return slice_rows(header, body, keep, picked, payloads)


def read_last(storage: ReadableLog, tag: str, end: int) -> bytes | None:
    """The newest record with the tag below `end`, cut to that entry; None if there is none."""
    end = min(end, storage.durable_lsn)
    point = storage.trim_point
    for info in reversed(storage.segments):
        if info.base_lsn >= end:
            continue
        if info.sealed and info.end_lsn <= point:
            return None
        view = storage.segment_at(max(info.base_lsn, point))
        lsn = view.index.last(tag, end)
        if lsn is not None:
            if lsn < point:
                return None
            span = view.index.span(lsn)
            header, body, data = _read_table(view, span.first_lsn, span.start)
            return _entries(view, span.start, header, body, data, [lsn - header.first_lsn])
    return None


def find_time(storage: ReadableLog, time_ms: int) -> Lsn:
    """First LSN appended at or after `time_ms`; the tail if everything is older."""
    point = storage.trim_point
    for info in storage.segments:
        if info.sealed and (info.last_ms < time_ms or info.end_lsn <= point):
            continue
        if info.base_lsn >= storage.durable_lsn:
            break
        lsn = storage.segment_at(max(info.base_lsn, point)).index.at_time(time_ms)
        if lsn is not None:
            return Lsn(max(lsn, point))
    return storage.durable_lsn


def find_group(storage: ReadableLog, producer: str, first_seq: int) -> AppendedGroup:
    """The group of a producer that starts at a seq, however old; for retries that come very late.

    A producer's seqs grow with LSNs, so each segment is searched by halving.
    """
    tag = producer_tag(producer)
    point = storage.trim_point
    for info in reversed(storage.segments):
        if info.sealed and info.end_lsn <= point:
            break
        if info.base_lsn >= storage.durable_lsn:
            continue
        view = storage.segment_at(max(info.base_lsn, point))
        lsns = view.index.entries([tag], max(info.base_lsn, point), view.end_lsn, _ALL).tolist()
        seqs = _GroupSeqs(view, lsns)
        at = bisect_right(seqs, first_seq)
        if at == 0:
            continue
        header, body = _group(view, lsns[at - 1])
        if body.first_seq != first_seq:
            break
        return AppendedGroup(first_seq, body.count, body.instance, header.first_lsn)
    raise NotFound(f"no group of producer {producer} that starts at seq {first_seq} is left")


class _GroupSeqs:
    """First seqs of groups as a sorted sequence, each read from disk when it is looked at."""

    def __init__(self, view: SegmentView, lsns: list[int]) -> None:
        self._view = view
        self._lsns = lsns

    def __len__(self) -> int:
        return len(self._lsns)

    def __getitem__(self, index: int) -> int:
        return _group(self._view, self._lsns[index])[1].first_seq


def _group(view: SegmentView, lsn: int) -> tuple[RecordHeader, TableView]:
    header, body, _ = _read_table(view, *view.index.span(lsn)[:2])
    return header, body
