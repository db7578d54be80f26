"""How a proxy becomes the owner of a log, step by step, against a store that is a dict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.log.proxy.claims import (
    Claiming,
    ClaimRefused,
    Claims,
    Create,
    Delete,
    Done,
    Held,
    Owner,
    Read,
    Returning,
    Step,
    decode_owner,
)

ME = Owner("p1", "10.0.0.1", 7000, tls=True)
OTHER = Owner("p2", "10.0.0.2", 7000, tls=False, claim=4)
PATH = "/owners/main"


def test_a_free_log_is_claimed_by_creating_its_node() -> None:
    claiming = Claims(ME).claim("main")

    step = claiming.begin()

    assert isinstance(step, Create) and step.path == PATH
    assert decode_owner(step.data) == replace(ME, claim=1)
    assert claiming.created() == Held()


def test_a_log_of_another_is_not_fought_for_and_its_address_is_told() -> None:
    claiming = Claims(ME).claim("main")

    assert claiming.taken() == Read(PATH)
    assert claiming.read((OTHER, 3)) == ClaimRefused("10.0.0.2:7000")
    assert claiming.read((replace(OTHER, tls=True), 3)) == ClaimRefused("10.0.0.2:7000 tls")


def test_an_owner_that_has_just_gone_leaves_the_log_free() -> None:
    claiming = Claims(ME).claim("main")

    assert claiming.read(None) == claiming.begin()


def test_a_node_of_our_own_is_replaced_whichever_claim_made_it() -> None:
    """Of our last session, which may end later than ours begins; or of a create without answer."""
    claiming = Claims(ME).claim("main")

    for number in (1, 7):
        assert claiming.read((replace(ME, claim=number), 5)) == Delete(PATH, 5)
    assert claiming.deleted() == claiming.begin()


def test_a_log_that_was_opened_after_its_session_ended_is_not_owned() -> None:
    claims = Claims(ME)
    early, late = claims.claim("early"), claims.claim("late")

    assert claims.opened(early)
    assert claims.session_lost() == ["early"]
    assert not claims.opened(late)
    claims.check()


def test_only_the_very_claim_that_is_given_back_is_deleted() -> None:
    claims = Claims(ME)
    first = claims.claim("main")
    assert claims.opened(first)
    returning = claims.let_go("main")
    second = claims.claim("main")

    assert returning.begin() == Read(PATH)
    assert returning.read(None) == Done()
    assert returning.read((OTHER, 1)) == Done()
    assert returning.read((second.owner, 1)) == Done()
    assert returning.read((first.owner, 1)) == Delete(PATH, 1)
    assert returning.deleted() == Done()
    assert claims.session_lost() == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"id": "x", "host": "h"}', b"\xff"])
def test_a_node_that_cannot_be_read_says_so(data: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_owner(data)


class Store:
    """Two proxies' nodes in one dict; a create may lose its answer."""

    def __init__(self) -> None:
        self.node: tuple[bytes, int] | None = None
        self._version = 0

    def perform(self, change: Claiming | Returning, step: Step, *, lost: bool) -> Step:
        match step:
            case Create():
                if self.node is not None:
                    return change.taken()
                self._version += 1
                self.node = (step.data, self._version)
                return change.taken() if lost else change.created()
            case Read():
                node = self.node
                return change.read(None if node is None else (decode_owner(node[0]), node[1]))
            case Delete():
                if self.node is not None and self.node[1] == step.version:
                    self.node = None
                return change.deleted()
            case _:
                return step


@given(turns=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=60))
def test_two_proxies_never_hold_one_log_however_their_steps_interleave(
    turns: list[tuple[int, bool]],
) -> None:
    """Each claims, holds for a turn, gives back and claims again; answers to creates get lost."""
    store = Store()
    claims = [Claims(replace(ME, id=name)) for name in ("p1", "p2")]
    changes: list[Claiming | Returning] = [each.claim("main") for each in claims]
    steps: list[Step] = [change.begin() for change in changes]

    for proxy, lost in turns:
        change, step = changes[proxy], steps[proxy]
        following: Callable[[], Claiming | Returning] | None = None
        if isinstance(step, Held) and isinstance(change, Claiming):
            assert claims[proxy].opened(change)
            following = lambda: claims[proxy].let_go("main")  # noqa: B023, E731
        elif isinstance(step, Done | ClaimRefused):
            following = lambda: claims[proxy].claim("main")  # noqa: B023, E731
        if following is not None:
            changes[proxy] = following()
            steps[proxy] = changes[proxy].begin()
        else:
            steps[proxy] = store.perform(change, step, lost=lost)

        holders = [p for p in (0, 1) if isinstance(steps[p], Held)]
        assert len(holders) <= 1
        for holder in holders:
            change = changes[holder]
            assert isinstance(change, Claiming) and store.node is not None
            assert decode_owner(store.node[0]) == change.owner
        for each in claims:
            each.check()
