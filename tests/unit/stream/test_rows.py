from __future__ import annotations

import enum
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import BadRequest, BadRow
from penstock.stream import rows as rows_module
from penstock.stream.ddl import parse_ddl
from penstock.stream.rows import to_batches

INSTANT = datetime(2026, 11, 15, 8, 0, 0, 1, tzinfo=UTC)
ALL = (
    "b boolean, i1 tinyint, i8 bigint, f float, d double, n decimal(10,2), s string, x binary, "
    "day date, at timestamp, local timestamp_ntz, t time, took interval day to second, v void, "
    "tags array<string>, m map<string,int>, p struct<q: int, r: string>"
)
ALL_ROW: dict[str, Any] = {
    "b": True,
    "i1": -128,
    "i8": 2**63 - 1,
    "f": 0.5,
    "d": -0.0,
    "n": Decimal("-12345678.90"),
    "s": "žluť",
    "x": b"\x00\xff",
    "day": date.max,
    "at": INSTANT,
    "local": datetime.min,
    "t": time.max,
    "took": timedelta(microseconds=-1),
    "v": None,
    "tags": ["a", None],
    "m": [("k", 1), ("l", None)],
    "p": {"q": 1, "r": None},
}


def one(value: Any, ddl: str) -> Any:
    """The value as stored in a column of this type."""
    (batch,) = to_batches([{"c": value}], parse_ddl(f"c {ddl}"))
    return batch.column(0)[0].as_py()


def problem(rows: Any, ddl: str) -> str:
    with pytest.raises(BadRow) as caught:
        to_batches(rows, parse_ddl(ddl))
    return str(caught.value)


def test_a_row_of_every_type_is_stored_as_given() -> None:
    schema = parse_ddl(ALL)

    (batch,) = to_batches(ALL_ROW, schema)

    assert batch.schema.equals(schema, check_metadata=True)
    assert batch.to_pylist() == [ALL_ROW]


def test_columns_go_by_name_and_absent_ones_are_null() -> None:
    (batch,) = to_batches(iter([{"b": 1, "a": 2}, {"b": 3}]), parse_ddl("a int, b int NOT NULL"))

    assert batch.to_pylist() == [{"a": 2, "b": 1}, {"a": None, "b": 3}]


def test_no_rows_are_no_batches() -> None:
    empty = [[], pa.table({"a": pa.array([], pa.int64())}), pd.DataFrame({"a": []})]

    assert [to_batches(rows, parse_ddl("a bigint")) for rows in empty] == [[], [], []]


def test_long_lists_become_several_batches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "BATCH_ROWS_MAX", 3)
    rows: list[dict[str, Any]] = [{"a": number} for number in range(8)]

    batches = to_batches(rows, parse_ddl("a int"))
    rows[7]["a"] = "x"

    assert pa.Table.from_batches(batches).to_pylist() == [{"a": number} for number in range(8)]
    assert problem(rows, "a int").startswith("row 7, column a")


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "ddl", "stored"),
    [
        (5, "double", 5.0),
        (2**60, "double", float(2**60)),
        (7, "decimal(3,2)", Decimal("7.00")),
        (Decimal("1.500"), "decimal(3,1)", Decimal("1.5")),
        (Decimal("1E+3"), "decimal(4,0)", Decimal(1000)),
        (0.1, "float", float(np.float32(0.1))),
        (float("inf"), "float", float("inf")),
        (Level.HIGH, "int", 3),
        (np.int64(9), "tinyint", 9),
        (np.float32(0.5), "double", 0.5),
        (np.bool_(True), "boolean", True),
        (np.datetime64("2026-11-15"), "date", date(2026, 11, 15)),
        (np.datetime64("2026-11-15T08:00:00.000001000"), "timestamp", INSTANT),
        (np.timedelta64(5, "s"), "interval second", timedelta(seconds=5)),
        (np.array([1, 2]), "array<int>", [1, 2]),
        (pd.Timestamp(INSTANT), "timestamp", INSTANT),
        (pd.Timedelta(seconds=1), "interval second", timedelta(seconds=1)),
        (pd.NaT, "timestamp", None),
        (pd.NA, "int", None),
        (INSTANT.replace(tzinfo=None), "timestamp", INSTANT),
        (INSTANT.astimezone(ZoneInfo("Asia/Tokyo")), "timestamp", INSTANT),
        (bytearray(b"ab"), "binary", b"ab"),
        (memoryview(b"ab"), "binary", b"ab"),
        ((1, 2), "array<int>", [1, 2]),
        ({1: "a"}, "map<int,string>", [(1, "a")]),
        ([["k", 1]], "map<string,int>", [("k", 1)]),
        (OrderedDict(q=1), "struct<q: int, r: int>", {"q": 1, "r": None}),
        ([None], "array<void>", [None]),
    ],
)
def test_values_that_mean_the_same_are_taken(value: Any, ddl: str, stored: Any) -> None:
    assert one(value, ddl) == stored


def test_an_offset_with_microseconds_is_exact() -> None:
    odd = timezone(timedelta(seconds=1, microseconds=5))

    assert one(INSTANT.astimezone(odd), "timestamp") == INSTANT


@pytest.mark.parametrize(
    ("value", "ddl", "message"),
    [
        ("abc", "bigint", "expected bigint, got str 'abc'"),
        (True, "bigint", "expected bigint, got bool True"),
        (1.0, "bigint", "expected bigint, got float 1.0"),
        (1.5, "int", "expected int, got float 1.5"),
        (2**31, "int", "got int 2147483648: outside -2147483648 to 2147483647"),
        (2**70, "bigint", "outside -9223372036854775808"),
        pytest.param(10**5000, "bigint", "of very many digits", id="digits"),
        (1, "boolean", "expected boolean, got int 1"),
        (True, "double", "expected double, got bool True"),
        (2**53 + 1, "double", "no room for all digits"),
        (10**400, "double", "beyond its range"),
        (2**24 + 1, "float", "no room for all digits"),
        (1e300, "float", "got float 1e+300: beyond its range"),
        (Decimal(1), "double", "got Decimal"),
        (1.5, "decimal(5,2)", "expected decimal(5,2), got float 1.5"),
        (Decimal("1.234"), "decimal(5,2)", "over 2 digits after the point"),
        (Decimal("1234"), "decimal(5,2)", "over 3 digits before the point"),
        (1234, "decimal(5,2)", "over 3 digits before the point"),
        (Decimal("NaN"), "decimal(5,2)", "decimals are finite"),
        (Decimal("1E+999999"), "decimal(5,2)", "before the point"),
        (b"ab", "string", "expected string, got bytes b'ab'"),
        ("\ud800", "string", "not Unicode"),
        ("ab", "binary", "expected binary, got str 'ab'"),
        (5, "timestamp", "expected timestamp, got int 5"),
        (date(2020, 1, 1), "timestamp", "got date"),
        (datetime(2020, 1, 1), "date", "got datetime"),
        ("2020-01-01", "date", "got str '2020-01-01'"),
        (INSTANT, "timestamp_ntz", "it has a time zone"),
        (time(1, tzinfo=UTC), "time", "it has a time zone"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "timestamp", "outside years"),
        (timedelta.max, "interval day", "the range of Spark's intervals"),
        (pd.Timestamp(5), "timestamp", "finer than a microsecond"),
        (np.datetime64(5, "ns"), "timestamp", "finer than a microsecond"),
        (np.datetime64(20000, "Y"), "timestamp", "got datetime64"),
        (5, "interval day", "got int 5"),
        (5, "void", "expected void, got int 5"),
        ("ab", "array<string>", "expected array<string>, got str 'ab'"),
        ({"q": 1}, "array<string>", "got dict"),
        ([1], "struct<q: int>", "got list [1]"),
        (5, "map<string,int>", "got int 5"),
        ([5], "map<string,int>", "expected a pair"),
        ("x" * 500, "int", "…"),
    ],
)
def test_values_that_do_not_fit_are_named(value: Any, ddl: str, message: str) -> None:
    text = problem([{"c": None}, {"c": value}], f"c {ddl}")

    assert text.startswith("row 1, column c")
    assert message in text
    assert len(text) < 250


@pytest.mark.parametrize(
    ("value", "ddl", "expected"),
    [
        ([{"q": 1}, {"q": "x"}], "array<struct<q: int>>", "[1].q: expected int, got str 'x'"),
        ([1, None], "array<int NOT NULL>", "[1]: is NOT NULL, got null"),
        ({"q": None}, "struct<q: int NOT NULL>", ".q: is NOT NULL, got null"),
        ({}, "struct<q: int NOT NULL>", ".q: is NOT NULL, got null"),
        ({"q": 1, "z": 2}, "struct<q: int>", ".z: unknown field, known: q"),
        ({"k": "v"}, "map<string,int>", "[0].value: expected int, got str 'v'"),
        ({None: 1}, "map<string,int>", "[0].key: is NOT NULL, got null"),
        ([("k", 1), ("k", 2)], "map<string,int>", "[1].key: a key that is in this map already"),
        ([([1], 1), ([1], 2)], "map<array<int>,int>", "[1].key: a key that is in this map already"),
        (
            [(Decimal("1.0"), 1), (Decimal(1), 2)],
            "map<decimal(5,2),int>",
            "[1].key: a key that is in this map already",
        ),
        (
            {"a": [{"b": {"c": "x"}}]},
            "struct<a: array<struct<b: map<string,int>>>>",
            ".a[0].b[0].value: expected int, got str 'x'",
        ),
    ],
)
def test_the_path_leads_into_nested_values(value: Any, ddl: str, expected: str) -> None:
    assert problem([{"c": value}], f"c {ddl}") == f"row 0, column c{expected}"


def test_the_first_bad_row_is_named_whatever_its_column() -> None:
    rows = [{"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"a": "y", "b": 1}]

    assert problem(rows, "a int, b int").startswith("row 1, column b")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"price": 1}, {}], "row 1, column price: is NOT NULL, but missing"),
        ([{"price": None}], "row 0, column price: is NOT NULL, got null"),
        (
            [{"price": 1}, {"price": 1, "Prise": 2}],
            "row 1, column Prise: unknown column; did you mean price?",
        ),
        ([{"zzz": 1}], "row 0, column zzz: unknown column; known: price, note"),
        ([{5: 1}], "row 0, column 5: unknown column; known: price, note"),
        ([{"price": 1}, [1]], "row 1: expected a dict, got list"),
        ([{"price": 1}, pa.table({"price": [1]})], "row 1: expected a dict, got Table"),
    ],
)
def test_missing_and_unknown_columns_are_named(rows: Any, expected: str) -> None:
    assert problem(rows, "price bigint NOT NULL, note string") == expected


@pytest.mark.parametrize("rows", ["text", b"bytes", 5, None])
def test_what_is_not_rows_is_a_bad_request(rows: Any) -> None:
    with pytest.raises(BadRequest, match="rows are a dict"):
        to_batches(rows, parse_ddl("a int"))


ARROW_VARIANTS = [
    (pa.array([1, None], pa.int16()), "bigint", [1, None]),
    (pa.array([1, None], pa.uint64()), "decimal(20,0)", [Decimal(1), None]),
    (pa.array([1, 100]), "tinyint", [1, 100]),
    (pa.array([1, 2]), "decimal(3,1)", [Decimal(1), Decimal(2)]),
    (pa.array([0.5], pa.float32()), "double", [0.5]),
    (pa.array([0.5, float("inf"), None]), "float", [0.5, float("inf"), None]),
    (pa.array(["a", None], pa.large_string()), "string", ["a", None]),
    (pa.array(["a", None, "a"]).dictionary_encode(), "string", ["a", None, "a"]),
    (pa.array([b"abc"], pa.binary(3)), "binary", [b"abc"]),
    (pa.array([None, None], pa.string()), "int", [None, None]),
    (pa.nulls(1), "map<int,int>", [None]),
    (pa.array([1000], pa.timestamp("ns")), "timestamp", [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)]),
    (
        pa.array([1], pa.timestamp("s", "Asia/Tokyo")),
        "timestamp",
        [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
    ),
    (pa.array([1], pa.time32("s")), "time", [time(0, 0, 1)]),
    (pa.array([1], pa.duration("ms")), "interval day", [timedelta(milliseconds=1)]),
    (pa.array([date(2020, 1, 1)], pa.date64()), "date", [date(2020, 1, 1)]),
    (
        pa.array([[1], None, [2, None]], pa.list_view(pa.int8())),
        "array<int>",
        [[1], None, [2, None]],
    ),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "array<int>", [[1, 2], None]),
    (pa.array([[1, 2], None, []], pa.large_list(pa.int8())), "array<int>", [[1, 2], None, []]),
    (
        pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.int8())),
        "map<string,int>",
        [[("k", 1)], None, []],
    ),
    (
        pa.array([{"r": 1, "q": 2}, None]),
        "struct<q: int, r: bigint, z: int>",
        [{"q": 2, "r": 1, "z": None}, None],
    ),
    (pa.RunEndEncodedArray.from_arrays([2, 3], [1, 2]), "int", [1, 1, 2]),
]


@pytest.mark.parametrize(("array", "ddl", "expected"), ARROW_VARIANTS)
def test_arrow_columns_are_converted_when_nothing_is_lost(
    array: pa.Array, ddl: str, expected: list[Any]
) -> None:
    schema = parse_ddl(f"z int, c {ddl}")
    padded = pa.concat_arrays([array.slice(0, 1), array]) if len(array) > 1 else None

    (batch,) = to_batches(pa.RecordBatch.from_arrays([array], names=["c"]), schema)

    assert batch.schema.equals(schema, check_metadata=True)
    assert batch.column("c").to_pylist() == expected
    batch.validate(full=True)
    if padded is not None:  # The same values at an offset.
        (sliced,) = to_batches(pa.table({"c": padded.slice(1)}), schema)
        assert sliced.column("c").to_pylist() == expected


@pytest.mark.parametrize(
    ("array", "ddl", "row", "expected"),
    [
        (pa.array([1, 2**31]), "int", 1, ": expected int, got bigint 2147483648"),
        (pa.array([1, 1000]), "decimal(3,1)", 1, ": expected decimal(3,1), got"),
        (pa.array([0.5, 0.1]), "float", 1, ": expected float, got double 0.1"),
        (pa.array([1.0]), "bigint", 0, ": expected bigint, got double 1.0"),
        (pa.array([None, "x"]), "int", 1, ": expected int, got string 'x'"),
        (pa.array([True]), "int", 0, ": expected int, got boolean True"),
        (pa.array([1000, 5], pa.timestamp("ns")), "timestamp", 1, ": expected timestamp"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamp_ntz", 0, ": expected"),
        (pa.array([0, 2**61], pa.timestamp("us")), "timestamp_ntz", 1, ": outside years"),
        (pa.array([0, 10**8], pa.date32()), "date", 1, ": outside years"),
        (pa.array([1000, 5], pa.time64("ns")), "time", 1, ": finer than a microsecond"),
        (pa.array([[1], None, [1, 2**40]]), "array<int>", 2, "[1]: expected int, got"),
        (pa.array([[1], None, [1, None]]), "array<bigint NOT NULL>", 2, "[1]: is NOT NULL"),
        (
            pa.array([None, {"q": 1}, {"q": None}]),
            "struct<q: bigint NOT NULL>",
            2,
            ".q: is NOT NULL",
        ),
        (pa.array([None, {"x": 1}]), "struct<q: bigint>", 1, ".x: unknown field"),
        (pa.array([None, {"q": "a"}]), "struct<q: int>", 1, ".q: expected int, got string"),
        (
            pa.array([[], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32())),
            "map<string,int>",
            1,
            "[1].key: a key that is in this map already",
        ),
        (
            pa.array([None, [("k", 2**40)]], pa.map_(pa.string(), pa.int64())),
            "map<string,int>",
            1,
            "[0].value: expected int, got bigint",
        ),
        (pa.array([[1]]), "map<int,int>", 0, ": expected map<int,int>, got"),
    ],
)
def test_arrow_values_that_do_not_fit_are_named(
    array: pa.Array, ddl: str, row: int, expected: str
) -> None:
    text = problem(pa.table({"c": array}), f"c {ddl}")
    assert text.startswith(f"row {row}, column c{expected}")


def test_rows_are_counted_across_batches() -> None:
    good, bad = pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3, 2**40]})

    assert problem([good, bad], "a int").startswith("row 3, column a")
    assert len(to_batches([good, good], parse_ddl("a int"))) == 2


def test_arrow_columns_missing_unknown_or_twice_are_named() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["a", "a"])

    assert problem(pa.table({"b": [1]}), "a int, b int NOT NULL, c int NOT NULL") == (
        "row 0, column c: is NOT NULL, but missing"
    )
    assert "did you mean a?" in problem(pa.table({"A": [1]}), "a int")
    assert problem(twice, "a int") == "row 0, column a: given twice"


def test_arrow_arrays_that_lie_are_refused() -> None:
    # Only the full validation looks at offsets between the first and the last.
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\xff\xff\x00\x00\x02\x00\x00\x00")
    lying = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    batch = pa.RecordBatch.from_arrays([lying], names=["a"])

    assert "invalid Arrow data" in problem(batch, "a string")


def test_a_data_frame_of_every_usual_dtype_is_stored() -> None:
    frame = pd.DataFrame(
        {
            "i": [1, None],
            "n": pd.array([1, None], "Int64"),
            "s": ["x", None],
            "c": pd.Categorical(["k", None]),
            "at": pd.to_datetime(["2026-11-15", None]),
            "zoned": pd.to_datetime(["2026-11-15", None], utc=True),
            "took": pd.to_timedelta(["1s", None]),
            "tags": [["a"], None],
            "p": [{"q": 1}, float("nan")],
            "d": [1.5, float("nan")],
        },
        index=["first", "second"],
    )
    schema = parse_ddl(
        "d double, i int, n bigint, s string, c string, at timestamp, zoned timestamp, "
        "took interval day, tags array<string>, p struct<q: int>"
    )

    (batch,) = to_batches(frame, schema)

    midnight = datetime(2026, 11, 15, tzinfo=UTC)
    first = {"d": 1.5, "i": 1, "n": 1, "s": "x", "c": "k", "at": midnight, "zoned": midnight}
    first |= {"took": timedelta(seconds=1), "tags": ["a"], "p": {"q": 1}}
    assert batch.to_pylist() == [first, dict.fromkeys(first)]


def test_data_frames_are_judged_like_rows() -> None:
    assert problem(pd.DataFrame({"a": [1.5, None]}), "a int").startswith(
        "row 0, column a: expected int, got double 1.5"
    )
    assert problem(pd.DataFrame({"a": [1.0, 2.0]}), "a int").startswith("row 0, column a: expected")
    mixed = pd.DataFrame({"a": [1, "x"]}, dtype=object)
    assert problem(mixed, "a int") == "row 1, column a: expected int, got str 'x'"
    assert "unknown column" in problem(pd.DataFrame({0: [1]}), "a int")
