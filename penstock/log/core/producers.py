"""The producer table: what is known of every producer that has not retired, in few bytes each.

Owns how one producer is kept: as the bytes that a snapshot has of it, so that a table of very many
is small, is copied by copying references, and needs no encoding. A `ProducerState` is made of them
for whoever asks. Law: what is kept of a producer is never changed, only replaced; so a copy stays
as it is while the table goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.ids import Lsn
from penstock.limits import PRODUCER_RECENT_GROUPS
from penstock.log.group_format import Buffer

# docs/formats.md, "Snapshot"
_PRODUCER = struct.Struct("<HHQQQQ")
_RECENT = struct.Struct("<QIQQ")


@dataclass(frozen=True, slots=True)
class AppendedGroup:
    """Where a group of a producer went."""

    first_seq: int
    count: int
    instance: int
    first_lsn: Lsn


class ProducerState(NamedTuple):
    """What is known of one producer."""

    #: The highest instance that claimed or wrote; lower ones are fenced.
    instance: int
    #: The only first seq that a new group may have.
    next_seq: int
    #: LSN and nonce of the claim that made `instance`: tells a retried claim from a rival's.
    claim_lsn: Lsn
    claim_nonce: int
    #: `recent` as bytes.
    recent_bytes: bytes = b""

    @property
    def recent(self) -> list[AppendedGroup]:
        """The newest groups, oldest first; at least all that may be unacknowledged."""
        return [
            AppendedGroup(first_seq, count, instance, Lsn(first_lsn))
            for first_seq, count, instance, first_lsn in _RECENT.iter_unpack(self.recent_bytes)
        ]


class Producers(MutableMapping[str, ProducerState]):
    """See the module's docstring."""

    __slots__ = ("_encoded",)

    def __init__(self) -> None:
        self._encoded: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> ProducerState:
        encoded = self._encoded[name]
        name_bytes, _, instance, next_seq, claim_lsn, nonce = _PRODUCER.unpack_from(encoded)
        recent = encoded[_PRODUCER.size + name_bytes :]
        return ProducerState(instance, next_seq, Lsn(claim_lsn), nonce, recent)

    def __setitem__(self, name: str, known: ProducerState) -> None:
        instance, next_seq, claim_lsn, nonce, recent = known
        groups = len(recent) // _RECENT.size
        text = name.encode()
        head = _PRODUCER.pack(len(text), groups, instance, next_seq, claim_lsn, nonce)
        self._encoded[name] = head + text + recent

    def __delitem__(self, name: str) -> None:
        del self._encoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __len__(self) -> int:
        return len(self._encoded)

    def __contains__(self, name: object) -> bool:
        return name in self._encoded

    def append(self, name: str, group: AppendedGroup) -> None:
        """A producer of the table has appended a group. Done for every group: hence on bytes."""
        encoded = self._encoded[name]
        name_bytes, groups, instance, _, claim_lsn, nonce = _PRODUCER.unpack_from(encoded)
        next_seq = group.first_seq + group.count
        kept = encoded[_PRODUCER.size :]
        if groups >= PRODUCER_RECENT_GROUPS:
            forgotten = (groups + 1 - PRODUCER_RECENT_GROUPS) * _RECENT.size
            kept = kept[:name_bytes] + kept[name_bytes + forgotten :]
            groups = PRODUCER_RECENT_GROUPS - 1
        head = _PRODUCER.pack(name_bytes, groups + 1, instance, next_seq, claim_lsn, nonce)
        last = _RECENT.pack(group.first_seq, group.count, group.instance, group.first_lsn)
        self._encoded[name] = head + kept + last

    def copy(self) -> Producers:
        """An independent copy."""
        made = Producers()
        made._encoded = self._encoded.copy()
        return made

    def encoded(self) -> Iterable[bytes]:
        """Every producer, as it stands in a snapshot."""
        return self._encoded.values()

    def decode(self, data: Buffer, at: int) -> int:
        """Take in the producer that stands at a place of a snapshot; returns where it ends.

        struct.error or UnicodeDecodeError: there stands none.
        """
        name_bytes, groups, *_ = _PRODUCER.unpack_from(data, at)
        name_end = at + _PRODUCER.size + name_bytes
        end: int = name_end + groups * _RECENT.size
        view = memoryview(data)
        name = str(view[at + _PRODUCER.size : name_end], "utf-8")
        if end > len(data):
            raise struct.error("it is cut")
        self._encoded[name] = bytes(view[at:end])
        return end
