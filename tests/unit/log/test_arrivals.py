"""Who must go when too many wait without a token."""

from __future__ import annotations

from penstock.log.serving.arrivals import Arrivals


def arrivals(*peers: str) -> Arrivals[int]:
    """Numbered from 0 in the order in which they came."""
    made: Arrivals[int] = Arrivals()
    for number, peer in enumerate(peers):
        made.add(peer, number)
    return made


def test_the_oldest_of_the_peer_with_most_goes_first() -> None:
    waiting = arrivals("a", "b", "b", "a", "b")

    assert waiting.choose() == 1
    waiting.remove(1)
    assert waiting.choose() == 0  # two each: the oldest of all


def test_where_everybody_is_alone_the_oldest_goes() -> None:
    assert arrivals("c", "b", "a").choose() == 0


def test_a_peer_with_few_is_spared_however_long_it_waits() -> None:
    waiting = arrivals("patient", *["flood"] * 100)

    for expected in range(1, 100):
        assert waiting.choose() == expected
        waiting.remove(expected)


def test_who_has_gone_is_not_counted_and_may_go_again() -> None:
    waiting = arrivals("a", "a", "b")
    waiting.remove(0)
    waiting.remove(0)

    assert (len(waiting), list(waiting), 0 in waiting, 1 in waiting) == (2, [1, 2], False, True)
    waiting.remove(1)
    waiting.remove(2)
    assert waiting.choose() is None
