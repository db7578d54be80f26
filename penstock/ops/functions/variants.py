"""Variants inside a query: parse_json, variant_get, casts from a variant.

A variant is carried as a text (variant_values.py), under an Arrow type that nothing else has. Rows
are parsed by Python, each distinct one once; what a path leads to is then cast as columns, one per
type of value, by the same casts that a query uses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions import variant_values as vv
from penstock.ops.functions.alignment import on_arrays
from penstock.ops.functions.casts import Mode, convert, kind_of
from penstock.ops.functions.failures import fail
from penstock.ops.functions.json_tokens import JsonError
from penstock.ops.functions.lists import offsets_of, retype
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each, each_with_nulls
from penstock.ops.functions.zones import UTC_ZONE, find_zone
from penstock.plan.exprs import Call, Literal
from penstock.plan.types import VARIANT

_MALFORMED: Final = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
_NUMBERS: Final = frozenset({"string", "int", "float", "decimal", "bool"})
#: What Spark casts a scalar of a variant to; all else is an error.
_TARGETS: Final = {
    "bool": _NUMBERS,
    "int": _NUMBERS | {"timestamp"},
    "float": _NUMBERS | {"timestamp"},
    "decimal": _NUMBERS | {"timestamp"},
    "string": _NUMBERS | {"date", "timestamp", "ntz", "binary"},
}
_MICROS: Final = 1_000_000


def _accepts_parse(call: Call) -> str | None:
    flags = [arg.value.as_py() for arg in call.args[1:] if isinstance(arg, Literal)]
    if flags[:1] == [True]:
        return "parse_json of objects with a name twice; unset spark.sql.variant.allowDuplicateKeys"
    return None


def _parse_fails(call: Call) -> bool:
    flag = call.args[2]
    return not (isinstance(flag, Literal) and flag.value.as_py() is False)


@function(
    "VariantExpressionEvalUtils$.parseJson",
    sql="parse_json try_parse_json",
    raises=_parse_fails,
    accepts=_accepts_parse,
)
def parse_json(call: Call, texts: Datum, *flags: Datum) -> Datum:
    can_fail = _parse_fails(call)

    def read(text: str) -> str | None:
        try:
            return vv.dump(vv.parse(text))
        except JsonError as error:
            if can_fail:
                fail(_MALFORMED, f"{text!r} is not JSON: {error}")
            return None

    return each(VARIANT, read, texts)


@function("VariantExpressionEvalUtils$.isVariantNull", sql="is_variant_null", raises=False)
def is_variant_null(call: Call, variants: Datum) -> Datum:
    return each_with_nulls(pa.bool_(), lambda text: text == "null", variants)


def _accepts_get(call: Call) -> str | None:
    path = call.args[1]
    if not isinstance(path, Literal):
        return "variant_get with a path that is no constant; take the parts out by constant paths"
    text = path.value.as_py()
    if text is not None and vv.steps_of(text) is None:
        return f"variant_get with {text!r}, which is no path; write it like $.a[0]['b c']"
    return _target_problem(call.type)


def _target_problem(type: pa.DataType) -> str | None:
    if pt.is_nested(type):
        inner = [type.field(place).type for place in range(type.num_fields)]
        return next((problem for part in inner if (problem := _target_problem(part))), None)
    if pt.is_duration(type) or pt.is_interval(type) or pt.is_time(type):
        return f"a variant as {type}; take it as a string and cast that"
    return None


def _get_fails(call: Call) -> bool:
    return bool(call.option("failOnError", True)) and call.type != VARIANT


@function("VariantGet", sql="variant_get try_variant_get", raises=_get_fails, accepts=_accepts_get)
@on_arrays
def variant_get(call: Call, variants: pa.Array, paths: pa.Array) -> pa.Array:
    path = call.args[1]
    assert isinstance(path, Literal)
    if not path.value.is_valid:
        return pa.nulls(len(variants), call.type)
    steps = vv.steps_of(path.value.as_py())
    assert steps is not None, "checked before the start"
    caster = _caster(call, bool(call.option("failOnError", True)))
    return _by_distinct(
        variants,
        lambda values: caster.cast(
            [vv.Missing if v is vv.Missing else vv.follow(v, steps) for v in values], call.type
        ),
    )


def _cast_fails(call: Call) -> bool:
    return not call.is_try and call.type != VARIANT


@function("CastOfVariant", raises=_cast_fails, accepts=lambda call: _target_problem(call.type))
@on_arrays
def cast_variant(call: Call, variants: pa.Array) -> pa.Array:
    """A cast from a variant, which fails in every mode but that of try_cast."""
    caster = _caster(call, not call.is_try)
    return _by_distinct(variants, lambda values: caster.cast(values, call.type))


def _by_distinct(variants: pa.Array, compute: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Each distinct text is parsed once; a null is Missing."""
    encoded = variants.dictionary_encode()
    values = [vv.load(text) for text in encoded.dictionary.to_pylist()]
    results = compute([*values, vv.Missing])
    indices = encoded.indices.fill_null(len(values))
    return results.take(indices)


@lru_cache(maxsize=256)
def _caster(call: Call, is_strict: bool) -> Caster:
    zone = find_zone(str(call.option("timeZoneId", "UTC")))
    return Caster(is_strict, Mode(False, True, zone if zone is not None else UTC_ZONE))


class Caster:
    """Casts values of variants to one type; what cannot be is an error if strict, else null."""

    def __init__(self, is_strict: bool, mode: Mode) -> None:
        self._is_strict = is_strict
        self._mode = mode

    def cast(self, values: list[Any], type: pa.DataType) -> pa.Array:
        """One result per value; Missing and JSON's null are null."""
        if type == VARIANT:
            return pa.array([None if v is vv.Missing else vv.dump(v) for v in values], VARIANT)
        if pt.is_struct(type):
            return self._structs(values, type)
        if pt.is_map(type):
            return self._maps(values, type)
        if pt.is_list(type):
            return self._lists(values, type)
        return self._scalars(values, type)

    def _wrong(self, value: Any, type: pa.DataType) -> None:
        if self._is_strict:
            fail("INVALID_VARIANT_CAST", f"{vv.print_variant(value)} is no {type}")

    def _right(self, values: list[Any], kind: Any, type: pa.DataType) -> list[Any]:
        """The values of this kind; None for nulls, and for what is wrong."""
        chosen = []
        for value in values:
            is_right = isinstance(value, kind)
            if not is_right and value is not None and value is not vv.Missing:
                self._wrong(value, type)
            chosen.append(value if is_right else None)
        return chosen

    def _lists(self, values: list[Any], type: pa.DataType) -> pa.Array:
        lists = self._right(values, list, type)
        inner = self.cast([item for one in lists for item in one or ()], type.value_type)
        offsets = offsets_of(np.array([len(one or ()) for one in lists], np.int64))
        nulls = pa.array([one is None for one in lists])
        made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, mask=nulls)
        return retype(made, type)

    def _maps(self, values: list[Any], type: pa.DataType) -> pa.Array:
        objects = self._right(values, dict, type)
        names = [name for one in objects for name in one or ()]
        items = self.cast(
            [item for one in objects for item in (one or {}).values()], type.item_type
        )
        offsets = offsets_of(np.array([len(one or ()) for one in objects], np.int64))
        nulls = pa.array([one is None for one in objects])
        entries = pa.StructArray.from_arrays(
            [pa.array(names, pa.string()), items], ["key", "value"]
        )
        made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, mask=nulls)
        return retype(made, type)

    def _structs(self, values: list[Any], type: pa.DataType) -> pa.Array:
        objects = self._right(values, dict, type)
        inner = [
            self.cast([(one or {}).get(field.name, vv.Missing) for one in objects], field.type)
            for field in type
        ]
        nulls = pa.array([one is None for one in objects])
        return pa.StructArray.from_arrays(inner, fields=list(type), mask=nulls)

    def _scalars(self, values: list[Any], type: pa.DataType) -> pa.Array:
        """Values of one kind make one column, which is cast as a whole."""
        groups: dict[pa.DataType, list[int]] = {}
        for place, value in enumerate(values):
            if value is None or value is vv.Missing:
                continue
            source = _source(value)
            if source is None and pt.is_string(type):
                source = pa.large_string()  # an object or array is printed
            elif source is None or kind_of(type) not in _TARGETS[kind_of(source)]:
                self._wrong(value, type)
                continue
            groups.setdefault(source, []).append(place)
        order = np.full(len(values), -1, np.int64)
        parts = [pa.nulls(0, type)]
        done = 0
        for source, places in groups.items():
            parts.append(self._column([values[place] for place in places], source, type))
            order[places] = done + np.arange(len(places))
            done += len(places)
        whole = pa.concat_arrays(parts)
        return (
            whole.take(pa.array(np.maximum(order, 0), mask=order < 0))
            if done
            else pa.nulls(len(values), type)
        )

    def _column(self, values: list[Any], source: pa.DataType, type: pa.DataType) -> pa.Array:
        if pt.is_large_string(source):
            return pa.array([vv.print_variant(value) for value in values], pa.string())
        if kind_of(type) == "timestamp" and kind_of(source) in ("int", "decimal"):
            cast = pa.array([_micros(value) for value in values], pa.int64()).cast(type)
        else:
            cast = convert(pa.array(values, source), type, self._mode)
        if cast.null_count:
            for value, result in zip(values, cast.is_null().to_pylist(), strict=True):
                if result:
                    self._wrong(value, type)
        return cast


def _source(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list | dict):
        return None
    exponent = value.as_tuple().exponent
    return pa.decimal128(38, max(0, -exponent))


def _micros(value: Any) -> int | None:
    """Seconds since 1970; null if too many."""
    micros = int(value * _MICROS)
    return micros if -(2**63) <= micros < 2**63 else None
