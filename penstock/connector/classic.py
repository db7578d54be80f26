"""Sessions and DataFrames of classic PySpark: those of Spark Connect are refused in words.

A query's plan is read from Catalyst's objects, and its workers are jobs of this driver. A client of
Spark Connect has neither: both are in its server.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import BadRequest

_REMEDY: Final = (
    "Penstock needs classic PySpark, which plans and runs in this process. Make the session "
    'without remote(), e.g. SparkSession.builder.master("local[3]").getOrCreate(), and start the '
    "program with neither SPARK_REMOTE nor SPARK_CONNECT_MODE_ENABLED nor spark.api.mode=connect "
    "set"
)


def check_session(spark: Any) -> None:
    """BadRequest for whatever is no session of classic PySpark."""
    if hasattr(spark, "_jsparkSession"):
        return
    if _is_remote(spark):
        raise BadRequest(f"this session is one of Spark Connect. {_REMEDY}")
    raise BadRequest(f"expected a SparkSession, got {type(spark).__name__}")


def check_frame(df: Any) -> None:
    """BadRequest for whatever is no DataFrame of classic PySpark."""
    if hasattr(df, "_jdf"):
        return
    if _is_remote(df):
        raise BadRequest(f"this DataFrame is one of Spark Connect. {_REMEDY}")
    raise BadRequest(f"expected a streaming DataFrame, got {type(df).__name__}")


def _is_remote(value: Any) -> bool:
    return type(value).__module__.startswith("pyspark.sql.connect")
