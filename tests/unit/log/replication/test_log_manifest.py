"""The manifest of a replicated log: its law, and what decoding makes of anything but one."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from damage import flips
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, BadRequest, Damaged
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.replication.manifest import (
    MANIFEST_BYTES_MAX,
    Ensemble,
    LogManifest,
    Segment,
    check_log_name,
    decode_log_manifest,
    encode_log_manifest,
)

NODES = tuple(NodeId(f"n{n}:c{n}") for n in range(5))
SEGMENTS = (
    Segment(
        SegmentId(2),
        Epoch(1),
        Lsn(5),
        (Ensemble(BlockId(0), NODES[:3]), Ensemble(BlockId(7), NODES[1:4])),
        3,
        2,
        first_ms=1,
        sealed=True,
        end_lsn=Lsn(20),
        blocks=9,
        bytes=5000,
        last_ms=8,
        index_blocks=1,
        cold=True,
    ),
    Segment(SegmentId(3), Epoch(2), Lsn(20), (Ensemble(BlockId(0), NODES[:4]),), 3, 2),
    Segment(SegmentId(5), Epoch(3), Lsn(0), (Ensemble(BlockId(0), NODES[2:]),), 3, 2),
)
SAMPLE = LogManifest(bytes(range(16)), Epoch(3), "proxy-1", Lsn(6), SegmentId(2), SEGMENTS)


#: One open segment on two nodes.
SMALL = replace(
    SAMPLE,
    first_segment=SegmentId(0),
    segments=(Segment(SegmentId(0), Epoch(1), Lsn(5), (Ensemble(BlockId(0), NODES[:2]),), 2, 1),),
)
DATA = encode_log_manifest(SMALL)
TEXT = zlib.decompress(DATA)


def packed(value: object) -> bytes:
    return zlib.compress(json.dumps(value).encode())


# ---- what is right


def test_a_manifest_comes_back_equal() -> None:
    for manifest in (SAMPLE, replace(SAMPLE, segments=()), replace(SAMPLE, segments=SEGMENTS[:1])):
        found = decode_log_manifest(encode_log_manifest(manifest))

        assert found == manifest
        assert hash(found) == hash(manifest)  # tuples all the way down


@st.composite
def manifests(draw: st.DrawFn) -> LogManifest:
    number = st.integers(0, 2**60)
    first = draw(st.integers(0, 9))
    id, lsn = first, draw(number)
    segments = []
    count = draw(st.integers(0, 5))
    sealed_count = draw(st.integers(0, count))
    for place in range(count):
        starts = sorted({0, *draw(st.lists(st.integers(0, 99), max_size=3))})
        end = lsn + draw(st.integers(0, 99))
        segments.append(
            Segment(
                SegmentId(id),
                Epoch(draw(number)),
                Lsn(lsn),
                tuple(Ensemble(BlockId(b), tuple(draw(st.permutations(NODES)))) for b in starts),
                draw(st.integers(2, 5)),
                draw(st.integers(1, 2)),
                first_ms=draw(number),
                sealed=place < sealed_count,
                end_lsn=Lsn(end),
                blocks=draw(number),
                bytes=draw(number),
                last_ms=draw(number),
                index_blocks=draw(number),
                cold=draw(st.booleans()),
            )
        )
        id, lsn = id + draw(st.integers(1, 3)), end
    owner = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    return LogManifest(
        draw(st.binary(min_size=16, max_size=16)),
        Epoch(draw(number)),
        owner,
        Lsn(draw(number)),
        SegmentId(first),
        tuple(segments),
    )


@given(manifests())
def test_any_lawful_manifest_comes_back_equal(manifest: LogManifest) -> None:
    assert decode_log_manifest(encode_log_manifest(manifest)) == manifest


def test_the_mark_of_a_log_is_the_start_of_its_id() -> None:
    assert SAMPLE.log_mark == 0x0706050403020100


def test_open_segments_and_single_ones_are_found() -> None:
    assert SAMPLE.open_segments == SEGMENTS[1:]
    assert SAMPLE.find(3) == SEGMENTS[1]
    assert SAMPLE.find(4) is None
    changed = replace(SEGMENTS[1], blocks=7)
    assert SAMPLE.with_segment(changed).segments == (SEGMENTS[0], changed, SEGMENTS[2])


def test_each_block_has_the_newest_ensemble_at_or_below_it() -> None:
    first, second = SEGMENTS[0].ensembles

    assert [SEGMENTS[0].ensemble_of(b) for b in (0, 6)] == [first, first]
    assert [SEGMENTS[0].ensemble_of(b) for b in (7, 8, 10**9)] == [second] * 3


# ---- the law


def unlawful() -> dict[str, LogManifest]:
    sealed, open_one, last = SEGMENTS

    def of(*segments: Segment) -> LogManifest:
        return replace(SAMPLE, segments=segments)

    def on(*starts: int) -> LogManifest:
        return of(replace(sealed, ensembles=tuple(Ensemble(BlockId(b), NODES[:3]) for b in starts)))

    return {
        "order": of(open_one, sealed),
        "same id": of(sealed, replace(open_one, id=sealed.id)),
        "gap": of(sealed, replace(open_one, base_lsn=Lsn(21))),
        "overlap": of(sealed, replace(open_one, base_lsn=Lsn(19))),
        "sealed after open": of(replace(sealed, sealed=False), replace(open_one, sealed=True)),
        "no ensemble": on(),
        "ensembles do not start at 0": on(1, 4),
        "ensembles out of order": on(0, 9, 4),
        "ensembles twice": on(0, 4, 4),
        "given up": replace(SAMPLE, first_segment=SegmentId(3)),
        "three open ones out of order": of(open_one, last, open_one),
    }


@pytest.mark.parametrize("name", unlawful())
def test_what_breaks_the_law_is_neither_written_nor_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = unlawful()[name]

    with pytest.raises(BadFormat):
        encode_log_manifest(manifest)
    with monkeypatch.context() as careless:
        careless.setattr(LogManifest, "check", lambda self: None)
        data = encode_log_manifest(manifest)
    with pytest.raises(BadFormat):
        decode_log_manifest(data)


def test_a_manifest_beyond_the_limit_of_the_metadata_is_refused() -> None:
    """Cookies that cannot be compressed: about 25,000 segments are too many."""
    many = tuple(
        Segment(
            SegmentId(n),
            Epoch(1),
            Lsn(n),
            (Ensemble(BlockId(0), tuple(NodeId(f"{n * 7919 % 104729}:{k}") for k in range(3))),),
            3,
            2,
            sealed=True,
            end_lsn=Lsn(n + 1),
            first_ms=n * 15485863 % 2**60,
            bytes=n * n * 32452843 % 2**60,
            last_ms=n**3 * 49979687 % 2**60,
        )
        for n in range(25_000)
    )

    with pytest.raises(BadRequest, match="25000 segments"):
        encode_log_manifest(replace(SAMPLE, first_segment=SegmentId(0), segments=many))


# ---- what is hostile or damaged


def test_no_flipped_bit_changes_anything_and_every_cut_is_noticed() -> None:
    data = encode_log_manifest(SAMPLE)
    unnoticed = []

    for at, damaged in enumerate(flips(data)):
        try:
            found = decode_log_manifest(damaged)
        except Damaged:
            continue
        assert found == SAMPLE, at
        unnoticed.append(at // 8)
    # Deflate ends within a byte, before the checksum; its unused bits mean nothing.
    assert set(unnoticed) <= {len(data) - 5}
    for size in range(len(data)):
        with pytest.raises(Damaged):
            decode_log_manifest(data[:size])


@given(st.binary(max_size=200))
def test_no_bytes_at_all_bring_anything_but_bad_format(data: bytes) -> None:
    for found in (data, zlib.compress(data)):
        with pytest.raises(BadFormat):
            decode_log_manifest(found)


def test_a_bomb_is_not_unpacked() -> None:
    """A few kilobytes that would be a hundred megabytes."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(b" " * 1_000_000) for _ in range(100)) + packer.flush()
    assert len(data) < MANIFEST_BYTES_MAX

    with pytest.raises(BadFormat, match="too large"):
        decode_log_manifest(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*json.loads(TEXT), "nodes", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_other_json_brings_bad_format(value: object) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(packed(value))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"segments":['])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(zlib.compress(opening * 200_000))


@pytest.mark.parametrize("tail", [b"x", DATA, bytes(64)])
def test_what_follows_is_noticed(tail: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_log_manifest(DATA + tail)


def test_a_field_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(BadFormat, match="twice"):
        decode_log_manifest(zlib.compress(TEXT[:-1] + b',"segments":[]}'))


Path = tuple[str | int, ...]
#: Into the document: to the manifest itself, a segment, an ensemble.
MANIFEST, SEGMENT, ENSEMBLE = (), ("segments", 0), ("segments", 0, "ensembles", 0)


def inside(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((MANIFEST, name) for name in json.loads(TEXT)),
        *((SEGMENT, name) for name in ("id", "epoch", "base_lsn", "ensembles", "write_quorum")),
    ],
)
def test_a_missing_field_is_noticed(path: Path, name: str) -> None:
    found = json.loads(TEXT)
    del inside(found, path)[name]

    with pytest.raises(BadFormat):
        decode_log_manifest(packed(found))


#: R40: an empty text or object must not be read as a log without segments.
NO_SEGMENTS = (None, False, 0, 3, "", "ab", {}, ["x"], [None], [[]], [{}])
NO_NUMBERS = ("0", "9", -1, 1.5, True, None, [], float("nan"), 2**63)
WRONG = {
    MANIFEST: [
        {"unknown": 1},
        {"owner": 3},
        *({"segments": value} for value in NO_SEGMENTS),
        *({"log_id": value} for value in (None, 7, "not hex", "", "00")),
        *({n: v} for n in ("epoch", "trim_point", "first_segment") for v in NO_NUMBERS),
    ],
    SEGMENT: [
        *({"sealed": "no"}, {"sealed": 0}, {"cold": None}, {"blocks": -1}, {"base_lsn": 5.0}),
        *({"write_quorum": 3}, {"write_quorum": 0}, {"ack_quorum": 0}, {"ack_quorum": 3}),
        *({"sealed": True, "end_lsn": 4}, {"ensembles": {}}, {"ensembles": ""}, {"other": 1}),
    ],
    ENSEMBLE: [
        *({"nodes": "ab"}, {"nodes": []}, {"nodes": [1, 2]}, {"nodes": ["a:1", "a:1", "b:1"]}),
        *({"first_block": "0"}, {"first_block": False}, {"other": 1}),
    ],
}


def test_the_small_sample_itself_is_read() -> None:
    assert decode_log_manifest(packed(json.loads(TEXT))) == SMALL


@pytest.mark.parametrize(
    ("path", "change"),
    [(path, change) for path, changes in WRONG.items() for change in changes],
    ids=str,
)
def test_a_field_of_another_type_or_out_of_range_is_refused(
    path: Path, change: dict[str, object]
) -> None:
    found = json.loads(TEXT)
    inside(found, path).update(change)

    with pytest.raises(BadFormat):
        decode_log_manifest(packed(found))


# ---- names


@pytest.mark.parametrize("name", ["main", "0", "a-b_c", "x" * 64])
def test_names_of_logs(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "_a", "A", "a/b", "..", "a b", "a\n", "ä", "x" * 65])
def test_names_that_could_be_a_path_or_are_too_long_are_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        check_log_name(name)
