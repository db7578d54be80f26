"""The disk of the state is full: no row is to blame, and none is set aside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from engine_samples import pairs

from penstock.errors import EvaluationFailed, Unavailable
from penstock.ids import Lsn
from penstock.ops.api import Delta
from penstock.ops.bad_rows import set_bad_rows_aside
from penstock.runtime.commit_protocol import MARKERS
from penstock.runtime.spec import Settings
from penstock.runtime.task import Task
from penstock.runtime.task_core import Poisoned
from penstock.runtime.trials import Trial


def fail(*_: object) -> Any:
    raise Unavailable("state needs 8 MiB more")


def test_rows_are_not_set_aside() -> None:
    with pytest.raises(Unavailable):
        set_bad_rows_aside(Delta(pairs((1, 1), (2, 2))), fail)


def test_a_trial_blames_no_row() -> None:
    trial = Trial(lambda: SimpleNamespace(push=fail))  # type: ignore[arg-type, return-value]

    with pytest.raises(Unavailable):
        trial.failure_of(0, Delta(pairs((1, 1))))


@pytest.mark.parametrize(
    ("cause", "expected"), [(Unavailable("full"), False), (EvaluationFailed("X", "y"), True)]
)
def test_a_task_looks_for_rows_only_if_rows_can_be_to_blame(
    cause: Exception, expected: bool
) -> None:
    settings = Settings(dead_letter="dead", protocol=MARKERS)
    task: Any = SimpleNamespace(spec=SimpleNamespace(settings=settings))

    assert Task._can_bury(task, Poisoned(Lsn(5), cause), None) is expected
