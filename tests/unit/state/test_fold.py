"""The merge of changes does what the changes do, however they are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from state_actions import ACTIONS, TAKE, contents, do, make_store

from penstock.state.api import Change
from penstock.state.fold import merge_changes, places_of
from penstock.state.parts import CHANGES_OF, decode_parts, encode_parts


def _history(actions: list[Any]) -> tuple[list[tuple[Change, ...]], Any]:
    """What was logged, take by take, and what the store holds at the end."""
    store = make_store()
    logs = []
    for number, action in enumerate([*actions, TAKE]):
        do(store, action, number)
        if action == TAKE:
            logs.append(store.state.take_log())
    return logs, contents(store)


@settings(max_examples=200)
@given(before=ACTIONS, after=ACTIONS)
def test_a_merge_does_to_any_state_what_the_changes_do(before: list[Any], after: list[Any]) -> None:
    logs, held = _history([*before, TAKE, *after])
    parts = make_store().state.parts()
    cut = len([action for action in before if action == TAKE]) + 1
    copy = make_store()
    for log in logs[:cut]:
        copy.state.apply(log)

    copy.state.apply(merge_changes([one for log in logs[cut:] for one in log], parts))

    assert contents(copy) == held


@settings(max_examples=200)
@given(actions=ACTIONS, more=ACTIONS, cuts=st.lists(st.integers(0, 30), max_size=4))
def test_the_merge_of_merges_is_the_merge_of_all(
    actions: list[Any], more: list[Any], cuts: list[int]
) -> None:
    logs, held = _history([*actions, TAKE, *more])
    changes = [change for log in logs for change in log]
    parts = make_store().state.parts()
    bounds = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})

    pieces = [
        merge_changes(changes[start:end], parts, is_whole=start == 0)
        for start, end in pairwise(bounds)
    ]

    for merged in (
        merge_changes(changes, parts, is_whole=True),
        merge_changes([one for piece in pieces for one in piece], parts, is_whole=True),
    ):
        copy = make_store()
        copy.state.apply(merged)
        assert contents(copy) == held
        assert not {change.kind for change in merged} & {"delete", "evict"}


@settings(max_examples=100)
@given(actions=ACTIONS)
def test_merged_rows_stand_in_order_each_kind_once(actions: list[Any]) -> None:
    logs, _ = _history(actions)
    parts = make_store().state.parts()

    merged = merge_changes([change for log in logs for change in log], parts)

    assert len({(change.name, change.kind) for change in merged}) == len(merged)
    for change in merged:
        part = parts[change.name]
        assert change.kind in CHANGES_OF[part.kind]
        if change.kind in ("put", "delete", "add") and change.rows.num_columns:
            places = places_of(part, change.rows).tolist()
            assert places == sorted(places)


def test_parts_are_told_and_understood() -> None:
    parts = make_store().state.parts()

    assert decode_parts(encode_parts(parts)) == parts
