"""Arrow columns fitted to a stream's columns: same values, exactly the schema's types.

Owns which casts are allowed (only those that lose nothing, decided by the values, as Spark's ANSI
store assignment is by types) and what a column may hold beyond its type: no null where the schema
says NOT NULL, no key twice in a map, times within Spark's ranges. Knows no Python rows (rows.py).

Law: fit_column returns an array of exactly field.type with equal values, or raises Misfit for the
first element that does not fit; find_misfit is None exactly when an array may be appended.
Arrow's functions are loaded where they are called: a command that shows rows calls none of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadRequest
from penstock.stream.ddl import type_to_ddl
from penstock.stream.schema import is_list_like

NULL_PROBLEM: Final = "is NOT NULL, got null"
RANGE_PROBLEM: Final = "outside years 0001 to 9999, the range of Spark's dates and timestamps"
DURATION_PROBLEM: Final = "outside 292 277 years, the range of Spark's intervals"
FINER_PROBLEM: Final = "finer than a microsecond"
REPEATED_KEY_PROBLEM: Final = "a key that is in this map already"
#: Characters of a value that an error message shows.
VALUE_CHARS_MAX: Final = 60

_EPOCH_DATE: Final = date(1970, 1, 1)
_DAYS: Final = ((date.min - _EPOCH_DATE).days, (date.max - _EPOCH_DATE).days)
_MICROS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
#: From the first whole second: pa.array refuses the 0.78 s that an int64 would hold below it.
DURATION_MICROS: Final = (-(2**63 // 10**6) * 10**6, 2**63 - 1)
#: ListArray offsets are int32.
_CHILD_LENGTH_MAX: Final = 2**31 - 1

_Indexes = npt.NDArray[np.int64]


class Misfit(Exception):
    """One value that does not fit: its index in the column, its path below it, and why."""

    def __init__(self, index: int, path: str, problem: str) -> None:
        super().__init__(f"{index}{path}: {problem}")
        self.index = index
        self.path = path
        self.problem = problem


def fit_column(array: pa.Array, field: pa.Field) -> pa.Array:
    """The array as field.type. Nullability and ranges are left to find_misfit."""
    target = field.type
    # Equality of Arrow types ignores the names of children unless metadata is compared too.
    if array.type.equals(target, check_metadata=True):
        return array
    array = _decoded(array)
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if pt.is_struct(target) and pt.is_struct(array.type):
        return _fit_struct(array, target)
    if pt.is_list(target) and is_list_like(array.type):
        return _fit_list(array, target)
    if pt.is_map(target) and pt.is_map(array.type):
        return _fit_map(array, target)
    if not _is_castable(array.type, target):
        raise _cast_misfit(array, target, first_true(array.is_valid()))
    return array if array.type == target else _cast(array, target)


def find_misfit(array: pa.Array, field: pa.Field) -> Misfit | None:
    """The first element that its column may not hold, or None. The array has field.type."""
    misfits: list[Misfit] = []
    if not field.nullable and array.null_count:
        misfits.append(Misfit(first_true(array.is_null()), "", NULL_PROBLEM))
    arrow_type = field.type
    if pt.is_struct(arrow_type):
        misfits.extend(_struct_misfits(array))
    elif pt.is_list(arrow_type):
        offsets, elements = _list_parts(array)
        misfit = find_misfit(elements, arrow_type.value_field)
        misfits.extend([_in_list(misfit, offsets)] if misfit else [])
    elif pt.is_map(arrow_type):
        misfits.extend(_map_misfits(array))
    elif pt.is_temporal(arrow_type):
        misfit = _find_temporal_misfit(array)
        misfits.extend([misfit] if misfit else [])
    return first_misfit(misfits)


class QuickLook:
    """Whether everything in batches of one schema fits, as far as a quick look shows.

    Looks at times and at what must not be null, nothing else, and at what lies under nulls too,
    which may be outside of any bounds, but rarely is. If it says no, find_misfit decides.
    """

    def __init__(self, schema: pa.Schema) -> None:
        #: The column and the fields below it; whether it may be null; the bounds of its values.
        self._parts: list[tuple[tuple[int, ...], bool, tuple[int, int] | None]] = []
        self._is_enough = all(self._add((place,), field) for place, field in enumerate(schema))

    def _add(self, path: tuple[int, ...], field: pa.Field) -> bool:
        """Note what is to be looked at; False for types that need more than a look."""
        kind = field.type
        bounds = _DAYS if pt.is_date32(kind) else _MICROS if pt.is_timestamp(kind) else None
        if not field.nullable or bounds is not None:
            self._parts.append((path, field.nullable, bounds))
        if pt.is_struct(kind):
            return all(self._add((*path, place), inner) for place, inner in enumerate(kind))
        return bounds is not None or not (pt.is_nested(kind) or pt.is_temporal(kind))

    def fits(self, batch: pa.RecordBatch) -> bool:
        """False: perhaps not."""
        if not self._is_enough or not batch.num_rows:
            return False
        for (column, *fields), nullable, bounds in self._parts:
            array = batch.column(column)
            for place in fields:
                array = array.field(place)
            if not nullable and array.null_count:
                return False
            if bounds is not None and not _all_within(array, bounds):
                return False
        return True


def _all_within(array: pa.Array, bounds: tuple[int, int]) -> bool:
    values = array.buffers()[1]
    if values is None:
        return False
    kind = np.int32 if bounds is _DAYS else np.int64
    # Arrow takes buffers that are longer than their values, by any number of bytes.
    numbers = np.frombuffer(values, kind, count=array.offset + len(array))[array.offset :]
    return bool(bounds[0] <= numbers.min() and numbers.max() <= bounds[1])


def first_misfit(misfits: Iterable[Misfit]) -> Misfit | None:
    """The one with the smallest index; of several there, the first given."""
    return min(misfits, key=lambda misfit: misfit.index, default=None)


def first_true(mask: pa.BooleanArray) -> int:
    """The index of the first true element; there is one."""
    import pyarrow.compute as pc

    return int(pc.index(mask, True).as_py())


def shown(value: object) -> str:
    """A value for an error message: its Python type and the start of its repr."""
    try:
        text = repr(value)
    except ValueError:  # An integer of thousands of digits has no repr.
        text = "of very many digits"
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 1] + "…"
    return f"{type(value).__name__} {text}"


def _decoded(array: pa.Array) -> pa.Array:
    """The array without the encodings that only save space."""
    while pt.is_dictionary(array.type) or pt.is_run_end_encoded(array.type):
        if pt.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            import pyarrow.compute as pc

            array = pc.run_end_decode(array)
    return array


def _fit_struct(array: pa.StructArray, target: pa.StructType) -> pa.StructArray:
    fields = list(target)
    given_names = [field.name for field in array.type]
    given = dict(zip(given_names, array.flatten(), strict=True))
    valid_index = first_true(array.is_valid())
    for name in given_names:
        if name not in {field.name for field in fields} or given_names.count(name) > 1:
            raise Misfit(valid_index, f".{name}", "unknown field, or one given twice")
    children: list[pa.Array] = []
    misfits: list[Misfit] = []
    for field in fields:
        child = given.get(field.name)
        try:
            fitted = pa.nulls(len(array), field.type) if child is None else fit_column(child, field)
            children.append(fitted)
        except Misfit as misfit:
            misfits.append(Misfit(misfit.index, f".{field.name}{misfit.path}", misfit.problem))
    misfit_first = first_misfit(misfits)
    if misfit_first is not None:
        raise misfit_first
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _fit_list(array: pa.Array, target: pa.ListType) -> pa.ListArray:
    offsets, elements = _list_parts(array)
    try:
        fitted = fit_column(elements, target.value_field)
    except Misfit as misfit:
        raise _in_list(misfit, offsets) from None
    starts = pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(starts, fitted, type=target, mask=array.is_null())


def _fit_map(array: pa.MapArray, target: pa.MapType) -> pa.MapArray:
    offsets, *parts = _map_parts(array)
    fitted: list[pa.Array] = []
    for part, field in zip(parts, (target.key_field, target.item_field), strict=True):
        try:
            fitted.append(fit_column(part, field))
        except Misfit as misfit:
            path = f".{field.name}{misfit.path}"
            raise _in_list(Misfit(misfit.index, path, misfit.problem), offsets) from None
    starts = pa.array(offsets, pa.int32())
    return pa.MapArray.from_arrays(starts, *fitted, type=target, mask=array.is_null())


def _list_parts(array: pa.Array) -> tuple[_Indexes, pa.Array]:
    """Offsets from 0, and the elements they point into without those under null lists."""
    import pyarrow.compute as pc

    lengths = np.asarray(pc.list_value_length(array).fill_null(0), dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if offsets[-1] > _CHILD_LENGTH_MAX:
        raise Misfit(0, "", f"more than {_CHILD_LENGTH_MAX} elements in one batch")
    return offsets, array.flatten()


def _map_parts(array: pa.MapArray) -> tuple[_Indexes, pa.Array, pa.Array]:
    """Offsets from 0, and the keys and values they point into, without those under null maps.

    There is no flatten for maps, and casting one to a list of structs loses the length of void
    arrays inside (pyarrow 26), so the offsets are taken by hand.
    """
    if len(array) == 0:
        return np.zeros(1, np.int64), array.keys.slice(0, 0), array.items.slice(0, 0)
    starts = np.asarray(array.offsets, dtype=np.int64)
    first, lengths = int(starts[0]), np.diff(starts)
    keys = array.keys.slice(first, int(starts[-1]) - first)
    items = array.items.slice(first, int(starts[-1]) - first)
    valid = np.asarray(array.is_valid())
    if lengths[~valid].any():
        kept = pa.array(np.repeat(valid, lengths))
        keys, items, lengths = keys.filter(kept), items.filter(kept), np.where(valid, lengths, 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), keys, items


def _in_list(misfit: Misfit, offsets: _Indexes) -> Misfit:
    """The misfit of an element, told as one of the list that holds it."""
    index = int(np.searchsorted(offsets, misfit.index, side="right")) - 1
    position = misfit.index - int(offsets[index])
    return Misfit(index, f"[{position}]{misfit.path}", misfit.problem)


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether some values of the source type are values of the target type too."""
    if pt.is_boolean(target):
        return bool(pt.is_boolean(source))
    if pt.is_integer(target):
        return bool(pt.is_integer(source))
    if pt.is_floating(target):
        return bool(pt.is_integer(source) or pt.is_floating(source))
    if pt.is_decimal(target):
        return bool(pt.is_integer(source) or pt.is_decimal(source))
    if pt.is_string(target):
        return bool(pt.is_string(source) or pt.is_large_string(source) or pt.is_string_view(source))
    if pt.is_binary(target):
        whole = pt.is_binary(source) or pt.is_large_binary(source) or pt.is_binary_view(source)
        return bool(whole or pt.is_fixed_size_binary(source))
    if pt.is_date(target):
        return bool(pt.is_date(source))
    if pt.is_timestamp(target):
        # Without a zone means UTC for a timestamp; with a zone says too much for a timestamp_ntz.
        return bool(pt.is_timestamp(source)) and (target.tz is not None or source.tz is None)
    if pt.is_time(target):
        return bool(pt.is_time(source))
    return bool(pt.is_duration(target) and pt.is_duration(source))


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pt.is_integer(array.type) and pt.is_decimal(target):
        # A direct cast asks for room for every value of the source type, not for those there are.
        array = array.cast(pa.decimal256(76, target.scale))
    try:
        fitted = array.cast(target)
    except pa.ArrowException:
        raise _cast_misfit(array, target, _first_failure(array, target)) from None
    is_float = pt.is_floating(target) and pt.is_floating(array.type)
    if is_float and array.type.bit_width > target.bit_width:
        import pyarrow.compute as pc

        # Arrow calls every cast between floats safe; only those that come back equal are.
        changed = pc.not_equal(fitted.cast(array.type), array)
        changed = pc.and_(changed, pc.invert(pc.is_nan(array))).fill_null(False)
        if pc.any(changed).as_py():
            raise _cast_misfit(array, target, first_true(changed))
    return fitted


def _first_failure(array: pa.Array, target: pa.DataType) -> int:
    """The first element that cannot be cast: a prefix fails from the moment it contains it."""

    def fails(length: int) -> bool:
        try:
            array.slice(0, length).cast(target)
        except pa.ArrowException:
            return True
        return False

    return bisect.bisect_left(range(1, len(array)), True, key=fails)


def _cast_misfit(array: pa.Array, target: pa.DataType, index: int) -> Misfit:
    try:
        value = repr(array[index].as_py())
    except (ValueError, OverflowError):  # Python's datetime holds less than Arrow's.
        value = str(array[index])
    if len(value) > VALUE_CHARS_MAX:
        value = value[: VALUE_CHARS_MAX - 1] + "…"
    try:
        source = type_to_ddl(array.type)
    except BadRequest:
        source = str(array.type)
    return Misfit(index, "", f"expected {type_to_ddl(target)}, got {source} {value}")


def _struct_misfits(array: pa.StructArray) -> Iterator[Misfit]:
    # What lies under a null struct belongs to nobody, so it is taken out before looking.
    valid = array.is_valid()
    whole = array.filter(valid) if array.null_count else array
    for field, child in zip(whole.type, whole.flatten(), strict=True):
        misfit = find_misfit(child, field)
        if misfit is not None:
            index = int(np.flatnonzero(np.asarray(valid))[misfit.index])
            yield Misfit(index, f".{field.name}{misfit.path}", misfit.problem)


def _map_misfits(array: pa.MapArray) -> Iterator[Misfit]:
    offsets, keys, items = _map_parts(array)
    for part, field in ((keys, array.type.key_field), (items, array.type.item_field)):
        misfit = find_misfit(part, field)
        if misfit is not None:
            path = f".{field.name}{misfit.path}"
            yield _in_list(Misfit(misfit.index, path, misfit.problem), offsets)
    owners = np.repeat(np.arange(len(array)), np.diff(offsets))
    repeated = _find_repeated_key(owners, keys)
    if repeated is not None:
        yield _in_list(Misfit(repeated, ".key", REPEATED_KEY_PROBLEM), offsets)


def _find_repeated_key(owners: _Indexes, keys: pa.Array) -> int | None:
    """The first key that its map has already. Spark's maps never have one (DUPLICATED_MAP_KEY)."""
    try:
        table = pa.table({"owner": owners, "key": keys})
        groups = table.group_by(["owner", "key"], use_threads=False).aggregate([])
        if groups.num_rows == len(keys):
            return None
    except pa.ArrowNotImplementedError:
        pass  # Arrow groups by no nested type and by no duration.
    # Row by row, because it runs only for such keys, or to find a culprit that is known to exist.
    seen: set[tuple[int, str]] = set()
    for index, (owner, key) in enumerate(zip(owners.tolist(), keys.to_pylist(), strict=True)):
        if (owner, repr(key)) in seen:
            return index
        seen.add((owner, repr(key)))
    return None


def _find_temporal_misfit(array: pa.Array) -> Misfit | None:
    if array.null_count == len(array):
        return None
    if pt.is_date(array.type):
        return _find_outside(array.view(pa.int32()), _DAYS, RANGE_PROBLEM)
    if pt.is_timestamp(array.type):
        return _find_outside(array.view(pa.int64()), _MICROS, RANGE_PROBLEM)
    if pt.is_duration(array.type):
        return _find_outside(array.view(pa.int64()), DURATION_MICROS, DURATION_PROBLEM)
    # Times are stored in nanoseconds, but Spark's TIME(6) and Python have microseconds.
    rest = np.asarray(array.view(pa.int64()).fill_null(0)) % 1000
    return Misfit(int(np.flatnonzero(rest)[0]), "", FINER_PROBLEM) if rest.any() else None


def _find_outside(numbers: pa.Array, bounds: tuple[int, int], problem: str) -> Misfit | None:
    import pyarrow.compute as pc

    low, high = bounds
    extremes = pc.min_max(numbers)
    if low <= extremes["min"].as_py() and extremes["max"].as_py() <= high:
        return None
    outside = pc.or_(pc.less(numbers, low), pc.greater(numbers, high)).fill_null(False)
    return Misfit(first_true(outside), "", problem)
