"""Functions that are new in Spark, or seldom used, against batch Spark; and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_refused
from pyspark.sql import functions as F

pytestmark = pytest.mark.usefixtures("interpreted")

_NAN, _INF = float("nan"), float("inf")
_TEXTS = [
    *(
        "",
        "a",
        "martha",
        "marhta",
        "dixon",
        "dicksonx",
        "日本語",
        "日本",
        "😀a😀",
        "MZXW6YTBOI======",
    ),
    *("mzxw6", "M", "MZ", "MZX", "MZXW", "MZXW6Y", "MZXW6YT", "1890", "M=Z", "M Z X W", "ÄÖ", None),
]


def _table() -> pa.Table:
    rng = random.Random(3)

    def vector() -> list[Any]:
        return [rng.choice([0.0, 1.5, rng.gauss(0, 9)]) for _ in range(rng.choice([0, 3, 9, 17]))]

    pairs = []
    for _ in _TEXTS:
        one = vector()
        two = [rng.gauss(0, 1) for _ in one]
        pairs.append((one, two))
    pairs[0] = ([0.0, 0.0], [1.0, 2.0])
    pairs[1] = ([None, 1.0], [1.0, 2.0])
    pairs[2] = ([_NAN, 1.0], [1.0, _INF])
    ones: list[Any] = [pair[0] for pair in pairs]
    ones[3] = None
    rows = len(_TEXTS)
    numbers = [0, 1, -1, 32768, 32769, -32768, -32769, 2**63 - 1, -(2**63), None]
    blobs = [
        b"",
        b"\x00",
        b"key",
        b"\xff\x80",
        b"ab\xe2\x82",
        b"\xf0\x9f\x98\x80",
        b"\xc0\xaf",
        None,
    ]
    blobs += [b"\xed\xa0\x80", b"x\xf4\x90\x80\x80y", b"\xe2\x28\xa1"]
    return pa.table(
        {
            "s": pa.array(_TEXTS, pa.string()),
            "p": pa.array(rng.sample(_TEXTS, rows), pa.string()),
            "x": pa.array((blobs * 3)[:rows], pa.binary()),
            "l": pa.array((numbers * 3)[:rows], pa.int64()),
            "v": pa.array(ones, pa.list_(pa.float32())),
            "w": pa.array([pair[1] for pair in pairs], pa.list_(pa.float32())),
        }
    )


EXPRESSIONS = [
    *("bitmap_bucket_number(l)", "bitmap_bit_position(l)", "bitmap_count(x)"),
    *("to_base32(x)", "from_base32(s)", "jaro_winkler_similarity(s, p)", "from_base32(null)"),
    *("is_valid_utf8(s)", "make_valid_utf8(s)", "validate_utf8(s)", "try_validate_utf8(p)"),
    *("is_valid_utf8(string(x))", "make_valid_utf8(string(x))", "try_validate_utf8(string(x)) = s"),
    *(f"hmac(x'6b6579', x, '{name}')" for name in ("SHA-256", "sha1", "MD5", "sha512", "SHA-384")),
    *("hmac(encode(concat('k', s), 'utf-8'), x)", "vector_inner_product(v, w)", "vector_norm(v)"),
    *("vector_l2_distance(v, w)", "vector_cosine_similarity(v, w)", "vector_norm(v, 1.0F)"),
    *("vector_norm(v, float('inf'))", "vector_normalize(v)", "vector_normalize(w, 1.0F)"),
    *("vector_normalize(v, float('inf'))", "vector_normalize(v, float(null))"),
]


@pytest.mark.parametrize("ansi", [True, False])
def test_functions_match(spark: Any, ansi: bool) -> None:
    assert_expressions(spark, EXPRESSIONS, _table(), ansi=ansi)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("validate_utf8(string(x))", "INVALID_UTF8_STRING"),
        ("hmac(x'', x)", "INVALID_PARAMETER_VALUE"),
        ("hmac(x, x, s)", "INVALID_PARAMETER_VALUE"),
        ("vector_inner_product(v, array(1.0F))", "VECTOR_DIMENSION_MISMATCH"),
        ("vector_norm(v, 3.0F)", "INVALID_VECTOR_NORM_DEGREE"),
    ],
)
def test_functions_fail_as_spark_does(spark: Any, expression: str, condition: str) -> None:
    assert_fails(spark, expression, _table(), condition)


REFUSED = {
    "hll_sketch_agg(l)": "approx_count_distinct",
    "theta_sketch_agg(l)": "approx_count_distinct",
    "kll_sketch_agg_bigint(l)": "percentile_approx",
    "approx_top_k(s)": "row_number",
    "count_min_sketch(l, 0.1D, 0.9D, 1)": "groupBy",
    "collect_union(v)": "array_distinct",
}


def test_sketches_are_refused_with_what_to_do_instead(spark: Any) -> None:
    for call, remedy in REFUSED.items():
        assert_refused(
            spark,
            lambda t, call=call: t["t"].groupBy("s").agg(F.expr(call)),
            {"t": _table()},
            remedy,
        )
    for call, remedy in {
        "aes_encrypt(x, x)": "pandas_udf",
        "sentences(s)": "split",
        "java_method('java.util.UUID', 'fromString', s)": "F.udf",
        "xpath(s, 'a')": "xml.etree",
        "randstr(5, 1)": "sha2",
        "s collate unicode": "lower",
    }.items():
        assert_refused(spark, lambda t, call=call: t["t"].selectExpr(call), {"t": _table()}, remedy)
    assert_refused(spark, lambda t: t["t"].sample(0.1, 3), {"t": _table()}, "pmod")


def test_what_the_refusals_say_runs(spark: Any) -> None:
    expressions = [
        "pmod(xxhash64(s), 100) < 5",
        "split(s, '[.!?]+\\\\\\\\s*')",
        "array_distinct(flatten(array(filter(v, x -> x is not null))))",
        "sha2(s, 256)",
    ]
    assert_expressions(spark, expressions, _table())
