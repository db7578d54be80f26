"""From key columns to slots: one index for keys of narrow columns, one for all others.

Narrow are numbers, dates, times, and structs of them, such as windows: such keys become rows of
64-bit words. All others become objects of Python's.

Law: equal keys, as Spark groups, have one slot; a slot is reused only after its key was forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.state.int_index import IntIndex
from penstock.state.keys import WORDS, canonical_ints, key_columns, key_objects, words_column
from penstock.state.room import MEMORY, Room

Slots = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Whatever may be null has a bit of one word.
_BITS_MAX = 63


class KeyIndex(Protocol):
    """Keys and their slots."""

    def __len__(self) -> int: ...

    @property
    def next(self) -> int:
        """One more than the largest slot ever given."""

    def make_places(self, count: int) -> Slots | None:
        """What so many keys need; a thread may make it."""

    def expect(self, count: int, places: Slots | None = None) -> None:
        """So many keys will come; `places` is what was made for them."""

    def locate(self, keys: Sequence[pa.Array], rows: int) -> tuple[Slots, Mask]:
        """The slot of each row's key, and whether that key is new."""

    def find(self, keys: Sequence[pa.Array], rows: int) -> Slots:
        """The slot of each row's key, -1 where there is none."""

    def forget(self, slots: Slots) -> None:
        """Free these slots, distinct and in use."""

    def slots(self) -> Slots:
        """All slots in use."""

    def is_alive(self, slots: Slots) -> Mask:
        """Which of these slots are in use."""

    def columns(self, slots: Slots) -> list[pa.Array]:
        """The keys of these slots, all in use."""


def make_index(keys: pa.Schema, room: Room = MEMORY) -> KeyIndex:
    """The index for keys of these columns."""
    types = list(keys.types)
    if not types or not all(_is_narrow(kind) for kind in types):
        return ObjectIndex(types)
    if len(types) == 1 and not pt.is_struct(types[0]):
        return NumberIndex(types[0], room)
    is_narrow = sum(map(_bits, types)) <= _BITS_MAX
    return WordIndex(types, room) if is_narrow else ObjectIndex(types)


def _is_narrow(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return all(_is_narrow(field.type) for field in _fields(kind))
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
    return is_number or (pt.is_temporal(kind) and not pt.is_interval(kind))


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(place) for place in range(kind.num_fields)]


class _OfWords:
    """What an index of words does for the one that makes words of keys."""

    _index: IntIndex

    def make_places(self, count: int) -> Slots | None:
        return self._index.make_places(count)

    def expect(self, count: int, places: Slots | None = None) -> None:
        self._index.expect(count, places)


class NumberIndex(_OfWords):
    """Keys of one column of numbers, dates or times; slot 0 is kept for null."""

    def __init__(self, kind: pa.DataType, room: Room) -> None:
        self._kind = kind
        self._index = IntIndex(1, room)
        self._has_null = False

    def __len__(self) -> int:
        return len(self._index) + self._has_null

    @property
    def next(self) -> int:
        return self._index.next + 1

    def locate(self, keys: Sequence[pa.Array], rows: int) -> tuple[Slots, Mask]:
        (column,) = keys
        numbers = canonical_ints(column)[:, None]
        if not column.null_count:
            slots, is_new = self._index.locate(numbers)
            return slots + 1, is_new
        there = column.is_valid().to_numpy(zero_copy_only=False)
        slots, is_new = np.zeros(rows, np.int64), np.full(rows, not self._has_null)
        located, is_new[there] = self._index.locate(numbers[there])
        slots[there] = located + 1
        self._has_null = True
        return slots, is_new

    def find(self, keys: Sequence[pa.Array], rows: int) -> Slots:
        (column,) = keys
        located = self._index.find(canonical_ints(column)[:, None])
        slots = np.where(located < 0, -1, located + 1)
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            slots[missing] = 0 if self._has_null else -1
        return slots

    def forget(self, slots: Slots) -> None:
        if (slots == 0).any():
            self._has_null = False
            slots = slots[slots != 0]
        self._index.forget(slots - 1)

    def slots(self) -> Slots:
        slots = self._index.slots() + 1
        return np.append(slots, 0) if self._has_null else slots

    def is_alive(self, slots: Slots) -> Mask:
        alive = np.full(len(slots), self._has_null)
        named = slots > 0
        alive[named] = self._index.is_alive(slots[named] - 1)
        return alive

    def columns(self, slots: Slots) -> list[pa.Array]:
        missing = slots == 0
        numbers = np.zeros(len(slots), np.int64)
        numbers[~missing] = self._index.words(slots[~missing] - 1)[:, 0]
        return [_to_column(numbers, missing, self._kind)]


class WordIndex(_OfWords):
    """Keys of narrow columns: a word per number, then one with a bit for whatever is null."""

    def __init__(self, types: list[pa.DataType], room: Room) -> None:
        self._types = types
        self._index = IntIndex(1 + sum(_width(kind) for kind in types), room)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def next(self) -> int:
        return self._index.next

    def locate(self, keys: Sequence[pa.Array], rows: int) -> tuple[Slots, Mask]:
        return self._index.locate(key_words(keys, rows))

    def find(self, keys: Sequence[pa.Array], rows: int) -> Slots:
        return self._index.find(key_words(keys, rows))

    def forget(self, slots: Slots) -> None:
        self._index.forget(slots)

    def slots(self) -> Slots:
        return self._index.slots()

    def is_alive(self, slots: Slots) -> Mask:
        return self._index.is_alive(slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        words = self._index.words(slots).T
        reader = _Reader(words[:-1], words[-1])
        return [reader.column(kind) for kind in self._types]


def _width(kind: pa.DataType) -> int:
    """How many words a column takes."""
    return sum(_width(field.type) for field in _fields(kind)) if pt.is_struct(kind) else 1


def _bits(kind: pa.DataType) -> int:
    """How many things in a column may be null."""
    return 1 + (sum(_bits(field.type) for field in _fields(kind)) if pt.is_struct(kind) else 0)


def key_words(keys: Sequence[pa.Array], rows: int) -> npt.NDArray[np.int64]:
    """Narrow keys as rows of words, equal exactly where the keys are."""
    words: list[npt.NDArray[np.int64]] = []
    nulls = np.zeros(rows, np.int64)
    bit = 0
    waiting = list(keys)
    while waiting:  # a struct counts before its fields, fields before what follows
        column = waiting.pop(0)
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            nulls |= missing.astype(np.int64) << np.int64(bit)
        bit += 1
        if pt.is_struct(column.type):
            waiting = [*column.flatten(), *waiting]
        else:
            words.append(canonical_ints(column))
    return np.stack([*words, nulls], axis=1)


class _Reader:
    """Columns out of words, in the order in which key_words made them."""

    def __init__(self, words: npt.NDArray[np.int64], nulls: npt.NDArray[np.int64]) -> None:
        self._words = iter(words)
        self._nulls = nulls if nulls.any() else None
        self._bit = 0

    def column(self, kind: pa.DataType) -> pa.Array:
        missing: Mask | None = None
        if self._nulls is not None:
            missing = (self._nulls >> np.int64(self._bit)) & 1 == 1
        self._bit += 1
        if pt.is_struct(kind):
            fields = _fields(kind)
            inner = [self.column(field.type) for field in fields]
            mask = None if missing is None else pa.array(missing)
            return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
        return _to_column(np.ascontiguousarray(next(self._words)), missing, kind)


def _to_column(numbers: npt.NDArray[np.int64], missing: Mask | None, kind: pa.DataType) -> pa.Array:
    """The inverse of canonical_ints."""
    if missing is not None and not missing.any():
        missing = None
    if missing is None and kind.id in WORDS:
        return words_column(numbers, kind)
    values = numbers.view(np.float64) if pt.is_floating(kind) else numbers
    column = pa.array(values, mask=missing)
    if column.type == kind:
        return column
    if pt.is_temporal(kind) and kind.bit_width == 64:
        return column.view(kind)
    if pt.is_date32(kind) or pt.is_time32(kind):
        column = column.cast(pa.int32())
    return column.cast(kind, safe=False)


class _Slots(dict[object, int]):
    """Key → slot; asking for a new key takes the next free slot."""

    def __init__(self) -> None:
        super().__init__()
        self.free: list[int] = []
        self.next = 0

    def __missing__(self, key: object) -> int:
        if self.free:
            slot = self.free.pop()
        else:
            slot = self.next
            self.next += 1
        self[key] = slot
        return slot


class ObjectIndex:
    """Keys of any columns, as objects in Python's own dictionary.

    Looking up a thousand keys is one C loop (`map` over its `__getitem__`), exact for every type.
    """

    def __init__(self, types: list[pa.DataType]) -> None:
        self._types = types
        self._slots = _Slots()
        #: By slot: the key in a tuple of its own, or None; an object array would unpack the key.
        self._objects = np.empty(0, object)
        self._alive = np.zeros(0, bool)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def next(self) -> int:
        return self._slots.next

    def locate(self, keys: Sequence[pa.Array], rows: int) -> tuple[Slots, Mask]:
        objects = key_objects(keys, rows)
        count = len(self._slots)
        slots = np.fromiter(map(self._slots.__getitem__, objects), np.int64, rows)
        if len(self._slots) == count:
            return slots, np.zeros(rows, bool)
        self._grow()
        is_new = ~self._alive[slots]
        self._alive[slots] = True
        for row in np.flatnonzero(is_new).tolist():  # an object array takes tuples no other way
            self._objects[slots[row]] = (objects[row],)
        return slots, is_new

    def make_places(self, count: int) -> None:
        """A dictionary grows by itself."""

    def expect(self, count: int, places: Slots | None = None) -> None:
        """See make_places."""

    def _grow(self) -> None:
        needed, capacity = self._slots.next, len(self._objects)
        if needed > capacity:
            more = max(needed - capacity, capacity, 1024)
            self._objects = np.concatenate([self._objects, np.empty(more, object)])
            self._alive = np.concatenate([self._alive, np.zeros(more, bool)])

    def find(self, keys: Sequence[pa.Array], rows: int) -> Slots:
        get = self._slots.get
        return np.fromiter((get(key, -1) for key in key_objects(keys, rows)), np.int64, rows)

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():  # a dictionary forgets one key at a time
            (key,) = self._objects[slot]
            del self._slots[key]
            self._slots.free.append(slot)
            self._objects[slot] = None
        self._alive[slots] = False

    def slots(self) -> Slots:
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def is_alive(self, slots: Slots) -> Mask:
        return self._alive[slots]

    def columns(self, slots: Slots) -> list[pa.Array]:
        return key_columns([key for (key,) in self._objects[slots].tolist()], self._types)
