"""Higher-order functions give what batch Spark gives: outer columns, indexes, nesting, errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


def make_table(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)

    def maybe(make: Callable[[], object], nulls: float = 0.15) -> object:
        return None if rng.random() < nulls else make()

    def many(make: Callable[[], object], nulls: float = 0.15) -> Callable[[], list[object]]:
        return lambda: [maybe(make, nulls) for _ in range(rng.choice([0, 1, 2, 3, 5, 9]))]

    def small() -> object:
        return rng.choice([-2, -1, 0, 1, 2, 3])

    def number() -> object:
        return rng.choice([0.0, 1.5, -2.5, float("nan"), float("inf")])

    def text() -> object:
        return rng.choice(["", "a", "b", "é", "\U0001f600"])

    def point() -> object:
        return {"x": maybe(small), "y": maybe(text)}

    def entries() -> object:
        keys = rng.sample(["", "a", "b", "c", "é"], rng.randrange(5))
        return [(key, maybe(small)) for key in keys]

    kinds: dict[str, tuple[pa.DataType, Callable[[], object]]] = {
        "i": (pa.int32(), small),
        "f": (pa.float64(), number),
        "w": (pa.string(), text),
        "n": (pa.list_(pa.int32()), many(small)),
        "o": (pa.list_(pa.int32()), many(small)),
        "d": (pa.list_(pa.float64()), many(number)),
        "t": (pa.list_(pa.string()), many(text)),
        "a": (pa.list_(POINT), many(point)),
        "nn": (pa.list_(pa.list_(pa.int32())), many(many(small))),
        "m": (pa.map_(pa.string(), pa.int32()), entries),
        "k": (pa.map_(pa.string(), pa.int32()), entries),
    }
    return pa.table(
        {
            name: pa.array([maybe(make) for _ in range(rows)], kind)
            for name, (kind, make) in kinds.items()
        }
    )


TABLE = make_table(120, 5)

ARRAYS = [
    "transform(n, x -> x + 1)",
    "transform(n, x -> x + i)",
    "transform(n, (x, j) -> x + j)",
    "transform(n, x -> 7)",
    "transform(n, x -> w)",
    "transform(n, x -> struct(x, i))",
    "transform(a, p -> p.x)",
    "transform(t, x -> x = w)",
    "size(transform(n, x -> null))",
    "transform(nn, x -> transform(x, y -> y + i + size(x)))",
    "transform(nn, (x, j) -> filter(x, (y, l) -> y > j - l))",
    "transform(n, x -> transform(o, y -> x - y))",
    "transform(array(1, 2), x -> x + i)",
    "transform(array(i, 2), x -> x + i)",
    "filter(n, x -> x > 1)",
    "filter(n, (x, j) -> x > j)",
    "filter(n, x -> x is null)",
    "filter(n, x -> i > 0)",
    "filter(a, p -> p.x = i)",
    "filter(d, x -> x > f)",
    "filter(transform(n, x -> x + 1), x -> x > 1)",
    "array_compact(n)",
    "array_compact(a)",
    "zip_with(n, o, (x, y) -> x + y)",
    "zip_with(n, t, (x, y) -> struct(x, y, i))",
    "zip_with(n, o, (x, y) -> coalesce(x, y))",
    "array_sort(transform(n, x -> x + i))",
]
FOLDS = [
    "exists(n, x -> x > 2)",
    "exists(n, x -> x is null)",
    "exists(t, x -> x = w)",
    "exists(n, x -> i > 0)",
    "exists(nn, x -> exists(x, y -> y > i))",
    "forall(n, x -> x > -2)",
    "forall(n, x -> x is not null)",
    "forall(d, x -> x < f)",
    "forall(nn, x -> size(x) > 1)",
    "aggregate(n, 0, (acc, x) -> acc + x)",
    "aggregate(n, 0, (acc, x) -> acc + coalesce(x, 0))",
    "aggregate(n, i, (acc, x) -> acc + coalesce(x, i))",
    "aggregate(n, 0, (acc, x) -> acc + coalesce(x, 0), acc -> struct(acc, i))",
    "reduce(t, 0, (acc, x) -> if(x = w, acc + 1, acc))",
    "aggregate(n, array(i), (acc, x) -> array_append(acc, x))",
    "aggregate(nn, 0, (acc, x) -> aggregate(x, acc, (b, y) -> b + coalesce(y, 0)))",
    "aggregate(a, struct(0 as c, 0 as s), (acc, p) -> struct(acc.c + 1 as c, p.x as s))",
    "aggregate(filter(n, x -> x > 0), 0, (acc, x) -> acc + x, acc -> acc = 0)",
]
MAPS = [
    "transform_values(m, (k, v) -> v + i)",
    "transform_values(m, (k, v) -> k = w)",
    "transform_keys(m, (k, v) -> struct(k, i))",
    "transform_keys(m, (k, v) -> if(k = 'a', 'z', k))",
    "map_filter(m, (k, v) -> v > i)",
    "map_filter(m, (k, v) -> k = w)",
    "map_zip_with(m, k, (q, v, u) -> v + u)",
    "map_zip_with(m, k, (q, v, u) -> struct(q, v, u, i))",
    "map_from_entries(transform(array_distinct(filter(t, x -> x is not null)), x -> struct(x, i)))",
    "exists(map_entries(m), e -> e.value > i)",
    "aggregate(map_values(m), 0, (acc, x) -> acc + coalesce(x, 0))",
]


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("expressions", [ARRAYS, FOLDS, MAPS], ids=["arrays", "folds", "maps"])
def test_lambdas_match_spark(spark: Any, expressions: list[str], ansi: bool) -> None:
    assert_expressions(spark, expressions, TABLE, ansi=ansi, seed=7)


FAILURES = [
    ("transform(n, x -> x + 2147483647)", "ARITHMETIC_OVERFLOW"),
    ("filter(n, x -> x + 2147483647 > i)", "ARITHMETIC_OVERFLOW"),
    ("transform(n, x -> o[x])", "INVALID_ARRAY_INDEX"),
    ("aggregate(n, 2147483647, (acc, x) -> acc + coalesce(x, 0))", "ARITHMETIC_OVERFLOW"),
    ("exists(n, x -> x + 2147483647 = 0)", "ARITHMETIC_OVERFLOW"),
    ("zip_with(n, o, (x, y) -> x + 2147483647 + y)", "ARITHMETIC_OVERFLOW"),
    ("transform_keys(m, (k, v) -> 1)", "DUPLICATED_MAP_KEY"),
    ("transform_keys(m, (k, v) -> v)", "NULL_MAP_KEY"),
]


@pytest.mark.parametrize(("expression", "condition"), FAILURES)
def test_a_failing_element_fails_the_query(spark: Any, expression: str, condition: str) -> None:
    table = TABLE
    if "-> v" in expression:
        keys = pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32()))
        table = pa.table({"m": keys})
    assert_fails(spark, expression, table, condition)


def test_elements_that_spark_does_not_look_at_cannot_fail(spark: Any) -> None:
    table = pa.table(
        {
            "n": pa.array([[5, 2**31 - 1], [1, 5, 2**31 - 1], [5], [], None]),
            "o": pa.array([[0, 2**31 - 1], [1, 0, 2**31 - 1], [5], [], None]),
            "big": pa.array([1, 2, 3, 4, 2**31 - 1]),
        },
        schema=pa.schema(
            [("n", pa.list_(pa.int32())), ("o", pa.list_(pa.int32())), ("big", pa.int32())]
        ),
    )

    assert_expressions(
        spark,
        [
            "exists(n, x -> x + 1 > 5)",
            "forall(o, x -> x + 1 > 1)",
            "transform(n, x -> if(x < 9, x + 1, 0))",
            "transform(n, x -> big + 1)",
            "aggregate(n, big + 1, (acc, x) -> acc)",
            "zip_with(n, array(big + 1), (x, y) -> y)",
            "filter(filter(n, x -> x < 9), x -> x + 1 > 2)",
            "if(big > 9, array(0), transform(array(big), x -> x + 1))",
        ],
        table,
    )
