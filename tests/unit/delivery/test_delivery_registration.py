"""What of a delivery may change from one start to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.delivery.deliver import _Given, _NamedTarget
from penstock.delivery.registration import continue_with
from penstock.delivery.resharding import plan_reshard
from penstock.delivery.targets import open_target
from penstock.errors import BadRequest, PlanChanged, Refused
from penstock.protocol.deliveries import RegisteredDelivery, decode_delivery, encode_delivery

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
    three = replace(DELIVERY, targets=["a", "b", "c"], route=[node % 3 for node in range(64)])

    with pytest.raises(PlanChanged, match=r"target [01] was [ab], is [bc], which was target [12]"):
        continue_with(three, replace(three, targets=targets))
    for others in (["a", "x", "c"], ["x", "y", "z"]):
        assert continue_with(three, replace(three, targets=others)).targets == others


def test_after_a_change_of_targets_a_start_has_the_new_ones() -> None:
    """`d` came for `b`: the old list is as long as the new one, and refused all the same."""
    before = replace(DELIVERY, targets=["a", "b", "c"], route=[node % 3 for node in range(64)])
    planned = plan_reshard(before, ["a", "c", "d"], image=None)
    (past,) = planned.past
    now = replace(planned, past=[replace(past, cut=77)])

    assert continue_with(now, replace(before, targets=["a", "c", "d"])) == now
    assert continue_with(now, replace(before, targets=["a", "e", "d"])).targets == [*"abed"]
    for old in (["a", "b", "c"], ["a", "b"]):
        with pytest.raises(PlanChanged, match="it was given other targets at LSN 77, a, c, d"):
            continue_with(now, replace(before, targets=old))


@pytest.mark.parametrize("shard", [1, 2, -1])
def test_a_shard_that_is_over_is_not_given_again(shard: int) -> None:
    """It was registered, and then nobody could read the registration any more."""
    before = replace(DELIVERY, targets=["a", "b"], route=[node % 2 for node in range(64)])
    planned = plan_reshard(before, [0], image=None)
    now = decode_delivery("d", encode_delivery(planned), 77)

    with pytest.raises(BadRequest, match=f"shard {shard} of delivery d has given its rows away"):
        plan_reshard(now, [0, shard], image=None)


def test_a_target_is_opened_for_no_other_shard_than_it_was_given_for() -> None:
    """Somebody else gave the delivery another one while we tried to: ours has none of its rows."""
    before = replace(DELIVERY, route=[0] * 64)
    theirs = plan_reshard(before, ["sqlite:///a", "sqlite:///theirs"], image=None)
    ours = _NamedTarget(open_target("sqlite:///ours"), "sqlite:///ours")

    given = _Given({1: ours}, pa.schema([]))

    assert given.of(before, 1) is None
    assert given.of(theirs, 1) is None
    assert given.of(plan_reshard(before, ["sqlite:///a", ours.uri], image=None), 1) is ours


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["a", "b"], "has these targets already"),
        (["b", 0], "has these targets already"),
        (["a", "a"], "a target is given twice"),
        (["a", "c", "c"], "a target is given twice"),
        ([], "0 targets"),
        ([f"t{one}" for one in range(65)], "would have had 67 targets in its life"),
    ],
)
def test_changes_of_targets_that_are_none_are_refused(wanted: list[int | str], words: str) -> None:
    before = replace(DELIVERY, targets=["a", "b"], route=[node % 2 for node in range(64)])

    with pytest.raises(Refused, match=words):
        plan_reshard(before, wanted, image=None)
