"""JSON objects to structs by Arrow's own reader: the fast path of from_json.

Arrow's reader knows JSON's standard and one type per column, and fails on all else; Spark is more
lenient, and never fails here. So: whatever Arrow's reader takes is what Spark takes, apart from the
few things that are looked for before (`_suspects`) and after (`_doubtful`); rows with one of these,
and rows on which the reader fails, are left to the exact path.

Law: a row that is answered here has the answer of the exact path (json_values.py).
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from penstock.ops.functions.alignment import Mask
from penstock.ops.functions.lists import retype

#: Rows are wrapped, so that each makes one line with at least one record, whatever it has inside.
_HEAD: Final = pa.scalar('{"r":')
_TAIL: Final = pa.scalar("}\n")
_EMPTY: Final = pa.scalar("")
#: Texts of at least so many bytes can pass one of Jackson's limits (depth, length of a number).
_LONG: Final = 1000
#: How often the reader may be called for a batch before the rest is left to the exact path.
_CALLS_MAX: Final = 8
_ROW: Final = re.compile(r"in row (\d+)")
_PLAIN_DATE: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_PLAIN_MOMENT: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
)


class FastReader:
    """Reads texts into one struct type. Timestamps are in UTC unless their text says otherwise."""

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field("r", _read_type(type))]),
            unexpected_field_behavior="ignore",
        )
        self._has_floats = _has(type, pt.is_floating)
        self._has_times = _has(type, pt.is_temporal)

    def read(self, texts: pa.Array) -> tuple[pa.Array | None, Mask]:
        """Structs, and which of them are answers; None if none is."""
        answered = np.zeros(len(texts), bool)
        wanted = ~_suspects(texts)
        if not wanted.any():
            return None, answered
        rows = np.flatnonzero(wanted)
        parts: list[pa.Array] = []
        taken: list[Any] = []
        calls = 0
        while len(rows) and calls < _CALLS_MAX:
            chosen = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
            count, part, passed = self._read_some(chosen)
            if part is not None:
                parts.append(part)
                taken.append(rows[:count])
            rows = rows[count + passed :]
            calls += 1
        if not parts:
            return None, answered
        structs = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if len(parts) == 1 and len(structs) == len(texts):
            sure = ~self._doubtful(structs)
            return self._finish(structs), sure
        places = np.concatenate(taken)
        answered[places] = ~self._doubtful(structs)
        index = np.full(len(texts), -1, np.int64)
        index[places] = np.arange(len(places))
        spread = self._finish(structs).take(pa.array(np.maximum(index, 0), mask=index < 0))
        return spread, answered

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

    def _doubtful(self, structs: pa.Array) -> Mask:
        """Rows whose answer may be another: no object, a negative zero, an odd date or time."""
        doubtful = np.asarray(structs.is_null().to_numpy(zero_copy_only=False))
        if self._has_floats or self._has_times:
            doubtful |= _doubtful_inside(structs, self._type)
        return doubtful

    def _finish(self, structs: pa.Array) -> pa.Array:
        made = _convert(structs, self._type) if self._has_times else structs
        return retype(made, self._type)


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


def _suspects(texts: pa.Array) -> Mask:
    """Rows that the reader might take for something else than Spark does."""
    suspects = np.asarray(texts.is_null().to_numpy(zero_copy_only=False))
    buffer = texts.buffers()[2]
    if buffer is None or not len(texts):
        return suspects
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    start = int(offsets[0])
    data = np.frombuffer(buffer, np.uint8)[start : int(offsets[-1])]
    # Line feeds end a line; other control characters are never right.
    _mark(suspects, np.flatnonzero(data < 0x20) + start, offsets)
    if b"\\u" in memoryview(buffer)[start : int(offsets[-1])].tobytes():
        # Halves of pairs, and a null inside a text.
        suspects |= np.asarray(
            pc.fill_null(pc.match_substring(texts, "\\u"), False).to_numpy(zero_copy_only=False)
        )
    suspects |= np.diff(offsets) >= _LONG
    return suspects


def _mark(rows: Mask, positions: Any, offsets: Any) -> None:
    if len(positions):
        rows[np.searchsorted(offsets, positions, side="right") - 1] = True


def _doubtful_inside(array: pa.Array, type: pa.DataType) -> Mask:
    doubtful = np.zeros(len(array), bool)
    for place in range(type.num_fields):
        inner, wanted = array.field(place), type.field(place).type
        if pt.is_struct(wanted):
            doubtful |= _doubtful_inside(inner, wanted)
        elif pt.is_floating(wanted):
            values = inner.fill_null(1.0).to_numpy(zero_copy_only=False)
            doubtful |= (values == 0.0) & np.signbit(values)
        elif pt.is_temporal(wanted):
            pattern = _PLAIN_DATE if pt.is_date32(wanted) else _PLAIN_MOMENT
            plain = pc.fill_null(pc.match_substring_regex(inner, pattern), True)
            odd = ~np.asarray(plain.to_numpy(zero_copy_only=False))
            doubtful |= odd | _unreadable(inner, wanted, odd)
    return doubtful


def _unreadable(texts: pa.Array, type: pa.DataType, odd: Mask) -> Mask:
    """Where a text looks like a date or time and is none: all rows, if there is any."""
    try:
        _times(pc.if_else(pa.array(odd), None, texts) if odd.any() else texts, type)
    except pa.ArrowInvalid:
        return np.ones(len(texts), bool)
    return np.zeros(len(texts), bool)


def _times(texts: pa.Array, type: pa.DataType) -> pa.Array:
    if pt.is_date32(type):
        return texts.cast(type)
    if pc.any(pc.ends_with(texts, "Z")).as_py():
        texts = pc.utf8_rtrim(texts, "Z")
    return texts.cast(pa.timestamp("us")).cast(type)


def _convert(array: pa.Array, type: pa.DataType) -> pa.Array:
    """With dates and times for their texts; those that are none are null, and doubtful."""
    if pt.is_temporal(type):
        pattern = _PLAIN_DATE if pt.is_date32(type) else _PLAIN_MOMENT
        plain = pc.match_substring_regex(array, pattern)
        try:
            return _times(pc.if_else(plain, array, pa.scalar(None, pa.string())), type)
        except pa.ArrowInvalid:
            return pa.nulls(len(array), type)
    if not pt.is_struct(type):
        return array
    inner = [_convert(array.field(i), type.field(i).type) for i in range(type.num_fields)]
    mask = array.is_null() if array.null_count else None
    names = [type.field(i).name for i in range(type.num_fields)]
    return pa.StructArray.from_arrays(inner, names, mask=mask)
