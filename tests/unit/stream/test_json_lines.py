from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import BadRow
from penstock.stream.ddl import parse_ddl
from penstock.stream.json_lines import row_from_json, row_to_json, rows_to_json_lines
from penstock.stream.rows import to_batches

CASES = [
    ("boolean", True, "true"),
    ("bigint", 2**63 - 1, "9223372036854775807"),
    ("double", 0.1, "0.1"),
    ("double", -0.0, "-0.0"),
    ("double", 1e22, "1e+22"),
    ("double", float("inf"), '"Infinity"'),
    ("float", float("-inf"), '"-Infinity"'),
    ("decimal(38,10)", Decimal("0E-10"), '"0.0000000000"'),
    ("decimal(5,2)", Decimal("-1.50"), '"-1.50"'),
    ("string", 'quote " line\n\u2028 é', '"quote \\" line\\n\u2028 é"'),
    ("binary", b"\x00\xff", '"AP8="'),
    ("date", date(1, 1, 1), '"0001-01-01"'),
    ("timestamp", datetime(2026, 11, 15, 8, tzinfo=UTC), '"2026-11-15T08:00:00.000000Z"'),
    ("timestamp_ntz", datetime(1, 1, 1), '"0001-01-01T00:00:00.000000"'),
    ("time", time(8, 0, 0, 5), '"08:00:00.000005"'),
    ("interval day", timedelta(days=1, microseconds=1), '"PT86400.000001S"'),
    ("interval day", timedelta(microseconds=-1), '"-PT0.000001S"'),
    ("void", None, "null"),
    ("array<bigint>", [1, None], "[1,null]"),
    ("map<string,int>", [("b", 1), ("a", None)], '{"b":1,"a":null}'),
    ("map<string,int>", [], "{}"),
    ("map<int,string>", [(1, "x")], '[[1,"x"]]'),
    ("map<int,string>", [], "[]"),
    ("map<struct<q: int>,map<string,int>>", [({"q": 1}, [("k", 2)])], '[[{"q":1},{"k":2}]]'),
    ("struct<q: int, r: array<date>>", {"q": 1, "r": [date.max]}, '{"q":1,"r":["9999-12-31"]}'),
]


@pytest.mark.parametrize(("ddl", "value", "text"), CASES)
def test_each_type_has_one_form_and_reads_back_equal(ddl: str, value: Any, text: str) -> None:
    schema = parse_ddl(f"c {ddl}")
    (batch,) = to_batches({"c": value}, schema)

    (line,) = rows_to_json_lines(batch)

    assert line == f'{{"c":{text}}}'
    row = row_from_json(line, schema)
    assert row == batch.to_pylist()[0] == {"c": value}
    assert str(row["c"]) == str(value) or not isinstance(value, float)
    assert to_batches(row, schema) == [batch]


def test_nan_is_text_and_comes_back() -> None:
    schema = parse_ddl("c double")
    (batch,) = to_batches({"c": float("nan")}, schema)

    (line,) = rows_to_json_lines(batch)

    assert line == '{"c":"NaN"}'
    assert str(row_from_json(line, schema)["c"]) == "nan"


def test_a_row_of_python_values_is_written_without_a_schema() -> None:
    row = {
        "m": {1: {"x": Decimal("1.0")}},
        "n": np.int64(3),
        "f": np.float64("nan"),
        "t": (1, np.array([2.5])),
        "z": datetime.fromisoformat("2026-11-15T10:00:00+02:00"),
    }

    assert json.loads(row_to_json(row)) == {
        "m": [[1, {"x": "1.0"}]],
        "n": 3,
        "f": "NaN",
        "t": [1, [2.5]],
        "z": "2026-11-15T08:00:00.000000Z",
    }
    with pytest.raises(BadRow, match=r"column a\[0\]: complex 1j is of no type"):
        row_to_json({"a": [1j]})


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("double", "1", 1.0),
        ("decimal(5,2)", "1.25", Decimal("1.25")),
        ("decimal(5,2)", "3", Decimal(3)),
        ("decimal(5,2)", '"1e2"', Decimal(100)),
        ("timestamp", '"2026-11-15T10:00:00+02:00"', datetime(2026, 11, 15, 8, tzinfo=UTC)),
        ("timestamp", '"2026-11-15 08:00"', datetime(2026, 11, 15, 8, tzinfo=UTC)),
        ("interval day", '"P1DT2H3M4.5S"', timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("map<int,int>", "{}", []),
    ],
)
def test_other_spellings_of_the_same_value_are_read(ddl: str, text: str, value: Any) -> None:
    assert row_from_json(f'{{"c":{text}}}', parse_ddl(f"c {ddl}")) == {"c": value}


def test_absent_columns_are_null() -> None:
    assert row_from_json("{}", parse_ddl("a int")) == {"a": None}


@pytest.mark.parametrize(
    ("ddl", "text", "message"),
    [
        ("bigint", '"5"', "expected bigint, got str '5'"),
        ("bigint", "1.5", "expected bigint, got number 1.5"),
        ("bigint", "true", "expected bigint, got bool True"),
        ("int", "2147483648", "outside -2147483648"),
        ("double", '"nan"', 'must be "NaN", "Infinity"'),
        ("double", "1e400", "beyond its range"),
        ("double", "9007199254740993", "no room for all digits"),
        ("decimal(5,2)", '"x"', "not a decimal number"),
        ("decimal(5,2)", '"1.234"', "over 2 digits after the point"),
        ("decimal(5,2)", '"NaN"', "not a decimal number"),
        ("string", "5", "expected string, got int 5"),
        ("string", "5.0", "expected string, got number 5.0"),
        ("string", '"\\ud800"', "not Unicode"),
        ("binary", '"é"', "not base64"),
        ("binary", '"abc"', "not base64"),
        ("date", '"2026-13-01"', "month must be in 1..12"),
        ("date", '"2026-W01"', "not of the form"),
        ("date", "5", "got int 5"),
        ("date", "5.5", "got number 5.5"),
        ("timestamp", '"2026-11-15T08:00:00.1234567Z"', "not of the form"),
        ("timestamp", '"0001-01-01T00:00:00+01:00"', "outside years"),
        ("timestamp_ntz", '"2026-11-15T08:00:00Z"', "it has a time zone"),
        ("time", '"25:00"', "hour must be in 0..23"),
        ("interval day", '"P"', "not of the form"),
        ("interval day", '"PT"', "not of the form"),
        ("interval day", '"P9999999999999999999D"', "expected interval day to second"),
        ("void", "1", "expected void"),
        ("map<string,int>", "[]", "as object, got list"),
        ("map<int,int>", '{"1":1}', "as list of [key, value], got dict"),
        ("map<int,int>", "[[1]]", "[0]: expected [key, value], got list [1]"),
        ("map<int,int>", "[[1,1],[1,2]]", "[1].key: a key that is in this map already"),
        ("array<struct<q: date>>", '[{"q":"x"}]', "[0].q: expected date, got str 'x'"),
        ("struct<q: int>", '{"z":1.5}', ".z: unknown field"),
        ("struct<q: int>", "[]", "expected struct<q: int>, got list"),
        ("array<int>", "{}", "expected array<int>, got dict"),
        ("int NOT NULL", "null", "is NOT NULL, got null"),
    ],
)
def test_values_that_do_not_fit_are_named_with_line_and_column(
    ddl: str, text: str, message: str
) -> None:
    with pytest.raises(BadRow) as caught:
        row_from_json(f'{{"c":{text}}}', parse_ddl(f"c {ddl}"), line=7)

    assert str(caught.value).startswith("line 7, column c")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1', "line 7, character 7: not JSON"),
        ("", "line 7, character 1: not JSON"),
        ("[1]", "line 7: expected a JSON object, got list [1]"),
        ('{"a":NaN}', 'line 7: a bare NaN is no JSON; write "NaN" in quotes'),
        ('{"a":1,"a":2}', "line 7: 'a' is there twice"),
        ('{"a":' + "9" * 5000 + "}", "line 7: JSON that cannot be read"),
        ('{"a":' + "[" * 100_000, "line 7"),
        (b"\xff\xfe\xff", "line 7: JSON that cannot be read"),
        ('{"A":1}', "line 7, column A: unknown column; did you mean a?"),
        ("{}", "line 7, column a: is NOT NULL, but missing"),
        ('{"a":1e9999999999999999999}', "line 7"),
    ],
)
def test_lines_that_are_no_row_are_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(BadRow) as caught:
        row_from_json(text, parse_ddl("a int NOT NULL"), line=7)

    assert str(caught.value).startswith(message)


def test_a_batch_that_no_stream_holds_is_refused_before_the_first_line() -> None:
    batch = pa.record_batch({"at": pa.array([0, 2**61], pa.timestamp("us"))})

    with pytest.raises(BadRow, match="row 1, column at: outside years"):
        next(rows_to_json_lines(batch))
