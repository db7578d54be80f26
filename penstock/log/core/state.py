"""The sequencer's whole state as a fold over the log: metadata keys and the producer table.

Owns `apply` (one ordered group → new state) and the snapshot bytes. Knows no files and no requests.
Law: state(lsn) depends on the groups below lsn only; a snapshot is a shortcut for that fold and
stands in for the prefix once it is trimmed. There is no time window: a producer is forgotten only
when it retires.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.ids import Lsn
from penstock.log.core.producers import AppendedGroup, Producers, ProducerState
from penstock.log.group_format import CLAIM, RETIRE, Body, Buffer, decode_sets
from penstock.log.records import Kind, Value


@dataclass(slots=True)
class LogState:
    """State after every group below `next_lsn`."""

    next_lsn: Lsn = Lsn(0)
    #: Append time of the newest group; never decreases.
    time_ms: int = 0
    metadata: dict[str, Value] = field(default_factory=dict)
    producers: Producers = field(default_factory=Producers)

    def apply(self, body: Body, *, first_lsn: int, time_ms: int) -> None:
        """Take in the next group."""
        assert first_lsn == self.next_lsn, (first_lsn, self.next_lsn)
        assert time_ms >= self.time_ms, (time_ms, self.time_ms)
        self.next_lsn = Lsn(first_lsn + body.count)
        self.time_ms = time_ms
        self._apply_producer(body, Lsn(first_lsn))
        for index, row in enumerate(body.rows):
            if row[0] == Kind.META:
                lsn = Lsn(first_lsn + index)
                for change in decode_sets(body.payload(index)):
                    if change.value is None:
                        self.metadata.pop(change.key, None)
                    else:
                        self.metadata[change.key] = Value(change.value, lsn)

    def _apply_producer(self, body: Body, first_lsn: Lsn) -> None:
        if body.flags & RETIRE:
            self.producers.pop(body.producer, None)
            return
        if body.flags & CLAIM:
            known = self.producers.get(body.producer)
            self.producers[body.producer] = ProducerState(
                instance=body.instance,
                next_seq=known.next_seq if known else 0,
                claim_lsn=first_lsn,
                claim_nonce=claim_nonce(body),
                recent_bytes=known.recent_bytes if known else b"",
            )
            return
        group = AppendedGroup(body.first_seq, body.count, body.instance, first_lsn)
        self.producers.append(body.producer, group)

    def copy(self) -> LogState:
        """An independent copy; values are immutable, so this is as deep as it must be."""
        return LogState(self.next_lsn, self.time_ms, dict(self.metadata), self.producers.copy())


def claim_nonce(body: Body) -> int:
    """What the claimer drew at random; its control entry's payload is these eight bytes."""
    return int.from_bytes(body.payload(0)[:8], "little")


# ---- snapshot bytes (docs/formats.md, "Snapshot")

_HEADER = struct.Struct(
    "<IIQQQQII"
)  # magic, crc, length, log mark, next_lsn, time_ms, keys, producers
_KEY = struct.Struct("<HIQ")
SNAPSHOT_MAGIC = 0x314E5350  # "PSN1"


def encode_snapshot(state: LogState, *, log_mark: int) -> bytes:
    parts: list[bytes] = []
    for key, value in state.metadata.items():
        name = key.encode()
        parts += (_KEY.pack(len(name), len(value.data), value.lsn), name, value.data)
    parts += state.producers.encoded()
    content = b"".join(parts)
    header = _HEADER.pack(
        SNAPSHOT_MAGIC,
        0,
        _HEADER.size + len(content),
        log_mark,
        state.next_lsn,
        state.time_ms,
        len(state.metadata),
        len(state.producers),
    )
    crc = crc32c(content, crc32c(header[8:]))
    return header[:4] + crc.to_bytes(4, "little") + header[8:] + content


def decode_snapshot(data: Buffer, *, log_mark: int) -> LogState:
    if len(data) < _HEADER.size:
        raise BadFormat("snapshot is cut")
    magic, crc, size, mark, next_lsn, time_ms, keys, producers = _HEADER.unpack_from(data)
    if magic != SNAPSHOT_MAGIC or size != len(data):
        raise BadFormat("snapshot has a wrong magic number or length")
    if crc32c(memoryview(data)[8:]) != crc:
        raise ChecksumMismatch("snapshot is damaged")
    if mark != log_mark:
        raise BadFormat("snapshot belongs to another log")
    state = LogState(Lsn(next_lsn), time_ms)
    try:
        at = _decode_metadata(data, _HEADER.size, keys, state)
        for _ in range(producers):
            at = state.producers.decode(data, at)
    except (struct.error, UnicodeDecodeError):
        raise BadFormat("snapshot has a length or a name that cannot be") from None
    if at != len(data):
        raise BadFormat("snapshot has counts that do not add up to its length")
    return state


def _decode_metadata(data: Buffer, at: int, count: int, state: LogState) -> int:
    view = memoryview(data)
    for _ in range(count):
        name_bytes, value_bytes, lsn = _KEY.unpack_from(data, at)
        at += _KEY.size
        name = str(view[at : at + name_bytes], "utf-8")
        at += name_bytes
        state.metadata[name] = Value(bytes(view[at : at + value_bytes]), Lsn(lsn))
        at += value_bytes
    return at
