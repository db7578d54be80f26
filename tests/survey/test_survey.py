"""The survey keeps its promise: 400 constructs, at least 360 run, the rest is refused in words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from survey.__main__ import table
from survey.groups import GROUPS
from survey.limits import page, refused_constructs, remedies
from survey.run import survey

#: Of 400.
LEAST = 360


def test_there_are_400_constructs_each_under_its_own_name() -> None:
    names = Counter(construct.name for group in GROUPS.values() for construct in group)
    assert names.total() == 400
    assert [name for name, count in names.items() if count > 1] == []


def test_the_page_of_limits_is_printed() -> None:
    written = Path(__file__).parents[2].joinpath("docs", "limits.md").read_text()
    assert written == page(400), "PYTHONPATH=tests python -m survey --limits > docs/limits.md"


@pytest.mark.soak
@pytest.mark.usefixtures("interpreted")
@pytest.mark.filterwarnings("ignore")  # of PySpark, about what users write
def test_at_least_360_of_400_run(spark: Any) -> None:
    outcomes = survey(spark, GROUPS)
    shown = table(outcomes)
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert kinds["WRONG"] == 0 and kinds["fails"] == 0, shown
    assert kinds["runs"] >= LEAST, shown
    refused = [outcome.name for outcome in outcomes if outcome.kind == "refused"]
    assert sorted(refused) == sorted(refused_constructs()), "tests/survey/limits.py"
    for outcome in outcomes:
        if outcome.kind == "refused" and not outcome.reason.startswith("Spark: "):
            assert outcome.remedy, f"{outcome.name} is refused without a remedy: {outcome.reason}"


@pytest.mark.soak
@pytest.mark.usefixtures("interpreted")
@pytest.mark.filterwarnings("ignore")
def test_what_the_page_says_to_do_works(spark: Any) -> None:
    outcomes = survey(spark, {"Remedies": remedies()})
    assert all(outcome.kind == "runs" for outcome in outcomes), table(outcomes)
