"""What a token allows: one pure question, asked of every request before anything is done.

    rights = read_rights(chain)                       what its caveats say, together
    rights.refuse(message, body, now_ms)              None, or the reason against this request

A caveat is `log=NAME`, `until=MILLISECONDS` or `allow=RIGHT RIGHT …`. All of them must hold, so one
more never allows more. The rights of one `allow`:

    append:PATTERN    rows (kind data) into streams, under their own producers; makes the streams
    read:PATTERN      streams: what counts in them, and what they are; how far groups of Kafka's
                      clients have read them
    run:PATTERN       queries: producers, tags and keys of theirs, every kind; into streams that
                      `append` names, also staged entries and markers. `run:spark/*`: what Spark's
                      own engine writes
    deliver:PATTERN   deliveries: player, acks, definition
    metrics           the server's counters and status
    admin             everything

A pattern is a name, or the beginning of one with a `*` behind it. Law: what has no rule is refused;
requests are judged by what they hold (kinds, tags, producers, keys), never by what they claim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import BadRequest, Damaged
from penstock.log.core.owners import (
    OFFSETS_PREFIX,
    SEQUENCES_PREFIX,
    TRIM_KEY,
    Thing,
    anonymous_prefix,
    owner_of_key,
    owner_of_producer,
    owner_of_tag,
)
from penstock.log.group_format import CLAIM, RETIRE, Body, decode_sets
from penstock.log.records import Guard, Kind, SetKey
from penstock.wire import messages as m
from penstock.wire.token import Chain

_RIGHT: Final = re.compile(
    r"(append|read|run|deliver):([A-Za-z_][A-Za-z0-9_./-]{0,139}\*?|\*)|metrics|admin"
)
#: Verdicts on names that a session remembers.
_REMEMBERED_MAX: Final = 512
_STREAM_KINDS: Final = frozenset((Kind.STAGED, Kind.MARKER))


class Patterns:
    """Names, and beginnings of names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names = frozenset(each for each in patterns if not each.endswith("*"))
        self._starts = tuple(each[:-1] for each in patterns if each.endswith("*"))

    def __bool__(self) -> bool:
        return bool(self._names or self._starts)

    def match(self, name: str) -> bool:
        return name in self._names or name.startswith(self._starts)


class Allowed:
    """The rights of one `allow`."""

    def __init__(self, id: str, rights: Sequence[str]) -> None:
        found: dict[str, list[str]] = {}
        for right in rights:
            sort, _, pattern = right.partition(":")
            found.setdefault(sort, []).append(pattern)
        self.text = " ".join(rights)
        self._own = anonymous_prefix(id)
        self.is_admin = "admin" in found
        self.metrics = "metrics" in found
        self.append = Patterns(found.get("append", ()))
        self.read = Patterns(found.get("read", ()))
        runs = found.get("run", [])
        self.run = Patterns([each for each in runs if "/" not in each])
        #: Of Spark's own engine: `run:spark/*`, or `run:*`.
        self.batch = Patterns([each for each in runs if each.startswith("spark/") or each == "*"])
        self.deliver = Patterns(found.get("deliver", ()))
        #: Verdicts that were asked for: on producers; on what they write, by kind and tag.
        self._produces: dict[str, bool] = {}
        self._writes: dict[tuple[str, int, str], bool] = {}

    @property
    def uses_log(self) -> bool:
        return bool(self.read or self.append or self.run or self.batch or self.deliver)

    # ---- names

    def owns(self, thing: Thing | None) -> bool:
        """Whether it is a query, batch writer or delivery of this right."""
        if thing is None:
            return False
        patterns = {"query": self.run, "batch": self.batch, "delivery": self.deliver}
        return thing.sort in patterns and patterns[thing.sort].match(thing.name)

    def produces(self, producer: str) -> bool:
        """Whether it may open this producer, and append as it."""
        known = self._produces.get(producer)
        if known is None:
            if len(self._produces) >= _REMEMBERED_MAX:
                self._produces.clear()
            known = self._produces[producer] = self._judge_producer(producer)
        return known

    def _judge_producer(self, producer: str) -> bool:
        thing = owner_of_producer(producer)
        if thing is not None and thing.sort == "anonymous":
            # Who only reads keeps offsets of its groups: what it may set and write is judged apart.
            return producer.startswith(self._own) and self.uses_log
        if thing is not None and thing.sort == "stream":
            return self.append.match(thing.name)
        return self.owns(thing)

    def reads_tag(self, tag: str) -> bool:
        thing = owner_of_tag(tag)
        if thing is not None and thing.sort == "stream":
            return self.read.match(thing.name)
        if thing is not None and thing.sort == "key":
            # Deliveries read where a stream begins anew; the query that says so shows itself there.
            return self.reads_key(thing.name)
        return self.owns(thing)

    def reads_key(self, key: str) -> bool:
        thing = owner_of_key(key)
        if thing is None:
            return key == TRIM_KEY and self.uses_log
        if thing.sort == "anonymous":
            return thing.name == self._own and self.uses_log
        if thing.sort == "stream":
            if key.startswith(OFFSETS_PREFIX):
                return self.read.match(thing.name)
            reads = self.read.match(thing.name) and key.startswith("stream/")
            return reads or self.append.match(thing.name)
        if key.startswith("query/") and self.deliver:
            return True  # a delivery of a query's result must find it
        return self.owns(thing)

    def sets_key(self, change: SetKey, guards: Sequence[Guard]) -> bool:
        thing = owner_of_key(change.key)
        if thing is not None and thing.sort == "anonymous":
            return thing.name == self._own and self.uses_log
        if thing is None or thing.sort != "stream":
            return self.owns(thing)
        if change.key.startswith(OFFSETS_PREFIX):
            return self.read.match(thing.name)
        if not self.append.match(thing.name):
            return False
        if change.key.startswith(SEQUENCES_PREFIX):
            return True
        if change.key.startswith("writers/"):
            return bool(self.run)
        # A stream that exists is nobody's to change: other writers rely on it.
        return change.value is not None and Guard(change.key, None) in guards

    def writes(self, producer: str, kind: int, tag: str) -> bool:
        """Whether this producer, which is ours, may give entries of this kind this tag."""
        known = self._writes.get((producer, kind, tag))
        if known is None:
            if len(self._writes) >= _REMEMBERED_MAX:
                self._writes.clear()
            known = self._writes[producer, kind, tag] = self._judge(producer, kind, tag)
        return known

    def _judge(self, producer: str, kind: int, tag: str) -> bool:
        thing = owner_of_tag(tag)
        if thing is None or thing.sort != "stream":
            is_control = thing is not None and (thing.sort != "delivery" or kind == Kind.CONTROL)
            return kind != Kind.META and is_control and self.owns(thing)
        writer = owner_of_producer(producer)
        if writer is None or not self.append.match(thing.name):
            return False
        if kind == Kind.DATA:
            is_naming = tag.startswith("M/")
            return not is_naming and (writer.sort != "stream" or writer.name == thing.name)
        if kind not in _STREAM_KINDS:
            return False
        # Of a query; or of Spark's own engine, whose tasks have no names.
        return writer.sort == "query" or (writer.sort == "anonymous" and bool(self.batch))

    # ---- requests

    def refuse(self, message: m.Message, body: Body | None) -> str | None:
        """The reason against a request; None: there is none."""
        if self.is_admin:
            return None
        rule = RULES.get(type(message))
        return (
            f"{type(message).__name__} is no request" if rule is None else rule(self, message, body)
        )

    def refuse_append(self, guards: Sequence[Guard], body: Body) -> str | None:
        producer, tags, refs = body.producer, body.tags, body.refs
        if not self.produces(producer):
            return f"it may not append as producer {producer}"
        for guard in guards:
            if not self.reads_key(guard.key):
                return f"it may not ask for metadata key {guard.key}"
        start = 0
        for index, row in enumerate(body.rows):
            kind, end = row[0], row[4]
            if kind == Kind.META:
                reason = self._refuse_sets(body, index, guards)
                if reason is not None:
                    return reason
            elif start == end and not body.flags & (CLAIM | RETIRE):
                return f"it may not append entries without a tag ({Kind(kind).name.lower()})"
            else:
                for ref in refs[start:end]:
                    if not self.writes(producer, kind, tags[ref]):
                        named = Kind(kind).name.lower()
                        return f"it may not append {named} entries under tag {tags[ref]}"
            start = end
        return None

    def _refuse_sets(self, body: Body, index: int, guards: Sequence[Guard]) -> str | None:
        try:
            changes = decode_sets(body.payload(index))
        except Damaged:
            return "a metadata entry cannot be read"
        for change in changes:
            if not self.sets_key(change, guards):
                return f"it may not set metadata key {change.key}"
        return None


# ---- one rule for each request of the protocol

Rule = Callable[[Allowed, Any, "Body | None"], "str | None"]


def _append(allowed: Allowed, message: m.Append, body: Body | None) -> str | None:
    return (
        "an append without a group" if body is None else allowed.refuse_append(message.guards, body)
    )


def _subscribe(allowed: Allowed, message: m.Subscribe, _: object) -> str | None:
    if message.tags is None:
        return "it may not read all tags"
    refused = next((tag for tag in message.tags if not allowed.reads_tag(tag)), None)
    return None if refused is None else f"it may not read tag {refused}"


def _read_last(allowed: Allowed, message: m.ReadLast, _: object) -> str | None:
    return None if allowed.reads_tag(message.tag) else f"it may not read tag {message.tag}"


def _get_metadata(allowed: Allowed, message: m.GetMetadata, _: object) -> str | None:
    if not message.exact:
        return _use(allowed, message, _)  # the answer has only what may be read
    if allowed.reads_key(message.prefix):
        return None
    return f"it may not ask for metadata key {message.prefix}"


def _get_producer(allowed: Allowed, message: m.GetProducer, _: object) -> str | None:
    if allowed.produces(message.producer):
        return None
    return f"it may not append as producer {message.producer}"


def _use(allowed: Allowed, message: m.Message, _: object) -> str | None:
    """What tells of positions only."""
    return None if allowed.uses_log else "it may not use the log"


def _look(allowed: Allowed, message: m.Message, _: object) -> str | None:
    return None if allowed.metrics else "it may not look at the server"


def _administer(allowed: Allowed, message: m.Message, _: object) -> str | None:
    return f"{type(message).__name__} needs the right admin"


def _always(allowed: Allowed, message: m.Message, _: object) -> str | None:
    return None


#: Whatever is not here is no request, and refused.
RULES: Final[dict[type[m.Message], Rule]] = {
    m.Hello: _always,  # the log that it names is judged by `Rights.refuse_log`
    m.Append: _append,
    m.Subscribe: _subscribe,
    m.Credit: _use,
    m.Unsubscribe: _use,
    m.ReadLast: _read_last,
    m.FindTime: _use,
    m.Trim: _administer,
    m.GetMetadata: _get_metadata,
    m.GetProducer: _get_producer,
    m.GetStatus: _look,
    m.GetBounds: _use,
    m.Ping: _always,
    m.GetMetrics: _look,
}


@dataclass(frozen=True, slots=True)
class Rights:
    """Of one token; without caveats, all there are."""

    #: None: the root token's.
    id: str | None = None
    logs: tuple[str, ...] = ()
    until_ms: int | None = None
    allowed: tuple[Allowed, ...] = field(default=(), repr=False)

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms

    def refuse_log(self, name: str) -> str | None:
        """`name`: of a log of a cluster; of a log without one, its id."""
        if all(name == each for each in self.logs):
            return None
        return f"it is for log {', '.join(self.logs)}, not for {name or 'a whole server'}"

    def refuse(self, message: m.Message, body: Body | None = None) -> str | None:
        """The reason against a request, of the first caveat that has one."""
        for allowed in self.allowed:
            reason = allowed.refuse(message, body)
            if reason is not None:
                return f"{reason}: the token allows {allowed.text}"
        return None

    @property
    def is_whole(self) -> bool:
        """Whether it allows everything, in the logs and for the time that it is for."""
        return all(allowed.is_admin for allowed in self.allowed)

    def shows_key(self, key: str) -> bool:
        """Whether a list of metadata may hold this key."""
        return all(allowed.is_admin or allowed.reads_key(key) for allowed in self.allowed)


ROOT: Final = Rights()


def read_rights(chain: Chain) -> Rights:
    """What the caveats of a token say, together. Raises BadRequest for one that says nothing."""
    logs: list[str] = []
    until_ms: int | None = None
    allowed: list[Allowed] = []
    for caveat in chain.caveats:
        name, _, value = caveat.partition("=")
        if name == "log" and value:
            logs.append(value)
        elif name == "until" and re.fullmatch(r"[0-9]{1,16}", value):
            until_ms = int(value) if until_ms is None else min(until_ms, int(value))
        elif name == "allow":
            rights = value.split(" ")
            for right in rights:
                check_right(right)
            allowed.append(Allowed(chain.id, rights))
        else:
            raise BadRequest(f"caveat {caveat[:80]!r} is not known here")
    return Rights(chain.id, tuple(logs), until_ms, tuple(allowed))


def check_right(right: str) -> None:
    if not _RIGHT.fullmatch(right):
        raise BadRequest(
            f"{right[:80]!r} is no right: use append:STREAM, read:STREAM, run:QUERY, "
            "deliver:DELIVERY (each a name, or its beginning and *), metrics or admin"
        )


def allow_caveat(rights: Sequence[str]) -> str:
    """A token with it allows these rights at most."""
    if not rights:
        raise BadRequest("a token that allows nothing is of no use: give a right")
    for right in rights:
        check_right(right)
    return "allow=" + " ".join(rights)


def until_caveat(time_ms: int) -> str:
    return f"until={time_ms}"


def log_caveat(log: str) -> str:
    if not log or not log.isprintable() or " " in log:
        raise BadRequest(f"{log!r} is no name or id of a log")
    return f"log={log}"
