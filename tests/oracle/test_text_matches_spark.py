"""Functions over strings and binaries give what batch Spark gives, in ANSI mode and without it."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 90
_TEXTS = [
    "", " ", "a", "A", "abc", "aBc dEF", "  padded  ", "a,b,,c", ",", "a.b.c", "aaaa", "aaa",
    "ñandú", "straße", "ǆ ǅ ﬁx", "ΣΟΦΟΣ ΑΣ", "İstanbul ı", "日本語テキスト", "😀x😀", "x😀y z",
    "e\u0301a",
    "\ta\n", "O'Brien's", "hello world", "Robert", "Rupert", "Tymczak", "Pfister", "Honeyman",
    "http://a.b/c?d=e&f=g#h", "100%", "a+b c~d*e", "%41%c3%a9+%20", "49927398716", "1234", "١٢",
    "YWJj", "ff", "0A1", "xyxhixy", "null", "a\u00a0b", "\u1c8a\ua7db\U00010d70",
]  # fmt: skip
_BYTES = [b"", b"a", b"abc", b"\x00\xff", "ñ".encode(), b"abcabc", bytes(range(60)), b"\x00" * 80]
_INTS = [0, 1, 2, 3, 5, 7, -1, -2, -3, -10, 100]
_DOUBLES = [
    0.0, -0.0, 1.5, 2.5, 5.27401990262979e18, 2.0**-44, -2.5, 0.125, 1234567.891, -1e-7, 1e22,
    1.005, 0.5, 1.2345678901234567e25, float("nan"), float("inf"), float("-inf"), 5e-324,
    1.7976931348623157e308, 999999.995,
]  # fmt: skip


def _some(rng: random.Random, values: list[object]) -> list[object]:
    return [None if rng.random() < 0.1 else rng.choice(values) for _ in range(_ROWS)]


def _table(seed: int) -> pa.Table:
    rng = random.Random(seed)
    texts = [*_TEXTS, *("".join(rng.choices("abA ,.ñ😀", k=rng.randrange(9))) for _ in range(30))]
    s = [*_TEXTS, *_some(rng, texts)][:_ROWS]
    longs = [0, 1, -1, 255, 256, 65, 233, 2**63 - 1, -(2**63), 1000]
    return pa.table(
        {
            "s": pa.array(s, pa.string()),
            "u": pa.array(_some(rng, texts), pa.string()),
            "v": pa.array(_some(rng, ["a", "", ",", "aa", "b", "x", " ", "ñ", "😀"]), pa.string()),
            "b": pa.array(_some(rng, _BYTES), pa.binary()),
            "c": pa.array(_some(rng, _BYTES[:5]), pa.binary()),
            "i": pa.array(_some(rng, _INTS), pa.int32()),
            "j": pa.array(_some(rng, _INTS), pa.int32()),
            "x": pa.array(_some(rng, [-(2**31), 2**31 - 1, 1 - 2**31, 2, -2]), pa.int32()),
            "k": pa.array([rng.choice([1, 2]) for _ in range(_ROWS)], pa.int32()),
            "l": pa.array(_some(rng, longs), pa.int64()),
            "y": pa.array(_some(rng, [0, 1, -1, 127, -128]), pa.int8()),
            "d": pa.array(_some(rng, _DOUBLES), pa.float64()),
            "f": pa.array(_some(rng, [0.0, 1.5, -2.25, 0.1, 1e10]), pa.float32()),
            "m": pa.array(
                _some(rng, [Decimal("0.00"), Decimal("12345.65"), Decimal("-0.05")]),
                pa.decimal128(12, 2),
            ),
            "t": pa.array(_some(rng, [True, False]), pa.bool_()),
            "a": pa.array(
                [rng.choice([None, [], ["x"], ["x", None, "😀"], [None]]) for _ in range(_ROWS)],
                pa.list_(pa.string()),
            ),
        }
    )


_CASE_AND_LENGTH = [
    "upper(s)", "ucase(u)", "lower(s)", "lcase(u)", "initcap(s)", "initcap(u)", "length(s)",
    "len(s)", "char_length(u)", "character_length(s)", "length(b)", "octet_length(s)",
    "octet_length(b)", "bit_length(s)", "bit_length(b)", "reverse(s)", "reverse(a)", "ascii(s)",
    "chr(l)", "char(i)", "space(i)", "repeat(s, i)", "repeat(s, 2)", "repeat('ab', i)",
    "upper(v)",
    "mask(s)", "mask(s, 'Q', 'q', '#', '*')", "mask(s, NULL, '😀', NULL, '-')", "quote(s)",
]  # fmt: skip
_CUTTING = [
    "substring(s, i, j)", "substring(s, 2)", "substring(s, 2, 3)", "substring(s, -3, 2)",
    "substring(s, -2)", "substring(s, 0, 2)", "substring(s, 3, -1)", "substring(s, -9, 8)",
    "substr(s, i)", "left(s, i)", "left(s, 2)", "right(s, i)", "right(s, 2)",
    "substring(b, i, j)",
    "substr(b, 2, 3)", "substr(b, -2, 5)", "left(b, 2)", "substring('añ😀b', i, j)",
    "substring(s, NULL, 2)", "overlay(s placing u from i)",
    "overlay(s placing 'XY' from i for j)",
    "overlay(b placing c from i for j)", "overlay(s placing v from 2)",
    "substring_index(s, '.', i)",
    "substring_index(s, v, i)", "substring_index(s, 'aa', 2)", "substring_index(s, 'aa', -2)",
    "substring(s, x, j)", "substring(b, x, x)", "substring(s, i, x)", "left(s, x)", "right(s, x)",
    "overlay(s placing u from x for x)", "overlay(b placing c from x for j)", "locate('a', s, x)",
    "split_part(s, ',', k)", "split_part(s, v, -1)", "split_part(s, '.', 2)",
    "split_part(s, v, 9)",
]  # fmt: skip
_JOINING = [
    "concat(s, u)", "concat(s, '-', u, 'ñ')", "s || u", "concat(b, c)", "concat(a, a)",
    "concat(s)",
    "concat_ws(',', s, u)", "concat_ws('', s, u)", "concat_ws('--', s, NULL, u, 'x')",
    "concat_ws(v, s, u)", "concat_ws(',', a)", "concat_ws(',', s, a, u)", "concat_ws(',')",
    "concat_ws(NULL, s)", "concat_ws('😀', s, v, u)", "lpad(s, 5)", "rpad(s, 5)",
    "lpad(s, 5, 'ñ')",
    "rpad(s, 3, '😀')", "lpad(s, i, v)", "rpad(s, j, v)", "lpad(s, 7, 'xyz')",
    "rpad(s, 7, 'xyz')",
    "lpad(s, 4, '')", "lpad(s, -1)", "lpad(b, 5)", "rpad(b, 5)", "lpad(b, k, c)", "rpad(b, 9, c)",
    "elt(k, s, u)", "elt(k, b, c)", "elt(k, s, 'x', u)",
]  # fmt: skip
_TRIMMING_AND_SEARCHING = [
    "trim(s)", "ltrim(s)", "rtrim(s)", "btrim(s)", "btrim(s, 'ab')", "trim(both 'xy' from s)",
    "trim(leading v from s)", "trim(trailing 'c😀' from s)", "ltrim('', s)", "trim(v from u)",
    "instr(s, 'b')", "instr(s, v)", "instr(s, '')", "instr(s, 'a', i, 1)",
    "instr(s, 'aa', i, k)", "instr(s, v, j, k)", "locate('a', s)", "locate(v, s, i)",
    "locate('a', s, 2)", "locate('', s, 3)", "position('😀' in s)", "position(v, u)",
    "find_in_set(v, s)", "find_in_set('b', s)", "replace(s, 'a', 'xx')", "replace(s, v)",
    "replace(s, v, u)", "replace(s, '', 'x')", "translate(s, 'abñ', 'x😀')", "translate(s, v, u)",
    "startswith(s, 'a')", "startswith(s, v)", "startswith(b, c)", "endswith(s, 'c')",
    "endswith(s, v)", "endswith(b, c)", "contains(s, 'b')", "contains(s, v)", "contains(b, c)",
    "startswith(b, X'61')", "contains(b, X'6263')", "startswith(s, NULL)", "startswith('abc', v)",
]  # fmt: skip
_LIKENESS_AND_ENCODING = [
    "levenshtein(s, u)", "levenshtein(s, v)", "levenshtein(s, u, 4)", "soundex(s)", "soundex(u)",
    "hex(s)", "hex(b)", "hex(l)", "hex(i)", "unhex(s)", "unhex(hex(b))", "base64(b)",
    "unbase64(base64(b))", "base64(encode(s, 'UTF-8'))", "encode(s, 'UTF-8')",
    "encode(s, 'utf-16')",
    "encode(s, 'UTF-16LE')", "encode(s, 'UTF-16BE')", "encode(s, 'UTF-32')",
    "decode(encode(s, 'UTF-8'), 'UTF-8')", "decode(encode(s, 'utf-16'), 'UTF-16')",
    "decode(encode(s, 'utf-32'), 'UTF-32')", "decode(b, 'ISO-8859-1')",
    "to_binary(hex(s), 'hex')",
    "to_binary(base64(b), 'base64')", "try_to_binary(s, 'hex')", "try_to_binary(s, 'base64')",
    "to_binary(s, 'utf-8')", "url_encode(s)",
    "try_url_decode(s)",
    "url_decode(url_encode(s))", "luhn_check(s)",
]  # fmt: skip
_PRINTING = [
    "format_string('%s and %s', s, u)",
    "format_string('%d|%5d|%-5d|%05d|%,d|%+d|% d', i, i, i, i, l, l, i)",
    "format_string('%10s|%-10s|%.2s|%1$s', s, u, s)", "format_string('%x %X %o', i, l, i)",
    "format_string('%x', y)",
    "format_string('%f %.2f %10.3f %,.1f %+.0f %012.2f', d, d, d, d, d, d)",
    "format_string('%b %b %s %%', t, s, t)", "printf('%.3f', f)",
    "printf('%s|%12s|%.3s', d, f, d)", "printf('no arguments')",
    "format_number(d, 2)", "format_number(d, 0)", "format_number(d, i)", "format_number(f, 3)",
    "format_number(l, 1)", "format_number(i, 0)", "format_number(m, 1)", "format_number(m, 4)",
    "format_number(d, '#,##0.00##')", "format_number(d, '0000.#')", "format_number(l, '#,###0')",
    "format_number(d, '')",
]  # fmt: skip


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize(
    "expressions",
    [
        pytest.param(_CASE_AND_LENGTH, id="case and length"),
        pytest.param(_CUTTING, id="cutting"),
        pytest.param(_JOINING, id="joining"),
        pytest.param(_TRIMMING_AND_SEARCHING, id="trimming and searching"),
        pytest.param(_LIKENESS_AND_ENCODING, id="likeness and encoding"),
        pytest.param(_PRINTING, id="printing"),
    ],
)
def test_text_functions_match(spark: SparkSession, expressions: list[str], ansi: bool) -> None:
    assert_expressions(spark, expressions, _table(3 + ansi), ansi=ansi, seed=5 + ansi)


def test_text_functions_take_empty_batches(spark: SparkSession) -> None:
    expressions = [*_CUTTING[:3], *_JOINING[:8], *_TRIMMING_AND_SEARCHING[:14]]
    assert_expressions(spark, expressions, _table(1).slice(0, 0))


_URLS = [
    "http://user:pw@www.example.com:80/a/b%20c?k=1&x=2&k=3#top", "https://[::1%eth0]:8/p",
    "//h/p?q",
    "mailto:a@b.c", "/only/path", "", "http:", "http://", "http:///p", "http://1.2.3.4/",
    "ht tp://x",
    "http://1.2.3/", "http://a_b.c/d", "http://é.com/ü?ñ=1#😀", "http://h:x/", "http://h/%zz",
    "a?b#",
    "http://h?k=&kk=5", "http://a-.b/", "http://[::1/", "x://h/[y]", "http://h/?k=[1]",
    "http://@h/",
    "https://www.nexmark.com/a/b/item.htm?query=1&channel_id=77", "http://h. /", "#f", "?q", ":x",
]  # fmt: skip


@pytest.mark.parametrize("function", ["parse_url", "try_parse_url"])
def test_parse_url_matches(spark: SparkSession, function: str) -> None:
    table = pa.table({"s": pa.array([*_URLS, None], pa.string())})
    parts = ["HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO", "host"]
    expressions = [f"{function}(s, '{part}')" for part in parts]
    expressions += [f"{function}(s, 'QUERY', 'k')", f"{function}(s, 'HOST', 'k')"]
    assert_expressions(spark, expressions, table, ansi=False)


def test_elt_beyond_its_arguments_is_null_without_ansi(spark: SparkSession) -> None:
    assert_expressions(spark, ["elt(i, s, u)", "elt(j, b, c)"], _table(4), ansi=False)


def test_elt_evaluates_only_what_it_chooses(spark: SparkSession) -> None:
    table = pa.table({"k": pa.array([1, 1], pa.int32()), "s": ["zz", "yy"]})
    assert_expressions(spark, ["elt(k, s, decode(encode(s, 'utf-16'), 'us-ascii'))"], table)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("elt(n, s, s)", "INVALID_ARRAY_INDEX"),
        ("to_binary(s, 'hex')", "CONVERSION_INVALID_INPUT"),
        ("to_binary(s, 'base64')", "CONVERSION_INVALID_INPUT"),
        ("encode(s, 'US-ASCII')", "MALFORMED_CHARACTER_CODING"),
        ("decode(unhex('FF'||hex(s)), 'UTF-8')", "MALFORMED_CHARACTER_CODING"),
        ("url_decode(s)", "CANNOT_DECODE_URL"),
        ("instr(s, 'z', 1, n - 3)", "INVALID_PARAMETER_VALUE"),
        ("parse_url(s, 'HOST')", "INVALID_URL"),
        ("split_part(s, 'a', n - 3)", "INVALID_INDEX_OF_ZERO"),
    ],
)
def test_text_functions_fail_as_spark_does(
    spark: SparkSession, expression: str, condition: str
) -> None:
    table = pa.table({"s": ["é%zz"], "n": pa.array([3], pa.int32())})
    assert_fails(spark, expression, table, condition)


def test_upper_lower_and_initcap_know_all_of_unicode(spark: SparkSession) -> None:
    codes = [c for c in range(0x80, 0x20000) if not 0xD800 <= c <= 0xDFFF]
    lines = ["".join(map(chr, codes[start : start + 64])) for start in range(0, len(codes), 64)]
    spaced = [" ".join(line) for line in lines]
    table = pa.table({"s": lines, "u": spaced})
    assert_expressions(spark, ["upper(s)", "lower(s)", "initcap(u)", "mask(s)"], table)
