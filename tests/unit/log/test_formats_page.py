"""docs/formats.md shows real bytes."""

from __future__ import annotations

from pathlib import Path

from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.group_format import CLAIM, decode_body, encode_body
from penstock.log.record_format import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_record,
    encode_header,
)
from penstock.log.records import Kind, NewEntry

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def example_record() -> bytes:
    data = encode_body(
        producer="p",
        instance=1,
        first_seq=0,
        entries=[NewEntry(bytes(range(8)), (), Kind.CONTROL)],
        flags=CLAIM,
    )
    header = RecordHeader(
        RECORD_HEADER_BYTES + len(data),
        decode_body(data).table_crc,
        Lsn(0),
        Epoch(1),
        SegmentId(0),
        1000,
        Lsn(0),
        7,
    )
    return encode_header(header) + data


def hex_lines(data: bytes) -> str:
    return "\n".join(data[at : at + 16].hex(" ") for at in range(0, len(data), 16))


def test_the_example_on_the_formats_page_is_what_the_code_writes() -> None:
    record = example_record()

    assert hex_lines(record) in PAGE.read_text()
    assert decode_record(record)[1].producer == "p"
