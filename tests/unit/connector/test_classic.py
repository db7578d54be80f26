"""Sessions and DataFrames that have no plan here: what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.connector.classic import check_frame, check_session
from penstock.errors import BadRequest


def of_connect(name: str) -> Any:
    """As Spark Connect's classes are told from classic ones; to make one needs a server."""
    return type(name, (), {"__module__": f"pyspark.sql.connect.{name.lower()}"})()


def test_spark_connect_is_refused_with_what_to_do_instead() -> None:
    refusals = {
        "DataFrame": (penstock.start, penstock.explain, check_frame),
        "SparkSession": (penstock.register, penstock.queries, check_session),
    }
    for name, calls in refusals.items():
        for call in calls:
            with pytest.raises(BadRequest, match="Spark Connect") as refused:
                call(of_connect(name))
            assert "without remote()" in str(refused.value), call
            assert "SPARK_REMOTE" in str(refused.value), call


def test_anything_else_is_named_by_its_type() -> None:
    with pytest.raises(BadRequest, match="expected a SparkSession, got NoneType"):
        penstock.queries(None)
    with pytest.raises(BadRequest, match="expected a streaming DataFrame, got str"):
        penstock.start("bids")
