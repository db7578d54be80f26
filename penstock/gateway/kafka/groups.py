"""Consumer groups of a gateway: members wait here for each other; how far they are is in the log.

A group lives in the gateway that its members come to, apart for each token: whoever has another can
neither join nor disturb it. It is lost with the gateway, and its members join anew. Offsets are
metadata of the log, so any gateway has them. Law: an offset that was answered is durable; a member
of an older generation cannot set one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadFormat, Overloaded, PenstockError
from penstock.gateway.kafka.errors import Code, KafkaRefused, code_of
from penstock.gateway.kafka.group import Group, Join, State
from penstock.gateway.kafka.names import offset_key, parse_offset_key
from penstock.gateway.sessions import Session
from penstock.limits import LANES_MAX
from penstock.log.client.client import AsyncLog
from penstock.log.core.owners import OFFSETS_PREFIX
from penstock.log.records import SetKey, Value

GROUPS_MAX = 1024
#: What members of all groups of a token have said.
GROUPS_BYTES_MAX = 32 << 20
OFFSET_METADATA_CHARS_MAX = 4096
_TICK_SECONDS = 0.1

Message = dict[str, Any]


@dataclass(slots=True)
class _Led:
    """A group and those who wait for an answer of it."""

    group: Group = field(default_factory=Group)
    waiting: dict[tuple[str, str], asyncio.Future[Message]] = field(default_factory=dict)


class Groups:
    """Of one session: of one token."""

    def __init__(self, log: AsyncLog) -> None:
        self._log = log
        self._led: dict[str, _Led] = {}
        self._ticking: asyncio.Task[None] | None = None

    # ---- members

    async def join(self, asked: Message, client: str) -> Message:
        led = self._find(asked["group"])
        if sum(each.group.held_bytes for each in self._led.values()) > GROUPS_BYTES_MAX:
            raise Overloaded(f"members of groups have said more than {GROUPS_BYTES_MAX} bytes")
        session_seconds = asked["session_ms"] / 1000
        said = Join(
            asked["member"],
            asked.get("instance"),
            session_seconds,
            max(asked.get("rebalance_ms", 0) / 1000, session_seconds),
            asked["kind"],
            [(each["name"], each["metadata"]) for each in asked["protocols"]],
        )
        member = led.group.join(self._now(), said, f"{client[:64]}-{secrets.token_hex(16)}")
        return await self._wait(led, "join", member)

    async def sync(self, asked: Message) -> Message:
        led = self._known(asked["group"])
        given = {each["member"]: each["assignment"] for each in asked["assignments"]}
        led.group.sync(self._now(), asked["member"], asked["generation"], given)
        return await self._wait(led, "sync", asked["member"])

    def heartbeat(self, asked: Message) -> Message:
        led = self._known(asked["group"])
        led.group.heartbeat(self._now(), asked["member"], asked["generation"])
        return {}

    def leave(self, asked: Message) -> Message:
        led = self._known(asked["group"])
        members = asked.get("members")
        if members is None:
            led.group.leave(self._now(), asked["member"])
            self._settle(led)
            return {}
        told = []
        for each in members:
            one: Message = {"member": each["member"], "instance": each["instance"]}
            try:
                led.group.leave(self._now(), each["member"], each["instance"])
            except KafkaRefused as error:
                one["error"] = error.code
            told.append(one)
        self._settle(led)
        return {"members": told}

    def _find(self, name: str) -> _Led:
        if not name or len(name) > 200:
            raise KafkaRefused(Code.INVALID_GROUP_ID, "the name of the group is empty or too long")
        led = self._led.get(name)
        if led is None:
            if len(self._led) >= GROUPS_MAX:
                raise Overloaded(f"{GROUPS_MAX} groups are led here")
            led = self._led[name] = _Led()
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return led

    def _known(self, name: str) -> _Led:
        """A group that this gateway does not know has no members: they join anew."""
        led = self._led.get(name)
        if led is None:
            raise KafkaRefused(Code.UNKNOWN_MEMBER_ID, "it is no member")
        return led

    async def _wait(self, led: _Led, what: str, member: str) -> Message:
        older = led.waiting.pop((what, member), None)
        if older is not None and not older.done():
            older.set_result({"error": Code.REBALANCE_IN_PROGRESS})
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        led.waiting[what, member] = future
        self._settle(led)
        return await future

    def _settle(self, led: _Led) -> None:
        for what, member, told in led.group.take_answers():
            future = led.waiting.pop((what, member), None)
            if future is not None and not future.done():
                future.set_result(told)

    async def _tick(self) -> None:
        """While there are members anywhere."""
        while self._led:
            await asyncio.sleep(_TICK_SECONDS)
            for name, led in list(self._led.items()):
                led.group.tick(self._now())
                self._settle(led)
                if led.group.state is State.EMPTY and not led.waiting:
                    del self._led[name]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # ---- offsets

    def check_commit(self, asked: Message) -> None:
        """Whether who asks may say how far the group is. Raises KafkaRefused."""
        generation, member = asked.get("generation", -1), asked.get("member", "")
        if generation >= 0 or member:
            self._known(asked["group"]).group.check_commit(member, generation)

    async def commit(self, session: Session, asked: Message) -> Message:
        self.check_commit(asked)
        answers = []
        for topic in asked["topics"]:
            code = Code.NONE
            try:
                sets = await offset_sets(session, asked["group"], topic)
                self.check_commit(asked)  # again: others may have gone on meanwhile
                if sets:
                    await self._log.append([], sets=sets)
            except PenstockError as error:
                code = code_of(error)
            told = [{"index": part["index"], "error": code} for part in topic["partitions"]]
            answers.append({"name": topic["name"], "partitions": told})
        return {"topics": answers}

    async def fetch(self, asked: Message) -> Message:
        group, wanted = asked["group"], asked["topics"]
        if wanted is None:
            return {"topics": await self._all_offsets(group)}
        answers = []
        for topic in wanted:
            try:
                told = await self._offsets(group, topic)
            except PenstockError as error:
                code = code_of(error)
                told = [_told(at, None) | {"error": code} for at in topic["partitions"]]
            answers.append({"name": topic["name"], "partitions": told})
        return {"topics": answers}

    async def _offsets(self, group: str, topic: Message) -> list[Message]:
        """One by one, so that who may not read the topic is told."""
        indexes = topic["partitions"]
        known = [at for at in dict.fromkeys(indexes) if 0 <= at < LANES_MAX]
        keys = [offset_key(topic["name"], at, group) for at in known]
        found = dict(zip(known, await asyncio.gather(*map(self._log.get, keys)), strict=True))
        return [_told(at, found.get(at)) for at in indexes]

    async def _all_offsets(self, group: str) -> list[Message]:
        """Of all topics that may be read."""
        named: dict[str, list[Message]] = {}
        for key, value in (await self._log.list_metadata(OFFSETS_PREFIX)).items():
            stream, partition, name = parse_offset_key(key)
            if name == group:
                named.setdefault(stream, []).append(_told(partition, value))
        return [{"name": name, "partitions": told} for name, told in named.items()]


def _told(partition: int, value: Value | None) -> Message:
    offset, metadata = (-1, "") if value is None else _decode_offset(value.data)
    return {"index": partition, "offset": offset, "leader_epoch": -1, "metadata": metadata}


async def offset_sets(session: Session, group: str, topic: Message) -> list[SetKey]:
    """What says how far a group is in a topic."""
    stream = await session.stream(topic["name"], fresh=False)
    sets: dict[str, SetKey] = {}
    for part in topic["partitions"]:
        metadata = part["metadata"] or ""
        if not 0 <= part["index"] < stream.lanes:
            raise KafkaRefused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {part['index']}")
        if len(metadata) > OFFSET_METADATA_CHARS_MAX:
            raise KafkaRefused(Code.INVALID_REQUEST, "metadata of an offset is too long")
        key = offset_key(stream.name, part["index"], group)
        value = json.dumps({"offset": part["offset"], "metadata": metadata})
        sets[key] = SetKey(key, value.encode())
    return list(sets.values())


def _decode_offset(data: bytes) -> tuple[int, str]:
    try:
        value: Any = json.loads(data)
        return int(value["offset"]), str(value["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no offset of a group: {error}") from None
