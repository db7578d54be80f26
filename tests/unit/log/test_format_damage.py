"""Law I17: damaged bytes are never returned, whichever bit was flipped, wherever they were cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from damage import cuts, flips
from node_blocks import make_block
from sample_groups import LOG_MARK, claim, group, header_of

from penstock.errors import Damaged
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.block_format import check_block
from penstock.log.core.state import LogState, decode_snapshot, encode_snapshot
from penstock.log.core.tag_index import OpenIndex, SealedIndex
from penstock.log.group_format import decode_body
from penstock.log.record_format import decode_header, encode_header
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.log.storage.manifest import Manifest, SegmentInfo, decode_manifest, encode_manifest
from penstock.state.api import Change
from penstock.state.changelog import decode_changes, encode_changes

BODY = group(
    entries=[NewEntry(b"payload", ("a", "é")), NewEntry(b"", ("b",), Kind.MARKER, 9)],
    sets=[SetKey("ключ", b"v"), SetKey("empty", b"")],
)
CLOSED = SegmentInfo(SegmentId(0), Epoch(1), Lsn(0), Lsn(10), 500, 1, 9, sealed=True, cold=True)
OPEN = replace(CLOSED, id=SegmentId(4), base_lsn=Lsn(10), sealed=False, cold=False)


def manifest() -> bytes:
    return encode_manifest(Manifest(bytes(range(16)), 7, Epoch(2), Lsn(3), 4096, (CLOSED, OPEN)))


def snapshot() -> bytes:
    state = LogState()
    for body in (claim(), BODY):
        state.apply(body, first_lsn=state.next_lsn, time_ms=1000)
    return encode_snapshot(state, log_mark=LOG_MARK)


def index() -> bytes:
    made = OpenIndex(100)
    for lsn, body in ((100, claim()), (101, BODY)):
        made.add(body, first_lsn=lsn, time_ms=1000, start=64 + lsn, end=65 + lsn)
    return made.encode(log_mark=LOG_MARK, segment=7, end_lsn=104)


def changes() -> bytes:
    rows = pa.record_batch({"k": np.arange(20), "s": pa.array(["x"] * 20)})
    [payload] = encode_changes([Change("op/t", "put", rows), Change("v", "set", rows.slice(0, 1))])
    return payload


FORMATS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "block": (make_block(9), check_block),
    "group": (bytes(BODY.data), lambda data: list(decode_body(data).entries(0, 0))),
    "record header": (encode_header(header_of(BODY, 5)), decode_header),
    "manifest": (manifest(), decode_manifest),
    "snapshot": (snapshot(), lambda data: decode_snapshot(data, log_mark=LOG_MARK)),
    "index": (index(), lambda data: SealedIndex(data, log_mark=LOG_MARK, segment=7)),
    "changes": (changes(), decode_changes),
}
#: Others stand behind them.
PREFIXES = ("block", "record header")


@pytest.mark.parametrize("name", FORMATS)
def test_every_flipped_bit_and_every_cut_is_noticed(name: str) -> None:
    data, decode = FORMATS[name]
    decode(data)

    for damaged in (*flips(data), *cuts(data)):
        if name in PREFIXES and damaged.startswith(data):
            continue
        with pytest.raises(Damaged):
            decode(damaged)
