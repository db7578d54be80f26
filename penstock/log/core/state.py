"""The sequencer's whole state as a fold over the log: metadata keys and the producer table.

Owns `apply` (one ordered group → new state) and the snapshot bytes. Knows no files and no requests.
Law: state(lsn) depends on the groups below lsn only; a snapshot is a shortcut for that fold and
stands in for the prefix once it is trimmed. There is no time window: a producer is forgotten only
when it retires.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.ids import Lsn
from penstock.limits import PRODUCER_RECENT_GROUPS
from penstock.log.group_format import CLAIM, RETIRE, Body, Buffer, decode_sets
from penstock.log.records import Kind, Value


@dataclass(frozen=True, slots=True)
class AppendedGroup:
    """Where a group of a producer went."""

    first_seq: int
    count: int
    instance: int
    first_lsn: Lsn


@dataclass(slots=True)
class ProducerState:
    """What is known of one producer."""

    #: The highest instance that claimed or wrote; lower ones are fenced.
    instance: int
    #: The only first seq that a new group may have.
    next_seq: int
    #: LSN and nonce of the claim that made `instance`: tells a retried claim from a rival's.
    claim_lsn: Lsn
    claim_nonce: int
    #: The newest groups, oldest first; at least all that may be unacknowledged.
    recent: deque[AppendedGroup] = field(
        default_factory=lambda: deque(maxlen=PRODUCER_RECENT_GROUPS)
    )


@dataclass(slots=True)
class LogState:
    """State after every group below `next_lsn`."""

    next_lsn: Lsn = Lsn(0)
    #: Append time of the newest group; never decreases.
    time_ms: int = 0
    metadata: dict[str, Value] = field(default_factory=dict)
    producers: dict[str, ProducerState] = field(default_factory=dict)

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
            fresh = ProducerState(
                instance=body.instance,
                next_seq=known.next_seq if known else 0,
                claim_lsn=first_lsn,
                claim_nonce=claim_nonce(body),
            )
            if known is not None:
                fresh.recent = known.recent
            self.producers[body.producer] = fresh
            return
        known = self.producers[body.producer]
        known.next_seq = body.first_seq + body.count
        known.recent.append(AppendedGroup(body.first_seq, body.count, body.instance, first_lsn))

    def copy(self) -> LogState:
        """An independent copy; values are immutable, so this is as deep as it must be."""
        producers = {
            name: replace(known, recent=deque(known.recent, known.recent.maxlen))
            for name, known in self.producers.items()
        }
        return LogState(self.next_lsn, self.time_ms, dict(self.metadata), producers)


def claim_nonce(body: Body) -> int:
    """What the claimer drew at random; its control entry's payload is these eight bytes."""
    return int.from_bytes(body.payload(0)[:8], "little")


# ---- snapshot bytes (docs/formats.md, "Snapshot")

_HEADER = struct.Struct(
    "<IIQQQQII"
)  # magic, crc, length, log mark, next_lsn, time_ms, keys, producers
_KEY = struct.Struct("<HIQ")
_PRODUCER = struct.Struct("<HHQQQQ")
_RECENT = struct.Struct("<QIQQ")
SNAPSHOT_MAGIC = 0x314E5350  # "PSN1"


def encode_snapshot(state: LogState, *, log_mark: int) -> bytes:
    parts: list[bytes] = []
    for key, value in state.metadata.items():
        name = key.encode()
        parts += (_KEY.pack(len(name), len(value.data), value.lsn), name, value.data)
    for producer, known in state.producers.items():
        name = producer.encode()
        parts += (
            _PRODUCER.pack(
                len(name),
                len(known.recent),
                known.instance,
                known.next_seq,
                known.claim_lsn,
                known.claim_nonce,
            ),
            name,
        )
        parts += (
            _RECENT.pack(group.first_seq, group.count, group.instance, group.first_lsn)
            for group in known.recent
        )
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
        at = _decode_producers(data, at, producers, state)
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


def _decode_producers(data: Buffer, at: int, count: int, state: LogState) -> int:
    view = memoryview(data)
    for _ in range(count):
        name_bytes, groups, instance, next_seq, claim_lsn, nonce = _PRODUCER.unpack_from(data, at)
        at += _PRODUCER.size
        name = str(view[at : at + name_bytes], "utf-8")
        at += name_bytes
        known = ProducerState(instance, next_seq, Lsn(claim_lsn), nonce)
        for first_seq, entries, writer, first_lsn in _RECENT.iter_unpack(
            view[at : at + groups * _RECENT.size]
        ):
            known.recent.append(AppendedGroup(first_seq, entries, writer, Lsn(first_lsn)))
        at += groups * _RECENT.size
        state.producers[name] = known
    return at
