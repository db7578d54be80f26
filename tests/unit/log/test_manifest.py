"""The manifest: a versioned register that two owners cannot both change."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.errors import BadFormat, Fenced
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.storage.disk import RealDisk
from penstock.log.storage.manifest import (
    FileManifestStore,
    Manifest,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
)

SEGMENTS = (
    SegmentInfo(SegmentId(0), Epoch(1), Lsn(0), Lsn(10), 500, 1, 9, sealed=True, cold=True),
    SegmentInfo(SegmentId(1), Epoch(1), Lsn(10), Lsn(25), 900, 9, 12, sealed=True),
    SegmentInfo(SegmentId(4), Epoch(2), Lsn(25), first_ms=12),
)
SAMPLE = Manifest(bytes(range(16)), 7, Epoch(2), Lsn(3), 4096, SEGMENTS)


def test_the_mark_of_a_log_is_the_start_of_its_id() -> None:
    assert SAMPLE.log_mark == 0x0706050403020100


def test_the_next_version_changes_only_what_is_said() -> None:
    following = SAMPLE.next(trim_point=Lsn(8))

    assert following == replace(SAMPLE, version=8, trim_point=Lsn(8), clean_bytes=0)


@pytest.mark.parametrize("count", [0, 2, 4, 10**9, 2**32 - 1])
def test_a_count_that_does_not_fit_is_noticed_behind_a_good_crc(count: int) -> None:
    data = bytearray(encode_manifest(SAMPLE))
    struct.pack_into("<I", data, 64, count)
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")

    with pytest.raises(BadFormat, match="number of segments"):
        decode_manifest(bytes(data))


@pytest.mark.parametrize(
    "segments",
    [
        (SEGMENTS[0], SEGMENTS[2]),
        (SEGMENTS[1], SEGMENTS[0]),
        (SEGMENTS[2], SEGMENTS[2]),
        (replace(SEGMENTS[0], sealed=False), SEGMENTS[1]),
        (replace(SEGMENTS[0], id=SegmentId(1)), SEGMENTS[1]),
    ],
    ids=["gap", "order", "twice", "open before the last", "same id"],
)
def test_segments_that_are_no_gapless_run_are_refused(segments: tuple[SegmentInfo, ...]) -> None:
    with pytest.raises(BadFormat, match="does not follow"):
        decode_manifest(encode_manifest(replace(SAMPLE, segments=segments)))


def test_a_file_store_takes_the_next_version_only(tmp_path: Path) -> None:
    store = FileManifestStore(RealDisk(tmp_path))
    assert store.read() is None
    first = replace(SAMPLE, version=1)

    store.write(first)

    assert store.read() == first
    for version in (0, 1, 3):
        with pytest.raises(Fenced):
            store.write(replace(SAMPLE, version=version))
    store.write(first.next())
    assert store.read() == first.next()


def test_of_two_owners_with_the_same_version_one_is_fenced(tmp_path: Path) -> None:
    """DistributedLog III-C: ownership changes by compare-and-set on the metadata."""
    mine, theirs = (FileManifestStore(RealDisk(tmp_path)) for _ in range(2))
    mine.write(replace(SAMPLE, version=1))
    seen = theirs.read()
    assert seen is not None

    mine.write(seen.next(epoch=Epoch(3)))

    with pytest.raises(Fenced):
        theirs.write(seen.next(epoch=Epoch(4)))
    newest = mine.read()
    assert newest is not None
    assert newest.epoch == 3


def test_a_manifest_that_makes_no_sense_is_never_written(tmp_path: Path) -> None:
    store = FileManifestStore(RealDisk(tmp_path))

    with pytest.raises(BadFormat):
        store.write(replace(SAMPLE, version=1, segments=(SEGMENTS[0], SEGMENTS[2])))

    assert store.read() is None
