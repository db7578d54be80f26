"""Random queries and random rows, for the oracle.

A query is drawn as text: SQL fragments put together by a small typed grammar, so that a failing one
can be read and pasted into a Spark shell. Rows come from a seed. Values that sums run over are
tame (quarters, small numbers): the order of floating point additions is nobody's law. Everything
else has nulls, NaN, infinities, extremes, unicode and skew.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from plan_functions import STEPS

from penstock.plan.nodes import Mode

_START = dt.datetime(2024, 2, 28, 23, 58, tzinfo=dt.UTC)
_LONGS = [0, 1, -1, 7, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
_INTS = [0, 1, -1, 2, 3, 100, 2**31 - 1, -(2**31)]
_DOUBLES = [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e15 + 0.5]
_TEXTS = [
    "",
    "a",
    "A",
    " b ",
    "ß",
    "naïve",
    "日本",
    "🙂x",
    "%_",
    "a.b",
    "12",
    "-7",
    "x,y,z",
    "e\u0301",
]
_DAYS = [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(1, 1, 1)]

SCHEMA_T = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int32()),
        ("i", pa.int32()),
        ("j", pa.int32()),
        ("n", pa.int64()),
        ("d", pa.float64()),
        ("x", pa.float64()),
        ("m", pa.decimal128(10, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("xs", pa.list_(pa.int32())),
    ]
)
SCHEMA_U = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int32()),
        ("w", pa.int32()),
        ("name", pa.string()),
        ("ts2", pa.timestamp("us", tz="UTC")),
    ]
)


def make_tables(seed: int, rows_t: int, rows_u: int) -> dict[str, pa.Table]:
    """The rows of one example."""
    rng = random.Random(seed)

    def maybe(value: object, share: float = 0.12) -> object:
        return None if rng.random() < share else value

    def row_t(position: int) -> dict[str, object]:
        moment = _START + dt.timedelta(seconds=position * 2, microseconds=rng.randrange(10**6))
        return {
            "k": maybe(rng.choice(["a", "a", "a", "b", "c", "日本", ""])),
            "g": maybe(rng.choice([0, 0, 1, 2, 3])),
            "i": maybe(rng.randint(-9, 20)),
            "j": maybe(rng.choice(_INTS)),
            "n": maybe(rng.choice(_LONGS)),
            "d": maybe(rng.choice([0.0, -0.0, math.nan, rng.randint(-40, 40) / 4])),
            "x": maybe(rng.choice(_DOUBLES)),
            "m": maybe(Decimal(rng.randint(-99999, 99999)) / 100),
            "s": maybe(rng.choice(_TEXTS)),
            "b": maybe(rng.random() < 0.5),
            "day": maybe(
                rng.choice([*_DAYS, dt.date(2024, 1, 1) + dt.timedelta(rng.randrange(90))])
            ),
            "ts": maybe(moment, 0.03),
            "xs": maybe([maybe(rng.randint(-3, 5), 0.2) for _ in range(rng.randrange(4))]),
        }

    def row_u(position: int) -> dict[str, object]:
        return {
            "k": maybe(rng.choice(["a", "b", "b", "z", "日本"])),
            "g": maybe(rng.choice([0, 1, 1, 4])),
            "w": maybe(rng.randint(-5, 9)),
            "name": maybe(rng.choice(_TEXTS)),
            "ts2": _START + dt.timedelta(seconds=position * 3 + rng.randrange(4)),
        }

    return {
        "t": pa.Table.from_pylist([row_t(i) for i in range(rows_t)], schema=SCHEMA_T),
        "u": pa.Table.from_pylist([row_u(i) for i in range(rows_u)], schema=SCHEMA_U),
    }


# -- expressions: templates by the type that they give; {int} and the like are drawn in turn

_TEMPLATES: dict[str, list[str]] = {
    "int": [
        "i",
        "g",
        "i + g",
        "i - {int}",
        "i * 3",
        "abs(i)",
        "-i",
        "pmod(i, 7)",
        "i % 4",
        "length({text})",
        "size(xs)",
        "year(day)",
        "month(ts)",
        "dayofmonth(day)",
        "hour(ts)",
        "coalesce({int}, 7)",
        "if({flag}, {int}, {int})",
        "CASE WHEN {flag} THEN {int} WHEN {flag} THEN 5 ELSE {int} END",
        "greatest(i, g, 0)",
        "least({int}, 4)",
        "cast(d AS int)",
        "try_cast(s AS int)",
        "nullif(i, 3)",
        "bit_count(i)",
        "i & 6",
        "instr({text}, 'a')",
        "datediff(day, date'2024-01-01')",
        "i + 1 - g * 2",
        "cast({flag} AS int)",
        "array_position(xs, 2)",
        "element_at(array(i, g, 3), 2)",
        "j",
        "j + 1",
        "10 div i",
        """from_json(concat(chr(123), '"a":', i, ',"b":"', s, '"', chr(125)), 'a int').a""",
        "from_csv(concat_ws(',', s, i), 'a string, b int').b",
        "try_variant_get(try_parse_json({text}), '$', 'int')",
        "py_next({int})",
        "py_next_pickled(i)",
        "pd_twice({int})",
    ],
    "text": [
        "py_tag({text})",
        "ar_upper({text})",
        "to_char(m, '$999,999,990.99S')",
        "to_char({int}, '9,999,999,999MI')",
        "k",
        "s",
        "upper({text})",
        "lower({text})",
        "concat({text}, '-', {text})",
        "substring({text}, 2, 3)",
        "trim({text})",
        "cast({int} AS string)",
        "coalesce({text}, 'none')",
        "replace({text}, 'a', 'bb')",
        "reverse({text})",
        "lpad({text}, 5, '*')",
        "CASE WHEN {flag} THEN {text} ELSE 'no' END",
        "date_format(ts, 'yyyy-MM-dd HH:mm')",
        "cast(m AS string)",
        "cast(day AS string)",
        "regexp_replace({text}, '[a-c]', '#')",
        "split_part({text}, ',', 1)",
        "cast({flag} AS string)",
        "concat_ws('/', k, s)",
        "to_json(struct(i, {text} AS e, m, xs))",
        "to_csv(struct({text} AS e, i, s))",
        "get_json_object(to_json(struct(xs, s)), '$.xs[*]')",
        "to_json(try_parse_json(to_json(struct(m, {text} AS e))):e)",
    ],
    "flag": [
        "b",
        "i > 3",
        "i <= g",
        "{int} = {int}",
        "{int} <=> {int}",
        "NOT {flag}",
        "{flag} AND {flag}",
        "{flag} OR {flag}",
        "k IN ('a', 'c')",
        "i IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)",
        "s LIKE '%a%'",
        "s RLIKE '^[a-z]+$'",
        "s RLIKE r'\\b\\pL|\\pN\\B'",
        "isnull({text})",
        "k IS NOT NULL",
        "isnan(x)",
        "x > d",
        "n < 5",
        "m > 10.5",
        "day >= date'2024-01-15'",
        "ts < timestamp'2024-02-28 23:58:30'",
        "array_contains(xs, 2)",
        "startswith({text}, 'a')",
        "{text} < {text}",
        "exists(xs, e -> e > i)",
        "i BETWEEN 2 AND 9",
        "py_is_odd({int})",
    ],
    "double": [
        "d",
        "x",
        "d + 1",
        "d * 2.0D",
        "i / 4",
        "d / 2",
        "cast(i AS double)",
        "round(d, 1)",
        "sqrt(abs(d))",
        "coalesce(d, 0.5D)",
        "if({flag}, d, x)",
        "nanvl(x, d)",
        "cast(m AS double)",
        "floor(d)",
        "10 / i",
    ],
    "decimal": [
        "m",
        "m + 1",
        "m * 2",
        "m - i",
        "cast(i AS decimal(12,2))",
        "abs(m)",
        "round(m, 1)",
    ],
    "long": [
        "n",
        "i * 10L",
        "cast(i AS bigint)",
        "n - 1",
        "unix_seconds(ts)",
        "floor(m)",
        "i div 3",
    ],
    "date": ["day", "date_add(day, i)", "last_day(day)", "trunc(day, 'MM')", "cast(ts AS date)"],
    "time": ["ts", "ts + interval 90 seconds", "date_trunc('minute', ts)", "ts - interval 1 day"],
}
#: Types whose values are the same in every order of additions.
_SUMMABLE = ["i", "g", "m", "d", "i * 2", "length(s)", "m + i"]
_DEPTH_MAX = 3


@st.composite
def expressions(draw: st.DrawFn, kind: str | None = None, depth: int = 0) -> str:
    """An SQL expression over t."""
    kind = kind or draw(st.sampled_from(sorted(_TEMPLATES)))
    templates = _TEMPLATES[kind]
    if depth >= _DEPTH_MAX:
        templates = [t for t in templates if "{" not in t]
    text = draw(st.sampled_from(templates))
    while "{" in text:
        start = text.index("{")
        end = text.index("}")
        inner = draw(expressions(text[start + 1 : end], depth + 1))
        text = f"{text[:start]}({inner}){text[end + 1 :]}"
    return text


_AGGREGATES = [
    "count(*)",
    "count({any})",
    "sum({sum})",
    "avg({sum})",
    "min({any})",
    "max({any})",
    "count(DISTINCT {key})",
    "sum({sum}) FILTER (WHERE {flag})",
    "count(*) FILTER (WHERE {flag})",
    "max_by(i, struct(i, k, s))",
    "min({any}) FILTER (WHERE {flag})",
    "sort_array(collect_list({sortable}))",
    "sort_array(collect_set({sortable}))",
    "stddev(d)",
    "var_pop(i)",
    "bool_or({flag})",
    "bool_and({flag})",
    "count_if({flag})",
    "approx_count_distinct(g)",
    "percentile_approx(i, 0.4)",
    "percentile_approx(m, array(0.1, 0.9))",
    "bitmap_count(bitmap_construct_agg(pmod(i, 99)))",
    "array_sort(collect_list({sortable}), (a, b) -> IF(a < b, 1, IF(a > b, -1, 0)))",
]
#: Spark calls these only apart from others.
_PYTHON_AGGREGATES = ["pd_count({any})", "pd_largest({sortable})", "pd_largest(i)"]
_KEYS = ["k", "g", "b", "s", "day", "i % 3", "length(s)", "upper(k)", "m", "d"]


@st.composite
def aggregate_calls(draw: st.DrawFn, among: Sequence[str] = _AGGREGATES) -> str:
    text = draw(st.sampled_from(among))
    filled = {
        "{any}": expressions(),
        "{sum}": st.sampled_from(_SUMMABLE),
        "{key}": st.sampled_from(["i", "k", "g", "day"]),
        "{flag}": expressions("flag", 2),
        "{sortable}": st.sampled_from(["i", "k", "s", "m", "day"]),
    }
    for mark, strategy in filled.items():
        while mark in text:
            text = text.replace(mark, draw(strategy), 1)
    return text


# -- queries


@dataclass(frozen=True)
class Case:
    """A drawn query: SQL over views t and u, the mode to run it in, and its rows."""

    sql: str
    seed: int
    rows_t: int
    rows_u: int
    mode: Mode = "update"
    ansi: bool = True
    watermarks: tuple[tuple[str, str, str], ...] = field(default=())
    #: Of plan_functions.STEPS, what is done with the frame of the query.
    step: str | None = None

    def build(self, spark: Any) -> Callable[[Mapping[str, Any]], Any]:
        """The DataFrame of the query over frames t and u."""

        def build(frames: Mapping[str, Any]) -> Any:
            marked = dict(frames)
            for name, column, delay in self.watermarks:
                if name in marked:
                    marked[name] = marked[name].withWatermark(column, delay)
            frame = spark.sql(self.sql, **marked)
            return frame if self.step is None else STEPS[self.step](frame)

        return build

    def tables(self) -> dict[str, pa.Table]:
        """The tables that the query reads; making DataFrames of others would only take time."""
        made = make_tables(self.seed, self.rows_t, self.rows_u)
        return {name: table for name, table in made.items() if f"{{{name}}}" in self.sql}


def _where(draw: st.DrawFn) -> str:
    return f" WHERE {draw(expressions('flag'))}" if draw(st.booleans()) else ""


def _keys(draw: st.DrawFn, most: int = 3) -> list[str]:
    return draw(st.lists(st.sampled_from(_KEYS), min_size=1, max_size=most, unique=True))


def _calls(draw: st.DrawFn, most: int = 4, among: Sequence[str] = _AGGREGATES) -> str:
    calls = draw(st.lists(aggregate_calls(among), min_size=1, max_size=most))
    return ", ".join(f"{call} AS a{position}" for position, call in enumerate(calls))


@st.composite
def _stateless(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(expressions(), min_size=1, max_size=5))
    columns = ", ".join(f"{text} AS c{position}" for position, text in enumerate(chosen))
    source = draw(
        st.sampled_from(
            [
                "{t}",
                "(SELECT * FROM {t} UNION ALL SELECT * FROM {t} WHERE i > 5)",
                "(SELECT * EXCEPT (xs), xs FROM {t} WHERE b)",
            ]
        )
    )
    return f"SELECT {columns} FROM {source}{_where(draw)}"


@st.composite
def _explode(draw: st.DrawFn) -> str:
    outer = draw(st.sampled_from(["", "OUTER "]))
    generator = draw(st.sampled_from(["explode(xs) e AS item", "posexplode(xs) e AS at, item"]))
    tail = draw(st.sampled_from(["", " WHERE item > 0"]))
    if draw(st.booleans()):
        return f"SELECT k, item FROM {{t}} LATERAL VIEW {outer}{generator}{tail}"
    return (
        f"SELECT item, count(*) AS c, sum(i) AS total FROM {{t}} LATERAL VIEW {outer}{generator}"
        f"{tail} GROUP BY item"
    )


@st.composite
def _aggregate(draw: st.DrawFn) -> str:
    keys = _keys(draw)
    shown = ", ".join(f"{key} AS k{position}" for position, key in enumerate(keys))
    having = draw(st.sampled_from(["", "", " HAVING count(*) > 2", " HAVING max(i) IS NOT NULL"]))
    where = _where(draw)
    return f"SELECT {shown}, {_calls(draw)} FROM {{t}}{where} GROUP BY {', '.join(keys)}{having}"


@st.composite
def _total(draw: st.DrawFn) -> str:
    calls = _calls(draw)
    return f"SELECT {calls} FROM {{t}}{_where(draw)}"


@st.composite
def _python_aggregate(draw: st.DrawFn) -> str:
    calls = _calls(draw, 3, _PYTHON_AGGREGATES)
    if draw(st.booleans()):
        return f"SELECT {calls} FROM {{t}}{_where(draw)}"
    keys = _keys(draw)
    shown = ", ".join(f"{key} AS k{position}" for position, key in enumerate(keys))
    return f"SELECT {shown}, {calls} FROM {{t}}{_where(draw)} GROUP BY {', '.join(keys)}"


@st.composite
def _table_function(draw: st.DrawFn) -> str:
    query = f"SELECT k, i, letter, place FROM {{t}}, LATERAL pieces({draw(_ARGUMENTS)})"
    if draw(st.booleans()):
        return f"{query}{_where(draw)}"
    return f"SELECT letter, count(*) AS c, sum(i) AS s FROM ({query}) GROUP BY letter"


_ARGUMENTS = st.sampled_from(["s, i", "k, g", "upper(s), i + 1", "py_tag(k), 3"])


@st.composite
def _stepped(draw: st.DrawFn) -> str:
    source = draw(
        st.sampled_from(
            [
                "{t}",
                "(SELECT k, g, max(i) AS i, min(s) AS s FROM {t} GROUP BY k, g)",
                "(SELECT a.k, z.g, a.i, z.name AS s FROM {t} a JOIN {u} z ON a.k = z.k)",
            ]
        )
    )
    return f"SELECT k, g, i, s FROM {source}{_where_short(draw)}"


def _where_short(draw: st.DrawFn) -> str:
    return draw(
        st.sampled_from(["", " WHERE i > 3", " WHERE k IS NOT NULL", " WHERE py_is_odd(g)"])
    )


@st.composite
def _rollup(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["ROLLUP", "CUBE"]))
    return (
        f"SELECT k, g, grouping_id() AS id, count(*) AS c, sum(i) AS total FROM {{t}}{_where(draw)}"
        f" GROUP BY {kind} (k, g)"
    )


@st.composite
def _chained(draw: st.DrawFn) -> str:
    inner = draw(st.sampled_from(["k, g", "k, i", "g, s", "k, b"]))
    outer = inner.split(", ")[draw(st.integers(0, 1))]
    calls = draw(
        st.lists(
            st.sampled_from(
                ["max(c)", "min(c)", "sum(c)", "avg(c)", "count(*)", "sum(v)", "max(v)", "count(v)"]
            ),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    shown = ", ".join(f"{call} AS a{position}" for position, call in enumerate(calls))
    value = draw(st.sampled_from(["sum(i)", "max(i)", "count(DISTINCT i)", "min(m)"]))
    where = _where(draw)
    return (
        f"SELECT {outer}, {shown} FROM (SELECT {inner}, count(*) AS c, {value} AS v FROM {{t}}"
        f"{where} GROUP BY {inner}) GROUP BY {outer}"
    )


_JOINS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]


@st.composite
def _join(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(_JOINS))
    on = draw(st.sampled_from(["a.k = z.k", "a.g = z.g", "a.k = z.k AND a.g = z.g", "a.k <=> z.k"]))
    extra = draw(st.sampled_from(["", "", " AND a.i > z.w", " AND z.w > 0", " AND a.i + z.w > 5"]))
    one_sided = "SEMI" in kind or "ANTI" in kind
    shown = "a.k, a.i" if one_sided else "a.k, a.i, z.k AS zk, z.w, z.name"
    left = draw(
        st.sampled_from(
            [
                "{t}",
                "(SELECT k, g, max(i) AS i FROM {t} GROUP BY k, g)",
                "(SELECT DISTINCT k, g, i FROM {t})",
            ]
        )
    )
    right = draw(
        st.sampled_from(
            [
                "{u}",
                "(SELECT k, g, count(*) AS w, max(name) AS name FROM {u} GROUP BY k, g)",
                "(SELECT * FROM {u} WHERE w > 1)",
            ]
        )
    )
    query = f"SELECT {shown} FROM {left} a {kind} {right} z ON {on}{extra}"
    if draw(st.booleans()):
        value = "i" if one_sided else draw(st.sampled_from(["w", "i"]))
        query = f"SELECT k, count(*) AS c, sum({value}) AS s FROM ({query}) GROUP BY k"
    return query


@st.composite
def _sets(draw: st.DrawFn) -> str:
    columns = draw(st.sampled_from(["k", "g", "k, g"]))
    operation = draw(
        st.sampled_from(["INTERSECT", "EXCEPT", "UNION", "EXCEPT ALL", "INTERSECT ALL"])
    )
    other = draw(st.sampled_from(["{u}", "{u}", _STATIC]))
    return f"SELECT {columns} FROM {{t}} {operation} SELECT {columns} FROM {other}"


#: Rows that no stream brings: with the keys that streams have, nulls, and some twice.
_STATIC = (
    "(SELECT CASE id % 4 WHEN 0 THEN 'a' WHEN 1 THEN 'b' WHEN 2 THEN 'q' END AS k,"
    " IF(id = 5, NULL, CAST(id % 5 AS INT)) AS g, CAST(id AS INT) AS w, 'n' AS name FROM range(9))"
)


@st.composite
def _beside_static(draw: st.DrawFn) -> str:
    """A stream and static rows: unions, joins that keep either, subqueries."""
    left = draw(st.sampled_from(["{t}", "(SELECT k, g, max(i) AS i FROM {t} GROUP BY k, g)"]))
    kind = draw(st.sampled_from([*_JOINS, "UNION", "SCALAR", "IN"]))
    where = _where(draw)
    match kind:
        case "UNION":
            both = f"SELECT k, g FROM {left} UNION ALL SELECT k, w FROM {_STATIC}"
            return draw(st.sampled_from([both, f"SELECT k, sum(g) AS s FROM ({both}) GROUP BY k"]))
        case "SCALAR":
            value = f"(SELECT max(w) - 5 FROM {_STATIC})"
            return f"SELECT k, i + {value} AS a FROM {left} WHERE g < {value} OR k IS NULL"
        case "IN":
            is_in = draw(st.sampled_from(["IN", "NOT IN"]))
            condition = f"g {is_in} (SELECT w FROM {_STATIC})"
            return f"SELECT k, g FROM {left} WHERE {condition} OR k = 'a'"
        case _:
            on = draw(st.sampled_from(["a.k = z.k", "a.g <=> z.g", "a.k = z.k AND a.i > z.w"]))
            sides = [f"(SELECT * FROM {{t}}{where}) a", f"{_STATIC} z"]
            shown = "a.k, a.i" if "SEMI" in kind or "ANTI" in kind else "a.k, a.i, z.k AS zk, z.w"
            if draw(st.booleans()):
                sides.reverse()
                shown = shown.replace("a.k, a.i", "z.k, z.w") if len(shown) < 9 else shown
            return f"SELECT {shown} FROM {sides[0]} {kind} {sides[1]} ON {on}"


#: Keys that rise with event time.
_RISING = [
    "date_trunc('MINUTE', ts)",
    "to_date(ts)",
    "date_format(ts, 'yyyy-MM-dd HH:mm')",
    "unix_timestamp(ts) div 10",
    "unix_seconds(ts) - unix_seconds(ts) % 20",
    "date_trunc('MONTH', ts)",
]


@st.composite
def _dated(draw: st.DrawFn) -> str:
    rising = draw(st.sampled_from(_RISING))
    key = draw(st.sampled_from(["", ", k", ", g"]))
    condition = f" WHERE ts IS NOT NULL AND {draw(expressions('flag'))}"
    calls = _calls(draw, 2)
    return f"SELECT {rising} AS h{key}, {calls} FROM {{t}}{condition} GROUP BY {rising}{key}"


@st.composite
def _distinct(draw: st.DrawFn) -> str:
    keys = _keys(draw)
    shown = ", ".join(f"{key} AS k{position}" for position, key in enumerate(keys))
    return f"SELECT DISTINCT {shown} FROM {{t}}{_where(draw)}"


@st.composite
def _ranked(draw: st.DrawFn) -> str:
    function = draw(st.sampled_from(["row_number()", "rank()", "dense_rank()"]))
    order = draw(st.sampled_from(["i DESC", "i", "d DESC NULLS LAST", "m", "k DESC, i"]))
    # Equal rows may come in any order: all columns that are shown take part in it.
    order = f"{order}, i, k, s, d, ts" if function == "row_number()" else order
    cut = draw(st.sampled_from(["", " WHERE r <= 2", " WHERE r = 1"]))
    by = draw(st.sampled_from(["k", "g", "b, g"]))
    return (
        f"SELECT * FROM (SELECT k, i, d, s, {function} OVER (PARTITION BY {by} ORDER BY {order})"
        f" AS r FROM {{t}}{_where(draw)}){cut}"
    )


@st.composite
def _running(draw: st.DrawFn) -> str:
    call = draw(
        st.sampled_from(
            ["sum(i)", "count(*)", "max(i)", "avg(i)", "lag(i)", "lead(i, 2)", "min(m)", "first(i)"]
        )
    )
    frame = draw(
        st.sampled_from(
            [
                "",
                " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
            ]
        )
    )
    if call.startswith("l"):
        frame = ""
    over = f"PARTITION BY k ORDER BY ts, i, g, s, d{frame}"
    return f"SELECT k, ts, i, {call} OVER ({over}) AS r FROM {{t}}{_where(draw)}"


@st.composite
def _windowed(draw: st.DrawFn) -> str:
    window = draw(
        st.sampled_from(
            [
                "window(ts, '10 seconds')",
                "window(ts, '20 seconds', '5 seconds')",
                "window(ts, '1 minute', '1 minute', '15 seconds')",
            ]
        )
    )
    key = draw(st.sampled_from(["", ", k", ", g"]))
    calls = _calls(draw, 2)
    return f"SELECT window.start AS w{key}, {calls} FROM {{t}}{_where(draw)} GROUP BY {window}{key}"


@st.composite
def _sessions(draw: st.DrawFn) -> str:
    gap = draw(st.sampled_from(["2 seconds", "3 seconds", "10 seconds"]))
    key = draw(st.sampled_from(["k", "g", "k, b"]))
    return (
        f"SELECT {key}, session_window.start AS a, session_window.end AS z, {_calls(draw, 2)}"
        f" FROM {{t}}{_where(draw)} GROUP BY {key}, session_window(ts, '{gap}')"
    )


@st.composite
def _time_join(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN"]))
    on = draw(st.sampled_from(["a.k = z.k", "a.g = z.g"]))
    low, high = draw(st.sampled_from([(0, 5), (3, 3), (-2, 8)]))
    shown = "a.k, a.i, a.ts" if "SEMI" in kind else "a.k, a.i, a.ts, z.w, z.ts2"
    return (
        f"SELECT {shown} FROM (SELECT * FROM {{t}} WHERE ts IS NOT NULL) a {kind} {{u}} z ON {on}"
        f" AND z.ts2 BETWEEN a.ts - INTERVAL {low} SECONDS AND a.ts + INTERVAL {high} SECONDS"
    )


@st.composite
def _timed_join_groups(draw: st.DrawFn) -> str:
    """Groups by a time, of rows that a join hands on, however late."""
    kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "LEFT SEMI JOIN"]))
    on = draw(st.sampled_from(["a.k = z.k", "a.g = z.g"]))
    shown = "a.k, a.i, a.ts" if "SEMI" in kind else "a.k, a.i, a.ts, z.w, z.ts2"
    if kind == "LEFT JOIN" or draw(st.booleans()):
        low, high = draw(st.sampled_from([(0, 5), (-2, 8)]))
        on += f" AND z.ts2 BETWEEN a.ts - INTERVAL {low} SECONDS AND a.ts + INTERVAL {high} SECONDS"
    # Groups without a time, as an outer join hands them on, never close.
    times = ["ts", "ts2"] if kind == "JOIN" else ["ts"]
    key = draw(
        st.sampled_from(
            [key.replace("ts", time) for key in [*_RISING, _TEN_SECONDS] for time in times]
        )
    )
    return (
        f"SELECT {key} AS h, k, count(*) AS c, sum(i) AS s FROM (SELECT {shown} FROM"
        f" (SELECT * FROM {{t}} WHERE ts IS NOT NULL) a {kind} {{u}} z ON {on}) GROUP BY {key}, k"
    )


def _step(draw: st.DrawFn, sql: str) -> str:
    # Functions over rows as they come are refused where some are taken back later.
    # Spark's check of self-joins takes the sides of a cogroup for one, where one is a join.
    refused = ("map",) if "GROUP BY" in sql else ("cogroup",) if "JOIN" in sql else ()
    return draw(st.sampled_from(sorted(name for name in STEPS if not name.startswith(refused))))


_TEN_SECONDS = "window(ts, '10 seconds')"

_SHAPES = {
    "stateless": _stateless(),
    "explode": _explode(),
    "aggregate": _aggregate(),
    "total": _total(),
    "rollup": _rollup(),
    "chained": _chained(),
    "join": _join(),
    "sets": _sets(),
    "beside static": _beside_static(),
    "distinct": _distinct(),
    "ranked": _ranked(),
    "running": _running(),
    "windowed": _windowed(),
    "dated": _dated(),
    "sessions": _sessions(),
    "time join": _time_join(),
    "groups over joins": _timed_join_groups(),
    "python aggregate": _python_aggregate(),
    "table function": _table_function(),
    "stepped": _stepped(),
}
#: Shapes whose rows are final once the watermark has passed them.
_TIMED = {"windowed", "dated", "sessions", "time join"}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A query with its rows."""
    shape = draw(st.sampled_from(sorted(_SHAPES)))
    sql = draw(_SHAPES[shape])
    mode: Mode = "update"
    watermarks: tuple[tuple[str, str, str], ...] = ()
    if shape in (*_TIMED, "groups over joins") and draw(st.booleans()):
        # Rows of t come in order, those of u nearly. So none is late, and much is closed.
        delay = draw(st.sampled_from(["1 hour", "3 seconds"]))
        watermarks = (("t", "ts", delay), ("u", "ts2", delay))
        is_unbounded = shape == "groups over joins" and "BETWEEN" not in sql  # refused
        mode = "update" if is_unbounded or draw(st.booleans()) else "append"
    return Case(
        sql=sql,
        seed=draw(st.integers(0, 10**6)),
        rows_t=draw(st.sampled_from([0, 1, 5, 12, 30])),
        rows_u=draw(st.sampled_from([0, 3, 10, 20])),
        mode=mode,
        ansi=draw(st.sampled_from([True, True, False])),
        watermarks=watermarks,
        step=_step(draw, sql) if shape == "stepped" else None,
    )
