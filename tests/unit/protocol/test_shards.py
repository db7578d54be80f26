"""Which shard has which virtual node, over all changes of targets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.protocol.shards import Shards, next_route, shards_of

#: For each change: which of the shards that are there end, and how many are new.
CHANGES = st.lists(st.tuples(st.sets(st.integers(0, 7)), st.integers(0, 4)), max_size=6)


def layouts(changes: list[tuple[set[int], int]], first: int = 3) -> Shards:
    routes = [tuple(node % first for node in range(64))]
    count = first
    for ended, new in changes:
        stays = [shard for shard in sorted(set(routes[-1])) if shard not in ended]
        wanted = [*stays, *range(count, count + new)] or [count]
        count = max(count, *(shard + 1 for shard in wanted))
        routes.append(next_route(routes[-1], wanted))
    return shards_of(count, [10 * (one + 1) for one in range(len(changes))], routes)


@given(CHANGES)
def test_a_change_moves_as_little_as_it_can_and_nobody_gives_and_takes(
    changes: list[tuple[set[int], int]],
) -> None:
    found = layouts(changes)

    for before, after in pairwise(found.routes):
        sizes = [after.count(shard) for shard in set(after)]
        moved = sum(was != now for was, now in zip(before, after, strict=True))
        stays = [shard for shard in set(before) if shard in after]
        kept = sum(min(before.count(shard), after.count(shard)) for shard in stays)
        assert max(sizes) - min(sizes) <= 1
        assert moved == 64 - kept
    for givers, takers in zip(found.givers, found.takers, strict=True):
        assert not set(givers) & set(takers)


@given(CHANGES)
def test_who_takes_waits_for_those_and_only_those_who_give_to_it(
    changes: list[tuple[set[int], int]],
) -> None:
    found = layouts(changes)

    for number, cut in enumerate(found.cuts):
        given_to: dict[int, set[int]] = {}
        for _, was, now in found.moves(cut):
            given_to.setdefault(now, set()).add(was)
        for shard in range(found.count):
            assert set(found.waits_for(shard, cut)) == given_to.get(shard, set())
            concerned = shard in found.givers[number] or shard in found.takers[number]
            assert (found.next_cut(shard, cut) == cut) == concerned


@given(CHANGES)
def test_a_shard_is_over_behind_its_last_cut_and_never_before(
    changes: list[tuple[set[int], int]],
) -> None:
    found = layouts(changes)

    for shard in range(found.count):
        ends = [cut for cut in found.cuts if shard not in found.route_at(cut)]
        had = [cut for cut in (Lsn(0), *found.cuts) if shard in found.route_at(cut)]
        if not had:
            continue
        assert found.birth(shard, Lsn(0)) == had[0]
        last = max(had)
        end = next((cut for cut in ends if cut > last), None)
        assert found.is_over(shard, 10_000) == (end is not None)
        if end is not None:
            assert not found.is_over(shard, end) and found.is_over(shard, end + 1)


def test_what_counts_at_the_cut_is_routed_by_the_new_route() -> None:
    found = shards_of(2, [7], [(0, 0), (0, 1)])

    assert found.route_at(6) == (0, 0)
    assert found.route_at(7) == (0, 1)
    assert [found.next_cut(0, lsn) for lsn in (0, 7, 8)] == [7, 7, None]


@pytest.mark.parametrize(
    ("count", "cuts", "routes"),
    [
        (1, [], [(0, 1)]),
        (2, [5], [(0, 1)]),
        (2, [5, 5], [(0, 0), (0, 1), (0, 0)]),
        (2, [5], [(0, 0), (0, 1, 1)]),
        (2, [5], [(0, 1), (1, 0)]),
        (3, [5, 6], [(0, 1), (0, 0), (0, 1)]),
    ],
)
def test_routes_that_cannot_be_are_refused(
    count: int, cuts: list[int], routes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError, match=r"route|cuts|gives|over"):
        shards_of(count, cuts, routes)


def test_there_are_not_more_shards_than_virtual_nodes() -> None:
    with pytest.raises(BadRequest, match="65 targets"):
        next_route([0] * 64, range(65))
