"""to_csv: structs as lines of values, quoted and escaped as Spark's own writer (univocity) does it.

Columns are printed by kernels. Texts with nothing to quote, trim or escape are written as they are;
the others are written by Python, each distinct one once; then Arrow joins the values of a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import nulls, on_arrays
from penstock.ops.functions.csv_options import csv_dialect, csv_write_problem
from penstock.ops.functions.csv_tokens import CsvDialect
from penstock.ops.functions.json_options import given_options, is_set, zone_of_options
from penstock.ops.functions.printing import Style, print_values
from penstock.ops.functions.registry import function
from penstock.ops.functions.rows import each
from penstock.ops.functions.time_printing import Moments, printer
from penstock.ops.functions.zones import UTC_ZONE, Zone
from penstock.plan.exprs import Call
from penstock.state.keys import canonical_ints


@dataclass(frozen=True, slots=True)
class CellWriter:
    """Writes one value as it stands in a line."""

    dialect: CsvDialect
    quotes_all: bool
    escapes_quotes: bool

    def write(self, value: str | None, *, is_first: bool) -> str:
        """The value, quoted if it must be."""
        dialect = self.dialect
        is_special = value is None or value == "" or (dialect.trims_start and _is_blank(value))
        text = value if not is_special and value is not None else dialect.empty
        if value is None:
            text = dialect.null
        written, is_quoted = self._write(text, self.quotes_all, is_first, is_special)
        if not written and not is_special:
            # Nothing but blanks. The writer puts the word for an empty value behind them, and then
            # drops as many characters as they were.
            word, _ = self._write(dialect.empty, is_quoted, is_first, is_special)
            written = (text + word)[: len(word)]
        return f"{dialect.quote}{written}{dialect.quote}" if is_quoted else written

    def _write(
        self, text: str, is_quoted: bool, is_first: bool, is_special: bool
    ) -> tuple[str, bool]:
        """What stands in the line, and whether between quotes."""
        dialect = self.dialect
        start = _blanks_before(text) if dialect.trims_start else 0
        rest = text[start:]
        if rest and (rest[0] == dialect.quote or (is_first and text[0] == dialect.comment)):
            is_quoted = True
        if is_quoted:
            ends = text[:1] + text[-1:]
            if is_special and len(text) >= 2 and ends == dialect.quote * 2:
                return text, False
            return self._escaped(rest), True
        triggers = {"\n", "\r", dialect.separator}
        if self.escapes_quotes:
            triggers.add(dialect.quote)
        for place, char in enumerate(rest):
            if char in triggers or char in (dialect.quote, dialect.escape):
                if char in triggers or any(later in triggers for later in rest[place:]):
                    head = rest[:place]
                    return self._trimmed(head + self._escape(rest[place:])), True
                break
        return self._trimmed(rest), False

    def _escaped(self, text: str) -> str:
        return self._trimmed(self._escape(text))

    def _escape(self, text: str) -> str:
        dialect = self.dialect
        parts = []
        for char in text:
            if char == dialect.quote:
                parts.append(dialect.escape)
            elif char == dialect.escape and dialect.escape_escape != "\0":
                parts.append(dialect.escape_escape)
            parts.append(char)
        return "".join(parts)

    def _trimmed(self, text: str) -> str:
        if not self.dialect.trims_end:
            return text
        end = len(text)
        while end and text[end - 1] <= " ":
            end -= 1
        return text[:end]

    def column(self, texts: pa.Array, *, is_first: bool) -> pa.Array:
        """One cell per text; null is one, too."""
        dialect = self.dialect
        marks = re.escape(dialect.quote + dialect.escape + dialect.separator + dialect.comment)
        odd = rf"[{marks}\n\r]|^[\x00-\x20]|[\x00-\x20]$|^$"
        if self.quotes_all or pc.any(pc.match_substring_regex(texts, odd)).as_py():
            texts = each(pa.string(), lambda text: self.write(text, is_first=is_first), texts)
        return pc.fill_null(texts, self.write(None, is_first=is_first))


def _is_blank(text: str) -> bool:
    return all(char <= " " for char in text)


def _blanks_before(text: str) -> int:
    return next((place for place, char in enumerate(text) if char > " "), len(text))


@dataclass(frozen=True, slots=True)
class _Printer:
    """How one call prints."""

    cells: CellWriter
    zone: Zone
    date: str
    timestamp: str
    timestamp_ntz: str

    def lines(self, structs: pa.Array) -> pa.Array:
        """One line per struct; null for null, and for one without a character."""
        fields = [structs.field(place) for place in range(structs.type.num_fields)]
        columns = [
            self.cells.column(self._texts(field), is_first=number == 0)
            for number, field in enumerate(fields)
        ]
        if not columns:
            return pa.nulls(len(structs), pa.string())
        joined = pc.binary_join_element_wise(*columns, self.cells.dialect.separator)
        gone = nulls(structs) | (pc.binary_length(joined).to_numpy(zero_copy_only=False) == 0)
        return pc.if_else(pa.array(gone), pa.scalar(None, pa.string()), joined)

    def _texts(self, array: pa.Array) -> pa.Array:
        type = array.type
        none = np.zeros(1, np.int64)
        if pt.is_date32(type):
            return printer(self.date)(Moments(canonical_ints(array), none, none), nulls(array))
        if pt.is_timestamp(type):
            counts = canonical_ints(array)
            zone = UTC_ZONE if type.tz is None else self.zone
            moments = Moments(*zone.to_local(counts), zone.offsets_at(counts // 1_000_000))
            pattern = self.timestamp_ntz if type.tz is None else self.timestamp
            return printer(pattern)(moments, nulls(array))
        if pt.is_binary(type):
            return each(pa.string(), lambda value: f"[{value.hex(' ').upper()}]", array)
        return print_values(array, Style(False, self.zone))


@lru_cache(maxsize=256)
def _printer(call: Call) -> _Printer:
    options = given_options(call)
    cells = CellWriter(
        csv_dialect(options, trims=True),
        is_set(options, "quoteall", False),
        is_set(options, "escapequotes", True),
    )
    return _Printer(
        cells,
        zone_of_options(call, options),
        date=options.get("dateformat", "yyyy-MM-dd"),
        timestamp=options.get("timestampformat", "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"),
        timestamp_ntz=options.get("timestampntzformat", "yyyy-MM-dd'T'HH:mm:ss[.SSS]"),
    )


def _accepts(call: Call) -> str | None:
    problem = _type_problem(call.args[0].type) or csv_write_problem(call, printer)
    return None if problem is None else f"to_csv with {problem}"


def _type_problem(type: pa.DataType) -> str | None:
    for field in type:
        if pt.is_nested(field.type):
            return f"a field of type {field.type}; write that with to_json"
        if pt.is_duration(field.type) or pt.is_interval(field.type) or pt.is_time(field.type):
            return f"a field of type {field.type}; cast it to a string"
    return None


@function("StructsToCsv", sql="to_csv", raises=False, accepts=_accepts)
@on_arrays
def to_csv(call: Call, value: pa.Array) -> pa.Array:
    return _printer(call).lines(value)
