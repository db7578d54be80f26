"""One consumer group: joining, sharing, leaving, silence."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import Overloaded
from penstock.gateway.kafka import groups
from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.gateway.kafka.group import (
    GATHER_SECONDS,
    METADATA_BYTES_MAX,
    Answer,
    Group,
    Join,
    State,
)


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


def test_members_say_no_more_than_can_be_held() -> None:
    group = gathered("a")
    large = bytes(METADATA_BYTES_MAX + 1)
    said = Join("", None, 3.0, 5.0, "consumer", [("range", large)])
    assert code(group.join, 2, said, "b") is Code.INVALID_REQUEST
    group.join(2, asked("a"), "")
    assert code(group.sync, 2, "a", 2, {"a": large}) is Code.INVALID_REQUEST
    assert group.held_bytes < 10


def joining(group: str, said: bytes = b"m") -> dict[str, Any]:
    return {
        "group": group, "session_ms": 3000, "member": "", "kind": "consumer",
        "protocols": [{"name": "range", "metadata": said}],
    }  # fmt: skip


def test_groups_of_a_token_hold_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_BYTES_MAX", 1000)

    async def run() -> None:
        led = groups.Groups(cast(Any, None))
        await led.join(joining("one", bytes(1001)), "me")
        with pytest.raises(Overloaded):
            await led.join(joining("other"), "me")

    asyncio.run(run())


def test_a_member_that_is_out_by_the_time_of_its_append_sets_no_offset() -> None:
    appended: list[object] = []

    async def append(*given: object, **more: object) -> None:
        appended.append(more)

    async def run() -> dict[str, Any]:
        led = groups.Groups(cast(Any, SimpleNamespace(append=append)))
        joined = await led.join(joining("g"), "me")

        async def stream(name: str, *, fresh: bool) -> object:
            led.leave({"group": "g", "member": joined["member"]})
            return SimpleNamespace(name=name, lanes=1)

        part = {"index": 0, "offset": 5, "metadata": None}
        commit = {"group": "g", "topics": [{"name": "s", "partitions": [part]}]}
        commit |= {"member": joined["member"], "generation": joined["generation"]}
        return await led.commit(cast(Any, SimpleNamespace(stream=stream)), commit)

    told = asyncio.run(run())
    assert told["topics"][0]["partitions"][0]["error"] is Code.UNKNOWN_MEMBER_ID
    assert not appended
