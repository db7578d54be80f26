"""Every type of Spark's that a stream can have, there and back: df.write, spark.read, streaming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import session_setting

import penstock
from penstock.stream.ddl import parse_ddl
from penstock.stream.rows import to_batches

pytestmark = pytest.mark.usefixtures("interpreted")

FAR = datetime(9999, 12, 31, 23, 59, 59, 999999)
EARLY = datetime(1, 1, 1)
DAYS_MAX = timedelta(days=99_999_999, microseconds=1)

#: Of each type: three values, extremes among them; a row of nulls is added.
TYPES: dict[str, list[Any]] = {
    "boolean": [True, False, True],
    "tinyint": [-128, 0, 127],
    "smallint": [-(2**15), 0, 2**15 - 1],
    "int": [-(2**31), 0, 2**31 - 1],
    "bigint": [-(2**63), 0, 2**63 - 1],
    "float": [1.5, float("nan"), float("-inf")],
    "double": [-0.0, float("nan"), 1.7976931348623157e308],
    "string": ["", "ünï \U0001f600 \x00", "a" * 10_000],
    "binary": [b"", b"\x00\xff", b"b" * 10_000],
    "date": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [EARLY.replace(tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), FAR],
    "timestamp_ntz": [EARLY, datetime(2026, 3, 29, 2, 30, 0, 1), FAR],
    "time(6)": [time_of_day(0), time_of_day(12, 30, 0, 1), time_of_day(23, 59, 59, 999999)],
    "decimal(38,18)": [Decimal("1e-18"), Decimal(0), Decimal("-" + "9" * 20)],
    "decimal(3,1)": [Decimal("-99.9"), Decimal("0.1"), Decimal("99.9")],
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(0), Decimal(1 - 10**38)],
    "interval day to second": [-DAYS_MAX, timedelta(0), DAYS_MAX],
    "array<int>": [[], [1, None, 3], [2**31 - 1]],
    "array<array<string>>": [[["a"], None, []], [], [[None]]],
    "map<string,bigint>": [{}, {"a": 1, "": None}, {"b": -1}],
    "map<int,array<double>>": [{1: [0.5, None]}, {}, {2: None, 3: []}],
    "struct<a: int, b: struct<c: string, d: decimal(5,2)>>": [
        {"a": 1, "b": {"c": "x", "d": Decimal("1.25")}},
        {"a": None, "b": None},
        {"a": 2, "b": {"c": None, "d": None}},
    ],
    "array<struct<k: string, v: map<string,timestamp>>>": [
        [{"k": "x", "v": {"t": FAR.replace(tzinfo=UTC)}}, None],
        [],
        [{"k": None, "v": None}],
    ],
}
#: Names of columns that need quotes, and a column without nulls.
TIME_OF_DAY = f"c {list(TYPES).index('time(6)')}.x"
DDL = "id bigint NOT NULL, " + ", ".join(
    f"`c {number}.x` {kind}" for number, kind in enumerate(TYPES)
)


def rows_of_all_types() -> pa.Table:
    """A row for each value, and one of nulls."""
    schema = parse_ddl(DDL)
    rows = [
        {"id": at, **{f"c {number}.x": kept[at] for number, kept in enumerate(TYPES.values())}}
        for at in range(3)
    ]
    rows.append({"id": 3} | dict.fromkeys(schema.names[1:]))
    return pa.Table.from_batches(to_batches(rows, schema))


def frame_of(spark: Any, table: pa.Table) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(table, from_arrow_schema(table.schema))


def write(frame: Any, log: penstock.Log, stream: str, **options: str) -> None:
    writer = frame.write.format("penstock").mode("append").options(**options)
    writer.option("log", log.target).option("stream", stream).save()


def read(spark: Any, log: penstock.Log, stream: str, **options: str) -> Any:
    reader = spark.read.format("penstock").options(**options)
    return reader.option("log", log.target).option("stream", stream).load()


def without_times(frame: Any) -> Any:
    """Spark lets no times of day into a streaming query."""
    return frame.select(*[f"`{name}`" for name in frame.columns if name != TIME_OF_DAY])


def copy(spark: Any, log: penstock.Log, source: str, to: str, place: Path) -> Any:
    """A streaming query from stream to stream over all that is there; returns it, ended."""
    reader = spark.readStream.format("penstock").option("log", log.target)
    frame = without_times(reader.option("stream", source).load())
    writer = frame.writeStream.format("penstock")
    writer = writer.option("log", log.target).option("stream", to)
    writer = writer.option("checkpointLocation", str(place))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60), "the query does not end"
    return query


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    """Values and types, row by row; texts, since NaN is not equal to itself and 0.0 to -0.0 is."""
    assert found.schema.types == expected.schema.types
    found, expected = (table.sort_by("id") for table in (found, expected))
    assert found.num_rows == expected.num_rows
    for name in expected.column_names:
        ours, theirs = (table.column(name).to_pylist() for table in (found, expected))
        kind = expected.schema.field(name).type
        assert repr(ours) == repr(theirs), f"{kind}: {ours} instead of {theirs}"


def test_every_type_by_batch_and_by_stream(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    """Spark's rows before, and after a batch write, a streaming copy and a batch read of each."""
    frame = frame_of(spark, rows_of_all_types())

    write(frame, log, "types")
    copy(spark, log, "types", "types_copy", tmp_path / "checkpoint")

    assert_same_rows(read(spark, log, "types").toArrow(), frame.toArrow())
    expected = without_times(frame).toArrow()
    assert_same_rows(read(spark, log, "types_copy").toArrow(), expected)
    assert log.stream("types").schema.types == parse_ddl(DDL).types
    assert log.stream("types_copy").schema.types == without_times(frame).toArrow().schema.types


def test_times_of_day_are_refused_by_spark_in_a_streaming_query(
    spark: Any, log: penstock.Log
) -> None:
    log.create_stream("times", "t time(6)")
    reader = spark.readStream.format("penstock").option("log", log.target)
    frame = reader.option("stream", "times").load()

    with pytest.raises(Exception, match="UNSUPPORTED_TIME_TYPE"):
        frame.writeStream.format("penstock")


def test_rows_of_the_log_s_own_client_and_of_spark_are_the_same(
    spark: Any, log: penstock.Log
) -> None:
    table = rows_of_all_types()
    log.create_stream("types_own", DDL).append(table)

    found = read(spark, log, "types_own").toArrow()

    assert_same_rows(found, frame_of(spark, table).toArrow())
    write(frame_of(spark, table), log, "types_own")
    assert_same_rows(log.stream("types_own").read(), pa.concat_tables([table, table]))


def test_void_has_nulls_and_nothing_else(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    frame = spark.sql("SELECT id, NULL AS nothing, array(NULL) AS nothings FROM range(2)")

    write(frame, log, "voids")
    copy(spark, log, "voids", "voids_copy", tmp_path / "checkpoint")

    for stream in ("voids", "voids_copy"):
        assert_same_rows(read(spark, log, stream).toArrow(), frame.toArrow())


def test_streams_without_rows(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    log.create_stream("empty", DDL)
    empty = frame_of(spark, rows_of_all_types()).where("id < 0")

    write(empty, log, "empty_written")
    query = copy(spark, log, "empty", "empty_copy", tmp_path / "checkpoint")

    assert query.exception() is None
    for stream in ("empty", "empty_written"):
        found = read(spark, log, stream)
        assert found.columns == empty.columns
        assert found.dtypes == empty.dtypes
        assert found.toArrow().num_rows == 0
    assert log.stream("empty_written").read().num_rows == 0


def test_spark_itself_refuses_calendar_intervals(spark: Any, log: penstock.Log) -> None:
    frame = spark.range(1).selectExpr("make_interval(1, 2) AS odd")

    with pytest.raises(Exception, match='Cannot use "INTERVAL" type'):
        write(frame, log, "refused")


@contextmanager
def compiled(spark: Any) -> Iterator[None]:
    """Spark as users have it: with generated code, which pays off for many rows."""
    with (
        session_setting(spark, "spark.sql.codegen.wholeStage", "true"),
        session_setting(spark, "spark.sql.codegen.factoryMode", "FALLBACK"),
    ):
        yield


@pytest.mark.soak
def test_a_million_rows(spark: Any, log: penstock.Log, tmp_path: Path) -> None:
    """Written, copied by a streaming query and read twice; every value counts in the sum of hashes.

    How fast: `penstock bench connector`.
    """
    count = 1_000_000
    frame = spark.range(count).selectExpr("id", "id % 97 AS k", "concat('row ', id) AS text")

    def told(rows: Any) -> Any:
        hashes = "sum(cast(xxhash64(id, k, text) AS decimal(20,0)))"
        return rows.selectExpr("count(*)", "sum(id)", hashes).collect()

    expected = told(frame)
    with compiled(spark):
        write(frame, log, "million")
        copy(spark, log, "million", "million_copy", tmp_path / "checkpoint")
        found = [told(read(spark, log, stream)) for stream in ("million", "million_copy")]

    assert found == [expected, expected]
    assert expected[0][0] == count


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("INTERVAL '1-2' YEAR TO MONTH", "interval year to month"),
        ("array(parse_json('{}'))", "variant"),
        ("'a' COLLATE UTF8_LCASE", "string collate UTF8_LCASE"),
    ],
)
def test_a_type_that_no_stream_has_is_refused_by_name(
    spark: Any, log: penstock.Log, column: str, named: str
) -> None:
    frame = spark.range(1).selectExpr("id", f"{column} AS odd")

    with pytest.raises(Exception) as raised:
        write(frame, log, "refused")

    told = f"column odd has the type {named}, which no stream has: cast it"
    assert told in str(raised.value)
    assert "refused" not in [stream.name for stream in log.streams()]
