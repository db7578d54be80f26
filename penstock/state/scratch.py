"""State larger than memory: arrays in mapped files that have no name.

Every large array is a file of its own on the local disk, mapped shared: the kernel writes it out
when memory is short, and reads it again when it is touched. So what is written stays, whatever is
let go. A file has no name: it vanishes with the last array that uses it, or
with the process, however that ends.

    growth     the file is made longer and mapped once more; nothing is copied, and whoever still
               holds the shorter array reads and writes the same bytes
    the bound  some times a second `tidy` looks how much is mapped in; above the bound, some chunks
               are let go, in turns, all files after each other. They stay in the kernel's cache as
               long as nobody needs its memory, so a row that is soon wanted again costs a fault and
               no read. A fault maps in what is around it too (64 KiB), so between two looks more
               than the bound may be mapped in. To look after every commit was measured: where rows
               are wanted at random, all that was let go came back, and cost ten times the rest
    cold rows  before rows are gathered, a few of them are tried; if one is not in memory, all are
               asked for at once, instead of one after the other

Disk space is taken before it is used, so that a full disk is an error here and no SIGBUS later.

Law: what was written to an array is read from it, whatever was let go in between.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Unavailable
from penstock.limits import MIB
from penstock.state.room import Array, Shape, in_memory

logger = logging.getLogger(__name__)

#: Smaller arrays are in memory, since a mapping costs two open files: arrays of a hundredth of the
#: bound, but no more than a MiB and no less than a page.
_SMALL_BYTES_MAX: Final = MIB
_SMALL_OF_BOUND: Final = 0.01
#: Let go at once; a multiple of every page size.
_CHUNK_BYTES: Final = 4 * MIB
#: Let go at one look: 64 MiB take about 2 ms.
_CHUNKS_A_LOOK: Final = 16
#: Between two looks.
LOOK_SECONDS: Final = 0.1
#: Rows that are gathered at once; fewer are not worth a look ahead.
_EXPECTED_MIN: Final = 32
#: Rows of a gather that are tried.
_SAMPLES: Final = 8
_PAGE: Final = mmap.PAGESIZE


class _File:
    """A scratch file: no name, and no holes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        try:
            with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
                self.fd = os.dup(file.fileno())
        except OSError as error:
            raise Unavailable(f"no scratch file for state in {folder}: {error.strerror}") from error
        weakref.finalize(self, os.close, self.fd)

    def take(self, start: int, end: int) -> None:
        """Have disk space for these bytes."""
        try:
            os.posix_fallocate(self.fd, start, end - start)
        except OSError as error:
            raise Unavailable(
                f"state needs {-(-(end - start) // MIB)} MiB more in {self._folder}: "
                f"{error.strerror}; free space there, or let spark.local.dir name another disk"
            ) from error

    def is_cached(self, position: int) -> bool:
        """Whether this byte is in memory."""
        try:
            return bool(os.preadv(self.fd, [bytearray(1)], position, os.RWF_NOWAIT))
        except BlockingIOError:
            return False
        except OSError:  # a file system that cannot tell
            return True


class _Mapping(mmap.mmap):
    """A file as it is mapped; the base of the arrays in it."""

    file: _File

    @classmethod
    def of(cls, file: _File, size: int) -> _Mapping:
        try:
            mapping = cls(file.fd, size)
        except OSError as error:
            raise Unavailable(
                f"a scratch file for state cannot be mapped: {error.strerror}; a worker needs two "
                "open files and a mapping for each (ulimit -n, vm.max_map_count)"
            ) from error
        mapping.file = file
        return mapping


class Scratch:
    """A room whose large arrays are in files; one for a worker. See room.Room."""

    is_bounded: Final = True

    def __init__(
        self,
        bound_bytes: int,
        folder: str | None = None,
        *,
        small_bytes: int | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.bound_bytes = bound_bytes
        self._look_seconds = look_seconds
        self._look_at = 0.0
        self._folder = folder or tempfile.gettempdir()
        if small_bytes is None:
            small_bytes = max(_PAGE, min(int(bound_bytes * _SMALL_OF_BOUND), _SMALL_BYTES_MAX))
        self._small_bytes = small_bytes
        self._mappings: weakref.WeakSet[_Mapping] = weakref.WeakSet()
        #: What is left of the round in which chunks are let go: mapping, position.
        self._turn: list[tuple[weakref.ref[_Mapping], int]] = []
        #: What else is mapped in: programs and libraries.
        self._others_bytes = _mapped_in_bytes()

    # -- arrays

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        shape = (shape,) if isinstance(shape, int) else shape
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if kind.hasobject or size < self._small_bytes or not size:
            return in_memory(shape, kind)
        return np.ndarray(shape, kind, self._map(_File(self._folder), 0, size))

    def grown(self, array: Array, rows: int) -> Array:
        shape = (rows, *array.shape[1:])
        mapping = _mapping_of(array)
        if mapping is None:
            wider = self.zeros(shape, array.dtype)
            wider[: len(array)] = array
            return wider
        size = int(np.prod(shape)) * array.itemsize
        return np.ndarray(shape, array.dtype, self._map(mapping.file, len(mapping), size))

    def joined(self, parts: Sequence[Array], axis: int = 0) -> Array:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return np.concatenate(parts, axis=axis, out=self.zeros(tuple(shape), parts[0].dtype))

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        size = pa.ipc.get_record_batch_size(rows)
        if size < self._small_bytes:
            return rows
        mapping = self._map(_File(self._folder), 0, size)
        with pa.FixedSizeBufferWriter(pa.py_buffer(mapping)) as sink:
            sink.write(rows.serialize())
        return pa.ipc.read_record_batch(pa.py_buffer(mapping), rows.schema)

    def _map(self, file: _File, had: int, size: int) -> _Mapping:
        """All bytes of a file that has so many already, and is to have `size`."""
        size = -(-size // _PAGE) * _PAGE
        if size > had:
            file.take(had, size)
        mapping = _Mapping.of(file, size)
        self._mappings.add(mapping)
        return mapping

    # -- what is in memory

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(len(mapping) for mapping in self._mappings)

    @property
    def mapped_in_bytes(self) -> int:
        """About how much of them is mapped in."""
        return min(max(0, _mapped_in_bytes() - self._others_bytes), self.bytes)

    def report(self) -> dict[str, int]:
        told = {"state_memory": self.bound_bytes, "state_file_bytes": self.bytes}
        with suppress(OSError):  # no open file is left to look with
            told["state_mapped_in_bytes"] = self.mapped_in_bytes
        return told

    def tidy(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._look_seconds
        try:
            if not self._mappings:
                self._others_bytes = _mapped_in_bytes()  # libraries may have been loaded since
            elif self.mapped_in_bytes > self.bound_bytes:
                self.let_go(_CHUNKS_A_LOOK)
        except OSError:
            pass  # no open file is left to look with, say: the next look may have one

    def let_go(self, chunks: int | None = None) -> None:
        """Let so many chunks go, in turns; None: all."""
        if chunks is None:
            self._turn = self._round()
            chunks = len(self._turn)
        while chunks > 0:
            chunks -= 1
            if not self._turn:
                self._turn = self._round()
            found, position = self._turn.pop()
            mapping = found()
            if mapping is not None:
                size = min(_CHUNK_BYTES, len(mapping) - position)
                mapping.madvise(mmap.MADV_DONTNEED, position, size)

    def _round(self) -> list[tuple[weakref.ref[_Mapping], int]]:
        return [
            (weakref.ref(mapping), position)
            for mapping in self._mappings
            for position in range(0, len(mapping), _CHUNK_BYTES)
        ]

    def expect(self, array: Array, places: npt.NDArray[np.int64]) -> None:
        if len(places) < _EXPECTED_MIN:
            return
        mapping = _mapping_of(array)
        if mapping is None:
            return
        row_bytes = array.strides[0]
        tried = places[:: len(places) // _SAMPLES] * row_bytes
        if all(map(mapping.file.is_cached, tried.tolist())):
            return
        pages = np.unique(places * row_bytes // _PAGE) * _PAGE
        for position in pages.tolist():  # of what a disk reads for each, the call is little
            mapping.madvise(mmap.MADV_WILLNEED, position, _PAGE)


def choose_folder(places: Sequence[str]) -> str:
    """The first of these that is there and on a disk. The last one is there.

    Where a folder is itself in memory (tmpfs, as /tmp is on some systems), nothing is gained.
    """
    found = [place for place in places if os.path.isdir(place)]
    chosen = next((place for place in found if not is_in_memory(place)), None)
    if chosen is None:
        logger.warning(
            "state_memory gains nothing: %s is in memory; let spark.local.dir name a folder on a "
            "disk", ", ".join(found),
        )  # fmt: skip
    return chosen or found[0]


def is_in_memory(folder: str) -> bool:
    """Whether its files are in memory, as the kernel says of what is mounted there."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for mount in mounts:
            about, _, kind = mount.partition(" - ")
            if about.split()[2] == number:
                return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def _mapping_of(array: Array) -> _Mapping | None:
    """The file that an array is in, from its beginning."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, _Mapping) else None


def _mapped_in_bytes() -> int:
    """Of this process, what is mapped in of files."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[2]) * _PAGE
