"""The queries with `lat_ts`: without it they give what the plain ones give, and it is in order.

Over a finite prefix, by batch Spark; and every one has a plan here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.multiset import difference
from penstock_bench.nexmark.queries import QUERIES
from penstock_bench.nexmark.timed import LAT_TS, MODES, timed

from penstock.spark.frontend import plan

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

EVENTS = 10_000
#: Windows of arrival: only the log knows that time (tests/engine/test_metadata.py).
BY_ARRIVAL = "q12"
NAMES = [name for name in QUERIES if name != BY_ARRIVAL]
#: Some have two forms: by the window's end, and by event.
FORMS = [(name, MODES[name]) for name in NAMES] + [(n, "update") for n in ("q5", "q7", "q11")]
#: Written anew with their times, or one of a kind that shares its way; the others take long.
QUICK = ("q2", "q3", "q4", "q5", "q6", "q7", "q8", "q17", "q19")
ALL = [
    pytest.param(*form, marks=() if form[0] in QUICK else pytest.mark.soak, id="-".join(form))
    for form in FORMS
]


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> Any:
    generator = Generator()
    ids = np.arange(EVENTS)
    made = (generator.persons(ids), generator.auctions(ids), generator.bids(ids))
    cached = [spark.createDataFrame(pa.Table.from_batches([rows])).cache() for rows in made]
    yield cached
    for df in cached:
        df.unpersist()


@pytest.fixture(scope="module")
def plain(spark: SparkSession, frames: list[DataFrame]) -> dict[str, pa.Table]:
    return {}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("name", "mode"), ALL)
def test_without_lat_ts_it_is_the_plain_query(
    spark: SparkSession,
    frames: list[DataFrame],
    plain: dict[str, pa.Table],
    name: str,
    mode: str,
) -> None:
    side = [spark.createDataFrame(model.side_input())] if name == "q13" else []
    if name not in plain:
        plain[name] = QUERIES[name].build(*frames, *side).toArrow()

    measured = timed(name, *frames, *side, mode=mode).toArrow()

    assert measured.column_names[-1] == LAT_TS
    assert plain[name].num_rows
    assert measured.column(LAT_TS).null_count == 0
    assert difference(measured.drop_columns(LAT_TS), plain[name]) is None


@pytest.mark.parametrize(("name", "mode"), ALL)
def test_it_has_a_plan(spark: SparkSession, tmp_path: Path, name: str, mode: Any) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    streams = []
    for kind, schema in model.KINDS.items():
        (tmp_path / kind).mkdir()
        read = spark.readStream.schema(from_arrow_schema(schema)).parquet(str(tmp_path / kind))
        streams.append(read.withWatermark("dateTime", "0 seconds") if mode == "append" else read)
    side = [spark.createDataFrame(model.side_input())] if name == "q13" else []

    plan(timed(name, *streams, *side, mode=mode), mode=mode)
