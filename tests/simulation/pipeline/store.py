"""Where checkpoints are kept in the simulation: files in memory that get damaged and lost.

Owns what is damaged and lost. Law: of a task's newest checkpoints at most one has lost its
manifest, or its only file; and of increments, which have two copies, one of each at most. That is
what a checkpoint is promised to survive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

from harness.disk import SimDisk

from penstock.errors import Damaged
from penstock.log.storage.disk import File
from penstock.state.api import Change
from penstock.state.checkpoint_format import Checkpoint
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.manifest import IncrementFile, decode_manifest

T = TypeVar("T")

#: Of these many newest files of a task, one may be unusable.
_NEWEST = 3


class SimFolder:
    """A `Folder` of state/checkpoint_store.py whose files are durable once they are published."""

    def __init__(
        self,
        tail: Callable[[], int] = lambda: 0,
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        """`tail` is the log's, for the checkers; `fails` is asked before every write."""
        #: Whether rows may be left in files by who resumes; worlds say so.
        self.is_near = False
        self._tail = tail
        self._fails = fails
        self.files: dict[str, bytes] = {}
        #: By path: the log's tail when it became durable. Never forgotten.
        self.published: dict[str, int] = {}
        #: By path: the log's tail when it was deleted.
        self.swept: dict[str, int] = {}
        #: By task: the paths of its checkpoints, oldest first.
        self._order: dict[str, list[str]] = {}
        self._broken: set[str] = set()
        #: By manifest: the files of increments that it names.
        self._needs: dict[str, list[str]] = {}

    def look(self) -> None:
        pass

    def make_dirs(self, path: str) -> None:
        pass

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        if self._fails():
            raise OSError("the store cannot be reached")
        self.files[path] = data

    def publish(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)
        self.published.setdefault(new, self._tail())
        self._broken.discard(new)  # a copy that was lost is made again
        task = "/".join(new.split("/")[1:-1])  # between the log and the file's name
        self._order.setdefault(task, []).append(new)
        if new.endswith(".manifest"):
            increments = decode_manifest(self.files[new]).increments
            self._needs[new] = [line.path for line in increments]

    def files_of(self, path: str) -> list[str]:
        """All files of a checkpoint, by what a marker names; one copy of each."""
        return [path, *self._needs.get(path, ())]

    def open(self, path: str) -> File:
        if path not in self.files:
            raise FileNotFoundError(path)
        return SimDisk({"file": self.files[path]}).open("file")

    def names(self, path: str) -> list[str]:
        found = (file.rpartition("/") for file in self.files)
        return [name for folder, _, name in found if folder == path]

    def delete(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]
        self.swept[path] = self._tail()

    def damage(self, random: Random, named: Mapping[str, Sequence[str]]) -> str | None:
        """Damage or lose a checkpoint, if the promise allows it.

        `named`: by task, the paths that its last marker names.
        """
        for task in random.sample(sorted(self._order), len(self._order)):
            tops = [one for one in self._order[task] if one.endswith((".manifest", ".ckpt"))]
            newest = [*tops[-_NEWEST:], *named.get(task, ())]
            copies = [
                copy
                for top in newest
                for line in self._needs.get(top, ())
                if line.endswith(".inc")
                for copy in (line, f"{line}.2")
            ]
            if not newest:
                continue  # nothing is whole yet
            path = random.choice(copies if copies and random.random() < 0.5 else newest)
            if path in copies:
                others = {path.removesuffix(".2"), f"{path.removesuffix('.2')}.2"} - {path}
            else:
                others = {*newest, *(f"{one}.2" for one in newest)}
            if path in self.files and self._broken.isdisjoint(others | {path}):
                self._broken.add(path)
                if random.random() < 0.5:
                    del self.files[path]
                else:
                    data = bytearray(self.files[path])
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                    self.files[path] = bytes(data)
                return path
        return None


class WatchedStore(CheckpointStore):
    """The shipped store; what was read, and could not be, is counted."""

    def __init__(
        self, uri: str, log_id: str, folder: SimFolder, count: Callable[[str], None]
    ) -> None:
        super().__init__(uri, log_id, folder)
        self._count = count

    def _use(self, path: str, line: IncrementFile, use: Callable[[Checkpoint], T]) -> T:
        try:
            return super()._use(path, line, use)
        except Damaged:
            self._count("copy unusable")
            raise

    def read(self, ref: CheckpointRef, *, nodes: Collection[int] | None = None) -> list[Change]:
        try:
            changes = super().read(ref, nodes=nodes)
        except Damaged:
            self._count("checkpoint unusable")
            raise
        self._count("checkpoint used")
        return changes
