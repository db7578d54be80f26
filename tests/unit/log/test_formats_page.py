"""docs/formats.md shows real bytes."""

from __future__ import annotations

from pathlib import Path

from sample_groups import claim, header_of

from penstock.ids import Epoch
from penstock.log.record_format import decode_record, encode_header

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def example_record() -> bytes:
    body = claim(nonce=int.from_bytes(bytes(range(8)), "little"))
    header = header_of(body, 0)._replace(epoch=Epoch(1), log_mark=7)
    return encode_header(header) + bytes(body.data)


def hex_lines(data: bytes) -> str:
    return "\n".join(data[at : at + 16].hex(" ") for at in range(0, len(data), 16))


def test_the_example_on_the_formats_page_is_what_the_code_writes() -> None:
    record = example_record()

    assert hex_lines(record) in PAGE.read_text()
    assert decode_record(record)[1].producer == "p"
