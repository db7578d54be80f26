"""hash, xxhash64 and the digests give Spark's bits for values of every type."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 120


def _table(seed: int) -> pa.Table:
    rng = random.Random(seed)

    def some(values: list[object], type: pa.DataType) -> pa.Array:
        return pa.array(
            [None if rng.random() < 0.1 else rng.choice(values) for _ in range(_ROWS)], type
        )

    def integers(bits: int) -> list[object]:
        high = 2 ** (bits - 1)
        return [0, 1, -1, high - 1, -high, *(rng.randrange(-high, high) for _ in range(20))]

    texts = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "ñ",
        "日本語",
        "😀",
        *("x" * n + "é" for n in range(7, 90, 5)),
    ]
    floats = [0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 0.1, 1e-40]
    wide = [Decimal(n).scaleb(-5) for n in (0, 1, -1, 127, 128, -128, -129, 255, 10**37, -(10**37))]
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
    columns = {
        "t": some([True, False], pa.bool_()),
        "y": some(integers(8), pa.int8()),
        "h": some(integers(16), pa.int16()),
        "i": some(integers(32), pa.int32()),
        "l": some(integers(64), pa.int64()),
        "f": some(floats, pa.float32()),
        "d": some([*floats, 5e-324], pa.float64()),
        "s": some(texts, pa.string()),
        "b": some([text.encode("utf-16") for text in texts], pa.binary()),
        "m": some(
            [Decimal("1.25"), Decimal("-99999999.99"), Decimal("0.00")], pa.decimal128(10, 2)
        ),
        "w": some(wide, pa.decimal128(38, 5)),
        "day": some(
            [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(2024, 2, 29)],
            pa.date32(),
        ),
        "ts": some([moment, datetime.datetime(2024, 1, 1)], pa.timestamp("us", tz="UTC")),
        "ntz": some([moment, datetime.datetime(2024, 1, 1)], pa.timestamp("us")),
        "dt": some([datetime.timedelta(0), datetime.timedelta(-1, 5, 7)], pa.duration("us")),
        "a": some([[], ["a"], ["a", None, "bc"], [None], ["ñ"] * 40], pa.list_(pa.string())),
        "r": some(
            [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": None, "y": None}],
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
        ),
        "n": some(
            [[], [{"x": [1.5, None], "y": None}, None], [{"x": None, "y": Decimal("7.5")}]],
            pa.list_(pa.struct([("x", pa.list_(pa.float64())), ("y", pa.decimal128(20, 1))])),
        ),
    }
    return pa.table(columns)


_COLUMNS = _table(0).column_names


@pytest.mark.parametrize("ansi", [True, False])
def test_hash_has_sparks_bits_for_every_type(spark: SparkSession, ansi: bool) -> None:
    together = ", ".join(_COLUMNS)
    expressions = [
        *(f"hash({name})" for name in _COLUMNS),
        f"hash({together})",
        "hash(s, i, s)",
        "hash('constant', l)",
        "hash(NULL, i)",
        "hash(i % 7, upper(s))",
    ]
    assert_expressions(spark, expressions, _table(1 + ansi), ansi=ansi, seed=2 + ansi)


@pytest.mark.parametrize("ansi", [True, False])
def test_xxhash64_has_sparks_bits_for_every_type(spark: SparkSession, ansi: bool) -> None:
    together = ", ".join(_COLUMNS)
    expressions = [
        *(f"xxhash64({name})" for name in _COLUMNS),
        f"xxhash64({together})",
        "xxhash64(s, i, s)",
        "xxhash64('constant', l)",
    ]
    assert_expressions(spark, expressions, _table(3 + ansi), ansi=ansi, seed=4 + ansi)


@pytest.mark.parametrize("ansi", [True, False])
def test_digests_match(spark: SparkSession, ansi: bool) -> None:
    expressions = [
        "md5(s)", "md5(b)", "sha1(s)", "sha(b)", "crc32(s)", "crc32(b)", "sha2(s, 0)",
        "sha2(s, 224)",
        "sha2(b, 256)", "sha2(s, 384)", "sha2(b, 512)", "sha2(s, 1)",
        "sha2(s, 384 + i % 2 * 128)",
    ]  # fmt: skip
    assert_expressions(spark, expressions, _table(5 + ansi), ansi=ansi)


def test_hashes_take_empty_batches(spark: SparkSession) -> None:
    expressions = [f"hash({name})" for name in _COLUMNS] + ["xxhash64(s, w, a)", "md5(s)"]
    assert_expressions(spark, expressions, _table(1).slice(0, 0))
