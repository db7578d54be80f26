"""The one form of every benchmark."""

from __future__ import annotations

import json

import pytest
from penstock_bench.measure import percentile, summary
from penstock_bench.report import Check, Report


@pytest.mark.parametrize(
    ("sense", "value", "ok"),
    [("at most", 3.0, True), ("at most", 3.01, False), ("at least", 3.0, True)],
)
def test_a_check_is_ok_up_to_its_bar(sense: str, value: float, ok: bool) -> None:
    check = Check("ratio", value, 3.0, sense, "×")  # type: ignore[arg-type]

    assert check.ok is ok


def test_a_report_is_ok_only_if_every_check_is() -> None:
    good = Check("a", 1.0, 2.0, "at most", "s")
    bad = Check("b", 1.0, 2.0, "at least", "s")

    assert Report("x", [good]).ok
    assert not Report("x", [good, bad]).ok


def test_a_report_in_json_names_value_bar_and_verdict_beside_commit_and_machine() -> None:
    report = Report("x", [Check("a", 1.23456, 2.0, "at most", "s")], {"p50": 1})

    figures = json.loads(json.dumps(report.as_json()))

    assert figures["checks"] == [
        {
            "name": "a",
            "value": 1.2346,
            "bar": 2.0,
            "sense": "at most",
            "unit": "s",
            "detail": "",
            "ok": True,
        }
    ]
    assert figures["commit"]
    assert figures["machine"]["cores"] >= 1
    assert figures["figures"] == {"p50": 1}


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]

    assert percentile(values, 50) == 50.0
    assert percentile([7.0], 99.9) == 7.0
    assert summary(values)["max"] == 100.0
