"""LIKE and regular expressions give what batch Spark, and so java.util.regex, gives."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEXTS = [
    "", "a", "b", "ab", "abc", "aab", "ABC", "aBc", "a%b", "a_b", "a\\b", "axb", "a\nb", "a\r\n",
    "a\n", "a\r", "a\u0085", "a\u2028", "\r\n", "\n", "x=1&channel_id=apple&y=2", "channel_id=",
    "https://www.nexmark.com/a/b/item.htm?query=1&channel_id=77", "2024-01-31", "10-20, 30-40",
    "ñandú", "Ñ", "😀", "a😀b", "😀😀b", "k\u212a", "foo bar  baz", "one, two,three", "aaaa",
    "a.b.c",
    "[x]", "tab\tx", "\x0b", "$1", "(a)", "x\x1cy", "user@example.org", "-a-", "_", "A1b2C3", "ſ",
]  # fmt: skip
_LIKES = ["a%", "%b", "%a%", "a_b", "_", "%", "", "a\\%b", "a\\_b", "a\\\\b", "%\n%", "a😀_", "A%c"]


def _table(seed: int) -> pa.Table:
    rng = random.Random(seed)
    made = ["".join(rng.choices("abAB1 ,-\n\r.ñ😀", k=rng.randrange(10))) for _ in range(60)]
    texts: list[str | None] = [*_TEXTS, *made, None, None]
    rng.shuffle(texts)
    likes = [rng.choice([*_LIKES, None]) for _ in texts]
    return pa.table({"s": pa.array(texts, pa.string()), "p": pa.array(likes, pa.string())})


_LIKE_EXPRESSIONS = [
    "s like 'a%'", "s like '%b'", "s like '%a%'", "s like 'a%b'", "s like 'a_b'", "s like '_'",
    "s like '%'", "s like ''", "s like 'ab'", r"s like r'a\%b'", r"s like r'a\_b%'",
    r"s like r'a\\%'",
    "s like 'a!%b' escape '!'", "s like '%!!%' escape '!'", "s like '_\n_'", "s like '__%_'",
    "s like p",
    "p like '%_'", "s ilike 'AB%'", "s ilike '%Ñ%'", "s ilike '_B%_'", "s ilike p",
    "s like all ('a%', '%b')", "s like any ('a_%', '_b%')", "s not like all ('a_%', '_b%')",
    "s not like any ('a_%', '_b%')", "lower(s) like all ('a_%', '%_b%', '_%b%')",
    "s ilike any ('a_%', '%_B')", "s not ilike all ('a_%', '%_B')", "s like any ('a_b%', p)",
    "s like any ('a_%', NULL, '_b')", "s like all ('_%', NULL, '%_')",
    "s not like all ('_a%', NULL)",
]  # fmt: skip

#: Java patterns of all kinds that are taken, as they stand in a raw SQL string.
_PATTERNS = [
    "a", "ab|b", "a+", "[ab]+", "[^ab]", "[^a]b", "^a", "b$", "^ab?$", "a.b", "(?s)a.b", "^.$",
    "^..$",
    "(?i)abc", "(?i)[a-c]+", "(?i)ñ", "(?i)k", "(?i:A)B", r"\d+", r"\D+", r"\w+", r"\W", r"\s+",
    r"\S+",
    r"[\w.]+@[\w.]+", r"\p{Alpha}+", r"\p{Punct}", r"\P{Alnum}", r"[\p{Upper}\d]+", "a{2}",
    "a{1,2}",
    "a{2,}", "a+?b", "(a|b)+c", "(?:ab)+", "(a)(b)?", "(a*)b", "a++b", "(?>a+)b", "a(?=b)",
    "a(?!b)",
    "(?<=a)b", r"(a|b)\1", r"(?<x>a)\k<x>", r"\Qa.b\E", r"\.", r"\x41", r"\u0041", r"\x{1F600}",
    r"\0101",
    r"\t", r"\Aa", r"a\z", r"a\Z", "😀", "[😀ñ]", "[a-z&]+", r"[\]\[]", "[-a]+", "[a-]", "]",
    "}", "a|",
    "", "x*", "(&|^)channel_id=([^&]*)", r"(\d+)-(\d+)", "[\x1c-\x20]", "[^\\x00-\\x7F]",
]  # fmt: skip
#: Those of them that never match the empty text: all their matches can be found.
_NEVER_EMPTY = [p for p in _PATTERNS if p not in ("a|", "", "x*")]


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@pytest.mark.parametrize("ansi", [True, False])
def test_like_matches(spark: SparkSession, ansi: bool) -> None:
    assert_expressions(spark, _LIKE_EXPRESSIONS, _table(1 + ansi), ansi=ansi, seed=ansi)


def test_rlike_and_first_matches_match_for_all_kinds_of_patterns(spark: SparkSession) -> None:
    expressions = [
        expression
        for pattern in _PATTERNS
        for expression in (f"s rlike r'{pattern}'", f"regexp_extract(s, r'{pattern}', 0)")
    ]
    for number, part in enumerate(_chunks(expressions, 70)):
        assert_expressions(spark, part, _table(number), seed=number)


def test_all_matches_match_for_all_kinds_of_patterns(spark: SparkSession) -> None:
    expressions = [
        expression
        for pattern in _NEVER_EMPTY
        for expression in (
            f"regexp_extract_all(s, r'{pattern}', 0)",
            f"regexp_replace(s, r'{pattern}', '<$0>')",
        )
    ]
    for number, part in enumerate(_chunks(expressions, 70)):
        assert_expressions(spark, part, _table(number), seed=number)


@pytest.mark.parametrize("ansi", [True, False])
def test_regular_expression_functions_match(spark: SparkSession, ansi: bool) -> None:
    expressions = [
        "regexp_like(s, 'a.b')", "regexp(s, '^a')", r"regexp_extract(s, r'(\d+)-(\d+)')",
        r"regexp_extract(s, r'(\d+)-(\d+)', 2)",
        "regexp_extract(s, '(&|^)channel_id=([^&]*)', 2)",
        "regexp_extract(s, '(a)(b)?(c)?$', 2)", "regexp_extract(s, '(a)|(b)', 2)",
        r"regexp_extract_all(s, r'(\d+)-(\d+)')", r"regexp_extract_all(s, r'(\d+)-(\d+)', 2)",
        "regexp_extract_all(s, '(a)|(b)', 2)", "regexp_count(s, 'a')",
        "regexp_count(s, '[ab]{2}')",
        "regexp_instr(s, 'b')", "regexp_instr(s, 'b$')", "regexp_substr(s, 'a.')",
        "regexp_substr(s, 'z')",
        "regexp_replace(s, '(a)(b)', '$2$1')", "regexp_replace(s, 'a', '')",
        "regexp_replace(s, 'a', replace(s, '$'))",
        "regexp_replace(s, 'a', r'\\$')",
        r"regexp_replace(s, 'a', r'\\\\')", "regexp_replace(s, '(?<n>a)', '${n}${n}')",
        "regexp_replace(s, '(a)', '$10')", "regexp_replace(s, '^.', '', 2)",
        "regexp_replace(s, 'a', 'x', 3)",
        r"regexp_replace(s, r'^\s+|\s+$', '')", r"regexp_replace(s, r'^\s*', '_')",
        "split(s, ',')", r"split(s, r'\.')", r"split(s, r'\s*,\s*')", "split(s, '[ab]')",
        "split(s, '')",
        "split(s, 'b', 2)", "split(s, 'b', 1)", "split(s, '', 2)", "split(s, '[ab]', 2)",
        "split(s, 'a', 0)",
        "split(s, 'a$')", "size(split(s, '/'))", "length(s) - length(replace(s, 'c', ''))",
    ]  # fmt: skip
    assert_expressions(spark, expressions, _table(8 + ansi), ansi=ansi, seed=ansi)


def test_patterns_take_empty_batches(spark: SparkSession) -> None:
    expressions = [
        *_LIKE_EXPRESSIONS,
        "regexp_extract(s, '(a)', 1)",
        "split(s, ',')",
        "split(s, 'a+')",
    ]
    assert_expressions(spark, expressions, _table(1).slice(0, 0))


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("s like p", "INVALID_FORMAT"),
        ("regexp_extract(s, 'a(b)', 2)", "INVALID_PARAMETER_VALUE"),
        ("regexp_extract(s, 'a(b)', -1)", "INVALID_PARAMETER_VALUE"),
        ("regexp_extract_all(s, 'ab', 1)", "INVALID_PARAMETER_VALUE"),
        ("regexp_replace(s, 'a', '$1')", "INVALID_REGEXP_REPLACE"),
        ("regexp_replace(s, 'a', '$')", "INVALID_REGEXP_REPLACE"),
    ],
)
def test_patterns_fail_as_spark_does(spark: SparkSession, expression: str, condition: str) -> None:
    table = pa.table({"s": ["x", "ab"], "p": ["%", "a\\"]})
    assert_fails(spark, expression, table, condition)


def test_a_missing_group_matters_only_where_the_pattern_matches(spark: SparkSession) -> None:
    table = pa.table({"s": ["x", None, "y"]})
    expressions = ["regexp_extract(s, 'a(b)', 2)", "regexp_replace(s, 'a', '$1')"]
    assert_expressions(spark, expressions, table)
