"""Functions with Spark's semantics over Arrow arrays.

registry.py    how a function is registered; what it owes
failures.py    Spark's error conditions, and Arrow's errors turned into them
branches.py    special forms: and, or, if, case, coalesce and their kin
lambdas.py     higher-order functions over arrays and maps
comparators.py array_sort by a comparator, as Java's sort asks it
alignment.py   arguments as arrays of one length, their nulls and their values
operands.py    all arguments of a call as NumPy vectors, and the answer from them
comparisons.py comparison, membership, nulls and NaN
numbers.py     arithmetic
decimals.py    arithmetic on decimals
unscaled.py    decimals as whole numbers and back
maths.py       functions of real numbers
rounding.py    round, bround, ceil, floor
bits.py        bits of integers, numbers in other bases
casts.py       CAST and try_cast, all pairs
parsing.py     text as values of every type, for casts
printing.py    values of every type as text, for casts
java_floats.py how Java prints float and double, and cuts them to integers
rows.py        a Python function over distinct values, where no column kernel exists
slices.py      strings as bytes and offsets, cut by NumPy
text.py        strings and binary: case, length, cutting, joining, padding
searching.py   finding, replacing, splitting, likeness
encodings.py   hex, base64, character sets, URL escapes
urls.py        the parts of a URL
printf.py      format_string, format_number, mask
number_formats.py  to_number, and to_char of numbers
java_patterns.py  Java's regular expressions, translated
unicode_classes.py  classes of characters by Unicode properties
patterns.py    LIKE, RLIKE, regular expressions
civil.py       the calendar over NumPy vectors
zones.py       time zones over NumPy vectors
times.py       fields of dates and timestamps, epochs, truncation, zones
time_arithmetic.py  sums and differences of times; times from parts
closings.py    when keys that are made of event time close
intervals.py   intervals: parts, products, quotients
formats.py     functions with a date and time pattern
time_patterns.py, time_printing.py, time_parsing.py  what a pattern means, prints, reads
lists.py       lists as offsets and elements
ordering.py    Spark's order of values, nested ones too, as integers
structs.py     structs
arrays.py      arrays: making, reading, searching, cutting, joining
array_sets.py  arrays as sets, and sorted
sequences.py   sequence()
maps.py        maps
hashes.py      hash functions
vectors.py     arrays of floats as vectors
json_tokens.py JSON text as tokens, with Jackson's habits
json_base64.py  base 64 in a string, decoded while it is read, as Jackson does
json_text.py   values as JSON text
json_options.py  the options of from_json and to_json
json_values.py, json_fast.py, json_shapes.py  JSON to values: exactly, by Arrow, by NumPy
bytes_at.py    bytes of many texts at once
plain_times.py dates and timestamps as programs write them
from_json.py   from_json
json_paths.py  get_json_object and its kin
to_json.py     to_json
csv_tokens.py  a line of CSV as values, with univocity's habits
csv_options.py the options of from_csv and to_csv
from_csv.py, to_csv.py  from_csv, to_csv
variant_values.py, variants.py  variants: as texts, and what queries do with them
"""

from __future__ import annotations

import importlib
from functools import cache

from penstock.ops.functions.branches import and_where, evaluate_where
from penstock.ops.functions.lambdas import compile_lambda_call

_MODULES = (
    "branches",
    "lambdas",
    "comparisons",
    "numbers",
    "maths",
    "rounding",
    "bits",
    "unscaled",
    "casts",
    "text",
    "searching",
    "encodings",
    "urls",
    "printf",
    "number_formats",
    "patterns",
    "times",
    "time_arithmetic",
    "closings",
    "intervals",
    "formats",
    "structs",
    "arrays",
    "array_sets",
    "sequences",
    "maps",
    "hashes",
    "vectors",
    "from_json",
    "json_paths",
    "to_json",
    "from_csv",
    "to_csv",
    "variants",
)


@cache
def load() -> None:
    """Register everything, once."""
    for name in _MODULES:
        importlib.import_module(f"penstock.ops.functions.{name}")


__all__ = ["and_where", "compile_lambda_call", "evaluate_where", "load"]
