"""A manifest that was tampered with or garbled is refused whole, never read as something else."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from penstock.errors import BadFormat
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import (
    Ensemble,
    LogManifest,
    Segment,
    decode_log_manifest,
    encode_log_manifest,
)

NODES = (NodeId("a:1"), NodeId("b:1"))
SEGMENT = Segment(SegmentId(0), Epoch(1), Lsn(5), (Ensemble(BlockId(0), NODES),), 2, 1)
SAMPLE = LogManifest(bytes(16), Epoch(1), "p", Lsn(0), SegmentId(0), (SEGMENT,))
DATA = encode_log_manifest(SAMPLE)
TEXT = zlib.decompress(DATA)


def changed(*, segment: object = None, ensemble: object = None, **fields: object) -> bytes:
    """The sample with some fields replaced, at the top or further in."""
    found: dict[str, Any] = json.loads(TEXT) | fields
    if isinstance(segment, dict):
        found["segments"][0] |= segment
    if isinstance(ensemble, dict):
        found["segments"][0]["ensembles"][0] |= ensemble
    return zlib.compress(json.dumps(found).encode())


def test_the_sample_itself_is_read() -> None:
    assert decode_log_manifest(changed()) == SAMPLE


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"segments":['])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(zlib.compress(opening * 200_000))


@pytest.mark.parametrize("tail", [b"x", DATA, bytes(64)])
def test_what_follows_is_noticed(tail: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(DATA + tail)


@pytest.mark.parametrize("value", ["", {}, "ab", None, False, 0])
def test_nothing_but_a_list_is_a_list_of_segments(value: object) -> None:
    """R40: an empty text or object must not be read as a log without segments."""
    with pytest.raises(BadFormat):
        decode_log_manifest(changed(segments=value))


def test_a_field_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(BadFormat, match="twice"):
        decode_log_manifest(zlib.compress(TEXT[:-1] + b',"segments":[]}'))


@pytest.mark.parametrize("value", ["9", -1, 1.5, True, None, [], float("nan"), 2**63])
@pytest.mark.parametrize("name", ["epoch", "trim_point", "first_segment"])
def test_numbers_are_whole_and_not_negative(name: str, value: object) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(changed(**{name: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"sealed": "no"},
        {"sealed": 0},
        {"cold": None},
        {"blocks": -1},
        {"base_lsn": 5.0},
        {"write_quorum": 3},
        {"write_quorum": 0},
        {"ack_quorum": 0},
        {"ack_quorum": 3},
        {"sealed": True, "end_lsn": 4},
        {"ensembles": {}},
        {"ensembles": ""},
        {"other": 1},
    ],
    ids=str,
)
def test_a_segment_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(changed(segment=change))


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": "ab"},
        {"nodes": []},
        {"nodes": [1, 2]},
        {"nodes": ["a:1", "a:1", "b:1"]},
        {"first_block": "0"},
        {"first_block": False},
        {"other": 1},
    ],
    ids=str,
)
def test_an_ensemble_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(changed(ensemble=change))


@pytest.mark.parametrize("change", [{"log_id": ""}, {"log_id": "00"}, {"owner": 3}], ids=str)
def test_id_and_owner_have_their_shapes(change: dict[str, object]) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(changed(**change))
