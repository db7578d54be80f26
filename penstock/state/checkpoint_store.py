"""Checkpoints of tasks as files, in a folder on any file system that pyarrow can open.

    <root>/<log>/<query>.<version>/<stage>/<index>/<lsn, 20 digits>-<instance>-<seal>.ckpt
                                                                                     .inc  .inc.2
                                                                                     .manifest
                                             <lsn>-<instance>.<nonce>.new while it is being written

    .ckpt       a whole state, which a marker names itself
    .inc        increments, merged or not, in two copies of which one may be lost or damaged
    .manifest   which increments make the state at a marker, oldest first; the marker names it

Owns names, durability and deletion; the bytes of rows are checkpoint_format.py's, those of
manifests manifest.py's. A name holds the seal of its content, so no two writers, be they instances
of which one is a zombie, ever write different bytes under one name. It holds the log's id as well:
queries of two logs may have one name and one root, and positions of the one say nothing of files of
the other. The LSN in a name is that of the marker whose checkpoint the file was written for.

Law: a file has its final name only when it is whole and durable; before that last step there is
garbage at most. `read` returns what the reference stands for or raises. `sweep` deletes what is
older than the oldest checkpoint that a committed marker names and what no such checkpoint needs,
by the names of our own and of our log, and never because something is missing elsewhere (R38, R40):
whoever came after us has named only what we keep, or what is newer. Files without a log in their
path, as earlier versions wrote them, are read and never deleted: nothing says whose they are.
"""

from __future__ import annotations

import re
import secrets
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from crc32c import crc32c

from penstock.errors import (
    BadFormat,
    BadRequest,
    ChecksumMismatch,
    Damaged,
    MissingFile,
    Unavailable,
)
from penstock.limits import MIB, POSITION_MAX
from penstock.log.storage.disk import File
from penstock.state.api import Change
from penstock.state.checkpoint_format import (
    Checkpoint,
    CheckpointMeta,
    Section,
    encode_checkpoint,
    open_checkpoint,
    seal_of,
)
from penstock.state.compaction import merge_files, plan_merge, source_of
from penstock.state.fold import find_places, have_keys, merge_changes
from penstock.state.folders import Folder, open_folder
from penstock.state.keys import VIRTUAL_NODES
from penstock.state.manifest import IncrementFile, Manifest, decode_manifest, encode_manifest
from penstock.state.parts import Parts
from penstock.state.stores.api import Increment, Loaded, Reference, StaleCut
from penstock.state.unread import Unread

_LOG: Final = re.compile(r"[0-9a-f]{32}")
#: query.version/stage/index: neither "..", nor an absolute path, nor a hidden file can match.
_TASK: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}\.[0-9]{1,10}/[0-9]{1,6}/[0-9]{1,6}")
_FILE: Final = re.compile(
    r"(?P<lsn>[0-9]{20})-[0-9]{1,20}"
    r"(-[0-9a-f]{8}\.(ckpt(\.2)?|inc(\.2)?|manifest)|\.[0-9a-f]{16}\.new)"
)
#: What the second copy of a file of increments has after its name.
_SECOND: Final = ".2"
_MANIFEST_BYTES_MAX: Final = 16 * MIB
_COPIED_BYTES: Final = 4 * MIB
#: Checkpoints of fewer bytes are read at once: it takes no longer than to open them.
LAZY_BYTES_MIN: Final = 1 * MIB
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Where a checkpoint is, and what its bytes must be."""

    #: Relative to the store.
    path: str
    marker_lsn: int
    instance: int
    #: Of all files that a restore reads.
    bytes: int
    #: The seal of checkpoint_format.py, or of the manifest: it stands for every byte.
    crc: int

    def to_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "marker_lsn": self.marker_lsn,
            "instance": self.instance,
            "bytes": self.bytes,
            "crc": self.crc,
        }

    @classmethod
    def from_json(cls, value: object) -> CheckpointRef:
        """The inverse of to_json; raises BadFormat for anything else."""
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise BadFormat(f"not a reference to a checkpoint: {value!r}")
        path, *numbers = (value[name] for name in cls.__dataclass_fields__)
        if not isinstance(path, str) or any(type(n) is not int or n < 0 for n in numbers):
            raise BadFormat(f"not a reference to a checkpoint: {value!r}")
        ref = cls(path, *numbers)
        ref.check()
        return ref

    @property
    def task(self) -> str:
        return _task_of(self.path)

    def check(self) -> None:
        """Raise BadFormat unless the path is one that is made for these numbers."""
        kind = "manifest" if self.is_manifest else "ckpt"
        _check_path(self.path, _name(self.marker_lsn, self.instance, self.crc, kind))

    @property
    def is_manifest(self) -> bool:
        """Whether it is made of increments, and not one file with all rows."""
        return self.path.endswith(".manifest")


def _check_path(path: str, name: str) -> None:
    if not _TASK.fullmatch(_task_of(path)) or path.rpartition("/")[2] != name:
        raise BadFormat(f"{path!r} is no path of this checkpoint")


def _task_of(path: str) -> str:
    folder = path.rpartition("/")[0]
    log, _, task = folder.partition("/")
    return task if _LOG.fullmatch(log) else folder  # earlier versions had no log in it


def _name(lsn: int, instance: int, seal: int, kind: str) -> str:
    return f"{lsn:020}-{instance}-{seal:08x}.{kind}"


class CheckpointStore:
    """Blocking; may be used by several threads at once."""

    def __init__(self, uri_or_path: str, log_id: str, folder: Folder | None = None) -> None:
        """`folder`: to use instead of opening what the URI or path names."""
        assert _LOG.fullmatch(log_id), f"{log_id!r} is no log's id"
        self._shown = uri_or_path
        self._log_id = log_id
        self._folder = folder or open_folder(uri_or_path)

    def close(self) -> None:
        """Nothing is open between two calls."""

    # -- writing

    def write(
        self,
        task: str,
        *,
        marker_lsn: int,
        instance: int,
        fingerprint: str,
        parts: Parts,
        changes: Sequence[Change],
    ) -> CheckpointRef:
        """Make the frozen state of a task durable, as one file; on return it is.

        Raises Unavailable if the file system does not take it: what was there before still is.
        """
        _check_task(task)
        _check_numbers(marker_lsn, instance)
        meta = CheckpointMeta(task, marker_lsn, instance, fingerprint)
        with self._reaching(f"checkpoint of {task}"):
            path, pieces = self._write_file(meta, "ckpt", encode_checkpoint(meta, parts, changes))
        return CheckpointRef(path, marker_lsn, instance, pieces.bytes, seal_of(pieces.last))

    def put(self, increment: Increment, base: Reference | None) -> Reference:
        """See StateStore.put. One file of increments is written, in two copies, then a manifest.

        Where increments are due to be merged, the merge is written instead of the new one. A copy
        of an older one that is lost is made again, and so is one that is found to be damaged.
        """
        _check_task(increment.task)
        _check_numbers(increment.marker_lsn, increment.instance)
        chain = self._chain_of(increment.task, base)
        at = chain[-1].marker_lsn if chain else None
        if increment.base_lsn != at or (at is not None and at >= increment.marker_lsn):
            raise StaleCut(
                f"an increment of ({increment.base_lsn}, {increment.marker_lsn}] does not go on "
                f"from the checkpoint at {at}",
                at,
            )
        with self._reaching(f"checkpoint of {increment.task}"):
            self._mend(increment.task, chain, crc32c(str(increment.marker_lsn).encode()))
            sizes = [line.bytes for line in chain]
            size = sum(change.rows.nbytes for change in increment.changes)
            first = plan_merge([*sizes, size])
            line = self._write_increment(increment, chain[first:], sum(sizes[first:]) + size)
            manifest = Manifest(
                increment.task, increment.marker_lsn, increment.instance, (*chain[:first], line)
            )
            data = encode_manifest(manifest)
            meta = CheckpointMeta(increment.task, increment.marker_lsn, increment.instance, "")
            path, _ = self._write_file(meta, "manifest", iter([data]), seal=crc32c(data))
        read = len(data) + sum(line.bytes for line in manifest.increments)
        return CheckpointRef(
            path, increment.marker_lsn, increment.instance, read, crc32c(data)
        ).to_json()

    def _write_increment(
        self, increment: Increment, merged: Sequence[IncrementFile], size: int
    ) -> IncrementFile:
        """A new one, or what it becomes together with the last ones of a chain."""
        base_lsn = merged[0].base_lsn if merged else increment.base_lsn
        meta = CheckpointMeta(
            increment.task,
            increment.marker_lsn,
            increment.instance,
            increment.fingerprint,
            base_lsn=base_lsn,
        )
        parts = increment.parts
        changes: Iterable[Change] = increment.changes
        if merged:
            files = [self._reader(line) for line in merged]
            sources = [*files, source_of(increment.changes, parts)]
            changes = merge_files(sources, parts, size, is_whole=base_lsn is None)
        counted = _Rows(changes)
        path, pieces = self._write_file(
            meta, "inc", encode_checkpoint(meta, parts, counted), copies=2
        )
        return IncrementFile(
            path,
            base_lsn,
            increment.marker_lsn,
            increment.instance,
            pieces.bytes,
            seal_of(pieces.last),
            counted.rows,
        )

    def _reader(self, line: IncrementFile) -> Callable[[Collection[int]], Sequence[Change]]:
        return lambda nodes: self._with(line, lambda found: found.read(nodes))

    def _write_file(
        self,
        meta: CheckpointMeta,
        kind: str,
        pieces: Iterator[bytes],
        *,
        copies: int = 1,
        seal: int | None = None,
    ) -> tuple[str, _Counted]:
        """The path of a new file, and what is known of its bytes. Its last copy is named first."""
        home = f"{self._log_id}/{meta.task}"
        stem = f"{home}/{meta.marker_lsn:020}-{meta.instance}"
        counted = _Counted(pieces)
        temporary = [f"{stem}.{secrets.token_hex(8)}.new" for _ in range(copies)]
        self._folder.make_dirs(home)
        try:
            self._folder.write(temporary[0], counted)
            for copy in temporary[1:]:
                self._copy(temporary[0], copy, counted.crc)
            sealed = seal_of(counted.last) if seal is None else seal
            path = f"{home}/{_name(meta.marker_lsn, meta.instance, sealed, kind)}"
            for copy, suffix in reversed(list(zip(temporary, ("", _SECOND), strict=False))):
                self._folder.publish(copy, path + suffix)
        except BaseException:
            for copy in temporary:
                with suppress(OSError):  # a full disk must not stay full; sweep gets what is left
                    self._folder.delete(copy)
            raise
        return path, counted

    def _copy(self, path: str, copy: str, crc: int | None = None) -> None:
        """A second file with the same bytes: those that were written, if their CRC is given."""
        with closing(self._folder.open(path)) as file:
            counted = _Counted(
                file.read_at(at, _COPIED_BYTES) for at in range(0, file.size, _COPIED_BYTES)
            )
            self._folder.write(copy, counted)
        if crc is not None and counted.crc != crc:
            raise OSError(f"{path} does not hold what was written to it")

    def _mend(self, task: str, chain: Sequence[IncrementFile], turn: int) -> None:
        """Make copies again that are lost, or damaged, as long as there is another.

        All are looked for, and one of them is read to its end, another one in each turn: so damage
        is found before the other copy is damaged too.
        """
        names = {*self._folder.names(f"{self._log_id}/{task}")}
        copies = [(line, suffix) for line in chain for suffix in ("", _SECOND)]
        for number, (line, suffix) in enumerate(copies):
            if not line.path.startswith(f"{self._log_id}/"):
                continue  # earlier versions', which are not ours to add to
            path, other = line.path + suffix, line.path + ("" if suffix else _SECOND)
            is_there = path.rpartition("/")[2] in names
            if is_there and (number != turn % len(copies) or self._is_whole(path, line)):
                continue
            if other.rpartition("/")[2] not in names:
                raise MissingFile(f"{path} is lost or damaged, and there is no other copy of it")
            stem = f"{self._log_id}/{task}/{line.marker_lsn:020}-{line.instance}"
            temporary = f"{stem}.{secrets.token_hex(8)}.new"
            self._copy(other, temporary)
            self._check(temporary, line)
            self._folder.publish(temporary, path)

    def _is_whole(self, path: str, line: IncrementFile) -> bool:
        try:
            self._check(path, line)
        except Damaged:
            return False
        return True

    def _check(self, path: str, line: IncrementFile) -> None:
        """Raise Damaged unless every byte of a copy is right."""
        with self._open(path, line.bytes) as file:
            open_checkpoint(file.read_at, file.size, seal=line.crc).check()

    # -- reading

    def load(self, reference: Reference, nodes: Collection[int] | None = None) -> Loaded:
        """See StateStore.load."""
        ref = CheckpointRef.from_json(reference)
        return Loaded(ref.marker_lsn, self.read(ref, nodes=nodes))

    def load_lazily(self, reference: Reference, wanted: Parts) -> Loaded:
        """As load does, but of these tables, as far as the files have them as they are described,
        rows are left in the files. Raises as load does for what is found damaged by then.
        """
        ref = CheckpointRef.from_json(reference)
        lines = self.increments(ref)
        if sum(line.bytes for line in lines) < LAZY_BYTES_MIN:
            return self.load(reference)
        files = [_OpenIncrement(self, line) for line in lines]
        names = [
            name
            for name, part in wanted.items()
            if all(file.is_searchable and file.parts.get(name) == part for file in files)
        ]
        changes = [change for file in files for change in file.read_without(names)]
        unread = {name: Unread(name, wanted[name], files) for name in names}
        return Loaded(ref.marker_lsn, changes, unread)

    @property
    def is_near(self) -> bool:
        """Whether files may be read while a batch waits for it."""
        return self._folder.is_near

    def read(self, ref: CheckpointRef, *, nodes: Collection[int] | None = None) -> list[Change]:
        """The state, or what virtual nodes have of it and what is the task's; apply in order.

        Raises Damaged if it is not what `ref` stands for (MissingFile if there is none): another
        checkpoint must be used. Raises Unavailable if the file system does not answer.
        """
        found: list[Change] = []
        for line in self.increments(ref):
            found += self._with(line, lambda file: file.read(nodes))
        return found

    def find(self, reference: Reference, part: str, keys: Sequence[pa.Array]) -> Loaded:
        """See StateStore.find. Only sections are read that may have one of the keys."""
        ref = CheckpointRef.from_json(reference)
        lines = self.increments(ref)
        parts = self.parts(ref)
        if part not in parts:
            raise BadRequest(f"there is no part {part}: expected one of {', '.join(sorted(parts))}")
        places = find_places(parts[part], keys)
        found: list[Change] = []
        for line in lines:
            found += self._with(line, lambda file: file.find(part, parts[part], places))
        merged = merge_changes(found, parts, is_whole=True)
        own = parts[part].keys
        exact = [(change, pa.array(have_keys(change.rows, own, keys))) for change in merged]
        changes = [Change(one.name, one.kind, one.rows.filter(mask)) for one, mask in exact]
        return Loaded(ref.marker_lsn, [change for change in changes if change.rows.num_rows])

    def read_meta(self, ref: CheckpointRef) -> CheckpointMeta:
        """What it is a checkpoint of; raises as `read` does, but does not look at the rows."""
        return self._with(self.increments(ref)[-1], lambda file: file.meta)

    def parts(self, ref: CheckpointRef) -> Parts:
        """What the parts of the state say of themselves; empty for files of version 1."""
        return self._with(self.increments(ref)[-1], lambda file: file.parts)

    def increments(self, ref: CheckpointRef) -> tuple[IncrementFile, ...]:
        """The files that make the checkpoint, oldest first."""
        ref.check()
        if not ref.is_manifest:
            lsn = ref.marker_lsn
            return (IncrementFile(ref.path, None, lsn, ref.instance, ref.bytes, ref.crc, 0),)
        with self._open(ref.path, None) as file:
            data = file.read_at(0, min(file.size, _MANIFEST_BYTES_MAX))
        if crc32c(data) != ref.crc:
            raise ChecksumMismatch(f"{ref.path} is not the manifest that was meant")
        manifest = decode_manifest(data)
        if (manifest.task, manifest.marker_lsn) != (ref.task, ref.marker_lsn):
            raise BadFormat(
                f"{ref.path} is a checkpoint of {manifest.task} at {manifest.marker_lsn}"
            )
        for line in manifest.increments:
            kind = "ckpt" if line.path.endswith(".ckpt") else "inc"
            _check_path(line.path, _name(line.marker_lsn, line.instance, line.crc, kind))
            if _task_of(line.path) != ref.task:
                raise BadFormat(f"{ref.path} names {line.path}, which is another task's")
        return manifest.increments

    def sizes(self, line: IncrementFile) -> list[tuple[str, str, dict[int, int], int]]:
        """What is where in a file: see Checkpoint.sizes."""
        return self._with(line, lambda file: file.sizes())

    def _chain_of(self, task: str, base: Reference | None) -> tuple[IncrementFile, ...]:
        if base is None:
            return ()
        ref = CheckpointRef.from_json(base)
        if ref.task != task:
            raise BadRequest(f"{ref.path} is no checkpoint of {task}")
        return self.increments(ref)

    def _with(self, line: IncrementFile, use: Callable[[Checkpoint], T]) -> T:
        """What is read of a file, or of its second copy if the first is damaged or lost."""
        try:
            return self._use(line.path, line, use)
        except Damaged as first:
            try:
                return self._use(line.path + _SECOND, line, use)
            except MissingFile:
                raise first from None

    def _use(self, path: str, line: IncrementFile, use: Callable[[Checkpoint], T]) -> T:
        with self._open(path, line.bytes) as file:
            return use(_checked(file, path, line))

    def open_file(self, path: str, line: IncrementFile) -> tuple[File, Checkpoint]:
        """A copy of a file, which the caller closes."""
        with self._reaching(path):
            file = self._open_whole(path, line.bytes)
            try:
                return file, _checked(file, path, line)
            except BaseException:
                file.close()
                raise

    def reaching(self, path: str) -> AbstractContextManager[None]:
        """In which failures of the file system are Unavailable."""
        return self._reaching(path)

    # -- deleting

    def sweep(self, task: str, keep: Collection[Reference]) -> list[str]:
        """Delete what none of these checkpoints needs, and is older than all of them.

        To be called with those that a committed marker names. Returns the paths of what was
        deleted, sorted.
        """
        refs = [CheckpointRef.from_json(one) for one in keep]
        keep_from = min((ref.marker_lsn for ref in refs), default=0)
        return self.sweep_before(task, keep_from, refs)

    def sweep_before(
        self, task: str, keep_from_lsn: int, keep: Collection[CheckpointRef] = ()
    ) -> list[str]:
        """Delete a task's files, whole or half made, of markers before keep_from_lsn.

        But not what one of `keep` needs; if that cannot be told, raises as `read` does, and nothing
        is deleted.
        """
        _check_task(task)
        home = f"{self._log_id}/{task}"
        needed = {ref.path for ref in keep}
        for ref in keep:
            for line in self.increments(ref):
                needed |= {line.path, line.path + _SECOND}
        deleted = []
        with self._reaching(f"checkpoints of {task}"):
            for name in sorted(self._folder.names(home)):
                match = _FILE.fullmatch(name)
                if match is None or int(match["lsn"]) >= keep_from_lsn:
                    continue
                if f"{home}/{name}" in needed:
                    continue
                with suppress(FileNotFoundError):  # somebody else sweeps too
                    self._folder.delete(f"{home}/{name}")
                    deleted.append(f"{home}/{name}")
        return deleted

    @contextmanager
    def _open(self, path: str, size: int | None) -> Iterator[File]:
        with self._reaching(path), closing(self._open_whole(path, size)) as file:
            yield file

    def _open_whole(self, path: str, size: int | None) -> File:
        try:
            file = self._folder.open(path)
        except FileNotFoundError as error:
            self._folder.look()
            raise MissingFile(f"checkpoint {path} is not in {self._shown}") from error
        if size is not None and file.size != size:
            found = file.size
            file.close()
            raise BadFormat(f"{path} has {found} bytes, expected {size}")
        return file

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{what} in {self._shown}: {error}; try again later") from error


def _checked(file: File, path: str, line: IncrementFile) -> Checkpoint:
    found = open_checkpoint(file.read_at, file.size, seal=line.crc)
    meta = found.meta
    said = (meta.task, meta.marker_lsn, meta.instance, meta.base_lsn)
    if said != (_task_of(path), line.marker_lsn, line.instance, line.base_lsn):
        raise BadFormat(f"{path} is a checkpoint of {meta.task} at {meta.marker_lsn}")
    return found


class _OpenIncrement:
    """A file of increments that stays open, however long; and its second copy, if it is needed.

    What is open can be read even if it was deleted meanwhile.
    """

    def __init__(self, store: CheckpointStore, line: IncrementFile) -> None:
        self._store = store
        self._line = line
        self._is_second = False
        try:
            self._open(line.path)
        except Damaged as first:
            self._open_second(first)

    def _open(self, path: str) -> None:
        self._file, self._checkpoint = self._store.open_file(path, self._line)
        weakref.finalize(self, self._file.close)

    def _open_second(self, first: Damaged) -> None:
        try:
            self._open(self._line.path + _SECOND)
        except MissingFile:
            raise first from None
        self._is_second = True

    @property
    def parts(self) -> Parts:
        """See Checkpoint.parts."""
        return self._checkpoint.parts

    @property
    def is_searchable(self) -> bool:
        """Whether its rows are in order of their places, as they are told here."""
        is_ours = self._checkpoint.meta.virtual_nodes == VIRTUAL_NODES
        return is_ours and bool(self._checkpoint.parts)

    def sections(self, name: str) -> list[Section]:
        """See Checkpoint.sections: copies have the same."""
        return self._checkpoint.sections(name)

    def rows(self, section: Section) -> pa.RecordBatch:
        """See Checkpoint.rows."""
        return self._of_a_copy(lambda file: file.rows(section))

    def read_without(self, names: Collection[str]) -> list[Change]:
        """All changes of other parts."""
        return self._of_a_copy(lambda file: file.read(without=names))

    def _of_a_copy(self, use: Callable[[Checkpoint], T]) -> T:
        with self._store.reaching(self._line.path):
            try:
                return use(self._checkpoint)
            except Damaged as first:
                if not self._is_second:
                    self._open_second(first)
                return use(self._checkpoint)


def _check_task(task: str) -> None:
    if not _TASK.fullmatch(task):
        raise BadRequest(f"{task!r} is no task: expected query.version/stage/index")


def _check_numbers(marker_lsn: int, instance: int) -> None:
    if not (0 <= marker_lsn < POSITION_MAX and 0 <= instance < POSITION_MAX):
        raise BadRequest(f"a checkpoint at marker {marker_lsn} of instance {instance}")


class _Rows:
    """Passes changes on; knows how many rows of tables and row sets they had."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._changes = changes
        self.rows = 0

    def __iter__(self) -> Iterator[Change]:
        for change in self._changes:
            if change.kind not in ("set", "evict"):
                self.rows += change.rows.num_rows
            yield change


class _Counted:
    """Passes pieces on; knows their bytes, the CRC of all of them, and the last one."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.bytes = self.crc = 0
        self.last = b""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.bytes += len(piece)
            self.crc = crc32c(piece, self.crc)
            self.last = piece
            yield piece
