"""What `penstock query rescale` says while it waits."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.rescaling import rescaling_words

TASK = {"is_running": True}


@pytest.mark.parametrize(
    ("workers", "progress", "words"),
    [
        (0, {"workers": 1}, "its tasks commit what they have; workers that are still to leave: 1"),
        (1, {"workers": 2}, "1 of 1 tasks run; workers that are still to leave: 1"),
        (
            2,
            {"workers": 2, "rescaling": {"workers": 2, "ready": 1, "copied": 2}},
            "copies of the state are made: 1 of 2 are ready",
        ),
    ],
    ids=["to none", "to fewer", "a driver that does not tell of rows"],
)
def test_what_it_waits_for(workers: int, progress: dict[str, Any], words: str) -> None:
    assert rescaling_words({"tasks": {"q.1/0/0": TASK}, **progress}, workers) == words
