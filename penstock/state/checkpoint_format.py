"""The bytes of a checkpoint: the rows of a task's state, found again by virtual node.

    header    magic, what this is a checkpoint of
    sections  rows of one part each, ordered by virtual node, and no more than about SECTION_BYTES
    footer    where each section lies, its CRC, which rows of which virtual nodes it holds; the
              header's CRC
    trailer   where the footer lies, its CRC, magic

A file is written from front to back and never changed. Sections are small, so that the rows of one
virtual node are read without most of the others. The layout is in docs/formats.md.

Law: read_checkpoint of what encode_checkpoint gave does what the changes do. Every byte is under a
CRC, and the seal (the CRC of footer and trailer) stands for all of them: no other bytes, be it a
part of a file or a mixture of two, are ever taken for it; they raise `Damaged`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.limits import MIB
from penstock.state.api import Change
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.stream.batches import decode_own, encode_trusted

VERSION: Final = 1
MAGIC: Final = b"PCK1"
TRAILER_MAGIC: Final = b"PCKE"
#: A virtual node's share of a large state; smaller ones would make the footer large.
SECTION_BYTES: Final = 1 * MIB
#: Sections of one part become one change again up to here; text of more than 2 GiB has no offsets.
JOINED_BYTES_MAX: Final = 256 * MIB
#: Bounds what is read before its CRC was seen.
META_BYTES_MAX: Final = 64 * 1024
FOOTER_BYTES_MAX: Final = 64 * MIB
#: Kinds of changes that a checkpoint holds: what makes all, in any order.
KINDS: Final = ("set", "put", "add")
#: Stands for the task itself among virtual nodes.
NODE_OF_TASK: Final = -1

_HEADER: Final = struct.Struct("<4sHHI")  # magic, version, zero, meta_bytes
#: footer_at, footer_bytes, footer_crc, crc of the 20 bytes before it, version, zero, magic.
_TRAILER: Final = struct.Struct("<QQIIHH4s")
_TRAILER_FIELDS: Final = struct.Struct("<QQI")
#: In the metadata of a schema: the columns that place a row, as numbers with commas between.
_PARTITION: Final = b"partition"

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


@dataclass(frozen=True, slots=True)
class _Section:
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

    def is_ordered(self) -> bool:
        """Whether rows of each node can be cut out: Arrow itself would not notice a bad range."""
        ranges = [*self.starts, self.rows]
        one_each = len(self.nodes) == len(self.starts) and ranges[0] == 0
        return one_each and _ascends(self.nodes) and _ascends(ranges)


@dataclass(frozen=True, slots=True)
class _Footer:
    header_bytes: int
    header_crc: int
    schemas: list[pa.Schema]
    sections: list[_Section]


def _ascends(numbers: list[int]) -> bool:
    return all(number < following for number, following in pairwise(numbers))


def mark_partition(change: Change, partition: Sequence[int]) -> Change:
    """The change, saying which of its columns place a row."""
    text = ",".join(map(str, partition))
    return Change(change.name, change.kind, change.rows.replace_schema_metadata({_PARTITION: text}))


# -- writing


def encode_checkpoint(meta: CheckpointMeta, changes: Sequence[Change]) -> Iterator[bytes]:
    """The file in pieces, one after the other; the CRC of the last one is its seal.

    Changes are those of MemoryState.freeze. Sorts them by virtual node: to be done in a thread.
    """
    rows = sum(change.rows.num_rows for change in changes if change.kind != "set")
    header = _encode_header(replace(meta, rows=rows, virtual_nodes=VIRTUAL_NODES))
    yield header
    offset = len(header)
    schemas: list[pa.Schema] = []
    sections: list[dict[str, Any]] = []
    for change in changes:
        assert change.kind in KINDS, f"{change.kind} in a checkpoint"
        schema = change.rows.schema.remove_metadata()
        if schema not in schemas:
            schemas.append(schema)
        for nodes, starts, piece in _cut(change):
            data = encode_trusted(piece)
            section = _Section(
                change.name,
                change.kind,
                schemas.index(schema),
                offset,
                len(data),
                crc32c(data),
                nodes,
                starts,
                piece.num_rows,
            )
            assert section.is_ordered(), f"{change.name}: nodes {nodes} at {starts}"
            sections.append(asdict(section))
            offset += len(data)
            yield data
    texts = [base64.b64encode(schema.serialize()).decode() for schema in schemas]
    footer = json.dumps(
        {
            "header_bytes": len(header),
            "header_crc": crc32c(header),
            "schemas": texts,
            "sections": sections,
        },
        separators=(",", ":"),
    ).encode()
    assert len(footer) <= FOOTER_BYTES_MAX, f"{len(footer)} bytes of footer"
    yield footer + _encode_trailer(offset, footer)


def _encode_header(meta: CheckpointMeta) -> bytes:
    text = json.dumps(asdict(meta), separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _HEADER.size) % 8)  # sections start at a multiple of 8
    assert len(text) <= META_BYTES_MAX, f"{len(text)} bytes of meta"
    return _HEADER.pack(MAGIC, VERSION, 0, len(text)) + text


def _encode_trailer(footer_at: int, footer: bytes) -> bytes:
    fields = _TRAILER_FIELDS.pack(footer_at, len(footer), crc32c(footer))
    return fields + struct.pack("<IHH4s", crc32c(fields), VERSION, 0, TRAILER_MAGIC)


def _cut(change: Change) -> Iterator[tuple[list[int], list[int], pa.RecordBatch]]:
    """Rows in order of their virtual nodes, in pieces: (nodes, first row of each, rows)."""
    rows, nodes = _place(change)
    total = pa.ipc.get_record_batch_size(rows)
    step = max(1, rows.num_rows * SECTION_BYTES // max(total, 1))
    for start in range(0, rows.num_rows, step):
        piece = rows.slice(start, step)
        own, first = np.unique(nodes[start : start + step], return_index=True)
        yield own.tolist(), first.tolist(), piece


def _place(change: Change) -> tuple[pa.RecordBatch, Any]:
    rows = change.rows.replace_schema_metadata(None)
    if change.kind == "set":
        return rows, np.full(rows.num_rows, NODE_OF_TASK)
    text = (change.rows.schema.metadata or {}).get(_PARTITION)
    assert text is not None, f"{change.name} does not say what places its rows"
    places = [int(place) for place in text.decode().split(",") if place]
    hashes = hash_columns([rows.column(place) for place in places], rows.num_rows)
    nodes = virtual_nodes(hashes).astype(np.int16)  # which NumPy sorts in linear time
    order = np.argsort(nodes, kind="stable")
    # Without columns there is nothing to order, and `take` would forget how many rows there are.
    return rows.take(pa.array(order)) if rows.num_columns else rows, nodes[order]


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
    try:
        footer = _read_footer(read_at, size, seal)
        meta = _read_header(read_at, footer)
        if nodes is not None and meta.virtual_nodes != VIRTUAL_NODES:
            raise BadFormat(f"{meta.virtual_nodes} virtual nodes, here are {VIRTUAL_NODES}")
        return meta, list(_join(_read_sections(read_at, footer, nodes)))
    except _UNREADABLE as error:
        raise BadFormat(f"not a checkpoint: {error}") from error


def read_meta(read_at: ReadAt, size: int, *, seal: int | None = None) -> CheckpointMeta:
    """What the file is a checkpoint of; its sections are not looked at."""
    try:
        return _read_header(read_at, _read_footer(read_at, size, seal))
    except _UNREADABLE as error:
        raise BadFormat(f"not a checkpoint: {error}") from error


def _read_exactly(read_at: ReadAt, start: int, count: int) -> bytes:
    data = read_at(start, count)
    if len(data) != count:
        raise BadFormat(f"the file ends at byte {start + len(data)}, expected {start + count}")
    return data


def _read_footer(read_at: ReadAt, size: int, seal: int | None) -> _Footer:
    if size < _HEADER.size + _TRAILER.size:
        raise BadFormat(f"a checkpoint of {size} bytes is cut off")
    trailer = _read_exactly(read_at, size - _TRAILER.size, _TRAILER.size)
    footer_at, count, crc, own_crc, version, zero, magic = _TRAILER.unpack(trailer)
    if magic != TRAILER_MAGIC or zero:
        raise BadFormat("the file does not end as a checkpoint does: it is cut off, or another")
    if version != VERSION:
        raise BadFormat(f"a checkpoint of version {version}, this is {VERSION}")
    if crc32c(trailer[: _TRAILER_FIELDS.size]) != own_crc:
        raise ChecksumMismatch("the trailer of a checkpoint")
    if footer_at + count + _TRAILER.size != size or count > FOOTER_BYTES_MAX:
        raise BadFormat(f"a footer of {count} bytes at {footer_at} in a file of {size}")
    footer = _read_exactly(read_at, footer_at, count)
    if crc32c(footer) != crc:
        raise ChecksumMismatch("the footer of a checkpoint")
    if seal is not None and seal_of(footer + trailer) != seal:
        raise ChecksumMismatch("another checkpoint than the one that was meant")
    return _decode_footer(footer, footer_at=footer_at)


def _decode_footer(data: bytes, *, footer_at: int) -> _Footer:
    footer = json.loads(data)
    sections = [_Section(**line) for line in footer["sections"]]
    schemas = [
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        for text in footer["schemas"]
    ]
    end = footer["header_bytes"]
    for section in sections:  # nothing lies between them that no CRC covers
        if section.at != end or section.bytes < 0 or section.kind not in KINDS:
            raise BadFormat(f"a section {section.name} at {section.at}, expected {end}")
        if not section.is_ordered():
            raise BadFormat(f"the virtual nodes of section {section.name} are out of order")
        end += section.bytes
    if end != footer_at:
        raise BadFormat(f"sections end at {end}, the footer is at {footer_at}")
    return _Footer(footer["header_bytes"], footer["header_crc"], schemas, sections)


def _read_header(read_at: ReadAt, footer: _Footer) -> CheckpointMeta:
    if not _HEADER.size <= footer.header_bytes <= _HEADER.size + META_BYTES_MAX:
        raise BadFormat(f"a header of {footer.header_bytes} bytes")
    header = _read_exactly(read_at, 0, footer.header_bytes)
    if crc32c(header) != footer.header_crc:
        raise ChecksumMismatch("the header of a checkpoint")
    magic, version, zero, count = _HEADER.unpack_from(header)
    if magic != MAGIC or version != VERSION or zero or count != len(header) - _HEADER.size:
        raise BadFormat(f"not the header of a checkpoint of version {VERSION}")
    return CheckpointMeta(**json.loads(header[_HEADER.size :]))


def _read_sections(
    read_at: ReadAt, footer: _Footer, nodes: Collection[int] | None
) -> Iterator[Change]:
    for section in footer.sections:
        wanted = nodes is None or [n for n in section.nodes if n == NODE_OF_TASK or n in nodes]
        if not wanted:
            continue
        data = _read_exactly(read_at, section.at, section.bytes)
        if crc32c(data) != section.crc:
            raise ChecksumMismatch(f"section {section.name} of a checkpoint, byte {section.at}")
        rows = decode_own(data, footer.schemas[section.schema])
        if rows.num_rows != section.rows:
            raise BadFormat(f"{rows.num_rows} rows in a section of {section.rows}")
        if nodes is None:
            yield Change(section.name, section.kind, rows)
            continue
        ends = [*section.starts[1:], section.rows]
        for node, start, end in zip(section.nodes, section.starts, ends, strict=True):
            if node == NODE_OF_TASK or node in nodes:
                yield Change(section.name, section.kind, rows.slice(start, end - start))


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
