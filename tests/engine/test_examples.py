"""examples/: each script runs as it stands and prints what it promises.

They run in this process, with the session that all tests of it share. Some pipelines are also
compared with batch Spark, by `penstock.testing`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import assert_matches_batch, run

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "windowed_averages": """
        12:00:00 cellar 12.0 of 10 readings
        12:00:00 roof 24.5 of 10 readings
        12:00:10 cellar 12.0 of 10 readings
        12:00:10 roof 34.5 of 10 readings
        late readings: 1
    """,
    "enriched_orders": """
        100 Ada DE 11.90
        101 Ben US 20.00
        102 unknown None 30.00
    """,
    "deduplicated_events": """
        40 events came in, 20 went out
        each once: True
    """,
    "user_sessions": """
        12:00:00 ann 2 clicks in 0:00:20
        12:00:05 bob 1 clicks in 0:00:00
        12:02:00 ann 1 clicks in 0:00:00
        12:02:10 bob 1 clicks in 0:00:00
    """,
    "login_alerts": """
        eve: 3 failed logins, last from 10.0.0.5
    """,
    "parsed_lines": """
        at first
        mail: send takes 75%
        shop: query takes 75%
        after another line
        mail: send takes 75%
        shop: render takes 62%
    """,
    "top_products": """
        at first
        bern 1. b 5.0
        bern 2. c 4.0
        after a change and a deletion
        bern 1. a 3.0
        bern 2. b 1.0
    """,
    "results_in_a_database": """
        at first
        basel 7.5 of 1 orders
        bern 10.0 of 1 orders
        while nobody delivered
        basel 7.5 of 1 orders
        bern 10.0 of 1 orders
        started again
        basel 7.5 of 1 orders
        bern 12.5 of 2 orders
        chur 1.0 of 1 orders
    """,
    "real_time_then_micro_batch": """
        run 0: shop-0 75 of 25 orders
        run 0: shop-1 75 of 25 orders
        run 1: shop-0 75 of 25 orders
        run 1: shop-1 75 of 25 orders
    """,
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(
    name: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    assert lines(capsys.readouterr().out) == lines(PRINTED[name])


def test_the_pipelines_give_what_batch_spark_gives(spark: Any) -> None:
    sessions = load("user_sessions")
    clicks = [sessions["click"](user, "home", second) for second in (0, 9, 80) for user in "ab"]
    inputs = {"clicks": (clicks, sessions["CLICKS"])}
    assert_matches_batch(spark, sessions["sessions"], inputs=inputs, mode="append")

    top = load("top_products")
    changes = [top["change"]("bern", name, 1, float(ord(name) % 3)) for name in "abcd"]
    assert_matches_batch(spark, top["top_products"], inputs={"changes": (changes, top["CHANGES"])})


def test_a_late_reading_is_left_out_of_its_average(spark: Any) -> None:
    windows = load("windowed_averages")
    readings = [windows["reading"]("roof", celsius, s) for celsius, s in ((1, 2), (2, 40), (9, 3))]

    rows = run(
        spark,
        windows["averages"],
        inputs={"readings": (readings, windows["READINGS"])},
        mode="append",
    )

    assert [(row.average, row.readings) for row in rows] == [(1.0, 1), (2.0, 1)]
