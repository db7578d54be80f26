"""What of a delivery may change from one start to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.delivery.registration import continue_with
from penstock.errors import PlanChanged
from penstock.protocol.deliveries import RegisteredDelivery

DELIVERY = RegisteredDelivery(
    name="d", id="i", stream="s", query=None, version=None, key=["k"], route=[0] * 64, epoch=0,
    start=5, table="t", targets=["sqlite:///a"], strict=False, dead_letter=None, created_ms=1,
)  # fmt: skip


def test_addresses_and_what_becomes_of_bad_rows_may_change() -> None:
    wanted = replace(
        DELIVERY,
        targets=["sqlite:///b"],
        strict=True,
        dead_letter="dead",
        start=77,
        created_ms=9,
        id="another",
    )

    chosen = continue_with(DELIVERY, wanted)

    assert chosen == replace(wanted, start=5, created_ms=1, id=DELIVERY.id)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stream": "x"}, "stream was s, is x"),
        ({"query": "q", "version": 1}, "query was none, is q in its version 1"),
        ({"key": []}, "key was k, is none"),
        ({"table": "u"}, "table was t, is u"),
        ({"targets": ["a", "b"]}, "number of targets was 1, is 2"),
    ],
)
def test_what_targets_hold_rows_by_may_not(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanChanged, match=words):
        continue_with(DELIVERY, replace(DELIVERY, **change))


@pytest.mark.parametrize("targets", [["b", "a", "c"], ["a", "c", "d"], ["b", "d", "e"]])
def test_a_target_does_not_become_another_shard(targets: list[str]) -> None:
    """Its table holds rows of the first: it would have those of both, and another one, too."""
    three = replace(DELIVERY, targets=["a", "b", "c"])

    with pytest.raises(PlanChanged, match=r"target [01] was [ab], is [bc], which was target [12]"):
        continue_with(three, replace(three, targets=targets))
    for others in (["a", "x", "c"], ["x", "y", "z"]):
        assert continue_with(three, replace(three, targets=others)).targets == others
