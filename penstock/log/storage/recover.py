"""Open a log's files: find the segments, rebuild the sequencer's state, repair a torn tail.

Owns the order of steps after a crash. Law: sealed segments are not scanned unless a snapshot or
index is missing; what is read back but not vouched for is written again and fsynced before anybody
sees it, since a failed or missing fsync leaves bytes that only the page cache holds (R48); only
then is the epoch taken.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.errors import BadFormat, Damaged, MissingFile
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.core.state import LogState, decode_snapshot
from penstock.log.core.tag_index import OpenIndex
from penstock.log.storage.disk import Disk, File, read_whole
from penstock.log.storage.manifest import Manifest, ManifestStore, SegmentInfo
from penstock.log.storage.segment_file import (
    SEGMENT_HEADER_BYTES,
    SegmentEnd,
    SegmentWalk,
    StoredGroup,
    encode_segment_header,
    find_segment_end,
    segment_name,
)

logger = logging.getLogger(__name__)

#: Bounds one rewrite of unvouched bytes; the rest follows in further steps.
_REWRITE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """All that an owner needs to go on."""

    manifest: Manifest
    state: LogState
    file: File
    index: OpenIndex
    torn_bytes: int


def snapshot_name(lsn: int) -> str:
    return f"snap-{lsn:020d}"


def snapshot_lsns(disk: Disk) -> list[int]:
    """LSNs of the snapshots that exist, ascending."""
    names = disk.names()
    return [int(n[5:]) for n in names if n.startswith("snap-") and n[5:].isdigit()]


def create_segment(
    disk: Disk, manifest: Manifest, *, segment: SegmentId, epoch: Epoch, base_lsn: Lsn, now_ms: int
) -> File:
    """A new, durable, empty segment file that no manifest names yet."""
    name = segment_name(segment)
    if disk.exists(name):
        # Left by a crash before a manifest named it: nothing in it was ever acknowledged.
        disk.remove(name)
    file = disk.create(name)
    header = encode_segment_header(
        log_id=manifest.log_id,
        segment=segment,
        epoch=epoch,
        base_lsn=base_lsn,
        created_ms=now_ms,
        key=int.from_bytes(secrets.token_bytes(8), "little"),
    )
    file.write_at(0, header)
    file.sync()
    disk.sync_dir()  # before the manifest names it
    return file


def create_log(disk: Disk, store: ManifestStore, *, log_id: bytes, now_ms: int) -> None:
    """Make an empty log; refuses a directory that holds a log whose manifest is gone."""
    leftovers = [n for n in disk.names() if n.startswith("snap-") or n.endswith((".log", ".idx"))]
    leftovers = [n for n in leftovers if n != segment_name(SegmentId(0))]
    if leftovers:
        raise MissingFile(
            f"the manifest is missing, but {leftovers[0]} exists: restore it from a backup"
        )
    manifest = Manifest(log_id, 1, Epoch(0), Lsn(0), 0, ())
    first = SegmentId(0)
    if disk.exists(segment_name(first)) and _size(disk, segment_name(first)) > SEGMENT_HEADER_BYTES:
        raise MissingFile("the manifest is missing, but segment 0 holds records")
    file = create_segment(
        disk, manifest, segment=first, epoch=Epoch(0), base_lsn=Lsn(0), now_ms=now_ms
    )
    file.close()
    store.write(
        replace(manifest, segments=(SegmentInfo(first, Epoch(0), Lsn(0), first_ms=now_ms),))
    )


def recover(disk: Disk, store: ManifestStore) -> RecoveredLog:
    """Open an existing log as its new owner."""
    manifest = store.read()
    if manifest is None or not manifest.segments:
        raise MissingFile("there is no manifest: this is not a log directory")
    _remove_leftovers(disk, manifest)
    _check_files(disk, manifest)
    info = manifest.segments[-1]
    if info.sealed:
        raise BadFormat("manifest has no open segment")
    state = load_state(disk, manifest, info.base_lsn)
    file = disk.open(segment_name(info.id), writable=True)
    index = OpenIndex(info.base_lsn)
    end: SegmentEnd | None = None
    for found in find_segment_end(file, info, manifest):
        if isinstance(found, SegmentEnd):
            end = found
            break
        lsn, time_ms = found.header.first_lsn, found.header.time_ms
        state.apply(found.body, first_lsn=lsn, time_ms=time_ms)
        index.add(found.body, first_lsn=lsn, time_ms=time_ms, start=found.start, end=found.end)
    assert end is not None
    _make_durable(file, end)
    if end.torn_bytes:
        logger.warning(
            "cut a torn tail segment=%d bytes=%d lsn=%d", info.id, end.torn_bytes, end.end_lsn
        )
    manifest = manifest.next(epoch=Epoch(manifest.epoch + 1))
    store.write(manifest)
    return RecoveredLog(manifest, state, file, index, end.torn_bytes)


def _make_durable(file: File, end: SegmentEnd) -> None:
    file.truncate(end.bytes)
    at = end.vouched_bytes
    while at < end.bytes:
        data = file.read_at(at, min(_REWRITE_BYTES, end.bytes - at))
        file.write_at(at, data)
        at += len(data)
    file.sync()


def _remove_leftovers(disk: Disk, manifest: Manifest) -> None:
    """Remove what the manifest has disowned: trimmed and cold segments, half-made files."""
    first = manifest.segments[0].id
    cold = {info.id for info in manifest.segments if not info.local}

    def is_disowned(name: str) -> bool:
        if not name.startswith("seg-") or not name[4:14].isdigit():
            return False
        segment = int(name[4:14])
        return segment in cold or (segment < first and manifest.trim_point > 0)

    leftovers = [name for name in disk.names() if name.endswith(".new") or is_disowned(name)]
    if leftovers:
        # Its writer may have been killed before it synced the rename of this manifest: a power cut
        # would bring back the one before, which still needs these files (R40).
        disk.sync_dir()
    for name in leftovers:
        disk.remove(name)


def _check_files(disk: Disk, manifest: Manifest) -> None:
    """Every local segment is there with its sealed length; contents are checked when read."""
    for info in manifest.segments:
        if not info.local:
            continue
        name = segment_name(info.id)
        if not disk.exists(name):
            raise MissingFile(f"{name} is missing: lsn {info.base_lsn} to {info.end_lsn - 1}")
        if info.sealed and (size := _size(disk, name)) != info.bytes:
            raise BadFormat(f"{name} has {size} bytes, the manifest says {info.bytes}")
    beyond = segment_name(SegmentId(manifest.segments[-1].id + 1))
    if disk.exists(beyond) and _size(disk, beyond) > SEGMENT_HEADER_BYTES:
        # A crash in a roll leaves a header at most; records came after the manifest that named it.
        raise BadFormat(f"{beyond} holds records, but the manifest does not name it: it is too old")


def _size(disk: Disk, name: str) -> int:
    file = disk.open(name)
    try:
        return file.size
    finally:
        file.close()


def load_state(disk: Disk, manifest: Manifest, lsn: Lsn) -> LogState:
    """State after every group below `lsn`: the newest usable snapshot, then segments."""
    state = _load_snapshot(disk, manifest, lsn)
    for info in manifest.segments:
        if info.end_lsn <= state.next_lsn or info.base_lsn >= lsn:
            continue
        if info.base_lsn > state.next_lsn or not info.local:
            raise MissingFile(f"no snapshot covers the log below lsn {info.base_lsn}")
        logger.info("folding a sealed segment again segment=%d", info.id)
        file = disk.open(segment_name(info.id))
        try:
            for group in walk_sealed(file, info, manifest):
                header = group.header
                state.apply(group.body, first_lsn=header.first_lsn, time_ms=header.time_ms)
        finally:
            file.close()
    if state.next_lsn != lsn:
        raise MissingFile(
            f"the state below lsn {lsn} cannot be rebuilt: it ends at {state.next_lsn}"
        )
    return state


def _load_snapshot(disk: Disk, manifest: Manifest, lsn: Lsn) -> LogState:
    for at in reversed(snapshot_lsns(disk)):
        if at > lsn:
            continue
        try:
            return decode_snapshot(read_whole(disk, snapshot_name(at)), log_mark=manifest.log_mark)
        except Damaged as error:
            logger.error("snapshot is unusable, trying an older one lsn=%d cause=%s", at, error)
    return LogState()


def rebuild_index(file: File, info: SegmentInfo, manifest: Manifest) -> OpenIndex:
    """The index of a sealed segment, from its records."""
    index = OpenIndex(info.base_lsn)
    for group in walk_sealed(file, info, manifest):
        index.add(
            group.body,
            first_lsn=group.header.first_lsn,
            time_ms=group.header.time_ms,
            start=group.start,
            end=group.end,
        )
    return index


def walk_sealed(file: File, info: SegmentInfo, manifest: Manifest) -> Iterator[StoredGroup]:
    """The groups of a sealed segment; raises Damaged unless all of them are there and whole."""
    walk = SegmentWalk(file, info, manifest)
    yield from walk
    if walk.problem is not None or walk.next_lsn != info.end_lsn:
        error = type(walk.problem) if walk.problem is not None else BadFormat
        raise error(
            f"{segment_name(info.id)} at byte {walk.position}, lsn {walk.next_lsn}: "
            f"{walk.problem or 'the segment ends too early'}"
        )
