"""Unicode classes, words, lines, nested classes and flags in patterns, as Java has them."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_refused, sql

from penstock.ops.functions.java_patterns import compiled, parse

_TEXTS = [
    "", "a", "foo", "foo bar", "x-foo", "foo_bar", "foofoo", "föö", "éfoo", "fooé", "foo.bar",
    "e\u0301foo", "foo\u0301", "\u0301foo", "_\u0301foo", "fo\u0301\u0301\u0308o bar", "日本foo",
    "²foo", "Ⅷfoo", "٣foo", "foo😀bar", "😀", "𝒜b", "ÀÉÎ", "ñandú 12", "Straße", "Ωmega", "Привет",
    "a\nb", "a\r\nb", "a\rb\n", "\n", "\r\n", "a\n\nb", "a\u0085b", "a\u2028b\u2029", "a\u000bb",
    "a b", "a\u00a0b", "a\u3000b", "\ta", "a\x1cb", "1,234", "x²", "€5", "«a»", "a—b", "!?", "\x00",
    "ab12cd", "AEIOU", "bcd", "a-z", "[a]", "a&b", "a&&b", "^a", "ǅ", "ª", "ﬁ", "\u200d", "‿", "Ⓐ",
    "ひらがな", "カタカナ", "한글", "漢字", "עברית", "العربية", "ΑΒΓ", "\ue000", "0xFＦ",
    "\U000e0100",
]  # fmt: skip


def _table(seed: int) -> pa.Table:
    rng = random.Random(seed)
    letters = "ab_ 1é日\u0301\n\r😀A-²&"
    made = ["".join(rng.choices(letters, k=rng.randrange(1, 9))) for _ in range(80)]
    return pa.table({"s": pa.array([*_TEXTS, *made, None], pa.string())})


_CLASSES = [
    "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "N", "Nd", "Nl", "No", "P", "Pd", "Pc", "S",
    "Sc", "Sm", "Z", "Zs", "Zl", "C", "Cc", "Co", "Cn", "LC", "LD", "L1", "all", "ASCII", "Alnum",
    "IsL", "IsLu", "IsAlphabetic", "IsLetter", "IsDigit", "IsUppercase", "IsLowercase",
    "IsIdeographic",
    "IsPunctuation", "IsWhite_Space", "IsControl", "IsTitlecase", "IsAssigned", "IsHex_Digit",
    "IsLatin", "IsGreek", "IsCyrillic", "IsHan", "IsHiragana", "IsKatakana", "IsHangul", "IsArabic",
    "IsHebrew", "script=Latin", "sc=HAN", "gc=Lu", "general_category=Nd", "javaLetter", "javaDigit",
    "javaLowerCase", "javaUpperCase", "javaWhitespace", "javaLetterOrDigit", "javaSpaceChar",
    "javaAlphabetic", "javaISOControl", "javaDefined", "IsJoin_Control",
]  # fmt: skip
_PATTERNS = [
    r"\pL+", r"\PL+", r"\p{L}\p{N}", r"[\p{L}\p{Nd}_]+", r"[^\p{L}]+", r"(?i)\p{L}b", r"^\p{L}+$",
    r"\bfoo\b", r"\bfoo", r"foo\b", r"\Bfoo", r"foo\B", r"\B", r"\b", r"\b\w", r"\w+\b", r"^\b",
    r"\b$",
    r"(?<!\w)foo(?!\w)", r"(?<!a)b", r"\b(a|b)\b", r"(?i)\bFOO\b", r"(?U)\w+", r"(?U)\bfoo\b",
    r"(?U)\d+", r"(?U)\s", r"(?U)\S+", r"(?U)\W", r"(?U)\D+", r"(?U)\p{Lower}+", r"(?U)\p{Upper}",
    r"(?U)\p{Alpha}+", r"(?U)\p{Punct}", r"(?U)\p{Graph}+", r"(?U)\p{Print}+", r"(?U)\p{Blank}",
    r"(?U)\p{Cntrl}", r"(?U)\p{XDigit}+", r"(?U)\p{Space}", r"(?U)\p{Alnum}+", r"(?U)\p{Digit}",
    r"(?U:\w)\w", r"(?U)a(?-U)\w+",
    "(?m)^a", "(?m)a$", "(?m)^b$", "(?m)^", "(?m)$", "(?m)^$", "(?ms)a.b", "(?m)^.*$", "(?sm)^.+$",
    "(?m)(?-m)^b", "a(?i)b", "(?i)a(?-i)B|A", "((?i)a)b", "x|(?i)foo|BAR", "(?s)a(?-s).b",
    "[a-z&&[^aeiou]]+", "[a-z&&[def]]", "[a-z&&^b]", "[^a-z&&[a-m]]", "[a[bc]]+", "[a-c[x-z]1]+",
    "[^a[b]]", "[[a][b]]", "[[^a]&&[^b]]+", "[a-z&&b-y&&c-x]+", "[a-z&&[b-y]&&[c-x]]+", "[&a]",
    "[a&]",
    r"[\w&&[^\d]]+", r"[\p{L}&&[^\p{Lu}]]+", r"(?s)^\s*", "(?i)[a-z&&[^B]]+", "[&&a]",
    "[a-z&&[b][c]]",
    r"\h", r"\H+", r"\v", r"\V+", r"\R", r"a\Rb", r"\R+", r"[\h\v]+", r"\cA", r"\c@", r"[^\h]+",
    r"[\u00e0-\u00ff]+", r"[\x{1F600}-\x{1F64F}]", r"\P{ASCII}",
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
def test_patterns_match(spark: Any, seed: int) -> None:
    written = [rf"\p{{{name}}}" for name in _CLASSES] + [rf"\P{{{name}}}" for name in _CLASSES]
    written = written[seed::2] + _PATTERNS[seed::2]
    expressions = [f"regexp_extract(s, r'({p})', 1)" for p in written]
    expressions += [f"s rlike r'{p}'" for p in _PATTERNS[seed::2]]
    for place in range(0, len(expressions), 80):
        assert_expressions(spark, expressions[place : place + 80], _table(seed), seed=seed)


def test_all_matches_of_words_and_classes_match(spark: Any) -> None:
    patterns = [
        r"\b\w+\b",
        r"\bfoo\b",
        r"\p{L}+",
        r"[\p{L}&&[^a-z]]",
        r"\P{L}+",
        r"(?m)^.+$",
        r"\R",
    ]
    expressions = [f"regexp_replace(s, r'{p}', '<$0>')" for p in patterns]
    expressions += [f"regexp_count(s, r'{p}')" for p in patterns]
    expressions += [f"regexp_instr(s, r'{p}')" for p in patterns]
    expressions += [f"split(s, r'{p}')" for p in patterns]
    for table in (_table(2), pa.table({"s": pa.array(["foo bar", "a foo.", "", None])})):
        assert_expressions(spark, expressions, table, ansi=False)


def test_every_category_is_javas_for_characters_that_both_know(spark: Any) -> None:
    """A sample of all characters that are older than the Unicode of Java 17."""
    old = unicodedata.ucd_3_2_0.category
    codes = [c for c in range(0x110000) if old(chr(c)) not in ("Cn", "Cs")][::41]
    table = pa.table({"s": pa.array([chr(code) for code in codes])})
    names = [
        "L",
        "Lu",
        "M",
        "N",
        "Nd",
        "P",
        "S",
        "Z",
        "C",
        "IsAlphabetic",
        "IsUppercase",
        "IsLatin",
    ]
    expressions = [rf"s rlike r'^\p{{{name}}}$'" for name in names]
    expressions += [r"s rlike r'\b'", r"s rlike r'(?U)\w'", r"s rlike r'(?U)\p{Graph}'"]
    assert_expressions(spark, expressions, table)


def test_words_are_ascii_from_java_19_on() -> None:
    for text, old, new in [
        ("éfoo", False, True),
        ("e\u0301foo", False, False),
        ("²foo", True, True),
    ]:
        assert (compiled(r"\bfoo", False).search(text) is not None) is old
        assert (compiled(r"\bfoo", True).search(text) is not None) is new
    assert parse(r"\bfoo\b").ascii_text == r"\bfoo\b"
    assert not parse(r"\bfoo\b").is_plain


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"\p{IsThai}", "Unicode property IsThai: write the characters as ranges"),
        (r"\p{InGreek}", "Unicode property InGreek"),
        (r"(?i)\p{Lu}", "ignoring case"),
        (r"(?iU)a", "together with"),
        (r"\X", r"\\X"),
        (r"\G", r"\\G"),
        (r"(?x)a b", r"\(\?"),
        (r"[a&&]", "&& without"),
        (r"[\p{L}--x]", "begins with a class"),
        (r"\b{g}", r"\\b"),
    ],
)
def test_what_is_refused(spark: Any, pattern: str, reason: str) -> None:
    query = sql(f"SELECT s rlike r'{pattern}' FROM t")
    assert_refused(spark, query, {"t": pa.table({"s": ["a"]})}, reason)
