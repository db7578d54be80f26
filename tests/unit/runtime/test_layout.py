"""Layouts as values: who has which virtual nodes, what follows, and their bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.runtime.layout import (
    Layout,
    Retired,
    Share,
    evenly,
    first_layout,
    layout_bytes,
    read_layout,
)
from penstock.state.keys import VIRTUAL_NODES

tasks = st.lists(st.integers(0, 64), min_size=1, max_size=4)


def owners(layout: Layout, stage: int) -> list[int]:
    return sorted(node for share in layout.stages[stage] for node in share.nodes)


@given(tasks, st.lists(tasks, max_size=4))
def test_every_virtual_node_has_one_task_and_no_name_is_used_twice(
    first: list[int], changes: list[list[int]]
) -> None:
    layout = first_layout(first)
    names = {(stage, s.index) for stage, of in enumerate(layout.stages) for s in of}
    for counts in changes:
        changed = dict(zip(range(len(first)), counts, strict=False))
        before = layout
        shares = {stage: evenly(count, layout.made[stage]) for stage, count in changed.items()}
        layout = layout.next(shares, [], Lsn(0))
        assert layout.version == before.version + 1
        for stage, shares in enumerate(layout.stages):
            assert not shares or owners(layout, stage) == list(range(VIRTUAL_NODES))
            new = {(stage, share.index) for share in shares}
            if stage in changed:
                assert names.isdisjoint(new) and len(shares) == changed[stage]
            else:
                assert shares == before.stages[stage]
            names |= new
        assert read_layout(layout_bytes(layout, 3), 3) == layout


def test_a_query_that_was_never_rescaled_has_remainders() -> None:
    (shares,) = first_layout([3]).stages
    for share in shares:
        assert share.nodes == frozenset(range(share.index, VIRTUAL_NODES, 3))


def test_the_layout_of_another_version_of_the_query_says_nothing() -> None:
    assert read_layout(layout_bytes(first_layout([2]), 1), 2) is None


def test_retired_tasks_are_known_until_nothing_of_them_stands_in_the_log() -> None:
    layout = first_layout([2, 2])
    layout = layout.next(
        {1: evenly(1, 2)}, [Retired(1, 0, Lsn(10), 5), Retired(1, 1, Lsn(12), 0)], Lsn(0)
    )
    assert len(layout.retired) == 2 and not layout.is_result_cut

    layout = layout.next({1: evenly(2, 3)}, [Retired(1, 2, Lsn(20), 0)], Lsn(13))
    assert [one.index for one in layout.retired] == [2]
    assert layout.is_result_cut, "task 0 gave results, which are trimmed"


def test_what_is_no_layout_is_refused() -> None:
    layout = first_layout([2])
    twice = replace(layout, stages=((Share(0, frozenset(range(64))), Share(1, frozenset([3]))),))
    missing = replace(layout, stages=((Share(0, frozenset(range(63))),),))
    alike = replace(layout, stages=((layout.stages[0][0], replace(layout.stages[0][1], index=0)),))
    for wrong in (twice, missing, alike):
        with pytest.raises(BadFormat, match="not a layout"):
            read_layout(layout_bytes(wrong, 1), 1)
    for data in (b"", b"[]", b"{}", b'{"format": 1}'):
        with pytest.raises(BadFormat, match="not a layout"):
            read_layout(data, 1)
    newer = {**json.loads(layout_bytes(layout, 1)), "format": 2}
    with pytest.raises(BadFormat, match="a newer program"):
        read_layout(json.dumps(newer).encode(), 1)
