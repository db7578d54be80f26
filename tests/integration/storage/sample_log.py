"""A small log with every structure in it: sealed segments, indexes, snapshots, an open segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.disk import SimDisk
from harness.driver import LOG_ID, LogDriver, Sent

from penstock.ids import SegmentId
from penstock.log.core.sequencer import SegmentLimits
from penstock.log.record_format import RECORD_HEADER_BYTES, decode_header
from penstock.log.records import NewEntry, SetKey
from penstock.log.storage.manifest import Manifest, decode_manifest
from penstock.log.storage.recover import snapshot_lsns, snapshot_name
from penstock.log.storage.segment_file import SEGMENT_HEADER_BYTES, segment_name

#: Two to four groups to a segment.
LIMITS = SegmentLimits(bytes=1000, ms=2**40)


@contextmanager
def case(**facts: object) -> Iterator[None]:
    """One turn of a loop; if it fails, the report says which one, so that it can be repeated."""
    try:
        yield
    except BaseException as error:
        error.add_note("case: " + " ".join(f"{name}={value}" for name, value in facts.items()))
        raise


@dataclass(frozen=True)
class SampleLog:
    """The files of a log that was stopped, and what is in it."""

    contents: dict[str, bytes]
    sent: Sent

    @property
    def manifest(self) -> Manifest:
        return decode_manifest(self.contents["manifest"])

    @property
    def open_segment(self) -> str:
        return segment_name(self.manifest.segments[-1].id)

    @property
    def snapshots(self) -> list[str]:
        return [snapshot_name(lsn) for lsn in snapshot_lsns(SimDisk(self.contents))]

    def records(self, segment: int) -> list[tuple[int, int]]:
        """Bytes [start, end) of each record, notes too, up to the first byte that is no record."""
        data = self.contents[segment_name(SegmentId(segment))]
        found = []
        at = SEGMENT_HEADER_BYTES
        while at + RECORD_HEADER_BYTES <= len(data) and data[at : at + 4] != bytes(4):
            size = decode_header(data, at).record_bytes
            found.append((at, at + size))
            at += size
        return found

    def groups(self, segment: int) -> list[tuple[int, int]]:
        """Bytes [start, end) of each record with a body."""
        records = self.records(segment)
        return [(start, end) for start, end in records if end - start > RECORD_HEADER_BYTES]

    def open(self, changes: dict[str, bytes] | None = None, *, gone: str = "") -> LogDriver:
        """Open the log with some files changed, or one gone."""
        contents = {**self.contents, **(changes or {})}
        contents.pop(gone, None)
        return LogDriver(SimDisk(contents), sent=self.sent.copy(), limits=LIMITS)

    def flipped(self, name: str, bit: int) -> dict[str, bytes]:
        data = bytearray(self.contents[name])
        data[bit // 8] ^= 1 << bit % 8
        return {name: bytes(data)}


def make_sample_log(
    *, groups: int = 13, stop: str = "clean", log_id: bytes = LOG_ID, finish: bool = True
) -> SampleLog:
    """`stop`: "clean"; "note", killed after a quiet moment; "kill", right after the last write."""
    disk = SimDisk()
    driver = LogDriver(disk, limits=LIMITS, log_id=log_id)
    driver.claim("p")
    driver.claim("q")
    for number in range(groups):
        entries = [NewEntry(b"%d:" % number * 20, ("all", f"n{number % 3}"), rows=number)]
        if number % 4 == 1:
            entries.append(NewEntry(b"untagged"))
        sets = [SetKey(f"k{number % 5}", b"v%d" % number)] if number % 2 else []
        driver.append(entries, producer="pq"[number % 2], sets=sets)
        if finish:
            driver.keep_house()
    if stop == "clean":
        driver.close()
    elif stop == "note":
        driver.storage.note()
    disk.kill()
    return SampleLog(disk.contents(), driver.sent)
