"""from_json: texts to structs, arrays and maps.

Two paths, one answer. Texts of a common shape go through Arrow's reader (json_fast.py); whatever it
does not take goes, row by row, through Spark's own steps (json_values.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.alignment import Mask, on_arrays
from penstock.ops.functions.failures import fail
from penstock.ops.functions.json_fast import FastReader, can_read
from penstock.ops.functions.json_options import (
    dialect_of,
    given_options,
    read_problem,
    zone_of_options,
)
from penstock.ops.functions.json_tokens import JsonError, Token, Tokens
from penstock.ops.functions.json_values import Conversions, Formats, Partial, Unfit
from penstock.ops.functions.registry import function
from penstock.ops.functions.time_parsing import parser
from penstock.plan.exprs import Call
from penstock.plan.types import holds_variant

_CORRUPT: Final = "_corrupt_record"
_MALFORMED: Final = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"


class JsonReader:
    """What one call of from_json does: made once per call."""

    def __init__(self, call: Call) -> None:
        options = given_options(call)
        self._dialect = dialect_of(options)
        self._type = call.type
        self._is_strict = options.get("mode", "").upper() == "FAILFAST"
        self._corrupt = _corrupt_place(call.type, options)
        zone = zone_of_options(call, options)
        formats = Formats(
            options.get("dateformat"),
            options.get("timestampformat"),
            options.get("timestampntzformat"),
            zone,
        )
        self._is_struct = pt.is_struct(call.type)
        self._parsed = _without(call.type, self._corrupt)
        self._convert = _root(Conversions(self._dialect, formats), self._parsed)
        is_plain = zone.is_utc and formats.date is None and formats.timestamp is None
        self._fast = FastReader(self._parsed) if is_plain and _is_fast(self._parsed) else None

    def read(self, texts: pa.Array) -> pa.Array:
        """One value per text."""
        if self._fast is None:
            return self.read_exactly(texts)
        values, answered = self._fast.read(texts)
        if values is None:
            return self.read_exactly(texts)
        if self._corrupt is not None:
            values = _with_nulls(values, self._type, self._corrupt)
        if answered.all():
            return values
        return _merge(values, answered, self.read_exactly(texts.filter(pa.array(~answered))))

    def read_exactly(self, texts: pa.Array) -> pa.Array:
        """The same, each text by itself."""
        return pa.array([self._read_one(text) for text in texts.to_pylist()], self._type)

    def _read_one(self, text: str | None) -> Any:
        if text is None:
            return None
        value: Any = None
        try:
            tokens = Tokens(text, self._dialect)
            if tokens.next() is None:
                return None  # nothing but blanks
            return self._complete(self._convert(tokens), None)
        except Partial as partial:
            value = partial.value
        except (Unfit, JsonError):
            pass
        if self._is_strict:
            fail(_MALFORMED, f"{text!r} is not JSON of the schema, and the mode is FAILFAST")
        if not self._is_struct:
            return value
        if value is None:
            value = (None,) * self._parsed.num_fields
        return self._complete(value, text)

    def _complete(self, value: Any, text: str | None) -> Any:
        if self._corrupt is None:
            return value
        return (*value[: self._corrupt], text, *value[self._corrupt :])


def _root(conversions: Conversions, type: pa.DataType) -> Callable[[Tokens], Any]:
    """The converter of the whole text; null and what is of another kind are unfit."""
    convert = conversions.of(type)
    one = None
    if pt.is_list(type) and pt.is_struct(type.value_type):
        one = conversions.of(type.value_type)

    def converted(tokens: Tokens) -> Any:
        if one is not None and tokens.token is Token.START_OBJECT:
            try:  # one object stands for an array of one
                return [one(tokens)]
            except Partial as partial:
                raise Partial([partial.value]) from None
        value = convert(tokens)
        if value is None:
            raise Unfit
        return value

    return converted


def _corrupt_place(type: pa.DataType, options: dict[str, str]) -> int | None:
    name = options.get("columnnameofcorruptrecord", _CORRUPT)
    if not pt.is_struct(type):
        return None
    names = [type.field(place).name for place in range(type.num_fields)]
    return names.index(name) if name in names else None


def _without(type: pa.DataType, place: int | None) -> pa.DataType:
    if place is None:
        return type
    fields = [type.field(index) for index in range(type.num_fields)]
    return pa.struct(fields[:place] + fields[place + 1 :])


def _is_fast(type: pa.DataType) -> bool:
    return bool(pt.is_struct(type)) and can_read(type)


def _with_nulls(values: pa.Array, type: pa.DataType, place: int) -> pa.Array:
    fields = [type.field(index) for index in range(type.num_fields)]
    inner = [values.field(index) for index in range(values.type.num_fields)]
    inner.insert(place, pa.nulls(len(values), pa.string()))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)


def _merge(values: pa.Array, answered: Mask, others: pa.Array) -> pa.Array:
    index = np.arange(len(values))
    index[~answered] = len(values) + np.arange(len(others))
    return pa.concat_arrays([values, others]).take(pa.array(index))


@lru_cache(maxsize=256)
def _reader(call: Call) -> JsonReader:
    return JsonReader(call)


def _accepts(call: Call) -> str | None:
    if holds_variant(call.type):
        return "from_json to a variant; use parse_json"
    problem = _type_problem(call.type) or read_problem(call, parser)
    return None if problem is None else f"from_json with {problem}"


def _type_problem(type: pa.DataType) -> str | None:
    if pt.is_map(type) and not pt.is_string(type.key_type):
        return f"a map whose keys are {type.key_type}; read them as strings"
    if pt.is_nested(type):
        inner = [type.field(place).type for place in range(type.num_fields)]
        return next((problem for part in inner if (problem := _type_problem(part))), None)
    if pt.is_duration(type) or pt.is_interval(type) or pt.is_time(type):
        return f"a field of type {type}; read it as a string and cast that"
    return None


def _can_fail(call: Call) -> bool:
    return given_options(call).get("mode", "").upper() == "FAILFAST"


@function("JsonToStructs", sql="from_json", raises=_can_fail, accepts=_accepts)
@on_arrays
def from_json(call: Call, texts: pa.Array) -> pa.Array:
    return _reader(call).read(texts)
