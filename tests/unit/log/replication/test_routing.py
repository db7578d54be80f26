"""Routing: the same order for everybody, small moves, and no owner that failed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.replication.routing import Owners, ProxyInfo, Ring, candidates

LOGS = [f"log-{number}" for number in range(3_000)]


def names(count: int) -> list[str]:
    return [f"10.0.0.{number}:7000" for number in range(count)]


# ---- the ring


@given(st.lists(st.text(min_size=1, max_size=5), max_size=8), st.text(max_size=9))
def test_every_proxy_is_a_candidate_once(proxies: list[str], log: str) -> None:
    order = Ring(proxies).order(log)

    assert sorted(order) == sorted(set(proxies))
    assert order == Ring(reversed(proxies)).order(log)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_shares_are_about_equal(count: int) -> None:
    ring = Ring(names(count))

    shares = Counter(ring.order(log)[0] for log in LOGS)

    mean = len(LOGS) / count
    assert len(shares) == count
    assert 0.6 * mean < min(shares.values()) and max(shares.values()) < 1.5 * mean


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_a_proxy_that_comes_takes_its_share_from_all_and_moves_nothing_else(count: int) -> None:
    before, after = Ring(names(count)), Ring(names(count + 1))
    new = names(count + 1)[-1]

    moved = [log for log in LOGS if before.order(log)[0] != after.order(log)[0]]

    assert all(after.order(log)[0] == new for log in moved)
    share = len(LOGS) / (count + 1)
    assert 0.6 * share < len(moved) < 1.5 * share
    from_whom = Counter(before.order(log)[0] for log in moved)
    assert len(from_whom) == count


@given(st.integers(2, 8), st.data())
def test_whoever_goes_leaves_the_order_of_the_others(count: int, data: st.DataObject) -> None:
    """So that after a failure everybody turns to the candidate that was second."""
    gone = data.draw(st.sampled_from(names(count)))
    log = data.draw(st.sampled_from(LOGS))
    before = Ring(names(count)).order(log)

    after = Ring(name for name in names(count) if name != gone).order(log)

    assert after == tuple(name for name in before if name != gone)


def test_the_ring_is_the_same_in_every_process() -> None:
    """Python's own hash of text differs between processes; a golden order, and another process."""
    code = (
        "from penstock.log.replication.routing import Ring\n"
        "print(' '.join(Ring(['a:1', 'b:1', 'c:1', 'd:1']).order('main')))"
    )

    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        timeout=60,
    )

    assert Ring(["a:1", "b:1", "c:1", "d:1"]).order("main") == ("b:1", "d:1", "c:1", "a:1")
    assert said.stdout.split() == ["b:1", "d:1", "c:1", "a:1"]


def test_an_empty_ring_has_no_candidates() -> None:
    assert Ring([]).order("main") == ()
    assert candidates("main", [], "east", "write") == ()


# ---- candidates


def proxy(number: int, region: str, role: str, life: str = "1") -> ProxyInfo:
    return ProxyInfo(
        f"p{number}-{life}",
        "h",
        number,
        region=region,
        role="read" if role == "read" else "write",
    )


PROXIES = [
    proxy(number, region, role)
    for number, (region, role) in enumerate(
        (region, role) for region in ("east", "west") for role in ("read", "read", "write", "write")
    )
]


def test_writers_of_all_regions_find_the_same_proxy() -> None:
    for log in LOGS[:50]:
        east = candidates(log, PROXIES, "east", "write")

        assert east == candidates(log, reversed(PROXIES), "west", "write")
        assert {found.role for found in east} == {"write"} and len(east) == 4


def test_readers_stay_in_their_region_and_come_to_write_proxies_last() -> None:
    firsts = set()
    for log in LOGS[:50]:
        found = candidates(log, PROXIES, "west", "read")

        assert [(p.role, p.region) for p in found] == [
            (role, region)
            for role in ("read", "write")
            for region in ("west", "west", "east", "east")
        ]
        firsts.add(found[0].id)
    assert firsts == {"p4-1", "p5-1"}


def test_a_new_life_of_a_proxy_keeps_its_logs() -> None:
    again = [proxy(n, "east", "write", life="2") for n in range(4)]
    before = [proxy(n, "east", "write") for n in range(4)]

    for log in LOGS[:50]:
        order = [p.port for p in candidates(log, before, "east", "write")]

        assert order == [p.port for p in candidates(log, again, "east", "write")]
        both = candidates(log, [*before, *again], "east", "write")
        assert [p.id for p in both] == [f"p{port}-2" for port in order]


# ---- owners


def test_an_owner_is_remembered_until_it_fails() -> None:
    owners = Owners()

    assert owners.owner("main") is None
    assert owners.learn("main", "p1", owners.ticket())
    assert owners.owner("main") == "p1"
    owners.failed("main", "p2")
    assert owners.owner("main") == "p1"
    owners.failed("main", "p1")
    assert owners.owner("main") is None


def test_an_answer_from_before_the_failure_does_not_bring_the_owner_back() -> None:
    owners = Owners()
    early = owners.ticket()
    owners.learn("main", "p1", owners.ticket())
    owners.failed("main", "p1")

    assert not owners.learn("main", "p1", early)
    assert owners.owner("main") is None
    assert owners.learn("main", "p2", early)
    owners.failed("main", "p2")
    assert owners.learn("main", "p1", owners.ticket())
    assert owners.owner("main") == "p1"


def test_an_older_answer_does_not_replace_a_newer_one() -> None:
    owners = Owners()
    early, late = owners.ticket(), owners.ticket()

    assert owners.learn("main", "p2", late)
    assert not owners.learn("main", "p1", early)
    assert owners.owner("main") == "p2"


def test_a_broken_connection_is_a_failure_for_all_logs_of_that_proxy() -> None:
    owners = Owners()
    owners.learn("a", "p1", owners.ticket())
    owners.learn("b", "p2", owners.ticket())
    asked = owners.ticket()

    owners.lost("p1")

    assert (owners.owner("a"), owners.owner("b")) == (None, "p2")
    assert not owners.learn("c", "p1", asked)
    assert owners.learn("c", "p1", owners.ticket())


def test_a_failure_that_had_to_be_forgotten_still_keeps_late_answers_out() -> None:
    owners = Owners(logs_max=2)
    early = owners.ticket()
    owners.failed("main", "p1")
    for number in range(5):
        owners.failed(f"other{number}", "p2")

    assert not owners.learn("main", "p1", early)
    assert owners.learn("main", "p1", owners.ticket())


EVENT = st.tuples(
    st.sampled_from(["ask", "learn", "learn", "failed", "lost"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 9),
)


@given(st.lists(EVENT, max_size=60), st.sampled_from([1, 2, 100]))
def test_no_owner_is_served_that_failed_after_it_was_asked_for(
    events: list[tuple[str, int, int, int]], logs_max: int
) -> None:
    """Against a list of all that happened; memory is bounded, too."""
    owners = Owners(logs_max)
    asked: list[tuple[int, int]] = []
    failures: dict[tuple[str, str], int] = {}
    believed: dict[str, tuple[str, int]] = {}

    for when, (kind, log_number, owner_number, which) in enumerate(events):
        log, owner = f"log{log_number}", f"p{owner_number}"
        if kind == "ask":
            asked.append((owners.ticket(), when))
        elif kind == "learn" and which < len(asked):
            ticket, asked_at = asked[which]
            if owners.learn(log, owner, ticket):
                believed[log] = (owner, asked_at)
        elif kind == "failed":
            owners.failed(log, owner)
            failures[log, owner] = when
        elif kind == "lost":
            owners.lost(owner)
            failures.update({(f"log{n}", owner): when for n in range(4)})

        for n in range(4):
            served = owners.owner(f"log{n}")
            if served is not None:
                assert believed[f"log{n}"][0] == served
                assert believed[f"log{n}"][1] > failures.get((f"log{n}", served), -1)
        assert sum(owners.owner(f"log{n}") is not None for n in range(4)) <= logs_max
