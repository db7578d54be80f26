"""Python, pandas and Arrow functions: the same function, called by Spark's workers and here."""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.oracle import ask_spark, assert_refused, assert_same
from pyspark import cloudpickle
from pyspark.sql import functions as F

from penstock.errors import EvaluationFailed
from penstock.ops.driver import Driver
from penstock.ops.python_eval import PICKLED, Udf, build_worker, user_errors
from penstock.stream.ddl import parse_ddl
from penstock.testing.oracle import Failed, Frames, plan_streaming

# The functions here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
#: pyspark has its opinions of functions without, or with other, type hints.
pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:Cannot infer the eval type"),
    pytest.mark.filterwarnings("ignore:It is preferred to specify type hints"),
    pytest.mark.filterwarnings("ignore:In Python 3.6"),
]


@pytest.fixture(autouse=True)
def _workers(spark: Any) -> None:
    """Workers run this interpreter: it has pandas and Arrow."""
    spark.sparkContext.pythonExec = sys.executable


def _table(rows: int = 40, seed: int = 1) -> pa.Table:
    rng = random.Random(seed)

    def column(kind: pa.DataType, draw: Callable[[], object]) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else draw() for _ in range(rows)], kind)

    epoch = dt.datetime(1970, 1, 1)
    return pa.table(
        {
            "i": column(pa.int32(), lambda: rng.choice([0, 1, -7, 2**31 - 1, rng.randrange(100)])),
            "l": column(pa.int64(), lambda: rng.choice([0, 2**63 - 1, -(2**63), rng.randrange(9)])),
            "d": column(pa.float64(), lambda: rng.choice([0.5, -0.0, float("nan"), 1e300, 3.25])),
            "s": column(pa.string(), lambda: rng.choice(["", "ab", "Ünï\U0001f600", "x y"])),
            "b": column(pa.binary(), lambda: rng.choice([b"", b"\x00\xff"])),
            "o": column(pa.bool_(), lambda: rng.random() < 0.5),
            "e": column(pa.decimal128(12, 3), lambda: Decimal(rng.randrange(-(10**6), 10**6)) / 8),
            "y": column(
                pa.date32(), lambda: epoch.date() + dt.timedelta(rng.randrange(-9999, 30000))
            ),
            "t": column(
                pa.timestamp("us", "UTC"),
                lambda: epoch + dt.timedelta(microseconds=rng.randrange(-(10**14), 4 * 10**15)),
            ),
            "n": column(
                pa.timestamp("us"), lambda: epoch + dt.timedelta(seconds=rng.randrange(4 * 10**9))
            ),
            "v": column(pa.duration("us"), lambda: dt.timedelta(seconds=rng.randrange(-999, 999))),
            "a": column(
                pa.list_(pa.int32()),
                lambda: [rng.choice([None, 1, 2]) for _ in range(rng.randrange(3))],
            ),
            "m": column(pa.map_(pa.string(), pa.int64()), lambda: [("k", rng.randrange(5))]),
            "r": column(
                pa.struct([("x", pa.int32()), ("t", pa.timestamp("us", "UTC"))]),
                lambda: {"x": rng.randrange(5), "t": epoch},
            ),
        }
    )


TABLE = _table()
COLUMNS = TABLE.column_names


def _show(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def _check(
    spark: Any, columns: Callable[[], list[Any]], seed: int, table: pa.Table = TABLE
) -> None:
    """The columns over the table are the same in Spark and here; every row is told apart."""

    def build(frames: Frames) -> Any:
        return frames["t"].select(*(c.alias(f"c{i}") for i, c in enumerate(columns())))

    assert_same(spark, build, {"t": table}, seed=seed)


@pytest.mark.parametrize("arrow", [False, True])
def test_a_function_is_handed_the_same_objects(spark: Any, arrow: bool) -> None:
    show = F.udf(_show, "string", useArrow=arrow)
    _check(spark, lambda: [show(name) for name in COLUMNS], seed=2)


def _same(value: Any) -> Any:
    return value


@pytest.mark.parametrize("arrow", [False, True])
def test_a_function_may_return_what_it_was_handed(spark: Any, arrow: bool) -> None:
    types = {
        "i": "int", "l": "bigint", "d": "double", "s": "string", "b": "binary", "o": "boolean",
        "e": "decimal(12,3)", "y": "date", "t": "timestamp", "n": "timestamp_ntz",
        "v": "interval day to second", "a": "array<int>", "m": "map<string,bigint>",
        "r": "struct<x:int,t:timestamp>",
    }  # fmt: skip
    _check(
        spark,
        lambda: [F.udf(_same, kind, useArrow=arrow)(name) for name, kind in types.items()],
        seed=3,
    )


#: Answers that do not fit the declared type, by that type.
MISFITS: list[tuple[object, str]] = [
    (1, "double"), ("int", "double"), ("1", "int"), (1.5, "int"), (True, "int"), (2**40, "int"),
    (300, "tinyint"), (2**70, "bigint"), (1.1, "float"), (7, "string"), (1e20, "string"),
    (0.1, "string"), (True, "string"), (Decimal("1.50"), "string"), ("abc", "binary"),
    (Decimal("1.005"), "decimal(9,2)"), (Decimal("-1.005"), "decimal(9,2)"), (1, "decimal(9,2)"),
    (Decimal("1e20"), "decimal(9,2)"), (bytearray(b"x"), "binary"), ([1, "x"], "array<int>"),
    ((1, 2), "array<int>"), ({1}, "array<int>"), ({"a": 1, "b": "z"}, "map<string,int>"),
    ((1, "a"), "struct<a:int,b:string>"), ([1, "a"], "struct<a:int,b:string>"),
    ({"a": 1}, "struct<a:int,b:string>"), ((1,), "struct<a:int,b:string>"), (1, "struct<a:int>"),
    ("2020-01-01", "date"), (dt.datetime(2020, 1, 1, 3), "date"), (5, "timestamp"),
    (dt.datetime(2020, 1, 1, 3), "timestamp"), (1, "boolean"), ([[1], None], "array<array<int>>"),
    ([(1, "x"), None], "array<struct<a:int,b:string>>"),
    ({"k": dt.date(2020, 1, 1)}, "map<string,date>"),
]  # fmt: skip


def _fails(answer: object, kind: str, *, arrow: bool) -> str | None:
    """The condition with which such an answer fails here, or None."""
    (field,) = parse_ddl(f"c {kind}")
    udf = Udf((lambda _: answer,), field.type, (0,))
    given = pa.record_batch({"_0": pa.array([1], pa.int32())})
    worker = build_worker(101 if arrow else PICKLED, [udf], given.schema, SETTINGS)
    try:
        with user_errors("the function"):
            worker(given)
    except EvaluationFailed as error:
        return error.condition
    return None


#: What Spark tells its workers by default, as far as answers depend on it.
SETTINGS = {"spark.sql.execution.pandas.convertToArrowArraySafely": "true"}


@pytest.mark.parametrize("arrow", [False, True])
def test_an_answer_of_another_type_becomes_what_spark_makes_of_it(spark: Any, arrow: bool) -> None:
    one = {"t": pa.table({"i": pa.array([1], pa.int32())})}
    failing = [(a, k, c) for a, k in MISFITS if (c := _fails(a, k, arrow=arrow)) is not None]
    fitting = [(a, k) for a, k in MISFITS if _fails(a, k, arrow=arrow) is None]
    if arrow:
        failing = failing[::5]  # all of them fail in pyspark's own code

    _check(
        spark,
        lambda: [F.udf(lambda _, a=a: a, k, useArrow=arrow)("i") for a, k in fitting],
        seed=4,
        table=one["t"],
    )
    for answer, kind, condition in failing:
        wrong = F.udf(lambda _, a=answer: a, kind, useArrow=arrow)
        outcome = ask_spark(spark, lambda frames, f=wrong: frames["t"].select(f("i")), one)
        assert outcome == Failed(condition), (answer, kind)


def _join(one: object, two: object = "default", *, three: object = None) -> str:
    return f"{one}/{two}/{three}"


def _twice(value: int | None) -> int | None:
    return None if value is None else value % 1000 * 2


@pytest.mark.parametrize("arrow", [False, True])
def test_arguments_may_be_many_named_constant_or_other_functions(spark: Any, arrow: bool) -> None:
    join = F.udf(_join, "string", useArrow=arrow)
    twice = F.udf(_twice, "int", useArrow=arrow)
    twice_pickled = F.udf(_twice, "int", useArrow=False)
    answer = F.udf(lambda: 42, "int", useArrow=arrow)
    _check(
        spark,
        lambda: [
            join("i"),
            join("i", "s"),
            join("s", three=F.col("i")),
            join(F.col("i"), two=F.lit("x"), three=F.col("i") % 7),
            join("s", "s"),
            twice(twice(twice("i"))),
            join(twice("i"), twice(twice_pickled("i"))),
            twice(twice_pickled(twice("i"))) + twice("i"),
            answer(),
            F.when(F.col("i") > 5, twice("i")).otherwise(answer()),
        ],
        seed=5,
    )


def test_a_condition_may_call_functions(spark: Any) -> None:
    is_short = F.udf(lambda s: s is not None and len(s) < 3, "boolean")
    is_odd = F.pandas_udf(lambda s: s.fillna(0) % 2 == 1, "boolean")

    def build(frames: Frames) -> Any:
        return frames["t"].where(is_short("s") & is_odd("i")).select("s", "i")

    assert_same(spark, build, {"t": TABLE}, seed=6)


def _parts(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"b": frame["x"].astype(str), "a": frame["x"].fillna(0).astype("int64")})


def _running(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield batch.fillna(-1) + 1


def _pairs(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    for one, two in batches:
        yield one.astype(str) + two.astype(str)


def test_pandas_functions_see_and_return_series(spark: Any) -> None:
    pandas = F.pandas_udf
    show = pandas(lambda s: s.map(lambda v: f"{type(v).__name__} {v}"), "string")
    iterator = F.PandasUDFType.SCALAR_ITER
    _check(
        spark,
        lambda: [
            *(show(name) for name in COLUMNS if name not in ("i", "l", "r")),
            pandas(lambda s: s * 2, "double")("d"),
            pandas(lambda s: s.dt.tz_localize("UTC") + pd.Timedelta("1s"), "timestamp")("t"),
            pandas(lambda s: s, "timestamp")("t"),
            pandas(lambda s: s, "date")("y"),
            pandas(lambda s: s, "decimal(12,3)")("e"),
            pandas(lambda s: s, "array<int>")("a"),
            pandas(lambda s: s, "map<string,bigint>")("m"),
            pandas(_parts, "a bigint, b string")("r"),
            pandas(_parts, "a bigint, b string")("r")["b"],
            pandas(lambda s, o: s.fillna("?") + o.astype(str), "string")("s", "o"),
            pandas(lambda s, *, other: s.fillna("?") + other, "string")("s", other=F.lit("!")),
            pandas(_running, "double", iterator)("i"),
            pandas(_pairs, "string", iterator)("s", "o"),
        ],
        seed=7,
    )


def _lengths(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield pc.utf8_length(batch)


def _sums(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    for one, two in batches:
        yield pc.add(one, two)


def test_arrow_functions_see_and_return_arrays(spark: Any) -> None:
    arrow = F.arrow_udf
    iterator = F.ArrowUDFType.SCALAR_ITER
    _check(
        spark,
        lambda: [
            *(
                arrow(lambda a: pa.array([str(a.type)] * len(a)), "string")(name)
                for name in COLUMNS
            ),
            arrow(lambda a: a, "timestamp")("t"),
            arrow(lambda a: a, "struct<x:int,t:timestamp>")("r"),
            arrow(lambda a: a, "map<string,bigint>")("m"),
            arrow(lambda a: a.cast(pa.string()), "bigint")("l"),
            arrow(lambda a, b: pc.add(pc.cast(a, pa.int64()), pc.cast(b, pa.int64())), "bigint")(
                "i", "o"
            ),
            arrow(lambda a, *, n: pc.binary_repeat(a, n), "string")("s", n=F.lit(2)),
            arrow(_lengths, "int", iterator)("s"),
            arrow(_sums, "double", iterator)("d", "d"),
        ],
        seed=8,
        table=TABLE,
    )


@pytest.mark.parametrize("zone", ["America/New_York", "+05:30"])
def test_functions_see_timestamps_in_the_time_zone_of_the_session(spark: Any, zone: str) -> None:
    pandas = F.pandas_udf(lambda s: s.map(str), "string")
    arrow = F.arrow_udf(lambda a: pa.array([str(a.type)] * len(a)), "string")
    same = F.arrow_udf(lambda a: a, "timestamp")
    plain = F.udf(_show, "string")
    back = F.pandas_udf(lambda s: s, "timestamp")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        _check(
            spark,
            lambda: [
                pandas("t"),
                arrow("t"),
                same("t"),
                plain("t"),
                plain("r"),
                back("t"),
                arrow("r"),
            ],
            seed=9,
            table=TABLE.select(["t", "r"]),
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def _fail(value: Any) -> Any:
    raise KeyError("no such thing")


def _fail_batches(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if len(batch):
            raise KeyError("no such thing")
        yield batch


WRONG: list[Callable[[Any], Any]] = [
    lambda df: df.select(F.udf(_fail, "int", useArrow=False)("i")),
    lambda df: df.select(F.udf(_fail, "int")("i")),
    lambda df: df.select(F.pandas_udf(_fail, "int", F.PandasUDFType.SCALAR)("i")),
    lambda df: df.select(F.arrow_udf(_fail, "int", F.ArrowUDFType.SCALAR)("i")),
    lambda df: df.select(F.pandas_udf(_fail_batches, "int", F.PandasUDFType.SCALAR_ITER)("i")),
    lambda df: df.select("i").mapInArrow(_fail_batches, "i int"),
    lambda df: df.select("i").mapInPandas(_fail_batches, "i int"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_names_the_function_and_keeps_its_cause(
    spark: Any, wrong: Callable[[Any], Any]
) -> None:
    planned = plan_streaming(spark, lambda frames: wrong(frames["t"]), {"t": TABLE})
    driver = Driver(planned.query, {})
    with pytest.raises(EvaluationFailed, match=r"_fail.*no such thing") as caught:
        driver.feed(planned.query.streams[0], TABLE.to_batches()[0])

    assert caught.value.condition == "PYTHON_EXCEPTION"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("wrong", [WRONG[0], WRONG[-1]])
def test_spark_has_one_condition_for_errors_of_functions(
    spark: Any, wrong: Callable[[Any], Any]
) -> None:
    outcome = ask_spark(spark, lambda frames: wrong(frames["t"]), {"t": TABLE})
    assert outcome == Failed("PYTHON_EXCEPTION")


# -- mapInArrow and mapInPandas


def _each(change: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    return lambda batches: (change(batch) for batch in batches)


def _spread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0)
        yield batch
        yield batch.slice(0, batch.num_rows // 2 * 0)


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch["s"], batch["i"]], ["x", "y"])


def _odd(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["i"] % 2 == 1][["l", "i"]]


MAPPED: dict[str, Callable[[Any], Any]] = {
    "all columns": lambda df: df.mapInArrow(_spread, df.schema),
    "names do not matter": lambda df: df.mapInArrow(_each(_renamed), "s string, i int"),
    "more columns than declared": lambda df: df.mapInArrow(_each(lambda b: b), "a int, b bigint"),
    "large strings": lambda df: df.mapInArrow(
        _each(lambda b: pa.RecordBatch.from_arrays([b["s"].cast(pa.large_string())], ["s"])),
        "s string",
    ),
    "no time zone": lambda df: df.mapInArrow(
        _each(lambda b: pa.RecordBatch.from_arrays([b["t"].cast(pa.timestamp("us"))], ["t"])),
        "t timestamp",
    ),
    "nulls of no type": lambda df: df.mapInArrow(
        _each(lambda b: pa.RecordBatch.from_arrays([pa.nulls(len(b))], ["t"])), "t int"
    ),
    "a list of batches": lambda df: df.mapInArrow(lambda it: list(it), df.schema),
    "wrong type": lambda df: df.mapInArrow(_each(lambda b: b.select(["i"])), "i bigint"),
    "wrong unit": lambda df: df.mapInArrow(
        _each(
            lambda b: pa.RecordBatch.from_arrays([b["t"].cast(pa.timestamp("ns", "UTC"))], ["t"])
        ),
        "t timestamp",
    ),
    "no iterator": lambda df: df.mapInArrow(lambda it: 1, "i int"),
    "a filter, above another": lambda df: (
        df.select("i", "l")
        .where("i is not null and l is not null")
        .mapInPandas(_each(_odd), "i int, l bigint")
        .mapInArrow(_spread, "i int, l bigint")
        .where("i > 3")
    ),
    "values that are cast": lambda df: df.select("i").mapInPandas(
        _each(lambda f: pd.DataFrame({"i": ["1"] * len(f)})), "i bigint"
    ),
    "another name": lambda df: df.select("i").mapInPandas(
        _each(lambda f: pd.DataFrame({"j": ["1"] * len(f)})), "i bigint"
    ),
    "a loss": lambda df: df.select("i").mapInPandas(
        _each(lambda f: pd.DataFrame({"i": [1.5] * len(f)})), "i bigint"
    ),
    "nothing": lambda df: df.select("i").mapInPandas(_each(lambda f: pd.DataFrame()), "i bigint"),
}


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_batches_match(spark: Any, name: str) -> None:
    assert_same(spark, lambda frames: MAPPED[name](frames["t"]), {"t": TABLE}, seed=10)


# -- over rows that are taken back


def _counts(df: Any) -> Any:
    return df.groupBy("s").agg(F.count("*").alias("n"), F.sum("i").alias("x"))


def test_functions_of_changing_rows_are_evaluated_again_for_retractions(spark: Any) -> None:
    twice = F.udf(lambda v: None if v is None else v * 2, "bigint")
    label = F.pandas_udf(lambda s: s.map(lambda v: f"n{v}"), "string")

    def build(frames: Frames) -> Any:
        counted = _counts(frames["t"]).select("s", twice("n").alias("n"), label("x").alias("x"))
        return counted.groupBy("n").agg(F.count("*").alias("keys"), F.max("x").alias("x"))

    table = pa.table({"s": TABLE["s"], "i": pc.fill_null(pc.cast(TABLE["o"], pa.int32()), 0)})
    assert_same(spark, build, {"t": table}, seed=11)


def _dice(value: object) -> int:
    return 4


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda df: _counts(df).mapInArrow(_spread, "s string, n bigint, x bigint"),
            "_spread sees",
        ),
        (
            lambda df: _counts(df).mapInPandas(_spread, "s string, n bigint, x bigint"),
            "_spread sees",
        ),
        (lambda df: _counts(df).dropDuplicates(["n"]), "dropDuplicates by some columns"),
        (
            lambda df: _counts(df).select(F.udf(_dice, "int").asNondeterministic()("n")),
            "_dice may answer otherwise",
        ),
    ],
)
def test_what_cannot_bear_retractions_is_refused(
    spark: Any, build: Callable[[Any], Any], reason: str
) -> None:
    assert_refused(spark, lambda frames: build(frames["t"]), {"t": TABLE}, reason)


def test_what_is_not_deterministic_is_accepted_over_rows_that_stay(spark: Any) -> None:
    dice = F.udf(_dice, "int").asNondeterministic()
    _check(spark, lambda: [dice("i")], seed=12)
