"""from_csv: lines of values to structs.

Two paths, one answer. Lines without quotes, of the right number of values, are split by Arrow and
read column by column; whatever is not plain goes, row by row, through Spark's own steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions import parsing
from penstock.ops.functions.alignment import Ints, Mask, null_where, nulls, on_arrays
from penstock.ops.functions.csv_options import csv_dialect, csv_read_problem
from penstock.ops.functions.csv_tokens import LINE_END, CsvDialect, CsvLine, Unreadable
from penstock.ops.functions.failures import fail
from penstock.ops.functions.json_options import given_options, zone_of_options
from penstock.ops.functions.json_values import (
    Formats,
    Unfit,
    by_pattern,
    clean_legacy,
    fit_decimal,
    read_moment,
)
from penstock.ops.functions.plain_times import read_plain_times
from penstock.ops.functions.registry import function
from penstock.ops.functions.time_parsing import parser
from penstock.plan.exprs import Call
from penstock.plan.types import from_spark, holds_variant

_CORRUPT: Final = "_corrupt_record"
_MALFORMED: Final = "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
_JAVA_INT: Final = re.compile(r"[+-]?\d+")  # of any script, as in Java
#: Numbers that Arrow's parser and Java's take for the same.
_PLAIN: Final = {True: r"^-?[0-9]{1,18}$", False: r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"}
#: A text as a value of the column; raises Unfit.
Read = Callable[[str], Any]


class CsvReader:
    """What one call of from_csv does: made once per call."""

    def __init__(self, call: Call) -> None:
        options = given_options(call)
        self._type = call.type
        self._dialect = csv_dialect(options, trims=False)
        self._is_strict = options.get("mode", "").upper() == "FAILFAST"
        corrupt = options.get("columnnameofcorruptrecord", _CORRUPT)
        whole = [field.name for field in from_spark(str(call.option("schema")))]
        columns = [name for name in whole if name != corrupt]
        fields = [field for field in call.type if field.name != corrupt]
        names = [field.name for field in call.type]
        self._corrupt = names.index(corrupt) if corrupt in names else None
        self._is_pruned = len(fields) < len(columns)
        self._width = len(columns)
        #: Which value of the line each field is.
        self._places = [columns.index(field.name) for field in fields]
        self._types = [field.type for field in fields]
        zone = zone_of_options(call, options)
        self._formats = Formats(
            options.get("dateformat"),
            options.get("timestampformat"),
            options.get("timestampntzformat"),
            zone,
        )
        self._reads = [_reader(type, self._formats, options) for type in self._types]
        self._is_fast = bool(self._places) and _is_plain(self._dialect, options)

    def read(self, texts: pa.Array) -> pa.Array:
        """One struct per text."""
        if not self._is_fast:
            return self.read_exactly(texts)
        rows, structs = self._read_plain(texts)
        if len(rows) == len(texts):
            return structs
        left = np.setdiff1d(np.arange(len(texts)), rows, assume_unique=True)
        others = self.read_exactly(texts.take(pa.array(left)))
        order = np.empty(len(texts), np.int64)
        order[rows] = np.arange(len(rows))
        order[left] = len(rows) + np.arange(len(left))
        return pa.concat_arrays([structs, others]).take(pa.array(order))

    def read_exactly(self, texts: pa.Array) -> pa.Array:
        """The same, each text by itself."""
        return pa.array([self._read_one(text) for text in texts.to_pylist()], self._type)

    def _read_one(self, text: str | None) -> Any:
        if text is None:
            return None
        line = CsvLine(text, self._dialect)
        try:
            values = line.read()
        except Unreadable as error:
            fail("MALFORMED_CSV_RECORD", f"Spark cannot read {text!r}: {error}")
        is_right = values is not None and (self._is_pruned or len(values) == self._width)
        is_right |= not self._places  # Spark does not even look
        row: list[Any] = [None] * len(self._places)
        for number, (place, read) in enumerate(zip(self._places, self._reads, strict=True)):
            if values is None:
                break
            if place >= len(values):
                continue  # of a pruned schema it is null, of the whole one it was noticed
            if values[place] != self._dialect.null:
                try:
                    row[number] = read(values[place])
                except Unfit:
                    is_right = False
        if is_right:
            return self._complete(row, None)
        if self._is_strict:
            fail(_MALFORMED, f"{text!r} is not CSV of the schema, and the mode is FAILFAST")
        return self._complete(row, line.seen)

    def _complete(self, row: list[Any], text: str | None) -> tuple[Any, ...]:
        if self._corrupt is None:
            return tuple(row)
        return (*row[: self._corrupt], text, *row[self._corrupt :])

    def _read_plain(self, texts: pa.Array) -> tuple[Ints, pa.Array]:
        """Rows that are lines of plain values, and their structs."""
        dialect = self._dialect
        odd = f"[{re.escape(dialect.quote + dialect.escape + dialect.comment)}{LINE_END}]"
        plain = ~nulls(texts) & ~_as_mask(pc.match_substring_regex(texts, odd))
        plain &= _as_mask(pc.equal(pc.count_substring(texts, dialect.separator), self._width - 1))
        plain &= _as_mask(pc.greater(pc.binary_length(texts), 0))
        rows = np.flatnonzero(plain)
        chosen = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
        pieces = pc.split_pattern(chosen, dialect.separator).flatten()
        empty = pa.array(["", dialect.null])
        inner = []
        right = np.ones(len(rows), bool)
        for place, type in zip(self._places, self._types, strict=True):
            index = np.arange(place, len(rows) * self._width, self._width)
            values = pieces.take(pa.array(index))
            values = null_where(values, _as_mask(pc.is_in(values, empty)))
            column, wrong = _read_column(values, type, self._formats)
            inner.append(column)
            right &= ~wrong
        if self._corrupt is not None:
            inner.insert(self._corrupt, pa.nulls(len(rows), pa.string()))
        structs = pa.StructArray.from_arrays(inner, fields=list(self._type))
        if right.all():
            return rows, structs
        return rows[right], structs.filter(pa.array(right))


def _as_mask(booleans: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(booleans, False).to_numpy(zero_copy_only=False))


def _is_plain(dialect: CsvDialect, options: dict[str, str]) -> bool:
    """Whether splitting at the separator can be all there is to do."""
    is_usual = not (dialect.trims_start or dialect.trims_end or dialect.quote == "\0")
    words = {"nanvalue", "positiveinf", "negativeinf"}
    return is_usual and dialect.escape != "\0" and not words & options.keys()


def _read_column(texts: pa.Array, type: pa.DataType, formats: Formats) -> tuple[pa.Array, Mask]:
    """The values, and which texts are left to the exact path."""
    if pt.is_string(type):
        return texts, np.zeros(len(texts), bool)
    is_whole = bool(pt.is_integer(type))
    if is_whole or pt.is_float64(type):
        plain = _as_mask(pc.match_substring_regex(texts, _PLAIN[is_whole])) | nulls(texts)
        values = null_where(texts, ~plain).cast(pa.int64() if is_whole else type)
        if not is_whole or pt.is_int64(type):
            return values, ~plain
        limits = np.iinfo(type.to_pandas_dtype())
        counts = values.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = (counts < limits.min) | (counts > limits.max)
        return values.cast(type, safe=False), ~plain | wrong
    is_day = pt.is_date32(type) and formats.date is None
    is_moment = pt.is_timestamp(type) and type.tz is not None and formats.timestamp is None
    if is_day or (is_moment and formats.zone.is_utc):
        return read_plain_times(texts, type)
    return pa.nulls(len(texts), type), ~nulls(texts)


def _reader(type: pa.DataType, formats: Formats, options: dict[str, str]) -> Read:
    if pt.is_string(type):
        return lambda text: text
    if pt.is_integer(type):
        return _integers(type.bit_width)
    if pt.is_floating(type):
        return _floats(type, options)
    if pt.is_boolean(type):
        return _read_boolean
    if pt.is_decimal(type):
        return lambda text: fit_decimal(text.replace(",", ""), type)
    if pt.is_binary(type):
        return lambda text: text.encode()
    if pt.is_null(type):
        return lambda text: None
    return _or_unfit(_times(type, formats))


def _times(type: pa.DataType, formats: Formats) -> Callable[[str], int | None]:
    if pt.is_date32(type):
        pattern, zone = formats.date, None
    elif type.tz is None:
        pattern, zone = formats.timestamp_ntz, None
    else:
        pattern, zone = formats.timestamp, formats.zone
    if pattern is not None:
        return by_pattern(pattern, zone, type)
    return _read_day if pt.is_date32(type) else lambda text: read_moment(text, zone)


def _read_day(text: str) -> int | None:
    for spelled in (text, clean_legacy(text)):
        value = parsing.read_days(pa.array([spelled], pa.string()))[0][0]
        if value.is_valid:
            return int(value.cast(pa.int32()).as_py())
    return None


def _or_unfit(read: Callable[[str], int | None]) -> Read:
    def checked(text: str) -> int:
        value = read(text)
        if value is None:
            raise Unfit
        return value

    return checked


def _integers(width: int) -> Read:
    most = 2 ** (width - 1)

    def read(text: str) -> int:
        if _JAVA_INT.fullmatch(text) is None or not -most <= int(text) < most:
            raise Unfit
        return int(text)

    return read


def _floats(type: pa.DataType, options: dict[str, str]) -> Read:
    named = {
        options.get("positiveinf", "Inf"): math.inf,
        options.get("negativeinf", "-Inf"): -math.inf,
        options.get("nanvalue", "NaN"): math.nan,
    }
    read_one = parsing.read_java_double if pt.is_float64(type) else parsing.read_java_single

    def read(text: str) -> float:
        value = named[text] if text in named else read_one(text)
        if value is None:
            raise Unfit
        return value

    return read


def _read_boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise Unfit
    return word == "true"


@lru_cache(maxsize=256)
def _reader_of(call: Call) -> CsvReader:
    return CsvReader(call)


def _accepts(call: Call) -> str | None:
    if holds_variant(call.type):
        return "from_csv to a variant; read a string"
    problem = _type_problem(call.type) or csv_read_problem(call, parser)
    return None if problem is None else f"from_csv with {problem}"


def _type_problem(type: pa.DataType) -> str | None:
    for field in type:
        if pt.is_duration(field.type) or pt.is_interval(field.type) or pt.is_time(field.type):
            return f"a field of type {field.type}; read it as a string and cast that"
    return None


def _can_fail(call: Call) -> bool:
    options = given_options(call)
    is_strict = options.get("mode", "").upper() == "FAILFAST"
    return is_strict or csv_dialect(options, trims=False).trims_end


@function("CsvToStructs", sql="from_csv", raises=_can_fail, accepts=_accepts)
@on_arrays
def from_csv(call: Call, texts: pa.Array) -> pa.Array:
    return _reader_of(call).read(texts)
