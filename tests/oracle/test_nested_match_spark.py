"""Structs, arrays and maps give what batch Spark gives: nulls, NaN, slices, errors."""

from __future__ import annotations

import decimal
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_same
from pyspark.errors import IllegalArgumentException

from penstock.ops.functions.lists import lists_of, retype
from penstock.testing.oracle import Failed, Frames, plan_streaming, run_ours, run_spark

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
TEXTS = ["", "a", "b", "ab", "é", "\U0001f600", "z,y"]
NUMBERS = [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), 1e308]
INTS = [-(2**31), -3, -1, 0, 1, 2, 3, 2**31 - 1]


def make_table(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)

    def maybe(make: Callable[[], object], nulls: float = 0.15) -> object:
        return None if rng.random() < nulls else make()

    def many(make: Callable[[], object], nulls: float = 0.15) -> Callable[[], list[object]]:
        return lambda: [maybe(make, nulls) for _ in range(rng.choice([0, 1, 2, 3, 3, 5]))]

    def pick(choices: list[Any]) -> Callable[[], object]:
        return lambda: rng.choice(choices)

    def point() -> object:
        return {"x": maybe(pick([1, 2, 3])), "y": maybe(pick(TEXTS[:3]))}

    def entries() -> object:
        keys = rng.sample(TEXTS, rng.randrange(5))
        return [(key, maybe(pick(INTS))) for key in keys]

    decimals = [decimal.Decimal("1.50"), decimal.Decimal("-1.50"), decimal.Decimal("0.00")]
    kinds: dict[str, tuple[pa.DataType, Callable[[], object]]] = {
        "i": (pa.int32(), pick([-7, -4, -2, -1, 1, 2, 3, 4, 9])),
        "c": (pa.int32(), pick([0, 1, 2, 3, 7])),
        "v": (pa.int32(), pick(INTS)),
        "f": (pa.float64(), pick(NUMBERS)),
        "w": (pa.string(), pick(TEXTS)),
        "s": (POINT, point),
        "n": (pa.list_(pa.int32()), many(pick(INTS))),
        "o": (pa.list_(pa.int32()), many(pick(INTS))),
        "full": (pa.list_(pa.int32()), many(pick(INTS), 0)),
        "d": (pa.list_(pa.float64()), many(pick(NUMBERS))),
        "e": (pa.list_(pa.float64()), many(pick(NUMBERS))),
        "r": (pa.list_(pa.float32()), many(pick(NUMBERS[:-1]))),
        "t": (pa.list_(pa.string()), many(pick(TEXTS))),
        "u": (pa.list_(pa.string()), many(pick(TEXTS))),
        "bin": (pa.list_(pa.binary()), many(pick([b"", b"\x00", b"\x80", b"\x7f"]))),
        "b": (pa.list_(pa.bool_()), many(pick([True, False]))),
        "dec": (pa.list_(pa.decimal128(10, 2)), many(pick(decimals))),
        "a": (pa.list_(POINT), many(point)),
        "p": (pa.list_(POINT), many(point)),
        "nn": (pa.list_(pa.list_(pa.int32())), many(many(pick(INTS)), 0.1)),
        "m": (pa.map_(pa.string(), pa.int32()), entries),
        "pairs": (pa.string(), pick(["a:1,b:2:3,c", "", ":", "x,y", "é:ü", "a:", ":b,c"])),
        "day": (pa.date32(), pick([-1, 0, 3])),
        "end_day": (pa.date32(), pick([-5, 0, 40])),
        "ts": (pa.timestamp("us", tz="UTC"), pick([-1, 0, 7_200_000_000])),
        "end_ts": (pa.timestamp("us", tz="UTC"), pick([7_200_000_000, 86_400_000_005])),
    }
    return pa.table(
        {
            name: pa.array([maybe(make) for _ in range(rows)], kind)
            for name, (kind, make) in kinds.items()
        }
    )


TABLE = make_table(160, 1)

STRUCTS = [
    "struct(i, w)",
    "named_struct('a', i, 'b', s, 'c', 1)",
    "s.x",
    "s.y",
    "struct(s, n).s.x",
    "a.x",
    "a.y",
    "p.x",
    "struct(i, 2) = struct(v, 2)",
    "s = struct(i as x, w as y)",
    "s < struct(i as x, w as y)",
    "n = o",
    "n < o",
    "d >= e",
]
ARRAYS = [
    "array(i, v, 1, null)",
    "array(n, o)",
    "array(s, null)",
    "array(w, 'x')",
    "get(n, c)",
    "get(a, c)",
    "get(a, c).x",
    "get(n, i)",
    "try_element_at(n, i)",
    "try_element_at(t, i)",
    "try_element_at(nn, i)",
    "split_part(pairs, ',', i)",
    "size(n)",
    "cardinality(m)",
    "size(nn)",
    "array_size(n)",
    "slice(n, 2, c)",
    "slice(t, i, 2)",
    "slice(a, -2, c)",
    "concat(n, o)",
    "n || array(1) || o",
    "concat(a, array(s))",
    "reverse(n)",
    "reverse(a)",
    "reverse(nn)",
    "flatten(nn)",
    "flatten(array(n, o))",
    "arrays_zip(n, t)",
    "arrays_zip(n, t, d)",
    "array_join(t, ',')",
    "array_join(t, w)",
    "array_join(t, '-', '?')",
    "array_join(t, ',', w)",
    "array_repeat(i, c)",
    "array_repeat(n, 2)",
    "array_repeat(w, i)",
    "array_insert(n, i, v)",
    "array_insert(t, i, w)",
    "array_insert(n, 7, v)",
    "array_append(n, v)",
    "array_prepend(a, s)",
    "array_append(t, 'x')",
    "array_append(full, 1)",
]
SEARCHES = [
    "array_contains(n, v)",
    "array_contains(d, f)",
    "array_contains(t, w)",
    "array_contains(a, s)",
    "array_contains(full, v)",
    "array_contains(array(1, 2, 3), i)",
    "array_contains(nn, n)",
    "array_position(n, v)",
    "array_position(d, f)",
    "array_position(t, w)",
    "array_position(a, s)",
    "array_remove(n, v)",
    "array_remove(d, f)",
    "array_remove(t, w)",
    "array_remove(a, s)",
]
SETS = [
    *(f"array_distinct({x})" for x in ("n", "d", "r", "t", "bin", "b", "dec", "a", "nn")),
    *(f"array_max({x})" for x in ("n", "d", "r", "t", "bin", "b", "dec", "a", "nn")),
    *(f"array_min({x})" for x in ("n", "d", "r", "t", "bin", "b", "dec", "a", "nn")),
    *(f"sort_array({x})" for x in ("n", "d", "t", "bin", "b", "dec", "a", "nn", "r")),
    *(f"sort_array({x}, false)" for x in ("n", "d", "t", "a", "nn")),
    *(f"array_sort({x})" for x in ("n", "d", "t", "a", "nn", "b")),
]
PAIRS = [
    f"{function}({left}, {right})"
    for function in ("array_union", "array_intersect", "array_except", "arrays_overlap")
    for left, right in (("n", "o"), ("d", "e"), ("t", "u"), ("a", "p"), ("full", "array(1, 2)"))
]
MAPS = [
    "m['a']",
    "m[w]",
    "element_at(m, w)",
    "try_element_at(m, 'ab')",
    "map_contains_key(m, w)",
    "map('a', i, 'b', v)",
    "map(coalesce(v, 5), struct(i, w))",
    "map_keys(m)",
    "map_values(m)",
    "map_entries(m)",
    "map_from_arrays(array('p', 'q'), array(i, v))",
    "map_from_arrays(map_keys(m), map_values(m))",
    "map_from_arrays(array_distinct(full), array_distinct(full))",
    "map_from_entries(map_entries(m))",
    "map_from_entries(array(struct('k', i), if(c > 1, null, struct('l', i))))",
    "map_concat(m, map('new', i))",
    "map_concat(m, map('new', i), map('newer', v))",
    "size(m)",
    "map(1.5D, f)",
    "map(coalesce(f, 1D), i)[f]",
    "str_to_map(pairs, ',', ':')",
    "str_to_map(w)",
]
#: Argument types that differ only in what may be null, which Catalyst does not call different.
MIXED = [
    "if(c > 1, struct(1 as x, 'a' as y), s)",
    "if(c > 1, s, struct(1 as x, 'a' as y))",
    "coalesce(s, struct(1 as x, 'a' as y))",
    "coalesce(m, map('a', 1))",
    "if(c > 1, map('a', 1), m)",
    "coalesce(a, array(struct(1 as x, 'a' as y)))",
    "if(c > 1, array(named_struct('x',1,'y',w)), a)",
    "transform(n, x -> struct(1,2))",
    "array(struct(1 as x, 'a' as y), s)",
    "array(array(1), n)",
    "map('a', array(1), 'b', n)",
    "concat(array(1), n)",
    "array_insert(array(struct(1 as x, 'a' as y)), 1, s)",
    "map_from_arrays(array('a','b'), array(n, array(1)))",
    "array_remove(array(array(1), array(2)), n)",
    "array_contains(array(array(1),array(2)), n)",
    "array_position(array(struct(1 as x, 'a' as y)), s)",
    "element_at(map(struct(1 as x, 'a' as y), 5), s)",
    "aggregate(n, array(1), (acc, x) -> array_append(acc, x))",
    "aggregate(n, struct(1 as x, 'a' as y), (acc, x) -> s)",
    "zip_with(array(1), n, (x,y) -> struct(x,y))",
    "array_sort(array(struct(1 as x, 'a' as y), s))",
    "array_max(array(struct(1 as x, 'a' as y), s))",
]
SEQUENCES = [
    "sequence(1, i)",
    "sequence(c, i)",
    "sequence(i, i + 10, 3)",
    "sequence(i + 10, i, -4)",
    "sequence(2147483640, 2147483647)",
    "sequence(day, end_day)",
    "sequence(day, day, interval 2 day)",
    "sequence(ts, end_ts, interval 2 hour)",
    "sequence(end_ts, ts, interval -30 minute)",
    "sequence(ts, end_ts)",
    "sequence(least(day, end_day), greatest(day, end_day), interval 1 month)",
    "sequence(last_day(day), add_months(last_day(day), 14), interval 2 month)",
    "sequence(add_months(day, 40), day, interval -1 year)",
    "sequence(least(ts, end_ts), greatest(ts, end_ts) + interval 1 year, interval 1 month)",
    "sequence(ts + interval 7 month, ts, interval -3 month)",
    "sequence(day, day, interval 1 month)",
]


@pytest.mark.parametrize(
    "expressions", [STRUCTS, ARRAYS, SEARCHES, SETS, PAIRS, MAPS, SEQUENCES], ids=lambda e: e[0]
)
def test_nested_expressions_match_spark(spark: Any, expressions: list[str]) -> None:
    assert_expressions(spark, expressions, TABLE, seed=3)


def test_without_ansi_mode_a_wrong_index_gives_null(spark: Any) -> None:
    lenient = ["n[c]", "n[i]", "a[c].x", "element_at(n, i)", "element_at(m, w)", "size(m)"]
    assert_expressions(spark, [*lenient, *ARRAYS], TABLE, ansi=False, seed=3)


def test_arguments_may_differ_in_what_may_be_null(spark: Any) -> None:
    assert_expressions(spark, MIXED, TABLE, seed=6)


FAILURES = [
    ("n[c]", "INVALID_ARRAY_INDEX", True),
    ("n[i]", "INVALID_ARRAY_INDEX", True),
    ("element_at(n, i)", "INVALID_ARRAY_INDEX_IN_ELEMENT_AT", True),
    ("element_at(n, c)", "INVALID_INDEX_OF_ZERO", False),
    ("try_element_at(n, c)", "INVALID_INDEX_OF_ZERO", True),
    ("slice(n, c, 1)", "INVALID_PARAMETER_VALUE", True),
    ("slice(n, 1, i)", "INVALID_PARAMETER_VALUE", False),
    ("array_insert(n, c, 1)", "INVALID_INDEX_OF_ZERO", True),
    ("array_repeat(w, 2147483647)", "COLLECTION_SIZE_LIMIT_EXCEEDED", True),
    ("map('a', i, 'a', v)", "DUPLICATED_MAP_KEY", True),
    ("map(w, i)", "NULL_MAP_KEY", True),
    ("map(0D, i, -0D, i)", "DUPLICATED_MAP_KEY", True),
    ("map_from_arrays(full, full)", "DUPLICATED_MAP_KEY", True),
    ("map_from_arrays(full, o)", "_LEGACY_ERROR_TEMP_2128", True),
    ("map_from_entries(transform(full, x -> struct(1, x)))", "DUPLICATED_MAP_KEY", True),
    ("str_to_map(concat(pairs, ',a,a'))", "DUPLICATED_MAP_KEY", True),
    ("map_concat(m, m)", "DUPLICATED_MAP_KEY", False),
    ("sequence(day, end_day, interval 1 hour)", "_LEGACY_ERROR_TEMP_3242", True),
    ("sequence(v, 2147483647)", "COLLECTION_SIZE_LIMIT_EXCEEDED", True),
]


@pytest.mark.parametrize(("expression", "condition", "ansi"), FAILURES)
def test_wrong_input_fails_as_in_spark(
    spark: Any, expression: str, condition: str, ansi: bool
) -> None:
    assert_fails(spark, expression, TABLE, condition, ansi=ansi)


@pytest.mark.parametrize(
    "expression",
    [
        "sequence(i, c, 1)",
        "sequence(i, c, 0)",
        "sequence(day, add_months(day, -1), interval 1 month)",
    ],
)
def test_a_sequence_that_never_ends_fails_without_a_condition_of_its_own(
    spark: Any, expression: str
) -> None:
    """Spark throws a plain Java exception here, so there is no condition to compare."""
    tables = {"t": TABLE}

    def build(frames: Frames) -> Any:
        return frames["t"].selectExpr(expression)

    with pytest.raises(IllegalArgumentException, match="Illegal sequence boundaries"):
        run_spark(spark, build, tables)
    outcome = run_ours(plan_streaming(spark, build, tables), tables, random.Random(0))

    assert outcome == Failed("IllegalArgumentException")


def test_failures_wait_for_the_branch_that_is_taken(spark: Any) -> None:
    count = pc.fill_null(TABLE["c"], 0)
    table = TABLE.append_column("place", pc.add(count, 1).cast(pa.int32()))
    assert_expressions(
        spark,
        [
            "if(c < size(n), n[c], -1)",
            "if(c > 0, element_at(array(i, v, 3, 4, 5, 6, 7), c), null)",
            "if(w = 'b', null, map('b', 1, coalesce(w, 'c'), 2))",
            "case when c = 0 then n else slice(n, c, 1) end",
            "coalesce(get(n, 0), element_at(array(1, 2, 3, 4, 5, 6, 7), place))",
        ],
        table.filter(pc.less(count, 7)),
    )


def test_fields_of_structs_can_be_replaced_and_dropped(spark: Any) -> None:
    from pyspark.sql import functions as F

    def build(frames: Frames) -> Any:
        return frames["t"].select(
            F.col("s").withField("z", F.col("i")).alias("a"),
            F.col("s").withField("x", F.col("v")).alias("b"),
            F.col("s").dropFields("x").alias("c"),
            F.transform("a", lambda p: p.withField("q", F.col("v"))).alias("d"),
        )

    assert_same(spark, build, {"t": TABLE}, seed=1)


def test_constants_take_part_like_columns(spark: Any) -> None:
    assert_expressions(
        spark,
        [
            "array_contains(array(1, 2, null), v)",
            "array_position(array('a', '', null), w)",
            "array(1, 2, 3)[c % 3]",
            "element_at(map('a', 1, 'b', 2), w)",
            "map(1, 'x')[v]",
            "array_union(n, array(1, null))",
            "array_except(array(1, 2, 3), n)",
            "arrays_zip(array(1, 2), t)",
            "struct(1, array('x'))",
            "array_insert(array(1, 2), i, v)",
            "array_remove(array(1, 2), v)",
            "map_concat(map('new', 1), m)",
            "array_repeat(array(1, 2), c)",
            "array_join(array('a', null), w)",
            "slice(array(1, 2, 3), i, 2)",
        ],
        TABLE,
        ansi=False,
    )


def test_a_list_array_may_be_sliced_and_hide_elements_under_nulls() -> None:
    values = pa.array([9, 1, 2, 3, 4, 5, 9], pa.int32())
    offsets = pa.array([1, 1, 3, 5, 6], pa.int32())
    mask = pa.array([False, True, False, False])
    array = pa.ListArray.from_arrays(offsets, values, mask=mask)

    lists = lists_of(array)
    tail = lists_of(array.slice(2))

    assert lists.elements.to_pylist() == [3, 4, 5]
    assert lists.offsets.tolist() == [0, 0, 0, 2, 3]
    assert lists.array(array.type).to_pylist() == [[], None, [3, 4], [5]]
    assert tail.elements.to_pylist() == [3, 4, 5]
    assert tail.array(array.type).to_pylist() == [[3, 4], [5]]
    assert lists_of(array.slice(4)).array(array.type).to_pylist() == []


def test_a_map_array_may_be_sliced() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    array = pa.array([[("a", 1)], None, [("b", 2), ("c", None)]], kind)

    lists = lists_of(array.slice(1))

    assert lists.elements.to_pylist() == [{"key": "b", "value": 2}, {"key": "c", "value": None}]
    assert lists.array(kind).to_pylist() == [None, [("b", 2), ("c", None)]]


@pytest.mark.parametrize("start", range(5))
def test_arrays_under_another_type_are_whole_wherever_they_start(start: int) -> None:
    """A slice that has no elements has been a trap: its children start behind their own end."""
    strict = pa.field("x", pa.int32(), nullable=False)
    kinds = [
        (pa.list_(pa.struct([("x", pa.int32())])), pa.list_(pa.struct([strict]))),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), strict)),
    ]
    rows = ([[{"x": 1}], [], None, [{"x": 2}]], [[("a", 1)], [], None, [("b", 2), ("c", 3)]])
    for (have, want), values in zip(kinds, rows, strict=True):
        array = pa.array(values, have).slice(start)

        made = [retype(array, want), lists_of(array).array(want)]

        joined = pa.concat_arrays([*made, made[0].slice(1)])
        joined.validate(full=True)
        assert joined.type == want
        assert joined.to_pylist() == [*values[start:], *values[start:], *values[start + 1 :]]
