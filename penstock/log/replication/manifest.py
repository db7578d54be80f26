"""What the cluster knows of one log: who owns it and on which nodes its segments lie.

One versioned value per log in the metadata store, replaced as a whole, so that closing a segment
and opening the next is one step. Law: segments follow each other without a gap; all that are not
sealed stand at the end, in order (R14: the next may open before the last is closed); a segment
below `first_segment` was given up for good, which is the only reason to delete one (R40).
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from penstock.errors import BadFormat, BadRequest
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId

#: Above it a value does not fit ZooKeeper's default limit of 1 MiB.
MANIFEST_BYTES_MAX = 950_000
#: An owner opens no further segment above this. The rest is for who takes a full log over, about a
#: thousand times, and for what happens to its segments meanwhile: whoever opened it can trim it.
MANIFEST_ROLL_BYTES_MAX = 900_000
assert MANIFEST_ROLL_BYTES_MAX < MANIFEST_BYTES_MAX
LOG_ID_BYTES = 16
_LOG_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def check_log_name(name: str) -> str:
    if not _LOG_NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} is not the name of a log: lower-case letters, digits, - and _, at most 64"
        )
    return name


class SegmentKey(NamedTuple):
    """A segment on a node; part 0 is its blocks, part 1 its tag index."""

    log: str
    segment: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The nodes of a segment's blocks from `first_block` on, up to the next ensemble's."""

    first_block: BlockId
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment. Until it is sealed, end_lsn, blocks, bytes and last_ms mean nothing."""

    id: SegmentId
    #: Of the owner that opened it, the only one that writes new blocks.
    epoch: Epoch
    base_lsn: Lsn
    ensembles: tuple[Ensemble, ...]
    #: Each block goes to so many nodes, and is acknowledged after so many fsyncs.
    write_quorum: int
    ack_quorum: int
    first_ms: int = 0
    sealed: bool = False
    end_lsn: Lsn = Lsn(0)
    #: Number of its blocks.
    blocks: int = 0
    #: Bytes of its records.
    bytes: int = 0
    last_ms: int = 0
    #: Number of blocks of its index part; 0 if it has none.
    index_blocks: int = 0
    #: A copy is in the cold store.
    cold: bool = False

    def ensemble_of(self, block: int) -> Ensemble:
        """The ensemble that a block was or will be written to."""
        found = self.ensembles[0]
        for ensemble in self.ensembles:
            if ensemble.first_block > block:
                break
            found = ensemble
        return found


@dataclass(frozen=True, slots=True)
class LogManifest:
    """See the module's docstring."""

    log_id: bytes
    #: Of the newest owner, or of who is about to be it.
    epoch: Epoch
    #: The proxy that took that epoch; each life of a proxy has another id (R16).
    owner: str
    trim_point: Lsn
    first_segment: SegmentId
    segments: tuple[Segment, ...]

    @property
    def log_mark(self) -> int:
        """Eight bytes of the id, stamped on every block and record of this log."""
        return int.from_bytes(self.log_id[:8], "little")

    @property
    def open_segments(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if not segment.sealed)

    def with_segment(self, changed: Segment) -> LogManifest:
        """The same with one segment replaced."""
        segments = tuple(changed if s.id == changed.id else s for s in self.segments)
        return replace(self, segments=segments)

    def find(self, segment: int) -> Segment | None:
        return next((found for found in self.segments if found.id == segment), None)

    def check(self) -> None:
        """Raise BadFormat unless the law holds."""
        segments = self.segments
        for left, right in pairwise(segments):
            if left.id >= right.id or (right.sealed and not left.sealed):
                raise BadFormat(f"segment {right.id} does not follow segment {left.id}")
            if left.sealed and left.end_lsn != right.base_lsn:
                raise BadFormat(f"segment {right.id} leaves a gap after segment {left.id}")
        for segment in segments:
            starts = [ensemble.first_block for ensemble in segment.ensembles]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                raise BadFormat(f"segment {segment.id} has ensembles that overlap")
            for ensemble in segment.ensembles:
                nodes = set(ensemble.nodes)
                if not 1 <= segment.ack_quorum <= segment.write_quorum <= len(nodes):
                    raise BadFormat(f"segment {segment.id} has quorums that its nodes cannot form")
                if len(nodes) != len(ensemble.nodes):
                    raise BadFormat(f"segment {segment.id} names a node twice")
            if segment.sealed and segment.end_lsn < segment.base_lsn:
                raise BadFormat(f"segment {segment.id} ends before it begins")
        if segments and segments[0].id < self.first_segment:
            raise BadFormat(f"segment {segments[0].id} was given up")


def encode_log_manifest(manifest: LogManifest, *, leave_room: bool = False) -> bytes:
    """Raises BadRequest if it is too large; with `leave_room`, to be taken over once more."""
    manifest.check()
    values = {
        "log_id": manifest.log_id.hex(),
        "epoch": manifest.epoch,
        "owner": manifest.owner,
        "trim_point": manifest.trim_point,
        "first_segment": manifest.first_segment,
    }
    # Most segments are those of the last time: each is turned into text once.
    segments = ",".join(map(_segment_text, manifest.segments))
    text = f'{_text(values)[:-1]},"segments":[{segments}]}}'
    data = zlib.compress(text.encode(), 6)
    if len(data) > (MANIFEST_ROLL_BYTES_MAX if leave_room else MANIFEST_BYTES_MAX):
        raise BadRequest(
            f"the log has {len(manifest.segments)} segments, more than its metadata can hold: "
            "trim it (penstock log trim), or let segments be larger (--segment-bytes)"
        )
    return data


@lru_cache(maxsize=100_000)
def _segment_text(segment: Segment) -> str:
    return _text(asdict(segment))


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


@lru_cache(maxsize=4)
def decode_log_manifest(data: bytes) -> LogManifest:
    """Raises BadFormat; whatever it is, it is never read as an empty log (R40).

    Most of the time it is read again as it was: the last few are remembered.
    """
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, 64 * MANIFEST_BYTES_MAX)
        if unpacker.unconsumed_tail or unpacker.unused_data or not unpacker.eof:
            raise BadFormat("the manifest of a log is cut, too large, or followed by something")
        values = _typed(LogManifest, json.loads(text, object_pairs_hook=_once))
        values["log_id"] = bytes.fromhex(values["log_id"])
        values["segments"] = tuple(map(_segment, values["segments"]))
        manifest = LogManifest(**values)
        if len(manifest.log_id) != LOG_ID_BYTES:
            raise BadFormat("the manifest of a log has no id")
        manifest.check()
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFormat(f"the manifest of a log cannot be read: {error}") from error
    return manifest


def _segment(found: Any) -> Segment:
    values = _typed(Segment, found)
    values["ensembles"] = tuple(map(_ensemble, values["ensembles"]))
    return Segment(**values)


def _ensemble(found: Any) -> Ensemble:
    values = _typed(Ensemble, found)
    if not all(isinstance(node, str) for node in values["nodes"]):
        raise BadFormat("the manifest of a log names a node that is not text")
    return Ensemble(BlockId(values["first_block"]), tuple(map(NodeId, values["nodes"])))


def _typed(cls: type, values: Any) -> dict[str, Any]:
    """The same, if it has fields of the class only, each with a value of its kind."""
    kinds = _kinds(cls)
    if type(values) is not dict:
        raise BadFormat(f"the manifest of a log has no {cls.__name__} where one should be")
    for name, value in values.items():
        kind = kinds.get(name)
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
            raise BadFormat(f"the manifest of a log has {str(value)[:40]!r} as its {name[:40]}")
    return values


@cache
def _kinds(cls: type) -> dict[str, type]:
    return {field.name: _KINDS.get(str(field.type), int) for field in fields(cls)}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a field that stands there twice, Python would take the last: an empty one, maybe."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadFormat("the manifest of a log has a field twice")
    return found


#: What JSON has for the types of fields; all others are whole numbers.
_KINDS: dict[str, type] = {
    "bool": bool,
    "str": str,
    "bytes": str,
    "tuple[Segment, ...]": list,
    "tuple[Ensemble, ...]": list,
    "tuple[NodeId, ...]": list,
}
