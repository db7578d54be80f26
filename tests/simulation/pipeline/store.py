"""Checkpoints in memory, in the real format, each durable from the moment it is published.

Owns what is damaged and lost. Law: at most one of a task's newest checkpoints is unusable at a
time, which is what two of them named by a marker are promised to survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from penstock.errors import BadFormat, MissingFile
from penstock.state.api import Change
from penstock.state.checkpoint_format import (
    CheckpointMeta,
    encode_checkpoint,
    read_checkpoint,
    seal_of,
)
from penstock.state.checkpoint_store import CheckpointRef

#: Of these many newest files of a task, one may be unusable.
_NEWEST = 3


@dataclass(slots=True)
class SimStore:
    """As state/checkpoint_store.py, without files."""

    files: dict[str, bytes] = field(default_factory=dict)
    #: By path: the log's tail when it became durable. Never forgotten.
    published: dict[str, int] = field(default_factory=dict)
    #: By path: the log's tail when it was deleted.
    swept: dict[str, int] = field(default_factory=dict)
    _order: dict[str, list[str]] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    def encode(
        self, task: str, lsn: int, instance: int, fingerprint: str, changes: Sequence[Change]
    ) -> tuple[CheckpointRef, bytes]:
        pieces = list(encode_checkpoint(CheckpointMeta(task, lsn, instance, fingerprint), changes))
        seal = seal_of(pieces[-1])
        path = f"{task}/{lsn:020}-{instance}-{seal:08x}.ckpt"
        data = b"".join(pieces)
        return CheckpointRef(path, lsn, instance, len(data), seal), data

    def publish(self, ref: CheckpointRef, data: bytes, tail: int) -> None:
        self.files[ref.path] = data
        self.published.setdefault(ref.path, tail)
        self._order.setdefault(ref.task, []).append(ref.path)

    def read(self, ref: CheckpointRef) -> list[Change]:
        data = self.files.get(ref.path)
        if data is None:
            raise MissingFile(f"checkpoint {ref.path} is not there")
        if len(data) != ref.bytes:
            raise BadFormat(f"{ref.path} has {len(data)} bytes, expected {ref.bytes}")

        def read_at(at: int, size: int) -> bytes:
            return data[at : at + size]

        return read_checkpoint(read_at, len(data), seal=ref.crc)[1]

    def sweep(self, task: str, keep_from_lsn: int, tail: int) -> None:
        for path in [path for path in self.files if path.startswith(f"{task}/")]:
            lsn = int(path.rpartition("/")[2].partition("-")[0])
            if lsn < keep_from_lsn:
                del self.files[path]
                self.swept[path] = tail

    def damage(self, random: Random, named: Mapping[str, Sequence[str]]) -> str | None:
        """Damage or lose a checkpoint, if the promise allows it.

        `named`: by task, the paths that its last marker names.
        """
        for task in random.sample(sorted(self._order), len(self._order)):
            newest = [*self._order[task][-_NEWEST:], *named.get(task, ())]
            path = random.choice(newest)
            if path in self.files and self._broken.isdisjoint(newest):
                self._broken.add(path)
                if random.random() < 0.5:
                    del self.files[path]
                else:
                    data = bytearray(self.files[path])
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                    self.files[path] = bytes(data)
                return path
        return None
