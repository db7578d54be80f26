"""One log's files: write groups, roll segments, read by tag, trim. The shell picks the threads.

Owns the manifest while the log is open, the open segment's file and index, and the caches of sealed
ones. One thread at a time may call the writing methods (`write`, `note`, `close`); any thread may
keep house (`finish_sealed`, `trim`, `cool`: a lock lets in one at a time) and read.

Law: `write` returns only after fsync. A roll makes the new file durable, then the manifest, then
writes; a crash between any two leaves a log that opens. After an OSError of a write the storage is
poisoned: the same file is never written or fsynced again (R48).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.errors import Damaged, InvariantBroken, MissingFile, Trimmed, Unavailable
from penstock.ids import Lsn, SegmentId
from penstock.limits import MIB
from penstock.log.core.sequencer import OrderedGroup, Write
from penstock.log.core.state import LogState, encode_snapshot
from penstock.log.core.tag_index import GroupSpan, Lsns, OpenIndex, SealedIndex, TagIndex
from penstock.log.core.tails import DurableGroup
from penstock.log.record_format import RECORD_HEADER_BYTES, RecordHeader, encode_header, encode_note
from penstock.log.storage.disk import Disk, File, read_whole, replace_file
from penstock.log.storage.manifest import Manifest, ManifestStore, SegmentInfo
from penstock.log.storage.recover import (
    RecoveredLog,
    create_segment,
    load_state,
    rebuild_index,
    snapshot_lsns,
    snapshot_name,
    walk_sealed,
)
from penstock.log.storage.segment_file import (
    SEGMENT_HEADER_BYTES,
    check_segment_header,
    index_name,
    segment_name,
)
from penstock.log.storage.views import SegmentView

if TYPE_CHECKING:
    from penstock.log.storage.cold import ColdStore  # imports pyarrow, which few servers need

logger = logging.getLogger(__name__)

#: Bytes of sealed indexes kept in memory; part of the server's stated memory bound.
INDEX_CACHE_BYTES = 64 * MIB
#: Open files of sealed segments kept for readers.
FILE_CACHE_COUNT = 64
#: Snapshots kept: if the newest is damaged, the one before it and one segment give the state.
SNAPSHOTS_KEPT = 2


class LogStorage:
    """See the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        store: ManifestStore,
        recovered: RecoveredLog,
        *,
        cold: ColdStore | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._store = store
        self._cold = cold
        self._now_ms = now_ms
        #: Guards the manifest, and the open index between writer and readers.
        self._lock = threading.RLock()
        self._index_lock = threading.Lock()
        #: Held by all that makes or removes files of sealed segments; taken before `_lock`.
        self._housekeeping_lock = threading.Lock()
        self.manifest = recovered.manifest
        self._file = recovered.file
        self._key = self._read_key()
        self._index = recovered.index
        #: Durable groups that the index does not know yet, and where their first record starts.
        self._unindexed: deque[tuple[int, list[DurableGroup]]] = deque()
        self.durable_lsn = recovered.state.next_lsn
        self._time_ms = recovered.state.time_ms
        #: Indexes and states of segments that were sealed but not finished yet.
        self._sealing: dict[SegmentId, tuple[OpenIndex, LogState | None]] = {}
        self._indexes: OrderedDict[SegmentId, SealedIndex] = OrderedDict()
        self._index_bytes = 0
        self._files: OrderedDict[SegmentId, File] = OrderedDict()
        self.poisoned = False
        #: The last record of the file is a note that vouches for everything.
        self._noted = self._file.size <= 64

    # ---- writing

    @property
    def open_bytes(self) -> int:
        return self._file.size

    @property
    def is_outdated(self) -> bool:
        """The open segment is of an older version, and has records: the next one is better."""
        return not self._key and self._file.size > SEGMENT_HEADER_BYTES

    @property
    def open_ms(self) -> int:
        return self.manifest.segments[-1].first_ms

    def write(self, write: Write) -> list[DurableGroup]:
        """Make the groups durable; afterwards readers find them."""
        self._check_usable()
        try:
            if write.roll is not None:
                self._roll(write.roll)
            start = self._file.size + (0 if self._noted else RECORD_HEADER_BYTES)
            groups = self._write_groups(write.groups, write.durable_lsn)
        except BaseException:
            self.poisoned = True
            raise
        with self._lock:
            self._unindexed.append((start, groups))
            self.durable_lsn = write.end_lsn
            self._time_ms = write.groups[-1].time_ms
        return groups

    def index_written(self) -> None:
        """Take what was written into the index. Done after the answers went out, or by a reader
        that comes before: nobody who waits for an fsync waits for this too.
        """
        with self._lock:
            while self._unindexed:
                start, groups = self._unindexed.popleft()
                for group in groups:
                    end = start + group.header.record_bytes
                    self._index.add(
                        group.body,
                        first_lsn=group.header.first_lsn,
                        time_ms=group.header.time_ms,
                        start=start,
                        end=end,
                    )
                    start = end

    def _write_groups(
        self, ordered: Iterable[OrderedGroup], durable_lsn: Lsn
    ) -> list[DurableGroup]:
        manifest = self.manifest
        segment = manifest.segments[-1].id
        groups = []
        # Only a note vouches for what was written before: records may be out of a payload.
        buffers: list[bytes | bytearray | memoryview] = [] if self._noted else [self._encode_note()]
        for group in ordered:
            header = RecordHeader(
                RECORD_HEADER_BYTES + len(group.body.data),
                group.body.table_crc,
                group.first_lsn,
                manifest.epoch,
                segment,
                group.time_ms,
                durable_lsn,
                manifest.log_mark,
            )
            record = (encode_header(header), group.body.data)
            buffers += record
            groups.append(DurableGroup(header, group.body, record))
        self._noted = False
        self._file.append(buffers)
        self._file.sync()
        return groups

    @property
    def wants_note(self) -> bool:
        """Whether something was written that no note vouches for yet."""
        return not self._noted and not self.poisoned

    def note(self) -> None:
        """Write down that all is durable, so that later damage is not taken for a torn tail."""
        self._check_usable()
        if self._noted:
            return
        try:
            self._write_note()
        except BaseException:
            self.poisoned = True
            raise

    def _write_note(self) -> None:
        self._file.append([self._encode_note()])
        self._file.sync()
        self._noted = True

    def _encode_note(self) -> bytes:
        return encode_note(
            lsn=self.durable_lsn,
            epoch=self.manifest.epoch,
            segment=self.manifest.segments[-1].id,
            time_ms=self._time_ms,
            log_mark=self._key or self.manifest.log_mark,
        )

    def _read_key(self) -> int:
        """The open segment's; see `check_segment_header`."""
        start = self._file.read_at(0, SEGMENT_HEADER_BYTES)
        return check_segment_header(start, self.manifest.segments[-1], self.manifest)

    def _roll(self, state: LogState) -> None:
        """Seal the open segment at the durable LSN and open the next one."""
        if state.next_lsn != self.durable_lsn:
            raise InvariantBroken(f"roll at {state.next_lsn}, durable is {self.durable_lsn}")
        self._file.truncate(self._file.size)
        self._file.sync()  # before the manifest says how long it is
        old = self.manifest.segments[-1]
        now_ms = max(self._now_ms(), self._time_ms)
        fresh = SegmentInfo(
            SegmentId(old.id + 1), self.manifest.epoch, self.durable_lsn, first_ms=now_ms
        )
        file = create_segment(
            self._disk,
            self.manifest,
            segment=fresh.id,
            epoch=fresh.epoch,
            base_lsn=fresh.base_lsn,
            now_ms=now_ms,
        )
        with self._lock:
            sealed = replace(
                old,
                end_lsn=self.durable_lsn,
                bytes=self._file.size,
                last_ms=self._time_ms,
                sealed=True,
            )
            segments = (*self.manifest.with_segment(sealed), fresh)
            self._change(self.manifest.next(segments=segments))
            self.index_written()
            self._sealing[old.id] = (self._index, state)
            self._files[old.id] = self._file
            self._file = file
            self._key = self._read_key()
            self._index = OpenIndex(fresh.base_lsn)
            self._noted = True

    def _change(self, manifest: Manifest) -> None:
        """Publish the next manifest. The lock is held: versions follow each other."""
        self._check_usable()
        try:
            self._store.write(manifest)
        except OSError:
            # A full disk leaves the old manifest, and trimming must stay possible then. If the new
            # one is in place, nobody knows which of the two a power cut would leave (R48).
            if not self._is_newest():
                self.poisoned = True
            raise
        self.manifest = manifest

    def _is_newest(self) -> bool:
        """Whether the stored manifest is surely still the one that we have."""
        try:
            current = self._store.read()
        except (Damaged, OSError) as error:
            logger.error("the manifest cannot be read cause=%r", error)
            return False
        return current is not None and current.version == self.manifest.version

    def close(self) -> None:
        """A clean stop: everything is durable, and the manifest says up to where."""
        if not self.poisoned:
            self.note()
            try:
                self._file.truncate(self._file.size)
                self._file.sync()
            except BaseException:
                self.poisoned = True
                raise
            with self._lock:
                self._change(self.manifest.next(clean_bytes=self._file.size))
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files without a word, as a crash would."""
        self.poisoned = True
        self._file.close()
        self._files.clear()

    def _check_usable(self) -> None:
        if self.poisoned:
            raise Unavailable("the log stopped after a failed write: restart its server")

    # ---- housekeeping

    def unfinished(self) -> list[SegmentId]:
        """Sealed segments that lack an index file, a snapshot after them, or a cold copy."""
        with self._lock:
            segments = self.manifest.segments
            sealing = set(self._sealing)
        newest = segments[-2].id if len(segments) > 1 else None
        return [
            info.id
            for info in segments
            if info.sealed
            and info.local
            and (
                info.id in sealing
                or (self._cold is not None and not info.cold)
                or not self._disk.exists(index_name(info.id))
                or (info.id == newest and not self._disk.exists(snapshot_name(info.end_lsn)))
            )
        ]

    def finish_sealed(self, segment: SegmentId) -> None:
        """Give a sealed segment its index file, its snapshot and its cold copy. May run twice."""
        with self._housekeeping_lock:
            info = self._info(segment)
            if info is not None and info.sealed and info.local:
                self._finish(info)

    def _finish(self, info: SegmentInfo) -> None:
        segment = info.id
        index, state = self._sealing.get(segment, (None, None))
        if not self._disk.exists(index_name(segment)):
            if index is None:
                index = rebuild_index(self._open_file(info), info, self.manifest)
            mark = self.manifest.log_mark
            data = index.encode(log_mark=mark, segment=segment, end_lsn=info.end_lsn)
            self._store_index(segment, data)
        if state is None and not self._disk.exists(snapshot_name(info.end_lsn)):
            if segment == self.manifest.segments[-2].id:
                state = load_state(self._disk, self.manifest, info.end_lsn)
        if state is not None:
            self._write_snapshot(state)
        with self._lock:
            self._sealing.pop(segment, None)
        if self._cold is not None and not info.cold:
            self._copy_to_cold(info)

    def _store_index(self, segment: SegmentId, data: bytes) -> None:
        """Housekeeping and a reader may want to at once, and both use the same temporary name."""
        with self._index_lock:
            replace_file(self._disk, index_name(segment), data)

    def _write_snapshot(self, state: LogState) -> None:
        name = snapshot_name(state.next_lsn)
        if not self._disk.exists(name):
            replace_file(self._disk, name, encode_snapshot(state, log_mark=self.manifest.log_mark))
        for lsn in snapshot_lsns(self._disk)[:-SNAPSHOTS_KEPT]:
            self._disk.remove(snapshot_name(lsn))

    def _copy_to_cold(self, info: SegmentInfo) -> None:
        assert self._cold is not None
        file = self._disk.open(segment_name(info.id))
        try:
            for _ in walk_sealed(file, info, self.manifest):
                pass  # checks it: a bit that flipped here must not get into what may be all we keep
            data = file.read_at(0, file.size)
        finally:
            file.close()
        self._cold.put(self._cold_name(segment_name(info.id)), data)
        index = read_whole(self._disk, index_name(info.id))
        self._cold.put(self._cold_name(index_name(info.id)), index)
        self._set_copied(info, local=True)

    def _cold_name(self, name: str) -> str:
        """Logs may share a cold store: each has a folder."""
        return f"{self.manifest.log_id.hex()}/{name}"

    def _set_copied(self, info: SegmentInfo, *, local: bool) -> None:
        with self._lock:
            changed = replace(info, cold=True, local=local)
            self._change(self.manifest.next(segments=self.manifest.with_segment(changed)))

    def cool(self, local_bytes_max: int) -> int:
        """Drop local files of the oldest segments that have a cold copy; returns how many."""
        with self._housekeeping_lock:
            return self._cool(local_bytes_max)

    def _cool(self, local_bytes_max: int) -> int:
        segments = [info for info in self.manifest.segments if info.sealed and info.local]
        surplus = sum(info.bytes for info in segments) - local_bytes_max
        dropped = 0
        for info in segments:
            if surplus <= 0 or not info.cold or info.end_lsn > self._oldest_snapshot():
                break
            self._set_copied(info, local=False)  # before the removal, or a read would miss it
            self._forget(info.id)
            self._remove_local(info.id)
            surplus -= info.bytes
            dropped += 1
        return dropped

    def trim(self, lsn: int) -> Lsn:
        """Give up everything below `lsn`; whole segments are removed. Returns the trim point.

        A segment is kept while the older of two snapshots still needs it for recovery.
        """
        with self._housekeeping_lock:
            return self._trim(lsn)

    def _trim(self, lsn: int) -> Lsn:
        with self._lock:
            point = Lsn(max(self.manifest.trim_point, min(lsn, self.durable_lsn)))
            oldest = self._oldest_snapshot()
            segments = self.manifest.segments
            gone = list(
                takewhile(
                    lambda info: (
                        info.end_lsn <= min(point, oldest) and info.id not in self._sealing
                    ),
                    segments[:-1],
                )
            )
            if point == self.manifest.trim_point and not gone:
                return point
            self._change(self.manifest.next(segments=segments[len(gone) :], trim_point=point))
        for info in gone:
            self._forget(info.id)
            if info.local:
                self._remove_local(info.id)
        for info in gone:
            if info.cold:
                self._remove_cold(info.id)
        return point

    def expired_lsn(self, before_ms: int) -> Lsn:
        """End of the last sealed segment that is wholly older than `before_ms`; for TTL."""
        lsn = self.manifest.trim_point
        for info in self.manifest.segments:
            if not info.sealed or info.last_ms >= before_ms:
                break
            lsn = info.end_lsn
        return lsn

    def _oldest_snapshot(self) -> int:
        lsns = snapshot_lsns(self._disk)
        return lsns[0] if len(lsns) >= SNAPSHOTS_KEPT else 0

    def _remove_local(self, segment: SegmentId) -> None:
        for name in (segment_name(segment), index_name(segment)):
            if self._disk.exists(name):
                self._disk.remove(name)

    def _remove_cold(self, segment: SegmentId) -> None:
        if self._cold is None:
            return
        for name in map(self._cold_name, (segment_name(segment), index_name(segment))):
            try:
                self._cold.remove(name)
            except OSError as error:
                # The trim is done: a copy that nobody reads costs space, no more.
                logger.error("a cold copy is left over, remove it name=%s cause=%r", name, error)

    # ---- reading

    def segment_at(self, lsn: int) -> SegmentView:
        """The segment that holds `lsn`, which lies in [trim point, tail)."""
        with self._lock:
            manifest = self.manifest
            if lsn < manifest.trim_point:
                raise Trimmed(f"lsn {lsn} is below the trim point {manifest.trim_point}")
            info = manifest.segments[-1]
            if lsn >= info.base_lsn:
                self.index_written()
                return SegmentView(
                    info, self.durable_lsn, self._file, LockedIndex(self), manifest.log_mark
                )
        for info in reversed(manifest.segments[:-1]):
            if info.base_lsn <= lsn:
                return SegmentView(
                    info,
                    info.end_lsn,
                    self._open_file(info),
                    self._sealed(info),
                    manifest.log_mark,
                )
        raise MissingFile(f"no segment holds lsn {lsn}")

    @property
    def trim_point(self) -> Lsn:
        return self.manifest.trim_point

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        return self.manifest.segments

    def _info(self, segment: SegmentId) -> SegmentInfo | None:
        return next((info for info in self.manifest.segments if info.id == segment), None)

    def _open_file(self, info: SegmentInfo) -> File:
        with self._lock:
            file = self._files.get(info.id)
            if file is not None:
                self._files.move_to_end(info.id)
                return file
        if info.local:
            try:
                file = self._disk.open(segment_name(info.id))
            except FileNotFoundError:
                file = None
        if file is None:
            if self._info(info.id) is None:
                raise Trimmed(f"lsn {info.base_lsn} to {info.end_lsn - 1} was trimmed meanwhile")
            file = self._open_cold(segment_name(info.id))
        with self._lock:
            self._files[info.id] = file
            while len(self._files) > FILE_CACHE_COUNT:
                self._files.popitem(last=False)
        return file

    def _open_cold(self, name: str) -> File:
        if self._cold is None:
            raise MissingFile(f"{name} is in the cold store, but none is configured")
        return self._cold.open(self._cold_name(name))

    def _sealed(self, info: SegmentInfo) -> TagIndex:
        with self._lock:
            sealing = self._sealing.get(info.id)
            if sealing is not None:
                return sealing[0]  # nobody changes it any more
            cached = self._indexes.get(info.id)
            if cached is not None:
                self._indexes.move_to_end(info.id)
                return cached
        index = self._load_index(info)
        with self._lock:
            if info.id not in self._indexes:
                self._indexes[info.id] = index
                self._index_bytes += index.bytes
            while self._index_bytes > INDEX_CACHE_BYTES and len(self._indexes) > 1:
                _, dropped = self._indexes.popitem(last=False)
                self._index_bytes -= dropped.bytes
        return index

    def _load_index(self, info: SegmentInfo) -> SealedIndex:
        mark = self.manifest.log_mark
        name = index_name(info.id)
        try:
            found = self._read_index(info, name)
            if found is not None:
                return SealedIndex(found, log_mark=mark, segment=info.id)
        except (Damaged, OSError) as error:
            logger.error("index is unusable, rebuilding segment=%d cause=%s", info.id, error)
        index = rebuild_index(self._open_file(info), info, self.manifest)
        data = index.encode(log_mark=mark, segment=info.id, end_lsn=info.end_lsn)
        if info.local and not self.poisoned:
            try:
                self._store_index(info.id, data)
            except OSError as error:
                # The reader has its index: it need not fail because the disk is full, or because
                # another reader was faster.
                logger.warning("index is not stored segment=%d cause=%r", info.id, error)
        return SealedIndex(data, log_mark=mark, segment=info.id)

    def _read_index(self, info: SegmentInfo, name: str) -> bytes | None:
        """The bytes of the index file; None if a crash came before it was made."""
        if info.local and self._disk.exists(name):
            return read_whole(self._disk, name)
        if not info.cold:
            return None
        cold = self._open_cold(name)
        return cold.read_at(0, cold.size)

    def _forget(self, segment: SegmentId) -> None:
        with self._lock:
            self._files.pop(segment, None)
            index = self._indexes.pop(segment, None)
            if index is not None:
                self._index_bytes -= index.bytes


class LockedIndex:
    """The open segment's index for readers on other threads: each question under the lock."""

    def __init__(self, storage: LogStorage) -> None:
        self._lock = storage._lock
        self._index = storage._index

    def entries(self, tags: Iterable[str], start: int, end: int, limit: int) -> Lsns:
        with self._lock:
            return self._index.entries(tags, start, end, limit)

    def last(self, tag: str, end: int) -> Lsn | None:
        with self._lock:
            return self._index.last(tag, end)

    def span(self, lsn: int) -> GroupSpan:
        with self._lock:
            return self._index.span(lsn)

    def starts(self, lsns: Lsns) -> tuple[list[int], list[int]]:
        with self._lock:
            return self._index.starts(lsns)

    def at_time(self, time_ms: int) -> Lsn | None:
        with self._lock:
            return self._index.at_time(time_ms)
