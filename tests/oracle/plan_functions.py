"""Python functions that random plans call: by names that SQL knows, or as a step behind a query.

All answer the same for the same rows, in whatever order these come, and take nulls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import functions as F

# The functions here are sent to Spark's workers, which cannot import a test.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: What a step makes of the frame of a query, in which `k`, `g`, `i` and `s` are.
Step = Callable[[Any], Any]


def _next(value: int | None) -> int | None:
    return None if value is None or value > 10**6 else value + 1


def _tag(text: str | None) -> str:
    return f"<{text}>"


def _is_odd(value: int | None) -> bool | None:
    return None if value is None else value % 2 == 1


def _twice(values: pd.Series) -> pd.Series:
    return values.where(values.abs() < 10**6).astype("Int32") * 2


def _upper(values: pa.Array) -> pa.Array:
    return pc.utf8_upper(values)


def _count(values: pd.Series) -> int:
    return int(values.count())


def _largest(values: pd.Series) -> str | None:
    known = sorted(values.dropna().tolist())
    return repr(known[-1]) if known else None


class _Pieces:
    """Of a text, its letters that are one behind the other; of a number, so many rows."""

    def eval(self, text: str | None, number: int | None) -> Iterator[tuple[str, int]]:
        for place, letter in enumerate((text or "")[: abs(number or 2) % 4]):
            yield letter, place


def register(spark: Any) -> None:
    """Let queries of this session call them by name."""
    spark.sparkContext.pythonExec = sys.executable  # which has pandas and Arrow
    made = {
        "py_next": F.udf(_next, "int", useArrow=True),
        "py_next_pickled": F.udf(_next, "int", useArrow=False),
        "py_tag": F.udf(_tag, "string", useArrow=True),
        "py_is_odd": F.udf(_is_odd, "boolean", useArrow=True),
        "pd_twice": F.pandas_udf(_twice, "int", F.PandasUDFType.SCALAR),
        "ar_upper": F.arrow_udf(_upper, "string", F.ArrowUDFType.SCALAR),
        "pd_count": F.pandas_udf(_count, "bigint", F.PandasUDFType.GROUPED_AGG),
        "pd_largest": F.pandas_udf(_largest, "string", F.PandasUDFType.GROUPED_AGG),
    }
    for name, function in made.items():
        spark.udf.register(name, function)
    spark.udtf.register("pieces", F.udtf(_Pieces, returnType="letter string, place int"))


_DESCRIBED = "key string, rows string, n bigint"


def _describe(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    rows = sorted(map(repr, frame[["i", "s"]].to_dict("records")))
    return pd.DataFrame({"key": [repr(key)], "rows": ["".join(rows)], "n": [len(rows)]})


def _describe_arrow(key: Any, table: pa.Table) -> pa.Table:
    rows = sorted(map(repr, table.select(["i", "s"]).to_pylist()))
    key_text = repr(tuple(part.as_py() for part in key))
    made = {"key": [key_text], "rows": ["".join(rows)], "n": [len(rows)]}
    return pa.Table.from_pydict(made)


def _describe_both(key: Any, one: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    rows = [sorted(map(repr, frame[["i", "s"]].to_dict("records"))) for frame in (one, two)]
    return pd.DataFrame({"key": [repr(key)], "rows": [repr(rows)], "n": [sum(map(len, rows))]})


def _halve(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in batches:
        yield frame[frame["i"].fillna(0) % 2 == 0]


def _shorten(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.less(pc.utf8_length(pc.fill_null(batch.column("s"), "")), 3))


def _cogroup(frame: Any) -> Any:
    odd = frame.where("i % 2 = 1").groupBy("k", "g")
    both = frame.where("i > 2").groupBy("k", "g").cogroup(odd)
    return both.applyInPandas(_describe_both, _DESCRIBED)


STEPS: dict[str, Step] = {
    "applyInPandas by k": lambda df: df.groupBy("k").applyInPandas(_describe, _DESCRIBED),
    "applyInPandas by k, g": lambda df: df.groupBy("k", "g").applyInPandas(_describe, _DESCRIBED),
    "applyInArrow by g": lambda df: df.groupBy("g").applyInArrow(_describe_arrow, _DESCRIBED),
    "cogroup": _cogroup,
    "mapInPandas": lambda df: df.mapInPandas(_halve, df.schema),
    "mapInArrow": lambda df: df.mapInArrow(_shorten, df.schema),
    "product": lambda df: df.groupBy("g").agg(F.product(F.when(F.col("i") > 3, -1).otherwise(2))),
    "mapInArrow, counted": lambda df: df.mapInArrow(_shorten, df.schema).groupBy("g").count(),
}
