"""Rows of a table that are in a checkpoint's files still: read when they are wanted, and beside.

A task that resumes opens the files of its checkpoint and begins. Rows of a table that is only asked
by key come when a batch has their keys, all keys of a batch at once, and the others one virtual
node after the other, which a thread reads ahead. Files are searched newest first, as changes are
applied oldest first: the first that says anything of a key decides.

What is in the table counts, and not what is unread; and a key that the table has deleted is never
looked for again. So rows may be brought in in any order, and changes that were committed after the
checkpoint may be applied before the rows that they replace were read.

Law: a table with unread rows answers as one that has read them all. What cannot be read is never
taken for absent: it raises UnreadLost, and the task resumes anew, reading everything first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Damaged, Unavailable
from penstock.limits import MIB
from penstock.state.api import Change
from penstock.state.checkpoint_format import Section
from penstock.state.fold import find_places, merge_changes, nodes_of, places_of
from penstock.state.key_index import key_words, make_index
from penstock.state.keys import VIRTUAL_NODES, Hashes, words_column
from penstock.state.parts import Part

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")
#: What was read of files and is not in the table yet is kept up to here, and then read again.
_HELD_BYTES_MAX: Final = 256 * MIB


class UnreadLost(Unavailable):
    """Rows that were left in their files cannot be read now."""


class SectionFile(Protocol):
    """A file of increments that stays open."""

    def sections(self, name: str) -> Sequence[Section]:
        """Those of a part, in order."""

    def rows(self, section: Section) -> pa.RecordBatch:
        """Raises Damaged or Unavailable."""


@dataclass(slots=True)
class _Held:
    """The rows of a section, and their places once they were asked for."""

    section: Section
    rows: pa.RecordBatch
    places: Hashes | None = None

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + 8 * self.rows.num_rows


class _Sections:
    """Those of one file and one kind of change, in order of their places."""

    def __init__(self, file: SectionFile, kind: str, sections: Sequence[Section]) -> None:
        self.file = file
        self.kind = kind
        self.sections = sections
        self._first = np.array([one.places[0] for one in sections], np.uint64)
        self._last = np.array([one.places[1] for one in sections], np.uint64)

    def search(self, places: Hashes) -> Iterator[tuple[Section, int, int]]:
        """The sections that may have rows at some of these places, which are in order: those from
        one number up to another."""
        starts = places.searchsorted(self._first, "left")
        ends = places.searchsorted(self._last, "right")
        for number in np.flatnonzero(ends > starts).tolist():
            yield self.sections[number], int(starts[number]), int(ends[number])


class Unread:
    """Of one table. Rows may be sought and read ahead by two threads at once."""

    def __init__(self, name: str, part: Part, files: Sequence[SectionFile]) -> None:
        """`files`: oldest first."""
        self._name = name
        self.part = part
        #: Newest first; of one file a key is in one kind at most.
        self._runs: list[_Sections] = []
        #: Rows by virtual node, about: of several files they may be the same.
        self._rows = np.zeros(VIRTUAL_NODES, np.int64)
        for file in reversed(files):
            for kind in ("put", "delete"):
                own = [one for one in file.sections(name) if one.kind == kind]
                self._runs.append(_Sections(file, kind, own))
                for section in own if kind == "put" else ():
                    np.add.at(self._rows, section.nodes, np.diff([*section.starts, section.rows]))
        self._is_read = self._rows == 0
        self._gone = make_index(pa.schema([part.rows.field(at) for at in part.keys]))
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    # -- by its table

    @property
    def rows(self) -> int:
        """About how many are left."""
        return int(self._rows[~self._is_read].sum())

    @property
    def nodes(self) -> list[int]:
        """The virtual nodes that are left."""
        return np.flatnonzero(~self._is_read).tolist()

    def forget(self, keys: Sequence[pa.Array]) -> None:
        """The table has deleted these."""
        self._gone.locate(keys, len(keys[0]))

    def is_gone(self, keys: Sequence[pa.Array]) -> Mask:
        """Which of these keys the table has deleted."""
        return self._gone.find(keys, len(keys[0])) >= 0

    def finish(self, node: int) -> None:
        """All rows of a virtual node are in the table."""
        self._is_read[node] = True
        with self._lock:
            for number, held in list(self._held.items()):
                if self._is_read[held.section.nodes].all():
                    self._held_bytes -= self._held.pop(number).nbytes

    def find(self, keys: Sequence[pa.Array]) -> pa.RecordBatch | None:
        """The unread rows of these keys, which are not in the table."""
        places = find_places(self.part, keys)
        left = np.flatnonzero(~(self._is_read[nodes_of(places)] | self.is_gone(keys)))
        if not len(left):
            return None
        left = left[places[left].argsort(kind="stable")]
        found = []
        for run in self._runs:
            rows, decided = self._find_in(run, keys, places, left)
            if rows is not None and run.kind == "put":
                found.append(rows)
            left = left[~decided]
            if not len(left):
                break
        return pa.concat_batches(found) if found else None

    def _find_in(
        self, run: _Sections, keys: Sequence[pa.Array], places: Hashes, left: Ints
    ) -> tuple[pa.RecordBatch | None, Mask]:
        """The rows of these keys in some sections, and of which keys there are any."""
        decided = np.zeros(len(left), bool)
        sought = places[left]
        batches, probes = [], []
        for section, start, end in run.search(sought):
            held = self._read(run, section)
            own = sought[start:end]
            if held.places is None:
                held.places = places_of(self.part, held.rows)
            lows = held.places.searchsorted(own, "left")
            counts = held.places.searchsorted(own, "right") - lows
            if not counts.any():
                continue
            # Different keys may share a place: each key's candidates stand together.
            first = np.repeat(lows - np.cumsum(counts) + counts, counts)
            batches.append(held.rows.take(words_column(first + np.arange(len(first)))))
            probes.append(np.repeat(np.arange(start, end), counts))
        if not batches:
            return None, decided
        rows, probe = pa.concat_batches(batches), np.concatenate(probes)
        same = _are_equal(keys, left[probe], [rows.column(at) for at in self.part.keys])
        decided[probe[same]] = True
        return rows.filter(pa.array(same)), decided

    # -- by a thread

    def read_node(self, node: int) -> pa.RecordBatch | None:
        """All rows of a virtual node, with those that the table has already."""
        changes: list[Change] = []
        for run in reversed(self._runs):
            for section in run.sections:
                if node in section.nodes:
                    at = section.nodes.index(node)
                    start, end = [*section.starts, section.rows][at : at + 2]
                    rows = self._read(run, section).rows.slice(start, end - start)
                    changes.append(Change(self._name, run.kind, rows))
        if len({*self._runs_of(node)}) > 1:
            changes = merge_changes(changes, {self._name: self.part}, is_whole=True)
        puts = [change.rows for change in changes if change.kind == "put"]
        return pa.concat_batches(puts) if puts else None

    def _runs_of(self, node: int) -> Iterator[int]:
        """Numbers of the runs that say something of a virtual node."""
        for number, run in enumerate(self._runs):
            if any(node in section.nodes for section in run.sections):
                yield number

    def _read(self, run: _Sections, section: Section) -> _Held:
        with self._lock:
            held = self._held.get(id(section))
            if held is not None:
                self._held.move_to_end(id(section))
                return held
        held = _Held(section, _reading(lambda: run.file.rows(section)))
        with self._lock:
            if id(section) not in self._held:
                self._held[id(section)] = held
                self._held_bytes += held.nbytes
            while self._held_bytes > _HELD_BYTES_MAX and len(self._held) > 1:
                self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return held


def _are_equal(keys: Sequence[pa.Array], places: Ints, own: Sequence[pa.Array]) -> Mask:
    """Which rows have the keys at these places, as the table's index has it: hashes alone do not
    tell, and types may differ in what no index looks at, as whether fields may be null."""
    sought = [key.take(words_column(places)) for key in keys]
    count = len(places)
    same: Mask = (key_words(sought, count) == key_words(own, count)).all(axis=1)
    return same


def _reading(read: Callable[[], T]) -> T:
    try:
        return read()
    except (Damaged, Unavailable, OSError) as error:
        raise UnreadLost(f"rows of a checkpoint that were not read yet: {error}") from error
