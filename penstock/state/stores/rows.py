"""A store of checkpoints that has the rows themselves: by part, virtual node and key.

    number of the part, u16 | virtual node, u8 | place of the key, u64
        →  cut at which it was written, u64 | of each row its size, u32, and its bytes
    number of the part, u16 | 255                       →  a value of the task, i64
    255 255 255 "about"                                 →  JSON: parts, bounds of evictions, …

A place is made of virtual node and hash of the key (fold.py). Keys of one place share an entry, so
that an entry is read before it is changed: what is put is what is there, merged with what came.
An eviction is not done to every row: its bound is kept, and rows that it strikes are left out when
they are read, and deleted from time to time, some virtual nodes with each increment.

Laws: those of api.py. An increment is one commit of the engine (bytes_api.py), so law 1 and law 2
are the engine's; a reading during which another commit came is done again.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import BadConfig, BadFormat, BadRequest, Damaged, PenstockError, Unavailable
from penstock.state.api import Change
from penstock.state.equal_rows import first_equal
from penstock.state.event_time import event_times_us
from penstock.state.fold import find_places, merge_changes, nodes_of, places_of
from penstock.state.keys import VIRTUAL_NODES, Hashes
from penstock.state.parts import ROW_SET, TABLE, Part, Parts, decode_parts, encode_parts
from penstock.state.stores.api import Increment, Loaded, Reference, StaleCut
from penstock.state.stores.bytes_api import NOTHING, Engine, check_cut
from penstock.state.stores.row_bytes import decode_rows, encode_rows

_ABOUT: Final = b"\xff\xff\xffabout"
_VALUE_NODE: Final = 255
_KEY: Final = struct.Struct(">HBQ")
_NUMBER: Final = struct.Struct(">H")
_VALUE_KEY: Final = struct.Struct(">HB")
_VALUE: Final = struct.Struct("<q")
_BORN: Final = struct.Struct("<Q")
_ROW: Final = struct.Struct("<I")
#: How often a state is read again that changes meanwhile.
_TRIES: Final = 5


class EngineOpener(Protocol):
    """What a store of rows needs of a database: one engine per task."""

    def __call__(self, task: str, *, writes: bool, anew: bool) -> Engine:
        """`anew`: what is there may be deleted if it cannot be read."""


@dataclass(slots=True)
class _About:
    """What an engine says of its rows."""

    numbers: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    #: Of each row set, (cut, bound): rows written before the cut, and not later than it, are gone.
    bounds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: The virtual node whose struck rows are deleted next, and how many may have some.
    next_node: int = 0
    nodes_left: int = 0
    #: Of all entries, about.
    size: int = 0

    def encode(self, increment: Increment) -> bytes:
        lines = [
            {**line, "number": self.numbers[str(line["name"])]} for line in encode_parts(self.parts)
        ]
        return json.dumps(
            {
                "task": increment.task,
                "instance": increment.instance,
                "fingerprint": increment.fingerprint,
                "parts": lines,
                "bounds": self.bounds,
                "next_node": self.next_node,
                "nodes_left": self.nodes_left,
                "bytes": self.size,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> _About:
        if data is None:
            raise BadFormat("a store of rows without a list of its parts")
        try:
            found = json.loads(data)
            numbers = {str(line["name"]): int(line["number"]) for line in found["parts"]}
            bounds = {
                name: [(int(cut), int(bound)) for cut, bound in pairs]
                for name, pairs in found["bounds"].items()
            }
            parts = decode_parts(found["parts"])
            counts = (int(found[name]) for name in ("next_node", "nodes_left", "bytes"))
            return cls(numbers, parts, bounds, *counts)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadFormat(f"not a list of parts: {error}") from error

    def number(self, name: str, part: Part) -> int:
        """Of a part; a new one gets the next."""
        self.parts[name] = part
        return self.numbers.setdefault(name, max(self.numbers.values(), default=-1) + 1)

    def evict(self, name: str, cut: int, bound: int) -> None:
        later = [pair for pair in self.bounds.get(name, []) if pair[1] > bound]
        self.bounds[name] = [*later, (cut, bound)]

    def bound_of(self, name: str, born: int) -> int | None:
        """What of an entry of this cut is gone, up to which event time."""
        bounds = [bound for cut, bound in self.bounds.get(name, []) if cut > born]
        return max(bounds, default=None)


class RowStore:
    """A StateStore over engines of bytes by key; see the laws of stores/api.py."""

    def __init__(self, scheme: str, open_engine: EngineOpener) -> None:
        self._scheme = scheme
        self._open_engine = open_engine
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        #: Calls under way; the last of them closes what is open, if that was asked for.
        self._busy = 0
        self._is_closed = False

    # -- writing

    def put(self, increment: Increment, base: Reference | None) -> Reference:
        with self._at_work():
            return self._put(increment)

    def _put(self, increment: Increment) -> Reference:
        task, anew = increment.task, increment.base_lsn is None
        engine = self._writable(task, anew=anew)
        try:
            have = engine.cut()
            check_cut(have, increment.base_lsn, increment.marker_lsn, f"{self._scheme} of {task}")
            about = _About() if anew else _About.decode(engine.get([_ABOUT])[0])
            batch = _Batch(engine, about, increment)
            for name, part in increment.parts.items():
                about.number(name, part)
            for name in {change.name: None for change in increment.changes}:
                changes = [change for change in increment.changes if change.name == name]
                batch.change(name, changes)
            batch.delete_struck()
            about.size += batch.bytes
            batch.puts[_ABOUT] = about.encode(increment)
            engine.commit(
                batch.puts,
                sorted(batch.deletes),
                base=increment.base_lsn,
                cut=increment.marker_lsn,
            )
        except StaleCut:
            raise
        except PenstockError:
            self._forget(task)  # it is opened again for the next one
            raise
        return {
            "store": self._scheme,
            "task": task,
            "marker_lsn": increment.marker_lsn,
            "instance": increment.instance,
            "bytes": about.size,
        }

    def _writable(self, task: str, *, anew: bool) -> Engine:
        with self._lock:
            engine = self._engines.get(task)
        if engine is None:
            try:
                engine = self._open(task, writes=True, anew=anew)
            except Damaged as error:
                # Nobody can go on from it: who has all rows is to put them.
                raise StaleCut(f"{self._scheme} of {task}: {error}", None) from error
            with self._lock:
                self._engines[task] = engine
        return engine

    def _open(self, task: str, *, writes: bool, anew: bool) -> Engine:
        try:
            return self._open_engine(task, writes=writes, anew=anew)
        except BadConfig as error:
            # It could be used when the query began, or can elsewhere: the query goes on.
            raise Unavailable(str(error)) from None

    def _forget(self, task: str) -> None:
        with self._lock:
            engine = self._engines.pop(task, None)
        if engine is not None:
            with suppress(PenstockError):
                engine.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._close_idle()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise Unavailable(f"{self._scheme} is closed: its task has ended")
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
            self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            if self._busy or not self._is_closed:
                return
            engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            with suppress(PenstockError):
                engine.close()

    # -- reading

    def load(self, reference: Reference, nodes: Collection[int] | None = None) -> Loaded:
        return self._read(reference, lambda engine, about: _load(engine, about, nodes))

    def find(self, reference: Reference, part: str, keys: Sequence[pa.Array]) -> Loaded:
        def find(engine: Engine, about: _About) -> list[Change]:
            if part not in about.parts:
                expected = ", ".join(sorted(about.parts))
                raise BadRequest(f"there is no part {part}: expected one of {expected}")
            return _find(engine, about, part, keys)

        return self._read(reference, find)

    def _read(self, reference: Reference, read: Callable[[Engine, _About], list[Change]]) -> Loaded:
        task, wanted = _check_reference(reference, self._scheme)
        with self._at_work(), self._readable(task) as engine:
            for _ in range(_TRIES):
                cut = engine.cut()
                if cut < wanted:
                    have = "nothing" if cut == NOTHING else f"cut {cut}"
                    raise BadFormat(f"{self._scheme} of {task} has {have}, expected {wanted}")
                changes = read(engine, _About.decode(engine.get([_ABOUT])[0]))
                if engine.cut() == cut:
                    return Loaded(cut, changes)
        raise Unavailable(f"{self._scheme} of {task} changes while it is read")

    @contextmanager
    def _readable(self, task: str) -> Iterator[Engine]:
        with self._lock:
            engine = self._engines.get(task)
        if engine is not None:
            yield engine
            return
        engine = self._open(task, writes=False, anew=False)
        try:
            yield engine
        finally:
            engine.close()

    def sweep(self, task: str, keep: Collection[Reference]) -> list[str]:
        """Rows are changed in place: nothing is left over."""
        return []


def _check_reference(reference: Reference, scheme: str) -> tuple[str, int]:
    task, cut = reference.get("task"), reference.get("marker_lsn")
    if reference.get("store") != scheme or not isinstance(task, str) or type(cut) is not int:
        raise BadFormat(f"not a reference to a store of {scheme}: {dict(reference)!r}")
    return task, cut


class _Batch:
    """What an increment changes in an engine."""

    def __init__(self, engine: Engine, about: _About, increment: Increment) -> None:
        self._engine = engine
        self._about = about
        self._increment = increment
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()
        #: How many more there are than before.
        self.bytes = 0

    def change(self, name: str, changes: Sequence[Change]) -> None:
        """All changes of one part."""
        part, number = self._about.parts[name], self._about.numbers[name]
        if part.kind not in (TABLE, ROW_SET):
            value = changes[-1].rows.column(0)[0].as_py()
            self.puts[_VALUE_KEY.pack(number, _VALUE_NODE)] = _VALUE.pack(value)
            return
        for change in changes:
            if change.kind == "evict":
                bound: int = change.rows.column(0)[0].as_py()
                self._about.evict(name, self._increment.marker_lsn, bound)
        touching = [change for change in changes if change.kind != "evict"]
        if not touching:
            return
        touched = np.unique(np.concatenate([places_of(part, one.rows) for one in touching]))
        keys = _keys(number, touched)
        merging = touching
        if self._increment.base_lsn is not None:
            old = self._engine.get(keys)
            self.bytes -= sum(len(value) for value in old if value is not None)
            rows = _rows_of(self._about, name, [value for value in old if value is not None])
            kind = "put" if part.kind == TABLE else "add"
            merging = [Change(name, kind, rows), *touching] if rows.num_rows else touching
        merged = merge_changes(merging, {name: part}, is_whole=True)
        new: dict[bytes, bytes] = {}
        for change in merged:  # one, or none
            places = places_of(part, change.rows)
            new |= _entries(number, places, encode_rows(change.rows), self._increment.marker_lsn)
        self.puts |= new
        self.bytes += sum(map(len, new.values()))
        if self._increment.base_lsn is not None:
            self.deletes |= set(keys) - new.keys()

    def delete_struck(self) -> None:
        """Of entries that only have rows which an eviction struck, those of some virtual node."""
        about = self._about
        if any(change.kind == "evict" for change in self._increment.changes):
            about.nodes_left = VIRTUAL_NODES
        if not about.nodes_left or self._increment.base_lsn is None:
            return
        about.nodes_left -= 1
        node = about.next_node = (about.next_node + 1) % VIRTUAL_NODES
        for name in sorted(about.bounds):
            prefix = _VALUE_KEY.pack(self._about.numbers[name], node)
            for key, value in self._engine.scan(prefix):
                if key in self.puts or key in self.deletes:
                    continue
                if not _rows_of(self._about, name, [value]).num_rows:
                    self.deletes.add(key)
                    self.bytes -= len(value)


def _keys(number: int, places: Hashes) -> list[bytes]:
    nodes = nodes_of(places).tolist()
    return [_KEY.pack(number, *each) for each in zip(nodes, places.tolist(), strict=True)]


def _entries(number: int, places: Hashes, rows: list[bytes], cut: int) -> dict[bytes, bytes]:
    """Rows in order of their places, those of one place together."""
    born = _BORN.pack(cut)
    begins = np.flatnonzero(np.r_[True, places[1:] != places[:-1]]) if len(places) else places
    ends = [*begins[1:].tolist(), len(rows)]
    framed = [_ROW.pack(len(row)) + row for row in rows]
    return {
        key: born + b"".join(framed[first:end])
        for key, first, end in zip(
            _keys(number, places[begins]), begins.tolist(), ends, strict=True
        )
    }


def _rows_of(about: _About, name: str, values: Sequence[bytes]) -> pa.RecordBatch:
    """The rows of these entries of a table or row set, without those that were struck."""
    part = about.parts[name]
    rows: list[bytes] = []
    borns: list[int] = []
    for value in values:  # an entry may have several rows
        (born,) = _BORN.unpack_from(value)
        at = _BORN.size
        while at < len(value):
            (size,) = _ROW.unpack_from(value, at)
            at += _ROW.size
            rows.append(value[at : at + size])
            borns.append(born)
            at += size
    batch = decode_rows(rows, _schema(part))
    if part.event_time is None or name not in about.bounds or not rows:
        return batch
    cuts, places = np.unique(np.array(borns, np.uint64), return_inverse=True)
    least = np.iinfo(np.int64).min
    bounds = [about.bound_of(name, int(cut)) for cut in cuts]
    struck_to = np.array([least if bound is None else bound for bound in bounds], np.int64)
    has_bound = np.array([bound is not None for bound in bounds], bool)
    times = event_times_us(batch.column(part.event_time))
    kept = (times > struck_to[places]) | ~has_bound[places]
    return batch if kept.all() else batch.filter(pa.array(kept))


def _schema(part: Part) -> pa.Schema:
    if part.kind != ROW_SET:
        return part.rows
    return part.rows.append(pa.field("weight", pa.int64())).remove_metadata()


def _load(engine: Engine, about: _About, nodes: Collection[int] | None) -> list[Change]:
    changes = []
    for name, part in about.parts.items():
        number = about.numbers[name]
        if part.kind not in (TABLE, ROW_SET):
            (stored,) = engine.get([_VALUE_KEY.pack(number, _VALUE_NODE)])
            if stored is not None:
                rows = pa.record_batch([pa.array([_VALUE.unpack(stored)[0]])], names=["value"])
                changes.append(Change(name, "set", rows))
            continue
        kind = "put" if part.kind == TABLE else "add"
        prefixes = [_NUMBER.pack(number)]
        if nodes is not None:
            prefixes = [_VALUE_KEY.pack(number, node) for node in sorted(nodes)]
        for prefix in prefixes:
            values = [value for _, value in engine.scan(prefix)]
            rows = _rows_of(about, name, values)
            if rows.num_rows:
                changes.append(Change(name, kind, rows))
    return changes


def _find(engine: Engine, about: _About, name: str, keys: Sequence[pa.Array]) -> list[Change]:
    part = about.parts[name]
    if part.kind not in (TABLE, ROW_SET):
        raise BadRequest(f"{name} is a value: it has no keys")
    places = np.unique(find_places(part, keys))
    values = [value for value in engine.get(_keys(about.numbers[name], places)) if value]
    rows = _rows_of(about, name, values)
    if not rows.num_rows:
        return []
    own = [rows.column(at) for at in part.keys]
    joined = [pa.concat_arrays(pair) for pair in zip(keys, own, strict=True)]
    asked = len(keys[0]) if keys else 1
    if joined:
        first = first_equal(joined, asked + rows.num_rows)
        rows = rows.filter(pa.array(first[asked:] < asked))
    kind = "put" if part.kind == TABLE else "add"
    return [Change(name, kind, rows)] if rows.num_rows else []


def parts_of(about: bytes | None) -> Parts:
    """What an engine says of its parts."""
    return _About.decode(about).parts
