"""JSON objects to structs by Arrow's own reader: the fast path of from_json.

Arrow's reader knows JSON's standard and one type per column, and fails on all else; Spark is more
lenient, and never fails here. So: whatever Arrow's reader takes is what Spark takes, apart from the
few things that are looked for before (`_suspects`) and after (`_doubtful`); rows with one of these,
and rows on which the reader fails, are left to the exact path.

Law: a row that is answered here has the answer of the exact path (json_values.py).
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, Mask, nulls
from penstock.ops.functions.bytes_at import text_bytes
from penstock.ops.functions.json_shapes import ShapeReader, Texts, shape_of
from penstock.ops.functions.lists import retype
from penstock.ops.functions.plain_times import read_plain_times

#: Rows are wrapped, so that each makes one line with at least one record, whatever it has inside.
_HEAD: Final = pa.scalar('{"r":')
_TAIL: Final = pa.scalar("}\n")
_EMPTY: Final = pa.scalar("")
#: Texts of at least so many bytes can pass one of Jackson's limits (depth, length of a number).
_LONG: Final = 1000
#: How often the reader may be called for a batch before the rest is left to the exact path.
_CALLS_MAX: Final = 8
_ESCAPE: Final = ord("\\")
_UNIT: Final = ord("u")
_ROW: Final = re.compile(r"in row (\d+)")
#: Fewer rows than this are not worth looking for a shape, and more shapes than this are none.
_SHAPED_MIN: Final = 16
_SHAPES_MAX: Final = 4

#: Rows that were answered, in order, and their structs.
Part: TypeAlias = tuple[Ints, pa.Array]


class FastReader:
    """Reads texts into one struct type. Timestamps are in UTC unless their text says otherwise."""

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field("r", _read_type(type))]),
            unexpected_field_behavior="ignore",
        )

    def read(self, texts: pa.Array) -> tuple[pa.Array | None, Mask]:
        """Structs, and which of them are answers; None if none is."""
        answered = np.zeros(len(texts), bool)
        suspects, escaped = _suspects(texts)
        rows = np.flatnonzero(~suspects)
        parts = self._by_shape(texts, rows if escaped is None else rows[~escaped[rows]])
        for taken, _ in parts:
            answered[taken] = True
        parts += self._by_arrow(texts, rows[~answered[rows]])
        if not parts:
            return None, answered
        if len(parts) == 1 and len(parts[0][0]) == len(texts):
            answered[:] = True
            return parts[0][1], answered
        places = np.concatenate([taken for taken, _ in parts])
        answered[places] = True
        index = np.full(len(texts), -1, np.int64)
        index[places] = np.arange(len(places))
        structs = pa.concat_arrays([part for _, part in parts])
        return structs.take(pa.array(np.maximum(index, 0), mask=index < 0)), answered

    def _by_shape(self, texts: pa.Array, rows: Ints) -> list[Part]:
        """Rows of the shapes of the first row, the first of another one, and so on."""
        if len(rows) < _SHAPED_MIN:
            return []
        data = Texts(texts)
        parts: list[Part] = []
        for _ in range(_SHAPES_MAX):
            if len(rows) < _SHAPED_MIN:
                break
            shape = shape_of(texts[int(rows[0])].as_py())
            part = None if shape is None else ShapeReader(shape, self._type).read(data, rows)
            if part is None:
                rows = rows[1:]
                continue
            parts.append(part)
            if len(part[0]) == len(rows):
                break
            rows = np.setdiff1d(rows, part[0], assume_unique=True)
        return parts

    def _by_arrow(self, texts: pa.Array, rows: Ints) -> list[Part]:
        """As many rows as Arrow's reader takes, a few times."""
        parts: list[Part] = []
        calls = 0
        while len(rows) and calls < _CALLS_MAX:
            chosen = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
            count, part, passed = self._read_some(chosen)
            if part is not None:
                structs, doubtful = _convert(part, self._type)
                doubtful |= nulls(part)
                structs = retype(structs, self._type)
                if doubtful.any():
                    structs = structs.filter(pa.array(~doubtful))
                parts.append((rows[:count][~doubtful], structs))
            rows = rows[count + passed :]
            calls += 1
        return [part for part in parts if len(part[0])]

    def _read_some(self, texts: pa.Array) -> tuple[int, pa.Array | None, int]:
        """As many of the first rows as can be read at once, their structs, and how many to pass.

        Which row the reader names in its error is a hint, no more: nothing is wrong if it is
        another one. Where it names none, half of the rows are tried.
        """
        try:
            return len(texts), self._parse(texts), 0
        except pa.ArrowInvalid as error:
            named = _ROW.search(str(error))
        count = min(int(named[1]), len(texts) - 1) if named is not None else len(texts) // 2
        passed = 0 if named is None else 1
        while count:
            try:
                return count, self._parse(texts.slice(0, count)), passed
            except pa.ArrowInvalid:
                count, passed = count // 2, 0
        return 0, None, 1

    def _parse(self, texts: pa.Array) -> pa.Array:
        lines = pc.binary_join_element_wise(_HEAD, texts, _TAIL, _EMPTY)
        start, end = np.frombuffer(lines.buffers()[1], np.int32)[[0, len(texts)]].tolist()
        data = lines.buffers()[2].slice(start, end - start)
        read = pj.ReadOptions(use_threads=False, block_size=max(end - start + 1, 1))
        table = pj.read_json(pa.BufferReader(data), read, self._options)
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid("a row has more than one record")
        return table.column(0).chunk(0)


def can_read(type: pa.DataType) -> bool:
    """Whether texts of this type can be read fast."""
    if pt.is_struct(type):
        names = [type.field(place).name for place in range(type.num_fields)]
        inner = [type.field(place).type for place in range(type.num_fields)]
        return len(set(names)) == len(names) > 0 and all(can_read(part) for part in inner)
    if pt.is_list(type):
        # Of times inside lists the row would have to be found again.
        return can_read(type.value_type) and not _has(
            type.value_type, lambda part: pt.is_temporal(part) or pt.is_floating(part)
        )
    if pt.is_integer(type):
        return bool(type.bit_width > 8)  # Spark takes bytes up to 255
    return bool(
        pt.is_string(type)
        or pt.is_boolean(type)
        or pt.is_float64(type)
        or pt.is_date32(type)
        or (pt.is_timestamp(type) and type.tz is not None)
    )


def _has(type: pa.DataType, belongs: Any) -> bool:
    if pt.is_struct(type):
        return any(_has(type.field(place).type, belongs) for place in range(type.num_fields))
    return _has(type.value_type, belongs) if pt.is_list(type) else bool(belongs(type))


def _read_type(type: pa.DataType) -> pa.DataType:
    """The same with texts for dates and times, all of it nullable."""
    if pt.is_struct(type):
        fields = [type.field(place) for place in range(type.num_fields)]
        return pa.struct([pa.field(f.name, _read_type(f.type)) for f in fields])
    if pt.is_list(type):
        return pa.list_(pa.field("element", _read_type(type.value_type)))
    return pa.string() if pt.is_temporal(type) else type


def _suspects(texts: pa.Array) -> tuple[Mask, Mask | None]:
    """Rows that the reader might take for something else than Spark does; and those that have an
    escape, if there are any."""
    suspects = nulls(texts)
    if not len(texts) or texts.buffers()[2] is None:
        return suspects, None
    data, offsets = text_bytes(texts)
    if len(data) and data.min() < 0x20:
        # Line feeds end a line; other control characters are never right.
        _mark(suspects, np.flatnonzero(data < 0x20), offsets)
    suspects |= np.diff(offsets) >= _LONG
    escapes = np.flatnonzero(data == _ESCAPE)
    if not len(escapes):
        return suspects, None
    # Halves of pairs, and a null inside a text.
    units = escapes[data[np.minimum(escapes + 1, len(data) - 1)] == _UNIT]
    _mark(suspects, units, offsets)
    escaped = np.zeros(len(texts), bool)
    _mark(escaped, escapes, offsets)
    return suspects, escaped


def _mark(rows: Mask, positions: Any, offsets: Any) -> None:
    if len(positions):
        rows[np.searchsorted(offsets, positions, side="right") - 1] = True


def _convert(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """With dates and times for their texts, and rows whose answer may be another: an odd date or
    time, a negative zero."""
    if pt.is_temporal(type):
        return read_plain_times(array, type)
    doubtful = np.zeros(len(array), bool)
    if pt.is_floating(type):
        values = array.fill_null(1.0).to_numpy(zero_copy_only=False)
        return array, np.asarray((values == 0.0) & np.signbit(values))
    if not pt.is_struct(type):
        return array, doubtful
    inner = []
    for place in range(type.num_fields):
        part, wrong = _convert(array.field(place), type.field(place).type)
        inner.append(part)
        doubtful |= wrong
    mask = array.is_null() if array.null_count else None
    names = [type.field(place).name for place in range(type.num_fields)]
    return pa.StructArray.from_arrays(inner, names, mask=mask), doubtful
