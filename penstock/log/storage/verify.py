"""Find any flipped bit in a log's files, and say where.

Owns the reading of every byte: manifest, segments, indexes, snapshots. Changes nothing, and needs
no lock. A live server appends: the open segment is checked up to where the server says that it is
durable. It also removes files, each after the manifest or the listing stopped naming it: what is
missing is looked up there again before it counts as missing. Cold copies are not read.
Law (I17): every byte of these files is under a CRC or must be zero; whatever does not match becomes
a finding of severity "damage" that names file, bytes and structure. A torn tail is a "note": the
next opening cuts it, and nothing in it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import Damaged
from penstock.log.core.state import decode_snapshot
from penstock.log.core.tag_index import OpenIndex, SealedIndex
from penstock.log.storage.disk import Disk, File, read_whole
from penstock.log.storage.manifest import (
    MANIFEST_FILE,
    FileManifestStore,
    Manifest,
    SegmentInfo,
)
from penstock.log.storage.recover import snapshot_lsns, snapshot_name
from penstock.log.storage.segment_file import (
    SegmentEnd,
    SegmentWalk,
    find_segment_end,
    index_name,
    segment_name,
)

#: Called with bytes checked so far and bytes in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something at bytes [start, end) of a file."""

    file: str
    start: int
    end: int
    structure: str
    problem: str
    lsn: int | None = None
    severity: Literal["damage", "note"] = "damage"


@dataclass(slots=True)
class VerifyReport:
    """What was looked at, and what was found."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    entries: int = 0

    @property
    def damaged(self) -> bool:
        return any(finding.severity == "damage" for finding in self.findings)


def verify_log(
    disk: Disk, *, durable_bytes: int | None = None, progress: Progress = lambda done, total: None
) -> VerifyReport:
    """Check every file. `durable_bytes`: how much of the open segment a live server vouches for."""
    return _Verifier(disk, durable_bytes, progress).run()


class _Verifier:
    def __init__(self, disk: Disk, durable_bytes: int | None, progress: Progress) -> None:
        self._disk = disk
        self._durable_bytes = durable_bytes
        self._progress = progress
        self._report = VerifyReport()
        self._total = 0
        self._cold_only = 0

    def run(self) -> VerifyReport:
        manifest = self._manifest()
        if manifest is None:
            return self._report
        names = self._disk.names()
        self._total = sum(self._size(name) for name in names)
        for info in manifest.segments:
            if info.local:
                self._segment(info, manifest)
            else:
                self._cold_only += 1
        for lsn in snapshot_lsns(self._disk):
            self._snapshot(lsn, manifest)
        if self._cold_only:
            problem = f"{self._cold_only} segments are only in the cold store and were not checked"
            self._note(MANIFEST_FILE, 0, 0, problem, structure="segment")
        return self._report

    def _manifest(self) -> Manifest | None:
        try:
            manifest = FileManifestStore(self._disk).read()
        except Damaged as error:
            self._damage(MANIFEST_FILE, 0, self._size(MANIFEST_FILE), "manifest", str(error))
            return None
        if manifest is None:
            self._damage(MANIFEST_FILE, 0, 0, "manifest", "there is none")
        else:
            self._done(MANIFEST_FILE)
        return manifest

    def _segment(self, info: SegmentInfo, manifest: Manifest) -> None:
        name = segment_name(info.id)
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            newest = self._newest(info)
            if newest is not None and newest.local:
                self._damage(name, 0, 0, "segment", "the file is missing", lsn=info.base_lsn)
            elif newest is not None:
                self._cold_only += 1
            return
        try:
            index = self._walk(file, info, manifest)
        except Damaged as error:
            self._damage(name, 0, 64, "segment header", str(error), lsn=info.base_lsn)
            index = None
        finally:
            file.close()
        self._done(name)
        if info.sealed:
            self._index(info, manifest, index)

    def _newest(self, info: SegmentInfo) -> SegmentInfo | None:
        """What the manifest says of the segment by now; None if it was trimmed meanwhile."""
        try:
            manifest = FileManifestStore(self._disk).read()
        except Damaged:
            return info
        if manifest is None:
            return info
        return next((known for known in manifest.segments if known.id == info.id), None)

    def _walk(self, file: File, info: SegmentInfo, manifest: Manifest) -> OpenIndex | None:
        """Check all records; returns the index that they make, if they are whole."""
        name = segment_name(info.id)
        index = OpenIndex(info.base_lsn)
        if not info.sealed and self._durable_bytes is None:
            self._walk_open(file, info, manifest)
            return None
        end = info.bytes if info.sealed else self._durable_bytes
        if info.sealed and file.size != info.bytes:
            problem = f"the file has {file.size} bytes, the manifest says {info.bytes}"
            self._damage(name, min(file.size, info.bytes), file.size, "segment", problem)
            return None
        walk = SegmentWalk(file, info, manifest, end=end)
        for group in walk:
            self._report.entries += group.body.count
            index.add(
                group.body,
                first_lsn=group.header.first_lsn,
                time_ms=group.header.time_ms,
                start=group.start,
                end=group.end,
            )
        if walk.problem is not None:
            end = file.size
            self._damage(name, walk.position, end, "record", str(walk.problem), lsn=walk.next_lsn)
            return None
        if info.sealed and walk.next_lsn != info.end_lsn:
            problem = f"it ends at lsn {walk.next_lsn}, the manifest says {info.end_lsn}"
            self._damage(name, walk.position, file.size, "segment", problem, lsn=walk.next_lsn)
            return None
        return index

    def _walk_open(self, file: File, info: SegmentInfo, manifest: Manifest) -> None:
        """The open segment of a log that no server has open."""
        name = segment_name(info.id)
        lsn, at = int(info.base_lsn), 64
        try:
            for found in find_segment_end(file, info, manifest):
                if isinstance(found, SegmentEnd):
                    if found.torn_bytes:
                        problem = f"a torn tail of {found.torn_bytes} bytes; the next start cuts it"
                        self._note(name, found.bytes, file.size, problem, lsn=found.end_lsn)
                    return
                self._report.entries += found.body.count
                lsn, at = found.header.first_lsn + found.body.count, found.end
        except Damaged as error:
            self._damage(name, at, file.size, "record", str(error), lsn=lsn)

    def _index(self, info: SegmentInfo, manifest: Manifest, expected: OpenIndex | None) -> None:
        name = index_name(info.id)
        try:
            data = read_whole(self._disk, name)
        except FileNotFoundError:
            newest = self._newest(info)
            if newest is not None and newest.local:
                self._note(name, 0, 0, "no index yet; it is rebuilt when it is needed")
            return
        try:
            SealedIndex(data, log_mark=manifest.log_mark, segment=info.id)
        except Damaged as error:
            self._damage(name, 0, len(data), "index", str(error))
            return
        if expected is not None:
            wanted = expected.encode(
                log_mark=manifest.log_mark, segment=info.id, end_lsn=info.end_lsn
            )
            if wanted != data:
                self._damage(name, 0, len(data), "index", "it does not match the segment's records")
        self._done(name)

    def _snapshot(self, lsn: int, manifest: Manifest) -> None:
        name = snapshot_name(lsn)
        try:
            data = read_whole(self._disk, name)
        except FileNotFoundError:
            return  # a newer one took its place since the listing, which is all that names it
        try:
            state = decode_snapshot(data, log_mark=manifest.log_mark)
            if state.next_lsn != lsn:
                self._damage(name, 0, len(data), "snapshot", f"it is of lsn {state.next_lsn}")
        except Damaged as error:
            self._damage(name, 0, len(data), "snapshot", str(error), lsn=lsn)
        self._done(name)

    def _size(self, name: str) -> int:
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            return 0
        try:
            return file.size
        finally:
            file.close()

    def _done(self, name: str) -> None:
        self._report.files += 1
        self._report.bytes += self._size(name)
        self._progress(self._report.bytes, max(self._total, self._report.bytes))

    def _damage(
        self, file: str, start: int, end: int, structure: str, problem: str, lsn: int | None = None
    ) -> None:
        self._report.findings.append(Finding(file, start, end, structure, problem, lsn))

    def _note(
        self,
        file: str,
        start: int,
        end: int,
        problem: str,
        lsn: int | None = None,
        structure: str = "tail",
    ) -> None:
        finding = Finding(file, start, end, structure, problem, lsn, "note")
        self._report.findings.append(finding)
