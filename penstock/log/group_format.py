"""The body of a group: its bytes as the client made them, never changed after.

Owns the layout drawn in docs/formats.md: producer, seqs, tags, one row per entry, payloads. The
table has a CRC-32C, each payload its own. A *slice* is a body that holds some entries of its group
only. What ordering adds in front of a body is record_format.py's.

Law: decode(encode(x)) == x, and any other bytes raise `Damaged`; every byte is under a CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, BadRequest, ChecksumMismatch, TooLarge
from penstock.ids import Lsn
from penstock.limits import (
    ENTRY_TAGS_MAX,
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GROUP_TAGS_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    SLICE_BYTES_MAX,
    TAG_BYTES_MAX,
)
from penstock.log.records import Entry, Kind, NewEntry, SetKey, check_tag, meta_tag

Buffer = bytes | bytearray | memoryview

VERSION = 1
#: Flags of a body.
CLAIM = 1  # a producer was opened: sets its instance, takes no seq
RETIRE = 2  # a producer says that it will never write again
SLICE = 4  # not all entries of the group are here; their places follow the rows

_BODY = struct.Struct("<IIIBBHQQIIII")  # docs/formats.md, "Body"
_ROW = struct.Struct("<B3xIIII")  # kind, rows, payload_end, payload_crc, ref_end
_PAIR = struct.Struct("<8xI4xIB3xIIII")  # ends of the row before, then a row
_REF = struct.Struct("<H")
_BEFORE_FIRST = (0, 0, 0, 0, 0)
BODY_HEADER_BYTES = _BODY.size
ROW_BYTES = _ROW.size

_KINDS = {int(kind): kind for kind in Kind}

assert BODY_HEADER_BYTES == 48


class PickedRow(NamedTuple):
    """One entry of a table: where its payload lies, from the first payload on, and its tags."""

    kind: int
    rows: int
    start: int
    end: int
    crc: int
    refs: tuple[int, ...]


class Body:
    """A parsed body; entries are read from the underlying bytes when they are asked for."""

    __slots__ = (
        "_by_tag",
        "count",
        "data",
        "first_seq",
        "flags",
        "instance",
        "payload_start",
        "places",
        "producer",
        "refs",
        "rows",
        "table_crc",
        "tags",
    )

    def __init__(
        self,
        *,
        data: Buffer,
        flags: int,
        producer: str,
        instance: int,
        first_seq: int,
        rows: list[tuple[int, int, int, int, int]],
        refs: tuple[int, ...],
        tags: list[str],
        places: tuple[int, ...] | None,
        payload_start: int,
        table_crc: int,
    ) -> None:
        self.data = data
        self.flags = flags
        self.producer = producer
        self.instance = instance
        self.first_seq = first_seq
        self.rows = rows
        self.refs = refs
        self.tags = tags
        self.places = places
        self.payload_start = payload_start
        self.table_crc = table_crc
        self.count = len(rows)
        self._by_tag: dict[str, list[int]] | None = None

    def entry_tags(self, index: int) -> tuple[str, ...]:
        start = self.rows[index - 1][4] if index else 0
        tags = self.tags
        return tuple([tags[ref] for ref in self.refs[start : self.rows[index][4]]])

    def payload(self, index: int) -> memoryview:
        start = self.rows[index - 1][2] if index else 0
        base = self.payload_start
        return memoryview(self.data)[base + start : base + self.rows[index][2]]

    def place(self, index: int) -> int:
        """Index of the entry within its whole group."""
        return self.places[index] if self.places is not None else index

    def check_payload(self, index: int) -> None:
        if crc32c(self.payload(index)) != self.rows[index][3]:
            raise ChecksumMismatch(f"payload of entry {self.place(index)} of a group is damaged")

    def check_payloads(self) -> None:
        for index in range(self.count):
            self.check_payload(index)

    def by_tag(self) -> dict[str, list[int]]:
        """Indexes of the entries that carry each tag, ascending; made once, then shared."""
        if self._by_tag is None:
            lists: list[list[int]] = [[] for _ in self.tags]
            start = 0
            for index, row in enumerate(self.rows):
                for ref in self.refs[start : row[4]]:
                    lists[ref].append(index)
                start = row[4]
            self._by_tag = dict(zip(self.tags, lists, strict=True))
        return self._by_tag

    def matching(self, tags: frozenset[str]) -> list[int]:
        """Indexes of the entries that carry any of the tags."""
        by_tag = self.by_tag()
        found = [by_tag[tag] for tag in self.tags if tag in tags]
        if len(found) <= 1:
            return found[0] if found else []
        return sorted({index for indexes in found for index in indexes})

    def pick(self, keep: Sequence[int]) -> list[PickedRow]:
        """The rows at these indexes."""
        picked = []
        for index in keep:
            _, _, start, _, ref_start = self.rows[index - 1] if index else _BEFORE_FIRST
            kind, rows, end, crc, ref_end = self.rows[index]
            picked.append(PickedRow(kind, rows, start, end, crc, self.refs[ref_start:ref_end]))
        return picked

    def tag_bytes(self, ref: int) -> bytes:
        return self.tags[ref].encode()

    @property
    def producer_bytes(self) -> bytes:
        return self.producer.encode()

    def entries(self, first_lsn: int, time_ms: int, start: int = 0) -> Iterator[Entry]:
        """All entries at or above LSN `start`, each payload checked against its CRC."""
        data = self.data if isinstance(self.data, bytes) else bytes(self.data)
        base = self.payload_start
        refs, tags, places = self.refs, self.tags, self.places
        producer, instance, first_seq = self.producer, self.instance, self.first_seq
        claim = self.flags & CLAIM
        payload_from = ref_from = 0
        known: dict[tuple[int, ...], tuple[str, ...]] = {}
        for index, (kind, rows, payload_to, crc, ref_to) in enumerate(self.rows):
            place = places[index] if places is not None else index
            lsn = first_lsn + place
            if lsn >= start:
                payload = data[base + payload_from : base + payload_to]
                if crc32c(payload) != crc:
                    raise ChecksumMismatch(f"payload of entry {lsn} is damaged")
                key = refs[ref_from:ref_to]
                names = known.get(key)
                if names is None:
                    names = known[key] = tuple([tags[ref] for ref in key])
                yield Entry(
                    Lsn(lsn),
                    _KINDS[kind],
                    names,
                    producer,
                    instance,
                    first_seq if claim else first_seq + place,
                    time_ms,
                    rows,
                    payload,
                )
            payload_from, ref_from = payload_to, ref_to


def encode_body(
    *,
    producer: str,
    instance: int,
    first_seq: int,
    entries: Sequence[NewEntry],
    flags: int = 0,
) -> bytes:
    """The bytes of a new group. Raises TooLarge or BadRequest for what a server would not take."""
    if not 0 < len(entries) <= GROUP_ENTRIES_MAX:
        raise TooLarge(f"group of {len(entries)} entries: the limit is {GROUP_ENTRIES_MAX}")
    ref_of: dict[str, int] = {}
    refs: list[int] = []
    rows: list[bytes] = []
    payloads: list[bytes] = []
    end = 0
    for entry in entries:
        payload = entry.payload
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"payload of {len(payload)} bytes: the limit is {PAYLOAD_BYTES_MAX}")
        if len(entry.tags) > ENTRY_TAGS_MAX:
            raise TooLarge(f"entry with {len(entry.tags)} tags: the limit is {ENTRY_TAGS_MAX}")
        if len(entry.tags) > 1 and len(set(entry.tags)) != len(entry.tags):
            raise BadRequest(f"an entry names a tag twice: {entry.tags}")
        for tag in entry.tags:
            ref = ref_of.get(tag)
            if ref is None:
                check_tag(tag)
                ref = ref_of[tag] = len(ref_of)
            refs.append(ref)
        end += len(payload)
        payloads.append(payload)
        rows.append(_ROW.pack(entry.kind, entry.rows, end, crc32c(payload), len(refs)))
    return _join_body(
        producer=producer.encode(),
        instance=instance,
        first_seq=first_seq,
        flags=flags,
        rows=rows,
        places=b"",
        refs=refs,
        tags=[tag.encode() for tag in ref_of],
        payloads=payloads,
    )


def _join_body(
    *,
    producer: bytes,
    instance: int,
    first_seq: int,
    flags: int,
    rows: list[bytes],
    places: bytes,
    refs: list[int],
    tags: list[bytes],
    payloads: Sequence[Buffer],
) -> bytes:
    if not 0 < len(producer) <= PRODUCER_BYTES_MAX:
        raise TooLarge(f"producer name of {len(producer)} bytes: 1 to {PRODUCER_BYTES_MAX} allowed")
    if len(tags) > GROUP_TAGS_MAX:
        raise TooLarge(f"group with {len(tags)} different tags: the limit is {GROUP_TAGS_MAX}")
    texts = b"".join(tags)
    table = b"".join(
        (
            producer,
            *rows,
            places,
            struct.pack(f"<{len(refs)}H", *refs),
            struct.pack(f"<{len(tags)}H", *map(len, tags)),
            texts,
        )
    )
    table_bytes = BODY_HEADER_BYTES + len(table)
    body_bytes = table_bytes + sum(map(len, payloads))
    if body_bytes > (SLICE_BYTES_MAX if flags & SLICE else GROUP_BYTES_MAX):
        raise TooLarge(f"group of {body_bytes} bytes: the limit is {GROUP_BYTES_MAX}")
    header = _BODY.pack(
        0,
        table_bytes,
        body_bytes,
        VERSION,
        flags,
        len(producer),
        instance,
        first_seq,
        len(rows),
        len(tags),
        len(refs),
        len(texts),
    )
    crc = crc32c(table, crc32c(memoryview(header)[4:]))
    return b"".join((crc.to_bytes(4, "little"), header[4:], table, *payloads))


def decode_body(data: Buffer) -> Body:
    """Parse and check the table; payload CRCs are checked when payloads are used."""
    if len(data) < BODY_HEADER_BYTES:
        raise BadFormat(f"group body of {len(data)} bytes is shorter than its header")
    (
        table_crc,
        table_bytes,
        body_bytes,
        version,
        flags,
        producer_bytes,
        instance,
        first_seq,
        count,
        tag_count,
        ref_count,
        text_bytes,
    ) = _BODY.unpack_from(data)
    if version != VERSION or flags > 7:
        raise BadFormat(f"group body has unknown version {version} or flags {flags}")
    sliced = bool(flags & SLICE)
    if (
        not 0 < count <= GROUP_ENTRIES_MAX
        or tag_count > GROUP_TAGS_MAX
        or ref_count > count * ENTRY_TAGS_MAX
        or text_bytes > tag_count * TAG_BYTES_MAX
        or not 0 < producer_bytes <= PRODUCER_BYTES_MAX
        or body_bytes > (SLICE_BYTES_MAX if sliced else GROUP_BYTES_MAX)
    ):
        raise BadFormat("group body has a count beyond the limits")
    rows_at = BODY_HEADER_BYTES + producer_bytes
    places_at = rows_at + count * ROW_BYTES
    refs_at = places_at + (4 * count if sliced else 0)
    lengths_at = refs_at + 2 * ref_count
    texts_at = lengths_at + 2 * tag_count
    if texts_at + text_bytes != table_bytes or not table_bytes <= body_bytes == len(data):
        raise BadFormat("group body has lengths that do not add up")
    view = memoryview(data)
    if crc32c(view[4:table_bytes]) != table_crc:
        raise ChecksumMismatch("table of a group is damaged")
    rows = list(_ROW.iter_unpack(view[rows_at:places_at]))
    body = Body(
        data=data,
        flags=flags,
        producer=_text(view[BODY_HEADER_BYTES:rows_at]),
        instance=instance,
        first_seq=first_seq,
        rows=rows,
        refs=struct.unpack_from(f"<{ref_count}H", view, refs_at),
        tags=_tag_texts(view, lengths_at, texts_at, tag_count, table_bytes),
        places=struct.unpack_from(f"<{count}I", view, places_at) if sliced else None,
        payload_start=table_bytes,
        table_crc=table_crc,
    )
    _check_rows(body, body_bytes - table_bytes, ref_count)
    return body


class TableView:
    """A table of which only a few rows are wanted: nothing else is taken apart.

    For bytes that a server validated when they were appended: their CRC says that they still are.
    """

    instance: int
    first_seq: int
    count: int

    def __init__(self, data: Buffer) -> None:
        if len(data) < BODY_HEADER_BYTES:
            raise BadFormat("group body is shorter than its header")
        (
            self.table_crc,
            table_bytes,
            _,
            version,
            self.flags,
            producer_bytes,
            self.instance,
            self.first_seq,
            self.count,
            self._tag_count,
            ref_count,
            text_bytes,
        ) = _BODY.unpack_from(data)
        self._view = memoryview(data)
        self._rows_at = BODY_HEADER_BYTES + producer_bytes
        self._refs_at = self._rows_at + self.count * ROW_BYTES
        self._lengths_at = self._refs_at + 2 * ref_count
        if self._lengths_at + 2 * self._tag_count + text_bytes != table_bytes:
            # Before the CRC: that of no bytes is 0, and so may be what stands there.
            raise BadFormat("group body has lengths that do not add up")
        if version != VERSION or self.flags & SLICE or table_bytes > len(data):
            raise BadFormat("group body has an unknown version or is cut")
        if crc32c(self._view[4:table_bytes]) != self.table_crc:
            raise ChecksumMismatch("table of a group is damaged")
        self.payload_start: int = table_bytes
        self.producer_bytes = bytes(self._view[BODY_HEADER_BYTES : self._rows_at])

    def pick(self, keep: Sequence[int]) -> list[PickedRow]:
        """The rows at these indexes."""
        view, refs_from = self._view, self._refs_at
        picked = []
        for index in keep:
            at = self._rows_at + index * ROW_BYTES
            if index:
                start, ref_start, kind, rows, end, crc, ref_end = _PAIR.unpack_from(
                    view, at - ROW_BYTES
                )
            else:
                start = ref_start = 0
                kind, rows, end, crc, ref_end = _ROW.unpack_from(view, at)
            if ref_end - ref_start == 1:
                refs = _REF.unpack_from(view, refs_from + 2 * ref_start)
            else:
                count = ref_end - ref_start
                refs = struct.unpack_from(f"<{count}H", view, refs_from + 2 * ref_start)
            picked.append(PickedRow(kind, rows, start, end, crc, refs))
        return picked

    def tag_bytes(self, ref: int) -> bytes:
        lengths = struct.unpack_from(f"<{ref + 1}H", self._view, self._lengths_at)
        end = self._lengths_at + 2 * self._tag_count + sum(lengths)
        return bytes(self._view[end - lengths[-1] : end])

    def place(self, index: int) -> int:
        return index


def _tag_texts(view: memoryview, at: int, texts_at: int, count: int, end: int) -> list[str]:
    tags = []
    start = texts_at
    for size in struct.unpack_from(f"<{count}H", view, at):
        tags.append(_text(view[start : start + size]))
        start += size
    if start != end or len(set(tags)) != len(tags):
        raise BadFormat("tags of a group are cut or named twice")
    return tags


def _text(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        raise BadFormat("a name in a group is not UTF-8") from None


def _check_rows(body: Body, payload_bytes: int, ref_count: int) -> None:
    payload_end = ref_end = 0
    tag_count = len(body.tags)
    for kind, _, row_payload_end, _, row_ref_end in body.rows:
        if (
            kind not in _KINDS
            or not payload_end <= row_payload_end <= payload_end + PAYLOAD_BYTES_MAX
            or not ref_end <= row_ref_end <= ref_end + ENTRY_TAGS_MAX
        ):
            raise BadFormat("an entry of a group has a kind, length or tag count that cannot be")
        payload_end, ref_end = row_payload_end, row_ref_end
    if payload_end != payload_bytes or ref_end != ref_count:
        raise BadFormat("entries of a group do not add up to its length")
    if body.refs and max(body.refs) >= tag_count:
        raise BadFormat("an entry of a group names a tag that is not there")
    if body.places is not None and any(
        left >= right for left, right in zip(body.places, body.places[1:], strict=False)
    ):
        raise BadFormat("entries of a slice are not in order")


def check_new_body(body: Body) -> None:
    """What a server asks of a group before it orders it, beyond `decode_body`."""
    if body.flags & SLICE:
        raise BadFormat("a slice cannot be appended")
    if body.instance < 0 or body.instance >= 2**63 or body.first_seq >= 2**63:
        raise BadRequest("instance or seq is beyond 2^63")
    if body.flags & (CLAIM | RETIRE) and (body.count != 1 or body.rows[0][0] != Kind.CONTROL):
        raise BadRequest("a claim or a retirement is one control entry")
    for tag in body.tags:
        check_tag(tag)
    start = 0
    for row in body.rows:
        if row[4] - start > 1:
            refs = body.refs[start : row[4]]
            if len(set(refs)) != len(refs):
                raise BadRequest("an entry names a tag twice")
        start = row[4]
    body.check_payloads()


def slice_body(
    body: Body | TableView,
    keep: Sequence[int],
    picked: Sequence[PickedRow],
    payloads: Sequence[Buffer],
) -> bytes:
    """The body with the entries at indexes `keep` only, whose rows and payloads these are."""
    ref_of: dict[int, int] = {}
    refs: list[int] = []
    rows: list[bytes] = []
    end = 0
    for kind, row_count, start, stop, crc, row_refs in picked:
        for ref in row_refs:
            refs.append(ref_of.setdefault(ref, len(ref_of)))
        end += stop - start
        rows.append(_ROW.pack(kind, row_count, end, crc, len(refs)))
    return _join_body(
        producer=body.producer_bytes,
        instance=body.instance,
        first_seq=body.first_seq,
        flags=body.flags | SLICE,
        rows=rows,
        places=struct.pack(f"<{len(keep)}I", *map(body.place, keep)),
        refs=refs,
        tags=[body.tag_bytes(ref) for ref in ref_of],
        payloads=payloads,
    )


# ---- metadata entries


def meta_entry(sets: Sequence[SetKey]) -> NewEntry:
    """The entry that changes these metadata keys when it is ordered."""
    parts = [struct.pack("<H", len(sets))]
    for change in sets:
        key = change.key.encode()
        value = b"" if change.value is None else change.value
        parts.append(struct.pack("<HBI", len(key), change.value is not None, len(value)))
        parts += (key, value)
    return NewEntry(
        payload=b"".join(parts),
        tags=tuple(meta_tag(change.key) for change in sets),
        kind=Kind.META,
    )


def decode_sets(payload: Buffer) -> list[SetKey]:
    """The changes of a metadata entry."""
    try:
        (count,) = struct.unpack_from("<H", payload)
        at = 2
        sets = []
        for _ in range(count):
            key_bytes, present, value_bytes = struct.unpack_from("<HBI", payload, at)
            at += 7
            key = _text(memoryview(payload)[at : at + key_bytes])
            at += key_bytes
            value = bytes(memoryview(payload)[at : at + value_bytes])
            at += value_bytes
            if at > len(payload) or present > 1 or (value and not present):
                raise BadFormat("metadata entry is cut")
            sets.append(SetKey(key, value if present else None))
    except struct.error:
        raise BadFormat("metadata entry is cut") from None
    if at != len(payload):
        raise BadFormat("metadata entry has trailing bytes")
    return sets
