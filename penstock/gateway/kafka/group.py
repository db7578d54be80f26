"""One consumer group: who is in it, and what each of them reads. Pure; Kafka's own protocol.

    empty → preparing → completing → stable → preparing → …

preparing: all members are to join (again); completing: the leader is to say what each reads;
stable: they read. Whoever joins, leaves, or is not heard of for its session time-out begins it
anew. Answers to joins and syncs come later, to all at once: `take_answers`.

Law: a generation has one assignment, given to its members only; a member of an older generation is
told so with every request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from penstock.gateway.kafka.errors import Code, KafkaRefused

#: How long a group that was empty waits for more members than the first.
GATHER_SECONDS: Final = 0.5
SESSION_SECONDS: Final = (1.0, 1800.0)
MEMBERS_MAX: Final = 256
#: What a member says to its leader, and what a leader says to all.
METADATA_BYTES_MAX: Final = 1 << 20

Answer = dict[str, Any]


class State(Enum):
    EMPTY = auto()
    PREPARING = auto()
    COMPLETING = auto()
    STABLE = auto()


@dataclass(slots=True)
class Member:
    """One consumer."""

    id: str
    instance: str | None
    session_seconds: float
    rebalance_seconds: float
    #: How it can share partitions, the best first, each with what it says to the leader.
    protocols: list[tuple[str, bytes]]
    heard_at: float
    assignment: bytes = b""
    is_joining: bool = False
    is_syncing: bool = False


@dataclass(slots=True)
class Join:
    """What a member says when it joins."""

    member: str
    instance: str | None
    session_seconds: float
    rebalance_seconds: float
    kind: str
    protocols: list[tuple[str, bytes]]


@dataclass(slots=True)
class Group:
    """See the module's docstring. Times are seconds of any clock."""

    state: State = State.EMPTY
    generation: int = 0
    kind: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    #: When joining ends, whoever is missing; and before when it does not.
    _until: float = 0.0
    _not_before: float = 0.0
    _answers: list[tuple[str, str, Answer]] = field(default_factory=list)

    # ---- requests

    def join(self, now: float, asked: Join, new_id: str) -> str:
        """The member's id; its answer comes later. Raises KafkaRefused."""
        low, high = SESSION_SECONDS
        if not low <= asked.session_seconds <= high:
            raise KafkaRefused(Code.INVALID_SESSION_TIMEOUT, f"give {low:g} to {high:g} s")
        _check_size(len(name) + len(said) for name, said in asked.protocols)
        names = {name for name, _ in asked.protocols}
        others = [each for each in self.members.values() if each.id != asked.member]
        if not names or (others and (self.kind != asked.kind or not self._common(names, others))):
            raise KafkaRefused(Code.INCONSISTENT_GROUP_PROTOCOL, "no way of sharing in common")
        if asked.member and asked.member not in self.members:
            raise KafkaRefused(Code.UNKNOWN_MEMBER_ID, "join without a member id")
        id = asked.member or new_id
        if not asked.member:
            self._make_room(asked)
        if self.state is State.EMPTY:
            self._not_before = now + GATHER_SECONDS
        known = self.members.get(id)
        changed = known is None or known.protocols != asked.protocols or id == self.leader
        member = self.members[id] = Member(
            id, asked.instance, asked.session_seconds, asked.rebalance_seconds, asked.protocols, now
        )
        if known is not None:
            member.assignment = known.assignment
        self.kind = asked.kind
        if self.state is State.STABLE and not changed:
            self._answer_join(member)  # it did not hear the last answer
            return id
        member.is_joining = True
        if self.state is not State.PREPARING:
            self._prepare(now)
        self.tick(now)
        return id

    def sync(self, now: float, member: str, generation: int, assignments: dict[str, bytes]) -> None:
        """Its answer comes later. Raises KafkaRefused."""
        known = self._check(member, generation)
        _check_size(len(each) for each in assignments.values())
        known.heard_at = now
        if self.state is State.PREPARING:
            raise KafkaRefused(Code.REBALANCE_IN_PROGRESS, "join again")
        known.is_syncing = True
        if self.state is State.COMPLETING and member == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
            self.state = State.STABLE
        if self.state is State.STABLE:
            for each in self.members.values():
                self._answer_sync(each)

    def heartbeat(self, now: float, member: str, generation: int) -> None:
        """Raises KafkaRefused, also to say that all join again."""
        self._check(member, generation).heard_at = now
        if self.state is State.PREPARING:
            raise KafkaRefused(Code.REBALANCE_IN_PROGRESS, "join again")

    def leave(self, now: float, member: str, instance: str | None = None) -> None:
        if not member and instance is not None:
            named = [each.id for each in self.members.values() if each.instance == instance]
            member = named[0] if named else ""
        if member not in self.members:
            raise KafkaRefused(Code.UNKNOWN_MEMBER_ID, "it is no member")
        self._remove(member)
        self._prepare(now)
        self.tick(now)

    def check_commit(self, member: str, generation: int) -> None:
        """Whether a member may say how far it is. Raises KafkaRefused."""
        if generation >= 0 or member:
            self._check(member, generation)

    @property
    def held_bytes(self) -> int:
        """Of what its members have said."""
        return sum(
            len(each.assignment) + sum(len(said) for _, said in each.protocols)
            for each in self.members.values()
        )

    # ---- time

    def tick(self, now: float) -> None:
        """What time alone brings about."""
        late = [
            each.id
            for each in self.members.values()
            if not each.is_joining and now - each.heard_at > each.session_seconds
        ]
        for id in late:
            self._remove(id)
        if late and self.state is not State.PREPARING:
            self._prepare(now)
        if self.state is State.PREPARING:
            missing = [each.id for each in self.members.values() if not each.is_joining]
            if missing and now >= self._until:
                for id in missing:
                    self._remove(id)
                missing = []
            if not missing and now >= self._not_before:
                self._complete(now)

    def take_answers(self) -> list[tuple[str, str, Answer]]:
        """Since the last time: `join` or `sync`, the member, and what it is told."""
        answers, self._answers = self._answers, []
        return answers

    # ---- steps

    def _make_room(self, asked: Join) -> None:
        for each in list(self.members.values()):
            if asked.instance is not None and each.instance == asked.instance:
                self._remove(each.id)  # it started anew, under its own name
        if len(self.members) >= MEMBERS_MAX:
            raise KafkaRefused(Code.INVALID_REQUEST, f"a group has {MEMBERS_MAX} members at most")

    def _prepare(self, now: float) -> None:
        for each in self.members.values():
            if each.is_syncing:
                each.is_syncing = False
                self._answers.append(("sync", each.id, {"error": Code.REBALANCE_IN_PROGRESS}))
        self.state = State.PREPARING
        longest = max((each.rebalance_seconds for each in self.members.values()), default=0.0)
        self._until = max(now + longest, self._not_before)

    def _complete(self, now: float) -> None:
        self.generation += 1
        if not self.members:
            self.state, self.leader = State.EMPTY, ""
            return
        self.state = State.COMPLETING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        first = [name for name, _ in self.members[self.leader].protocols]
        common = self._common(set(first), list(self.members.values()))
        self.protocol = next(name for name in first if name in common)
        for each in self.members.values():
            each.assignment = b""
            each.heard_at = now
            self._answer_join(each)

    def _answer_join(self, member: Member) -> None:
        member.is_joining = False
        told: Answer = {
            "generation": self.generation,
            "kind": self.kind,
            "protocol": self.protocol,
            "leader": self.leader,
            "member": member.id,
            "members": [],
        }
        if member.id == self.leader and self.state is State.COMPLETING:
            told["members"] = [
                {"member": each.id, "instance": each.instance,
                 "metadata": dict(each.protocols)[self.protocol]}
                for each in self.members.values()
            ]  # fmt: skip
        self._answers.append(("join", member.id, told))

    def _answer_sync(self, member: Member) -> None:
        if member.is_syncing:
            member.is_syncing = False
            told = {"kind": self.kind, "protocol": self.protocol, "assignment": member.assignment}
            self._answers.append(("sync", member.id, told))

    def _remove(self, id: str) -> None:
        gone = self.members.pop(id)
        if gone.is_joining:
            self._answers.append(("join", id, {"error": Code.UNKNOWN_MEMBER_ID}))
        if gone.is_syncing:
            self._answers.append(("sync", id, {"error": Code.UNKNOWN_MEMBER_ID}))

    def _check(self, member: str, generation: int) -> Member:
        known = self.members.get(member)
        if known is None:
            raise KafkaRefused(Code.UNKNOWN_MEMBER_ID, "it is no member")
        if generation != self.generation:
            raise KafkaRefused(
                Code.ILLEGAL_GENERATION, f"generation {generation}, it is {self.generation} now"
            )
        return known

    @staticmethod
    def _common(names: set[str], members: list[Member]) -> set[str]:
        for each in members:
            names = names & {name for name, _ in each.protocols}
        return names


def _check_size(sizes: Iterable[int]) -> None:
    if sum(sizes) > METADATA_BYTES_MAX:
        raise KafkaRefused(
            Code.INVALID_REQUEST, f"members say {METADATA_BYTES_MAX} bytes at once at most"
        )
