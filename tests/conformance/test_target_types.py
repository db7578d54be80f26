"""Every type of a stream comes back from every database as it was, or its row is refused."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from stream_strategies import canonical, streams
from target_databases import Database, flat
from target_samples import SCHEMA, batch_of, expected, shard_of, table_of

from penstock.delivery.api import Batch, Shard
from penstock.delivery.targets.columns import COUNT, ROW
from penstock.errors import BadRequest, BadRow, Refused, SchemaMismatch
from penstock.ids import Lsn
from penstock.stream.columns import DURATION_MICROS
from penstock.stream.ddl import parse_ddl
from penstock.stream.rows import to_batches

NUMBERS = itertools.count()
EXTREMES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [0.1, -3.4028234663852886e38, 1e-45, float("nan"), float("inf"), -0.0],
    "double": [0.1, 1.7976931348623157e308, 5e-324, float("nan"), float("-inf"), -0.0],
    "string": ["", "ä \u2028 𝄞 ' \" \\ % $1 \x01\x7f", "x" * 100_000],
    "binary": [b"", b"\x00\xff" * 3],
    "date": [date.min, date(1969, 12, 31), date.max],
    "timestamp": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    "timestamp_ntz": [datetime.min, datetime(2000, 1, 1), datetime.max],
    "time": [time.min, time.max],
    "interval day to second": [timedelta(microseconds=micros) for micros in DURATION_MICROS],
    "decimal(38,38)": [Decimal("1E-38"), Decimal("-0." + "9" * 38), Decimal("0E-38")],
    "decimal(38,0)": [Decimal("9" * 38), Decimal("-1")],
    "decimal(10,2)": [Decimal("12.30"), Decimal("-0.05")],
    "void": [],
    "array<double>": [[], [None, float("nan"), -0.0, 5e-324, 1.7976931348623157e308]],
    "map<string,bigint>": [[], [("b", 2**63 - 1), ("a", None)]],
    "map<int,string>": [[(2, "x"), (-1, None)]],
    "struct<a: decimal(20,3), b: array<binary>>": [
        {"a": Decimal("12345678901234567.125"), "b": [b"\0", None]},
        {"a": None, "b": None},
    ],
}


def own(shard: Shard) -> Shard:
    """With a table of its own, so that one database serves many examples."""
    number = next(NUMBERS)
    return replace(shard, delivery=f"delivery {number}", table=f"table {number}")


def texts(database: Database, rows: list[dict[str, Any]], shard: Shard) -> list[str]:
    """Rows in a form that is equal if all values are the same, in no order."""
    if not database.is_exact_in_json:
        kinds = {field.name: field.type for field in shard.schema}
        rows = [
            {name: loosely(value, kinds.get(name, pa.int64())) for name, value in row.items()}
            for row in rows
        ]
    if not database.keeps_zero_signs:
        rows = [{name: one_zero(value) for name, value in row.items()} for row in rows]
    return sorted(map(canonical, rows))


def loosely(value: Any, kind: pa.DataType) -> Any:
    """As jsonb has it: 0.0 without a sign, and maps whose entries have no order."""
    if pt.is_list(kind) and value is not None:
        return [one_zero(loosely(item, kind.value_type)) for item in value]
    if pt.is_struct(kind) and value is not None:
        return {f.name: one_zero(loosely(value[f.name], f.type)) for f in kind}
    if pt.is_map(kind) and value is not None:
        types = (kind.key_type, kind.item_type)
        pairs = [
            [one_zero(loosely(v, k)) for v, k in zip(pair, types, strict=True)] for pair in value
        ]
        return sorted(pairs, key=canonical)
    return value


def one_zero(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def deliver(database: Database, shard: Shard, rows: pa.RecordBatch) -> None:
    with closing(database.target()) as target:
        start = target.open(shard, 1)
        assert target.apply(Batch(1, start, Lsn(start + 1), rows)) == start + 1


@pytest.mark.parametrize("kind", EXTREMES)
def test_extremes_and_nulls_come_back(database: Database, kind: str) -> None:
    schema = parse_ddl(f"number int NOT NULL, value {kind}")
    rows = [{"number": n, "value": value} for n, value in enumerate([*EXTREMES[kind], None])]
    (batch,) = to_batches(rows, schema)

    for key in ((), ("number",)):
        shard = own(shard_of(schema, key=key, changing=False))
        deliver(database, shard, batch)
        wanted = texts(database, batch.to_pylist(), shard)
        assert texts(database, database.rows(shard), shard) == wanted


@pytest.mark.parametrize("kind", [kind for kind in EXTREMES if "map" not in kind])
def test_every_type_but_a_map_can_be_a_key(database: Database, kind: str) -> None:
    schema = parse_ddl(f"value {kind}, number int")
    values = [*EXTREMES[kind], None]
    if kind == "string":
        values.remove("x" * 100_000)  # an index of PostgreSQL's holds 2.7 kB
    shard = own(shard_of(schema, key=("value",), changing=False))
    for start in (0, 1000):
        rows = [{"value": value, "number": start + n} for n, value in enumerate(values)]
        (batch,) = to_batches(rows, schema)
        deliver(database, shard, batch)

    found = sorted(row["number"] for row in database.rows(shard))
    assert found == [1000 + number for number in range(len(values))]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams())
@example((parse_ddl("a string"), [{"a": "\0"}, {"a": "fine"}]))
@example((parse_ddl("a array<string>"), [{"a": ["\\u0000"]}, {"a": ["\\", "\0", None]}]))
@example((parse_ddl("`a\"b'c;--%` int"), [{"a\"b'c;--%": 1}]))
def test_rows_of_any_schema_come_back_or_are_refused_by_name(
    database: Database, stream: tuple[pa.Schema, list[dict[str, Any]]]
) -> None:
    schema, rows = stream
    assume(not any("\0" in name for name in schema.names))
    (batch,) = to_batches(rows, schema)
    shard = own(shard_of(schema, key=(), changing=False))

    refused = None
    try:
        deliver(database, shard, batch)
    except BadRow as error:
        refused = error.row
        assert database.stored(shard) == (10, 1)

    if refused is not None:  # PostgreSQL has no NUL in text
        assert "\\x00" in repr(rows[refused])
        rows = []
    shown = [flat(row, shard) for row in rows]
    assert texts(database, database.rows(shard), shard) == texts(database, shown, shard)


# -- windows


WINDOWED = parse_ddl(
    "window struct<start: timestamp, end: timestamp> NOT NULL, auction bigint, bids bigint"
)
NOON, ONE = (datetime(2026, 11, 15, hour, tzinfo=UTC) for hour in (12, 13))


def test_a_window_in_the_key_becomes_two_columns(database: Database) -> None:
    shard = shard_of(WINDOWED, key=("window", "auction"))
    window = {"start": NOON, "end": ONE}
    with closing(database.target()) as target:
        target.open(shard, 1)
        target.apply(batch_of(shard, 10, 20, [(1, window, 5, 1), (1, window, None, 3)]))
        changes = [(-1, window, 5, 1), (1, window, 5, 2), (-1, window, None, 3)]
        target.apply(batch_of(shard, 20, 30, changes))

    row = {"window_start": NOON, "window_end": ONE, "auction": 5, "bids": 2}
    assert database.rows(shard) == [row]


def test_a_window_without_an_end_is_refused(database: Database) -> None:
    schema = parse_ddl("window struct<start: timestamp, end: timestamp>, bids int")
    shard = shard_of(schema, key=(), changing=False)
    with closing(database.target()) as target:
        target.open(shard, 1)
        batch = batch_of(shard, 10, 20, [(None, 1), ({"start": NOON, "end": None}, 2)])
        with pytest.raises(BadRow, match="row 1, column window: a window without a start") as error:
            target.apply(batch)
        assert error.value.row == 1
        assert target.apply(batch_of(shard, 10, 20, [(None, 1)])) == 20

    assert database.rows(shard) == [{"window_start": None, "window_end": None, "bids": 1}]


# -- keys


def test_a_key_is_null_once(database: Database) -> None:
    schema = parse_ddl("a bigint, b double, value string")
    shard = shard_of(schema, key=("a", "b"))
    rows = [(1, None, "x"), (None, 2.0, "y"), (None, None, "z"), (1, float("nan"), "n")]
    with closing(database.target()) as target:
        target.open(shard, 1)
        target.apply(batch_of(shard, 10, 20, [(1, *row) for row in rows]))
        changes = [(-1, *row) for row in rows] + [(1, *row[:2], "30") for row in rows]
        target.apply(batch_of(shard, 20, 30, changes))
        gone = [(-1, *row[:2], "30") for row in rows[:2]]
        target.apply(batch_of(shard, 30, 40, gone))

    left = [(*row[:2], "30") for row in rows[2:]]
    assert repr(table_of(database, shard)) == repr(expected(shard, left))


def test_a_table_may_have_nothing_but_its_key(database: Database) -> None:
    shard = shard_of(parse_ddl("a bigint NOT NULL, b string"), key=("a", "b"), changing=False)
    with closing(database.target()) as target:
        target.open(shard, 1)
        target.apply(batch_of(shard, 10, 20, [(1, "x"), (2, None)]))
        target.apply(batch_of(shard, 20, 30, [(1, "x"), (2, None), (3, None)]))

    assert table_of(database, shard) == expected(shard, [(1, "x"), (2, None), (3, None)])


REFUSED_SHARDS = {
    "a key that is no column": (shard_of(key=("bidder",)), "bidder are not in the stream"),
    "a map in the key": (
        shard_of(parse_ddl("a array<map<int,int>>"), key=("a",)),
        "array<map<int,int>> has a map",
    ),
    "the table of positions": (shard_of(table="Penstock_Positions"), "positions are kept there"),
    "no table": (shard_of(table=""), "no name of a table"),
    "a column of a multiset": (
        shard_of(parse_ddl(f"{COUNT.upper()} int"), key=()),
        "two columns of the table would be",
    ),
    "the digest of a multiset": (shard_of(parse_ddl(f"{ROW} int"), key=()), "would be _row"),
    "the end of a window": (
        shard_of(WINDOWED.append(pa.field("window_end", pa.int32())), key=("auction",)),
        "would be window_end",
    ),
}


@pytest.mark.parametrize("case", REFUSED_SHARDS)
def test_what_cannot_be_a_table_is_refused(database: Database, case: str) -> None:
    shard, words = REFUSED_SHARDS[case]
    with closing(database.target()) as target, pytest.raises(BadRequest, match=words):
        target.open(shard, 1)


def test_a_column_may_have_the_name_of_a_multisets_where_there_is_none(database: Database) -> None:
    shard = shard_of(parse_ddl("_count int NOT NULL, c0 int, given int"), key=("_count",))
    deliver(database, shard, batch_of(shard, 10, 11, [(1, 5, 6, 7)]).rows)

    assert database.rows(shard) == [{"_count": 5, "c0": 6, "given": 7}]


# -- tables that are there


def test_a_column_that_the_stream_got_later_is_added(database: Database) -> None:
    for key in ((), ("auction",)):
        old = own(shard_of(key=key))
        new = replace(old, schema=SCHEMA.append(pa.field("more", pa.int32(), nullable=False)))
        with closing(database.target()) as target:
            target.open(old, 1)
            target.apply(batch_of(old, 10, 20, [(1, 1, "a", 0.5), (1, 2, "b", 1.5)]))
            assert target.open(new, 1) == 20
            target.apply(batch_of(new, 20, 30, [(1, 3, "c", 2.5, 7)]))

        rows = [(1, "a", 0.5, None), (2, "b", 1.5, None), (3, "c", 2.5, 7)]
        counts = {} if key else {"_count": 1}
        assert table_of(database, new) == [row | counts for row in expected(new, rows)]


def test_a_row_of_a_multiset_is_known_after_a_column_was_added(database: Database) -> None:
    old = shard_of(key=())
    new = replace(old, schema=SCHEMA.append(pa.field("more", pa.int32())))
    with closing(database.target()) as target:
        target.open(old, 1)
        target.apply(batch_of(old, 10, 20, [(2, 1, "a", 0.5)]))
        target.open(new, 1)
        target.apply(batch_of(new, 20, 30, [(-1, 1, "a", 0.5, None)]))

    assert [row["_count"] for row in database.rows(new)] == [1]


def test_a_table_of_the_users_own_is_taken(sql_database: Database) -> None:
    sql_database.run(
        "CREATE TABLE results (note text DEFAULT 'hello', price double precision, seller text, "
        "auction bigint NOT NULL, PRIMARY KEY (auction))"
    )
    shard = shard_of()
    deliver(sql_database, shard, batch_of(shard, 10, 11, [(1, 1, "a", 0.5)]).rows)

    assert table_of(sql_database, shard) == expected(shard, [(1, "a", 0.5)])
    assert sql_database.run("SELECT note FROM results") == [("hello",)]


MISFITS = {
    "wrong types": (
        "CREATE TABLE results (auction text PRIMARY KEY, seller text, price bigint)",
        r"column auction is \w+, expected \w+; column price is \w+, expected \w+",
    ),
    "no key": (
        "CREATE TABLE results (seller text, price double precision)",
        r"column auction of the key \(\w+\) is missing",
    ),
    "a column that nobody fills": (
        "CREATE TABLE results (auction bigint PRIMARY KEY, seller text, price double precision, "
        "note text NOT NULL)",
        "column note is not in the stream, NOT NULL and without a default",
    ),
    "a view": ("CREATE VIEW results AS SELECT 1 AS auction", "results is no table"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_table_that_does_not_fit_is_refused_and_stays(sql_database: Database, case: str) -> None:
    statement, words = MISFITS[case]
    sql_database.run(statement)
    before = sql_database.run("SELECT * FROM results")

    with closing(sql_database.target()) as target, pytest.raises(SchemaMismatch, match=words):
        target.open(shard_of(), 1)

    assert sql_database.run("SELECT * FROM results") == before


@pytest.mark.parametrize("sql_database", ["sqlite", "postgresql"], indirect=True)
def test_a_key_without_a_unique_index_is_refused_with_the_remedy(sql_database: Database) -> None:
    sql_database.run(
        "CREATE TABLE results (auction bigint NOT NULL, seller text, price double precision, "
        "UNIQUE (auction, seller))"
    )

    with closing(sql_database.target()) as target:
        with pytest.raises(SchemaMismatch, match=r"has no unique index of its key \(auction\)"):
            target.open(shard_of(), 1)
        sql_database.run("CREATE UNIQUE INDEX own ON results (auction)")
        assert target.open(shard_of(), 1) == 10


def test_control_characters_of_names_stay_out_of_messages(sql_database: Database) -> None:
    shard = shard_of(parse_ddl("`\x1b[31m` int NOT NULL"), key=())
    with closing(sql_database.target()) as target:
        target.open(shard, 1)
        with pytest.raises(Refused) as caught:
            target.apply(batch_of(shard, 10, 20, [(1, None)]))

    assert "\x1b" not in str(caught.value) and "\\x1b[31m" in str(caught.value)
