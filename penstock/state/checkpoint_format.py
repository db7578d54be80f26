"""The bytes of an increment, or of a whole checkpoint: rows, found again by virtual node and key.

    header    magic, what this is an increment of
    sections  rows of one part and kind of change each, in order of their place (fold.py), and no
              more than about SECTION_BYTES
    filters   for each part and kind, which keys are surely not in its sections
    footer    the parts; where each section lies, its CRC, which rows of which virtual nodes it
              holds, the first and last place, the range of event time; the header's CRC
    trailer   where the footer lies, its CRC, magic

Files of version 1 are whole, have no filters, and their rows are ordered by virtual node alone.

A file is written from front to back and never changed. Sections are small, so that the rows of one
virtual node are read without most of the others. The layout is in docs/formats.md.

Law: read_checkpoint of what encode_checkpoint gave does what the changes do, in their order. Every
byte is under a CRC, and the seal (the CRC of footer and trailer) stands for all of them: no other
bytes, be it a part of a file or a mixture of two, are ever taken for it; they raise `Damaged`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.limits import MIB
from penstock.state.api import Change
from penstock.state.event_time import event_times_us
from penstock.state.fold import nodes_of, places_of
from penstock.state.key_filter import make_filter, may_have
from penstock.state.keys import VIRTUAL_NODES, Hashes, words_column
from penstock.state.parts import Part, Parts, decode_parts, encode_parts
from penstock.stream.batches import decode_own, encode_trusted

VERSION: Final = 2
_VERSIONS: Final = (1, 2)
MAGIC: Final = b"PCK1"
TRAILER_MAGIC: Final = b"PCKE"
#: A virtual node's share of a large state; smaller ones would make the footer large.
SECTION_BYTES: Final = 1 * MIB
#: Sections of one part become one change again up to here; text of more than 2 GiB has no offsets.
JOINED_BYTES_MAX: Final = 256 * MIB
#: Bounds what is read before its CRC was seen.
META_BYTES_MAX: Final = 64 * 1024
FOOTER_BYTES_MAX: Final = 64 * MIB
#: Kinds of changes by version: the first one had what makes all.
_KINDS: Final = {1: ("set", "put", "add"), 2: ("set", "delete", "put", "evict", "add")}
#: Kinds whose rows are the task's, and no virtual node's.
_OF_TASK: Final = ("set", "evict")
#: Stands for the task itself among virtual nodes.
NODE_OF_TASK: Final = -1

_HEADER: Final = struct.Struct("<4sHHI")  # magic, version, zero, meta_bytes
#: footer_at, footer_bytes, footer_crc, crc of the 20 bytes before it, version, zero, magic.
_TRAILER: Final = struct.Struct("<QQIIHH4s")
_TRAILER_FIELDS: Final = struct.Struct("<QQI")
#: What reading fields out of bytes that are no checkpoint's may raise.
_UNREADABLE: Final = (pa.ArrowException, EOFError, ValueError, LookupError, TypeError)

#: Reads (position, bytes); fewer bytes only at the end.
ReadAt: TypeAlias = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """What a file is a checkpoint of."""

    task: str
    #: Holds what all markers of the task up to and with this one committed.
    marker_lsn: int
    instance: int
    #: Of the plan whose operators kept this.
    fingerprint: str
    #: Of tables and row sets, all sections together.
    rows: int = 0
    #: How many there were when rows were placed.
    virtual_nodes: int = VIRTUAL_NODES
    #: The marker whose state it goes on from; None: it is whole.
    base_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A line of the footer."""

    name: str
    kind: str
    #: Which of the footer's schemas.
    schema: int
    at: int
    bytes: int
    crc: int
    #: Virtual nodes in order, and the first row of each.
    nodes: list[int]
    starts: list[int]
    rows: int
    #: Places of the first and the last row; version 1 does not know them.
    places: tuple[int, int] = (0, 2**64 - 1)
    #: The earliest and the latest event time in microseconds, if rows have one.
    times_us: tuple[int, int] | None = None

    def is_ordered(self) -> bool:
        """Whether rows of each node can be cut out: Arrow itself would not notice a bad range."""
        ranges = [*self.starts, self.rows]
        one_each = len(self.nodes) == len(self.starts) and ranges[0] == 0
        return one_each and _ascends(self.nodes) and _ascends(ranges)


@dataclass(frozen=True, slots=True)
class _Filter:
    """A line of the footer: where the filter of a part and kind lies (key_filter.py)."""

    name: str
    kind: str
    at: int
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Footer:
    version: int
    header_bytes: int
    header_crc: int
    schemas: list[pa.Schema]
    sections: list[Section]
    filters: list[_Filter]
    #: Empty in version 1.
    parts: dict[str, Part]
    #: Of tables and row sets; version 1 says it in the header.
    rows: int


def _ascends(numbers: Sequence[int]) -> bool:
    return all(number < following for number, following in pairwise(numbers))


# -- writing


def encode_checkpoint(
    meta: CheckpointMeta, parts: Parts, changes: Iterable[Change]
) -> Iterator[bytes]:
    """The file in pieces, one after the other; the CRC of the last one is its seal.

    Changes are those of MemoryState.freeze, or merged ones (fold.py). Sorts their rows if they are
    not: to be done in a thread.
    """
    header = _encode_header(meta)
    yield header
    writer = _Writer(parts, len(header))
    for change in changes:
        yield from writer.write(change)
    yield from writer.write_filters()
    footer = writer.encode_footer(header, meta)
    assert len(footer) <= FOOTER_BYTES_MAX, f"{len(footer)} bytes of footer"
    yield footer + _encode_trailer(writer.offset, footer)


class _Writer:
    """What was written so far."""

    def __init__(self, parts: Parts, offset: int) -> None:
        self._parts = parts
        self.offset = offset
        self._rows = 0
        self._schemas: list[pa.Schema] = []
        self._sections: list[dict[str, Any]] = []
        self._filters: list[dict[str, Any]] = []
        #: By part and kind.
        self._places: dict[tuple[str, str], list[Hashes]] = {}

    def write(self, change: Change) -> Iterator[bytes]:
        """Sections of its rows."""
        assert change.kind in _KINDS[VERSION], f"{change.kind} in a checkpoint"
        schema = change.rows.schema.remove_metadata()
        if schema not in self._schemas:
            self._schemas.append(schema)
        for nodes, starts, places, piece in _cut(change, self._parts):
            data = encode_trusted(piece)
            is_task = change.kind in _OF_TASK
            section = Section(
                change.name,
                change.kind,
                self._schemas.index(schema),
                self.offset,
                len(data),
                crc32c(data),
                nodes,
                starts,
                piece.num_rows,
                (0, 0) if is_task else (int(places[0]), int(places[-1])),
                None if is_task else _times_us(self._parts[change.name], piece, change.kind),
            )
            assert section.is_ordered(), f"{change.name}: nodes {nodes} at {starts}"
            self._sections.append(asdict(section))
            self.offset += len(data)
            if not is_task:
                self._rows += piece.num_rows
                self._places.setdefault((change.name, change.kind), []).append(places)
            yield data

    def write_filters(self) -> Iterator[bytes]:
        """After all sections."""
        for (name, kind), places in self._places.items():
            data = make_filter(np.concatenate(places))
            line = _Filter(name, kind, self.offset, len(data), crc32c(data))
            self._filters.append(asdict(line))
            self.offset += len(data)
            yield data

    def encode_footer(self, header: bytes, meta: CheckpointMeta) -> bytes:
        """What is known only now, and how to find it all."""
        texts = [base64.b64encode(schema.serialize()).decode() for schema in self._schemas]
        return json.dumps(
            {
                "header_bytes": len(header),
                "header_crc": crc32c(header),
                "rows": self._rows,
                "parts": encode_parts(self._parts),
                "schemas": texts,
                "sections": self._sections,
                "filters": self._filters,
            },
            separators=(",", ":"),
        ).encode()


def _encode_header(meta: CheckpointMeta) -> bytes:
    fields = {name: value for name, value in asdict(meta).items() if name != "rows"}
    text = json.dumps({**fields, "virtual_nodes": VIRTUAL_NODES}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _HEADER.size) % 8)  # sections start at a multiple of 8
    assert len(text) <= META_BYTES_MAX, f"{len(text)} bytes of meta"
    return _HEADER.pack(MAGIC, VERSION, 0, len(text)) + text


def _encode_trailer(footer_at: int, footer: bytes) -> bytes:
    fields = _TRAILER_FIELDS.pack(footer_at, len(footer), crc32c(footer))
    return fields + struct.pack("<IHH4s", crc32c(fields), VERSION, 0, TRAILER_MAGIC)


def _cut(
    change: Change, parts: Parts
) -> Iterator[tuple[list[int], list[int], Hashes, pa.RecordBatch]]:
    """Rows in order of their places, in pieces: (nodes, first row of each, places, rows)."""
    rows = change.rows.replace_schema_metadata(None)
    if change.kind in _OF_TASK:
        yield [NODE_OF_TASK], [0], np.zeros(rows.num_rows, np.uint64), rows
        return
    places = places_of(parts[change.name], rows)
    if (places[1:] < places[:-1]).any():
        order = places.argsort(kind="stable")
        rows, places = rows.take(words_column(order)), places[order]
    total = pa.ipc.get_record_batch_size(rows)
    step = max(1, rows.num_rows * SECTION_BYTES // max(total, 1))
    for start in range(0, rows.num_rows, step):
        own = places[start : start + step]
        nodes, first = np.unique(nodes_of(own), return_index=True)
        yield nodes.tolist(), first.tolist(), own, rows.slice(start, step)


def _times_us(part: Part, rows: pa.RecordBatch, kind: str) -> tuple[int, int] | None:
    if part.event_time is None or kind != "add":
        return None
    times = event_times_us(rows.column(part.event_time))
    return int(times.min()), int(times.max())


# -- reading


def seal_of(tail: bytes) -> int:
    """The CRC that stands for a whole file: of its footer and trailer, as they were written."""
    return crc32c(tail)


def read_checkpoint(
    read_at: ReadAt, size: int, *, seal: int | None = None, nodes: Collection[int] | None = None
) -> tuple[CheckpointMeta, list[Change]]:
    """What the file says, with all rows or those of some virtual nodes and of the task itself.

    Raises ChecksumMismatch or BadFormat for anything but a whole file, and for one with another
    seal if it is given.
    """
    checkpoint = open_checkpoint(read_at, size, seal=seal)
    return checkpoint.meta, checkpoint.read(nodes)


def open_checkpoint(read_at: ReadAt, size: int, *, seal: int | None = None) -> Checkpoint:
    """What the file says of itself; its sections are looked at when they are asked for."""
    try:
        footer = _read_footer(read_at, size, seal)
        return Checkpoint(_read_header(read_at, footer), read_at, footer)
    except _UNREADABLE as error:
        raise BadFormat(f"not a checkpoint: {error}") from error


class Checkpoint:
    """A file whose footer was read; what it says may be relied on."""

    def __init__(self, meta: CheckpointMeta, read_at: ReadAt, footer: _Footer) -> None:
        self.meta = meta
        self._read_at = read_at
        self._footer = footer

    @property
    def parts(self) -> dict[str, Part]:
        """What the parts say of themselves; version 1 said nothing."""
        return self._footer.parts

    def read(
        self, nodes: Collection[int] | None = None, without: Collection[str] = ()
    ) -> list[Change]:
        """All changes in order, or those of some virtual nodes and of the task itself.

        `without`: parts that are left out.
        """
        if nodes is not None and self.meta.virtual_nodes != VIRTUAL_NODES:
            count = self.meta.virtual_nodes
            raise BadFormat(f"{count} virtual nodes, here are {VIRTUAL_NODES}")
        try:
            return list(_join(_read_sections(self._read_at, self._footer, nodes, without)))
        except _UNREADABLE as error:
            raise BadFormat(f"not a checkpoint: {error}") from error

    def sections(self, name: str) -> list[Section]:
        """Those of a part, in order."""
        return [section for section in self._footer.sections if section.name == name]

    def rows(self, section: Section) -> pa.RecordBatch:
        """What it holds."""
        try:
            return _read_rows(self._read_at, section, self._footer)
        except _UNREADABLE as error:
            raise BadFormat(f"not a checkpoint: {error}") from error

    def find(self, name: str, part: Part, places: Hashes) -> list[Change]:
        """Of one part, the rows at these places, and what strikes rows: not much more is read."""
        try:
            return list(self._find(name, part, np.unique(places)))
        except _UNREADABLE as error:
            raise BadFormat(f"not a checkpoint: {error}") from error

    def _find(self, name: str, part: Part, places: Hashes) -> Iterator[Change]:
        wanted: dict[str, Hashes] = {}
        for line in self._footer.filters:
            if line.name == name:
                data = _read_checked(self._read_at, line.at, line.bytes, line.crc, "a filter")
                wanted[line.kind] = places[may_have(data, places)]
        for section in self._footer.sections:
            if section.name != name:
                continue
            if section.kind not in _OF_TASK:
                first, last = section.places
                own = wanted.get(section.kind, places)
                if not ((own >= np.uint64(first)) & (own <= np.uint64(last))).any():
                    continue
            rows = _read_rows(self._read_at, section, self._footer)
            if section.kind not in _OF_TASK:
                found = np.isin(places_of(part, rows), places)
                rows = rows.filter(pa.array(found))
            if rows.num_rows:
                yield Change(section.name, section.kind, rows)

    def check(self) -> None:
        """Raise Damaged unless all bytes are as they were written."""
        for section in self._footer.sections:
            _read_rows(self._read_at, section, self._footer)
        for line in self._footer.filters:
            _read_checked(self._read_at, line.at, line.bytes, line.crc, "a filter")

    def sizes(self) -> list[tuple[str, str, dict[int, int], int]]:
        """Of each section: part, kind, how many rows each virtual node has, and bytes."""
        found = []
        for section in self._footer.sections:
            ends = [*section.starts[1:], section.rows]
            rows = [end - start for start, end in zip(section.starts, ends, strict=True)]
            counted = dict(zip(section.nodes, rows, strict=True))
            found.append((section.name, section.kind, counted, section.bytes))
        return found


def _read_exactly(read_at: ReadAt, start: int, count: int) -> bytes:
    data = read_at(start, count)
    if len(data) != count:
        raise BadFormat(f"the file ends at byte {start + len(data)}, expected {start + count}")
    return data


def _read_checked(read_at: ReadAt, start: int, count: int, crc: int, what: str) -> bytes:
    data = _read_exactly(read_at, start, count)
    if crc32c(data) != crc:
        raise ChecksumMismatch(what)
    return data


def _read_footer(read_at: ReadAt, size: int, seal: int | None) -> _Footer:
    if size < _HEADER.size + _TRAILER.size:
        raise BadFormat(f"a checkpoint of {size} bytes is cut off")
    trailer = _read_exactly(read_at, size - _TRAILER.size, _TRAILER.size)
    footer_at, count, crc, own_crc, version, zero, magic = _TRAILER.unpack(trailer)
    if magic != TRAILER_MAGIC or zero:
        raise BadFormat("the file does not end as a checkpoint does: it is cut off, or another")
    if version not in _VERSIONS:
        raise BadFormat(f"a checkpoint of version {version}, this program reads up to {VERSION}")
    if crc32c(trailer[: _TRAILER_FIELDS.size]) != own_crc:
        raise ChecksumMismatch("the trailer of a checkpoint")
    if footer_at + count + _TRAILER.size != size or count > FOOTER_BYTES_MAX:
        raise BadFormat(f"a footer of {count} bytes at {footer_at} in a file of {size}")
    footer = _read_exactly(read_at, footer_at, count)
    if crc32c(footer) != crc:
        raise ChecksumMismatch("the footer of a checkpoint")
    if seal is not None and seal_of(footer + trailer) != seal:
        raise ChecksumMismatch("another checkpoint than the one that was meant")
    return _decode_footer(footer, footer_at=footer_at, version=version)


def _decode_footer(data: bytes, *, footer_at: int, version: int) -> _Footer:
    footer = json.loads(data)
    sections = [Section(**line) for line in footer["sections"]]
    filters = [_Filter(**line) for line in footer.get("filters", ())]
    parts = decode_parts(footer.get("parts", ()))
    schemas = [
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        for text in footer["schemas"]
    ]
    end = footer["header_bytes"]
    for section in sections:  # nothing lies between them that no CRC covers
        if section.at != end or section.bytes < 0 or section.kind not in _KINDS[version]:
            raise BadFormat(f"a section {section.name} at {section.at}, expected {end}")
        if not section.is_ordered():
            raise BadFormat(f"the virtual nodes of section {section.name} are out of order")
        end += section.bytes
    for line in filters:
        if line.at != end or line.bytes < 0:
            raise BadFormat(f"a filter of {line.name} at {line.at}, expected {end}")
        end += line.bytes
    if end != footer_at:
        raise BadFormat(f"sections end at {end}, the footer is at {footer_at}")
    header = footer["header_bytes"], footer["header_crc"]
    return _Footer(version, *header, schemas, sections, filters, parts, int(footer.get("rows", 0)))


def _read_header(read_at: ReadAt, footer: _Footer) -> CheckpointMeta:
    if not _HEADER.size <= footer.header_bytes <= _HEADER.size + META_BYTES_MAX:
        raise BadFormat(f"a header of {footer.header_bytes} bytes")
    size, crc = footer.header_bytes, footer.header_crc
    header = _read_checked(read_at, 0, size, crc, "the header of a checkpoint")
    magic, version, zero, count = _HEADER.unpack_from(header)
    if magic != MAGIC or version != footer.version or zero or count != len(header) - _HEADER.size:
        raise BadFormat(f"not the header of a checkpoint of version {footer.version}")
    return CheckpointMeta(**{"rows": footer.rows, **json.loads(header[_HEADER.size :])})


def _read_sections(
    read_at: ReadAt,
    footer: _Footer,
    nodes: Collection[int] | None,
    without: Collection[str] = (),
) -> Iterator[Change]:
    for section in footer.sections:
        if section.name in without:
            continue
        wanted = nodes is None or [n for n in section.nodes if n == NODE_OF_TASK or n in nodes]
        if not wanted:
            continue
        rows = _read_rows(read_at, section, footer)
        if nodes is None:
            yield Change(section.name, section.kind, rows)
            continue
        ends = [*section.starts[1:], section.rows]
        for node, start, end in zip(section.nodes, section.starts, ends, strict=True):
            if node == NODE_OF_TASK or node in nodes:
                yield Change(section.name, section.kind, rows.slice(start, end - start))


def _read_rows(read_at: ReadAt, section: Section, footer: _Footer) -> pa.RecordBatch:
    what = f"section {section.name} of a checkpoint, byte {section.at}"
    data = _read_checked(read_at, section.at, section.bytes, section.crc, what)
    rows = decode_own(data, footer.schemas[section.schema])
    if rows.num_rows != section.rows:
        raise BadFormat(f"{rows.num_rows} rows in a section of {section.rows}")
    return rows


def _join(changes: Iterator[Change]) -> Iterator[Change]:
    """Neighbours of one part together: a store takes many rows at once far faster."""
    held: list[Change] = []
    held_bytes = 0
    for change in changes:
        size = change.rows.nbytes
        if held and (not _fits(held[0], change) or held_bytes + size > JOINED_BYTES_MAX):
            yield _concat(held)
            held, held_bytes = [], 0
        held.append(change)
        held_bytes += size
    if held:
        yield _concat(held)


def _fits(change: Change, other: Change) -> bool:
    same = change.name == other.name and change.kind == other.kind
    return same and change.rows.schema == other.rows.schema and change.rows.num_columns > 0


def _concat(changes: list[Change]) -> Change:
    if len(changes) == 1:
        return changes[0]
    rows = pa.concat_batches([change.rows for change in changes])
    return Change(changes[0].name, changes[0].kind, rows)
