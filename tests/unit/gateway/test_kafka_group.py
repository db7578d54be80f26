"""One consumer group: joining, sharing, leaving, silence."""

from __future__ import annotations

import pytest

from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.gateway.kafka.group import GATHER_SECONDS, Answer, Group, Join, State


def asked(
    member: str = "", *, protocols: tuple[str, ...] = ("range",), rebalance: float = 5
) -> Join:
    return Join(member, None, 3.0, rebalance, "consumer", [(name, b"m") for name in protocols])


def answers(group: Group) -> dict[tuple[str, str], Answer]:
    return {(what, member): told for what, member, told in group.take_answers()}


def gathered(*ids: str) -> Group:
    """A stable group of these members, at time 1."""
    group = Group()
    for id in ids:
        group.join(0, asked(), id)
    assert not answers(group)
    group.tick(GATHER_SECONDS)
    told = answers(group)
    assert len(told["join", ids[0]]["members"]) == len(ids)
    for id in ids:
        given = {each: each.encode() for each in ids} if id == group.leader else {}
        group.sync(1, id, 1, given)
    told = answers(group)
    assert {id: told["sync", id]["assignment"] for id in ids} == {id: id.encode() for id in ids}
    return group


def code(call: object, *given: object) -> Code:
    assert callable(call)
    with pytest.raises(KafkaRefused) as caught:
        call(*given)
    return caught.value.code


def test_a_new_member_makes_all_join_again() -> None:
    group = gathered("a", "b")
    group.join(2, asked(), "c")
    assert code(group.heartbeat, 2, "a", 1) is Code.REBALANCE_IN_PROGRESS
    group.join(2, asked("a"), "")
    group.join(2, asked("b"), "")
    assert {member for _, member in answers(group)} == {"a", "b", "c"}
    assert group.generation == 2
    assert code(group.check_commit, "a", 1) is Code.ILLEGAL_GENERATION
    group.check_commit("a", 2)


def test_who_is_silent_or_does_not_join_is_out() -> None:
    group = gathered("a", "b")
    group.heartbeat(3.5, "a", 1)
    group.tick(4.5)
    assert list(group.members) == ["a"] and group.state is State.PREPARING
    group.join(4.6, asked("a"), "")
    assert group.generation == 2 and answers(group)["join", "a"]["leader"] == "a"
    assert code(group.heartbeat, 5, "b", 1) is Code.UNKNOWN_MEMBER_ID
    slow = gathered("a", "b")
    slow.join(2, asked("a"), "")
    for second in (3, 4, 5, 6):
        assert code(slow.heartbeat, second, "b", 1) is Code.REBALANCE_IN_PROGRESS
        slow.tick(second)
    slow.tick(7.1)
    assert list(slow.members) == ["a"]


def test_ways_of_sharing_must_agree() -> None:
    group = gathered("a")
    assert code(group.join, 2, asked(protocols=("other",)), "b") is Code.INCONSISTENT_GROUP_PROTOCOL
    group.join(2, asked(protocols=("other", "range")), "b")
    group.join(2, asked("a"), "")
    assert group.protocol == "range"


def test_the_last_to_leave_empties_it() -> None:
    group = gathered("a", "b")
    group.leave(2, "a")
    group.join(2, asked("b"), "")
    group.leave(3, "b")
    assert group.state is State.EMPTY and code(group.leave, 3, "b") is Code.UNKNOWN_MEMBER_ID
