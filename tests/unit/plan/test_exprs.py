"""Expressions are values: they are sent to workers."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock.plan.exprs import Literal

INTERVAL = pa.month_day_nano_interval()


@pytest.mark.parametrize(
    "scalar",
    [
        pa.scalar(pa.MonthDayNano((1, -2, 3))),
        pa.scalar(None, INTERVAL),
        pa.scalar(-0.0),
        pa.scalar([1, None]),
        pa.scalar(Decimal("1.50")),
        pa.scalar(None, pa.string()),
    ],
    ids=str,
)
def test_a_constant_of_any_type_can_be_sent(scalar: pa.Scalar) -> None:
    for dumps in (pickle.dumps, cloudpickle.dumps):
        sent = pickle.loads(dumps(Literal(scalar)))  # noqa: S301 -- our own bytes
        assert sent == Literal(scalar) and sent.type == scalar.type
