"""JSON and CSV texts drawn by chance: whatever they are, our answer is batch Spark's.

Many texts make one table, so that a draw costs one run of Spark. `make test` looks at one draw;
`make soak` goes on with others.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions
from harness.soak import fresh_seeds

pytestmark = pytest.mark.usefixtures("interpreted")

NAMES = ["i", "s", "d", "b", "t", "dt", "c", "a", "m", "o", "é", "x y", ""]
SCALARS = r"""
0 -0 -0.0 1 -1 1.0 1e2 1.5 1E400 -1e-400 2147483648 9223372036854775807 9223372036854775808
123456789012345678901234567890 0.1 1.10 100000000000000000000.5 12345678.125 01 .5 5. 0. 1e 1.5e+
+1 --1 NaN Infinity -INF +INF true false tru True null nul "" "x" "NaN" "-Infinity" "1" "1.5"
"true" "1,234.5" "\u0041" "\ud83d\ude00" "\ud800" "\q" "\u12" "a\nb" "é日😀" "2024-01-02"
"2024-02-30" "2024-01-02T03:04:05" "2024-01-02T03:04:05Z" "2024-01-02T03:04" "2024-1-2" "2024"
"2024-01-02T03:04:05.123456789+01:00" "0000-00-00" "aGVsbG8=" 'x' x {} [] [1,2] [1,"x"] [null]
{"x":1} {"x":"y","x":2} [{"x":1},{}] [[1],[2]] [["é😀"]] /**/1 //
""".strip().split()
SCHEMA = (
    "i int, s string, b boolean, t timestamp, dt date, c decimal(10,2), a array<int>,"
    " m map<string,string>, o struct<x:int,y:string>"
)


def draw_value(rng: random.Random, depth: int) -> str:
    if depth and rng.random() < 0.2:
        return draw_json(rng, depth - 1)
    if depth and rng.random() < 0.1:
        inner = ",".join(draw_value(rng, depth - 1) for _ in range(rng.randrange(4)))
        return f"[{inner}]"
    if rng.random() < 0.2:
        number = rng.random() * 10 ** rng.randrange(-9, 20)
        return json.dumps(rng.choice([number, rng.getrandbits(70)]))
    return rng.choice(SCALARS)


def draw_json(rng: random.Random, depth: int = 2) -> str:
    """An object with names that the schema knows, mostly right."""
    blank = rng.choice(["", "", " ", "\t", "\n"])
    fields = []
    for _ in range(rng.randrange(5)):
        quote = "'" if rng.random() < 0.05 else '"'
        name = rng.choice(NAMES)
        fields.append(f"{blank}{quote}{name}{quote}{blank}:{blank}{draw_value(rng, depth)}")
    return "{" + ",".join(fields) + "}"


def spoil(rng: random.Random, text: str, alphabet: str) -> str:
    """Sometimes cut off, doubled, or with one character changed."""
    kind = rng.randrange(8)
    place = rng.randrange(len(text) + 1)
    if kind == 0:
        return text[:place]
    if kind == 1:
        return text[:place] + rng.choice(alphabet) + text[place:]
    if kind == 2:
        return text[:place] + rng.choice(alphabet) + text[place + 1 :]
    return f"{text}{rng.choice(['', ' ', text, 'x'])}" if kind == 3 else text


def draw_line(rng: random.Random) -> str:
    alphabet = 'a1,2"\\ é.-#;\n\t'
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(14)))


def check_json(spark: Any, seed: int, rows: int) -> None:
    rng = random.Random(seed)
    texts = [spoil(rng, draw_json(rng), "{}[]\":,\\ x1e-'/") for _ in range(rows)]
    # A damaged escape in a field that nobody asks for depends on what Spark's optimizer has pruned.
    table = pa.table({"j": texts})
    calls = [
        f"from_json(j, '{SCHEMA}')",
        f"from_json(j, '{SCHEMA}, _corrupt_record string')",
        f"from_json(j, '{SCHEMA}', map('allowComments', 'true', 'allowSingleQuotes', 'false'))",
        "from_json(j, 'd double, s float, i decimal(38,18), c bigint, b smallint')",
        "from_json(j, 'map<string,string>')",
        "from_json(j, 'array<struct<i:int,s:string>>')",
        "get_json_object(j, '$.a[*]')",
        "get_json_object(j, '$.o.x')",
        "get_json_object(j, '$.s')",
        "json_object_keys(j)",
        "json_array_length(j)",
        "to_json(from_json(j, 'i int, s string, d double, a array<int>, m map<string,string>'))",
    ]
    assert_expressions(spark, calls, table, ansi=seed % 2 == 0, seed=seed)


def check_csv(spark: Any, seed: int, rows: int) -> None:
    rng = random.Random(seed)
    # No line ends with a quote: of these, Spark's reader keeps something for the next line.
    lines = [line for line in (draw_line(rng) for _ in range(rows)) if not line.endswith('"')]
    table = pa.table({"j": lines, "k": [draw_line(rng) for _ in lines]})
    options = [
        "'sep', ';'",
        "'escape', '\"'",
        "'ignoreLeadingWhiteSpace', 'true'",
        "'ignoreLeadingWhiteSpace', 'true', 'ignoreTrailingWhiteSpace', 'true'",
        "'nullValue', 'a', 'emptyValue', 'e'",
        "'comment', '#'",
    ]
    calls = ["from_csv(j, 'a int, _corrupt_record string, b string')"]
    calls += [f"from_csv(j, 'a string, b double, c string', map({given}))" for given in options]
    calls += [f"to_csv(struct(j, k), map({given}))" for given in options]
    assert_expressions(spark, calls, table, ansi=seed % 2 == 0, seed=seed)


def test_a_few(spark: Any) -> None:
    check_json(spark, 1, 150)
    check_csv(spark, 1, 150)


@pytest.mark.soak
def test_many(spark: Any) -> None:
    for seed in fresh_seeds():
        check_json(spark, seed, 2000)
        check_csv(spark, seed, 2000)
