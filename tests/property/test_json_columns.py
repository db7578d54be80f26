"""The decoder by column against the exact one, row by row: the same batches, the same refusals."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_strategies import canonical, streams

from penstock.errors import BadRow, PenstockError
from penstock.stream import json_columns
from penstock.stream.ddl import parse_ddl
from penstock.stream.json_columns import array_to_batches, lines_to_batches, number_lines
from penstock.stream.json_lines import row_from_json, rows_from_json_array, rows_to_json_lines
from penstock.stream.rows import to_batches

#: JSON texts that some type takes, takes in a rarer spelling, or nearly takes.
ODD = [
    *("null", "true", "0", "-0", "1", "127", "128", "-129", "2147483648", "9223372036854775808"),
    *("1.0", "1.5", "-0.0", "1e2", "1e400", "1e39", "16777217", "9007199254740993", "1E-400"),
    *("NaN", "Infinity", '"NaN"', '"-Infinity"', '"inf"', "01", "1.", "[", '"', "{}", "[]"),
    *(
        '""',
        '"x"',
        '"\\ud800"',
        '"\\u0000"',
        '"é"',
        '"1"',
        '"1.5"',
        '"1e2"',
        '".5"',
        '"5."',
        '"+5"',
    ),
    *('"-"', '"1_0"', '" 1"', '"99999999999999999999999999999999999999"', '"0.000"', '"AP8="'),
    *('"AP8"', '"A P8="', '"2026-11-15"', '"2026-13-15"', '"0000-01-01"', '"2026-W01-1"'),
    *('"2026-02-29"', '"20261115T0800"', '"2026-11-15T08"', '"2026-11-15T08Z"', '"2026-11-15Z"'),
    *('"2026-11-15T08:00"', '"2026-11-15 08:00:00"', '"2026-11-15T08:00:00.1"', '"08"', '"8:00"'),
    *('"2026-11-15T08:00:00.1234567"', '"2026-11-15T08:00:00.123456789Z"', '"08:00:00.1234567"'),
    *('"2026-11-15T08:00:00Z"', '"2026-11-15T08:00:00.123Z"', '"2026-11-15T08:00Z"', '"08:00Z"'),
    *('"2026-11-15T08:00:00z"', '"2026-11-15t08:00:00Z"', '"2026-11-15T08:00:00ZZ"', '"24:00"'),
    *('"2026-11-15T08:00+02:00"', '"2026-11-15T08:00:00+0200"', '"2026-11-15T08:00:00+02"'),
    *('"2026-11-15T08+02:00"', '"2026-11-15T08:00:00+24:00"', '"2026-11-15T08:00:00-00:00"'),
    *('"2026-11-15T24:00:00Z"', '"2026-11-15T23:59:60Z"', '"0001-01-01T00:00:00+01:00"'),
    *('"9999-12-31T23:59:59-01:00"', '"08:00"', '"08:00:00"', '"08:00:00.5"', '"23:59:60"'),
    *('"PT1.500000S"', '"-PT0.000001S"', '"P1D"', '"PT1S"', '"PT999999999999.000000S"', '"P"'),
    *("[null]", "[1]", '["a", null]', "[[1, 2]]", '{"a": 1}', '{"a": 1, "a": 2}', '{"q": null}'),
    *('[[1, "x"]]', '"２０２６-11-15"', '"1１"', "1" * 5000, "[" * 2000),
]
LEAVES = [
    *("boolean", "tinyint", "bigint", "float", "double", "decimal(5,2)", "decimal(38,0)"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz", "time", "interval day", "void"),
    *("array<int>", "array<timestamp>", "map<string,double>", "map<int,string>"),
    *("struct<q: int, a: decimal(3,1)>", "struct<q: int NOT NULL>", "int NOT NULL"),
]


def exact_lines(text: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    rows = [row_from_json(line, schema, line=at) for at, line in number_lines(text)]
    return to_batches(rows, schema)


def exact_array(text: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    return to_batches(rows_from_json_array(text, schema), schema)


def outcome(decode: Any, *given: Any) -> str:
    """The rows and the cut, or the refusal."""
    try:
        batches = decode(*given)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    for batch in batches:
        batch.validate(full=True)
    return "; ".join(canonical(batch.to_pylist()) for batch in batches)


def both(text: bytes, schema: pa.Schema) -> str:
    lines = outcome(lines_to_batches, number_lines(text), schema)
    assert lines == outcome(exact_lines, text, schema)
    body = b"[" + b",".join(line for _, line in number_lines(text)) + b"]"
    assert outcome(array_to_batches, body, schema) == outcome(exact_array, body, schema)
    return lines


@given(streams())
def test_what_we_write_is_read_by_column_and_exactly(stream: tuple[pa.Schema, Any]) -> None:
    schema, rows = stream
    (batch,) = to_batches(rows, schema)
    text = "\n".join(rows_to_json_lines(batch)).encode()

    assert both(text, schema) == canonical(batch.to_pylist())


@given(
    st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3),
    st.lists(st.lists(st.sampled_from(ODD), min_size=3, max_size=3), min_size=1, max_size=3),
    st.sampled_from(["c0", "c1", "z"]),
)
def test_odd_values_are_taken_and_refused_alike(
    leaves: list[str], rows: list[list[str]], last: str
) -> None:
    schema = parse_ddl(", ".join(f"c{place} {ddl}" for place, ddl in enumerate(leaves)))
    lines = []
    for row in rows:
        names = [f"c{place}" for place in range(len(leaves))]
        names[-1] = last if len(names) > 2 else names[-1]
        lines.append(", ".join(f'"{n}": {v}' for n, v in zip(names, row, strict=False)).join("{}"))
    both("\n".join(lines).encode(), schema)


@pytest.mark.parametrize("ddl", LEAVES)
def test_each_odd_value_by_itself_in_each_type(ddl: str) -> None:
    schema = parse_ddl(f"c {ddl}")
    for value in ODD:
        both(f'{{"c": {value}}}'.encode(), schema)
        both(f'{{"c": {value}}}\n{{}}\n{{"c": null}}'.encode(), schema)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_no_bytes_break_it(text: bytes) -> None:
    schema = parse_ddl("a int, b string")
    both(text, schema)
    both(b'{"a": 1}\n' + text, schema)
    assert outcome(array_to_batches, text, schema) == outcome(exact_array, text, schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'[{"a": 1}, {"a": "x"}]', "row 1, column a: expected int, got str 'x'"),
        (b'[{"a": 1}, {"a": 1, "a": 2}]', "row 1: 'a' is there twice"),
        (b'[{"a": 1},\n {"a" 1}]', "row 1: not JSON: Expecting ':' delimiter at line 2"),
        (b'[{"a": 1} {"a": 1}]', "after row 0: not JSON: expected , or ] at line 1, character 11"),
        (b'[{"a": 1}] x', "after the array: not JSON: extra data at line 1, character 11"),
        (b'[{"a": 1},]', "row 1: not JSON: Expecting value"),
        (b"[1]", "row 0: expected a JSON object, got int 1"),
        (b"[", "row 0: not JSON"),
        (b"", "row 0, character 1: not JSON"),
        (b"\xff", "not UTF-8"),
        (b'[{"b": 1}]', "row 0, column b: unknown column; "),
        (b"[{}]", "row 0, column a: is NOT NULL, but missing"),
    ],
)
def test_a_refused_body_names_row_and_place(text: bytes, message: str) -> None:
    assert message in outcome(array_to_batches, text, parse_ddl("a int NOT NULL"))


def test_two_broken_lines_do_not_make_a_whole_one() -> None:
    schema = parse_ddl("a array<int>")
    assert both(b'{"a": [1\n2]}', schema).startswith("BadRow: line 1")
    assert both(b'{"a": [1]}, {"a": [2]}', schema).startswith("BadRow: line 1")
    assert lines_to_batches([(1, b'\xef\xbb\xbf{"a": [1]}')], schema)[0].num_rows == 1


@pytest.mark.parametrize("blank", [*" \t\r\v\f\x1c\x85\xa0", "\u2003", "\u3000", "\ufeff"])
def test_only_what_json_takes_for_blank_may_stand_around_a_row(blank: str) -> None:
    schema = parse_ddl("a int")
    for text in (f'{blank}{{"a": 1}}'.encode(), f'{{"a": 1}}{blank}'.encode()):
        by_column = outcome(lines_to_batches, number_lines(text), schema)
        assert by_column == outcome(exact_lines, text, schema)
        assert ("BadRow" not in by_column) == (blank in " \t\r" or text.startswith(b"\xef"))


def test_a_name_that_is_there_twice_is_found_in_one_pass() -> None:
    # 600 kB took a minute and a half when each name was counted by itself.
    names = ",".join(f'"{number}":0' for number in range(60_000))
    began = time.process_time()
    with pytest.raises(BadRow, match="row 0: '59999' is there twice"):
        array_to_batches(f'{{{names},"59999":0}}'.encode(), parse_ddl("a int"))
    assert time.process_time() - began < 10


def test_canonical_rows_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type but maps with other keys than text, and floats that are not finite."""
    values = {
        "boolean": True, "tinyint": 1, "bigint": 2**62, "float": 1.5, "double": 1,
        "decimal(5,2)": "1.50", "string": "ü\n", "binary": "AP8=", "date": "2026-11-15",
        "timestamp": "2026-11-15T08:00:00.000000Z", "timestamp_ntz": "2026-11-15T08:00:00",
        "time": "08:00:00.000000", "interval day": "PT1.500000S", "void": None,
        "array<int>": [1, None], "map<string,int>": {"a": 1}, "struct<q: int>": {"q": 1},
    }  # fmt: skip
    schema = parse_ddl(", ".join(f"c{at} {ddl}" for at, ddl in enumerate(values)))
    row = json.dumps({f"c{at}": value for at, value in enumerate(values.values())}).encode()
    wanted = to_batches([row_from_json(row, schema), {}], schema)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the slow way was taken")

    for name in ("row_from_json", "rows_from_json_array", "to_batches"):
        monkeypatch.setattr(json_columns, name, refuse)
    assert lines_to_batches([(1, row), (2, b"{}\r")], schema) == wanted
    assert array_to_batches(b"[" + row + b",{}]", schema) == wanted
    assert array_to_batches(row, schema) == [wanted[0].slice(0, 1)]
