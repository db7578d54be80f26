"""What of a report of a task is taken in: whatever it says, nothing that reads it can fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_samples import count_by, scan, spec_of
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.names import TaskId
from penstock.runtime.histogram import BOUNDS_MS
from penstock.runtime.progress import Rates, make_progress
from penstock.runtime.task_report import _COPY, _FIELDS, _INPUT, read_copy_report, read_report

SPEC = spec_of(count_by(scan(), 0), tasks=(1, 2), starts={"in": 3})
GOOD = {
    "instance": 3,
    "is_running": True,
    "commits_ever": -1,
    "watermark_ms": -5,
    "commit_ms": {"17": 3},
    "visible_counts": [1] * (len(BOUNDS_MS) + 1),
    "inputs": {"source:in": {"rows": 4, "delay_ms": 1.5}},
    "busy_ms": 1.5,
    "checkpoint_error": "OSError: full",
}


def test_what_is_as_it_should_be_is_kept() -> None:
    assert read_report(GOOD) == GOOD
    assert read_copy_report({"lag_ms": 1.0, "is_ready": True}) == {"lag_ms": 1.0, "is_ready": True}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance", None),
        ("instance", "3"),
        ("instance", True),
        ("rows_in", -1),
        ("rows_in", 2**63),
        ("rows_in", 1.5),
        ("commits_ever", None),
        ("busy_ms", float("nan")),
        ("busy_ms", float("inf")),
        ("is_running", 1),
        ("commit_ms", [1]),
        ("visible_counts", [1]),
        ("visible_counts", [-1] * (len(BOUNDS_MS) + 1)),
        ("inputs", ["source:in"]),
        ("checkpoint_error", 7),
        ("of_a_newer_version", 7),
    ],
)
def test_what_is_not_counts_as_not_told_and_the_rest_is_kept(field: str, value: Any) -> None:
    assert read_report({"state_rows": 7, field: value}) == {"state_rows": 7}


def test_of_what_has_parts_the_good_ones_are_kept() -> None:
    told = read_report(
        {
            "commit_ms": {"17": 3, "190": 1, "x": 1, "5": -1, "99999": 1, "²": 1},
            "inputs": {"source:in": {"rows": 4, "delay_ms": "long"}, "stage:0": 7},
            "checkpoint_error": "x" * 1000,
        }
    )
    assert told["commit_ms"] == {"17": 3}
    assert told["inputs"] == {"source:in": {"rows": 4}}
    assert len(told["checkpoint_error"]) == 200


#: Everything that JSON can say.
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(0, 9), min_size=len(BOUNDS_MS) + 1, max_size=len(BOUNDS_MS) + 1),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
STRANGE = st.dictionaries(
    st.sampled_from([*_FIELDS, "standbys", "worker", "other"]),
    ANYTHING | st.dictionaries(st.sampled_from(["source:in", "stage:0", "7", "188"]), ANYTHING),
)


@given(
    first=st.lists(STRANGE, min_size=3, max_size=3),
    then=st.lists(STRANGE, min_size=3, max_size=3),
)
def test_any_report_makes_a_progress(first: list[Any], then: list[Any]) -> None:
    rates = Rates()
    gone = TaskId("q", 1, 7, 0)
    for number, told in enumerate((first, then, first)):
        reports = {t: read_report(one) for t, one in zip(SPEC.task_ids, told, strict=True)}
        progress = make_progress(
            SPEC, {**reports, gone: reports[SPEC.task_ids[0]]}, id="i", run_id="r", number=number,
            now_ms=number * 1000, tail=5, lags={}, workers=1, rates=rates,
        )  # fmt: skip
        json.dumps(progress, allow_nan=False)
        assert str(gone) not in progress["tasks"]


def test_every_field_that_a_task_reports_is_known() -> None:
    """Or it would be dropped, in silence: tests/integration/test_task_shell.py asks a task."""
    assert {"busy_ms", "waiting_ms", "blocked_ms", "step_ms"} <= set(_FIELDS)
    assert set(_INPUT) == {"rows", "delay_ms", "rows_told", "told_by"}
    assert set(_COPY) == {"lag_ms", "is_ready", "state_rows", "state_bytes"}
