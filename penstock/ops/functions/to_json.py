"""to_json: structs, arrays and maps as JSON text.

Columns of scalars are printed by kernels, each value once; then the parts of a row are joined. A
struct is joined by Arrow, level by level; only arrays and maps, which have a different number of
parts in each row, are joined by Python.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import nulls, on_arrays
from penstock.ops.functions.java_floats import print_double, print_float
from penstock.ops.functions.json_options import (
    given_options,
    is_set,
    write_problem,
    zone_of_options,
)
from penstock.ops.functions.json_text import print_number, quote
from penstock.ops.functions.lists import Lists, lists_of
from penstock.ops.functions.printing import Style, print_values
from penstock.ops.functions.registry import function
from penstock.ops.functions.rows import each
from penstock.ops.functions.time_printing import Moments, printer
from penstock.ops.functions.variant_values import load, print_variant
from penstock.ops.functions.zones import UTC_ZONE, Zone
from penstock.plan.exprs import Call
from penstock.plan.types import VARIANT
from penstock.state.keys import canonical_ints

_NULL = pa.scalar("null")
_QUOTE, _NOTHING = pa.scalar('"'), pa.scalar("")


@dataclass(frozen=True, slots=True)
class _Printer:
    """How one call prints."""

    keeps_nulls: bool
    zone: Zone
    date: str
    timestamp: str
    timestamp_ntz: str

    def values(self, array: pa.Array) -> pa.Array:
        """The texts; null for null."""
        type = array.type
        if pt.is_struct(type):
            return self._structs(array)
        if pt.is_map(type):
            return self._maps(array)
        if pt.is_list(type):
            lists = lists_of(array)
            return _joined("[", pc.fill_null(self.values(lists.elements), _NULL), lists, "]")
        if type == VARIANT:
            return each(pa.string(), lambda text: print_variant(load(text)), array)
        if pt.is_string(type):
            return _quoted(array)
        if pt.is_boolean(type):
            return pc.if_else(array, "true", "false")
        if pt.is_floating(type):
            print_one = print_double if pt.is_float64(type) else print_float
            return each(pa.string(), lambda value: print_number(value, print_one(value)), array)
        if pt.is_binary(type):
            return each(pa.string(), lambda value: f'"{base64.b64encode(value).decode()}"', array)
        if pt.is_temporal(type):
            return pc.binary_join_element_wise(_QUOTE, self._times(array), _QUOTE, _NOTHING)
        return print_values(array, Style(False, self.zone))

    def _times(self, array: pa.Array) -> pa.Array:
        """By the patterns of the options."""
        none = np.zeros(1, np.int64)
        counts = canonical_ints(array)
        if pt.is_date32(array.type):
            return printer(self.date)(Moments(counts, none, none), nulls(array))
        is_local = array.type.tz is None
        zone = UTC_ZONE if is_local else self.zone
        moments = Moments(*zone.to_local(counts), zone.offsets_at(counts // 1_000_000))
        pattern = self.timestamp_ntz if is_local else self.timestamp
        return printer(pattern)(moments, nulls(array))

    def _structs(self, array: pa.Array) -> pa.Array:
        """Fields that are null are left out, unless the option says otherwise."""
        parts = []
        for place, field in enumerate(array.type):
            name = pa.scalar(f",{quote(field.name)}:")
            texts = self.values(array.field(place))
            if self.keeps_nulls:
                texts = pc.fill_null(texts, _NULL)
            told = pc.binary_join_element_wise(name, texts, _NOTHING)
            parts.append(pc.fill_null(told, _NOTHING))
        if not parts:
            inside = pa.repeat(_NOTHING, len(array))
        else:
            inside = pc.binary_join_element_wise(*parts, _NOTHING)
        body = pc.utf8_slice_codeunits(inside, 1)  # without the first comma
        whole = pc.binary_join_element_wise(pa.scalar("{"), body, pa.scalar("}"), _NOTHING)
        return _with_nulls_of(whole, array)

    def _maps(self, array: pa.Array) -> pa.Array:
        maps = lists_of(array)
        keys, items = maps.elements.flatten()
        names = _quoted(_keys(keys))
        values = pc.fill_null(self.values(items), _NULL)
        entries = pc.binary_join_element_wise(names, values, pa.scalar(":"))
        return _joined("{", entries, maps, "}")


def _quoted(array: pa.Array) -> pa.Array:
    """Strings in quotes: by Arrow, unless one of them has something to escape."""
    if pc.any(pc.match_substring_regex(array, r'["\\\x00-\x1f]')).as_py():
        return each(pa.string(), quote, array)
    return pc.binary_join_element_wise(_QUOTE, array, _QUOTE, _NOTHING)


def _keys(keys: pa.Array) -> pa.Array:
    """As Java prints Spark's own values: dates and timestamps as numbers."""
    if pt.is_temporal(keys.type):
        integers = pa.int32() if pt.is_date32(keys.type) else pa.int64()
        keys = keys.cast(integers)
    return print_values(keys, Style(True, UTC_ZONE))


def _with_nulls_of(texts: pa.Array, array: pa.Array) -> pa.Array:
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _joined(head: str, parts: pa.Array, lists: Lists, tail: str) -> pa.Array:
    """Row by row: no kernel joins a different number of texts in each row and keeps empty ones."""
    texts = parts.to_pylist()
    rows = [
        head + ",".join(texts[start:end]) + tail for start, end in pairwise(lists.offsets.tolist())
    ]
    return pa.array(rows, pa.string(), mask=~lists.valid)


@lru_cache(maxsize=256)
def _printer(call: Call) -> _Printer:
    options = given_options(call)
    return _Printer(
        keeps_nulls=not is_set(options, "ignorenullfields", True),
        zone=zone_of_options(call, options),
        date=options.get("dateformat", "yyyy-MM-dd"),
        timestamp=options.get("timestampformat", "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"),
        timestamp_ntz=options.get("timestampntzformat", "yyyy-MM-dd'T'HH:mm:ss[.SSS]"),
    )


def _accepts(call: Call) -> str | None:
    options = given_options(call)
    if is_set(options, "pretty", False):
        return "to_json with the option 'pretty'; leave it out"
    problem = _type_problem(call.args[0].type) or write_problem(call, printer)
    return None if problem is None else f"to_json with {problem}"


def _type_problem(type: pa.DataType) -> str | None:
    if pt.is_nested(type):
        inner = [type.field(place).type for place in range(type.num_fields)]
        return next((problem for part in inner if (problem := _type_problem(part))), None)
    if pt.is_duration(type) or pt.is_interval(type) or pt.is_time(type):
        return f"a value of type {type}; cast it to a string"
    return None


@function("to_json.evaluate", sql="to_json", raises=False, accepts=_accepts)
@on_arrays
def to_json(call: Call, value: pa.Array) -> pa.Array:
    return _printer(call).values(value)
