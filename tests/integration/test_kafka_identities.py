"""Every bad identity sends every request of Kafka's protocol: refused, and nothing is told or done.

Goal: I20. Method: a log server in the test's own loop, whose clock the test holds, with a row, a
group that has read it, and a transaction under way; a gateway before it. Each identity sends each
request on a connection of its own. What comes back is searched for what is nobody's business, byte
by byte; it must be the same for a stream that is not there; and afterwards the log is what it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bad_identities import IDENTITIES, NOW_MS, REVOKED_ID, ROOT, Identity
from harness.http_gateway import gateway_thread
from harness.kafka_wire import Wire, batch_of, request, wire
from harness.served_log import ServedLog, served
from kafka_requests import KafkaRequest, requests, versions

from penstock.config import ServerConfig
from penstock.gateway.config import GatewayConfig
from penstock.gateway.kafka import connection
from penstock.gateway.kafka.connection import KafkaConnection
from penstock.gateway.kafka.schemas import APIS
from penstock.gateway.sessions import Session
from penstock.log.core.owners import revoked_key
from penstock.log.records import SetKey
from penstock.log.serving.directory import Address
from penstock.stream.registry import make_stream

ROW, NOTE = b"s3cret-row", b"s3cret-note"
FORBIDDEN, NOT_LOGGED_IN, NOT_ATTEMPTED = 29, 58, 55
#: Who is refused is cut off at once, and this is long for it.
CLOSED_SECONDS = 5.0
#: What those who are known may do to bids; the others have no right to it.
RIGHTS = {"a user": {"append", "read", "either"}}


@dataclass(frozen=True)
class Target:
    """A gateway, its log, and what somebody has there."""

    server: ServedLog
    address: Address
    producer_id: int
    epoch: int
    offset: int

    def facts(self) -> object:
        state = self.server.server.owner.sequencer.state
        return state.next_lsn, dict(state.metadata)

    def requests(self) -> list[KafkaRequest]:
        return list(requests(self.producer_id, self.epoch, self.offset))


@contextlib.asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Target]:
    tmp_path.chmod(0o700)
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(ROOT)
    async with served(ServerConfig(tmp_path), wall_ms=lambda: NOW_MS) as server:
        async with await server.connect() as log:
            for name in ("bids", "trades"):
                await make_stream(log, name, "value BINARY", lanes=1, key=None, now_ms=NOW_MS)
            await log.append([], sets=[SetKey(revoked_key(REVOKED_ID), b"{}")])
        found: list[Address] = []
        at = server.server.address
        target = f"penstock://{at.host}:{at.port}"
        config = GatewayConfig(target=target, port=0, kafka_port=0)
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, gateway_thread(config, found.append))
            try:
                yield await asyncio.to_thread(settle, server, found[0])
            finally:
                await asyncio.to_thread(stack.close)


def settle(server: ServedLog, address: Address) -> Target:
    """What somebody with the root token leaves there."""
    with wire(address) as client:
        client.log_in(ROOT)
        part = {"index": 0, "records": batch_of(ROW)}
        topics = [{"name": "bids", "partitions": [part]}]
        told = ask(client, 0, {"acks": -1, "timeout_ms": 9, "topics": topics})
        offset = told["topics"][0]["partitions"][0]["base_offset"]
        kept = {"index": 0, "offset": offset, "metadata": NOTE.decode()}
        topics = [{"name": "bids", "partitions": [kept]}]
        ask(client, 8, {"group": "shop", "generation": -1, "member": "", "topics": topics})
        opened = ask(client, 22, {"txn": "till", "timeout_ms": 60_000, "producer_id": -1})
        owner = {"producer_id": opened["producer_id"], "epoch": opened["epoch"]}
        begun = {"txn": "till", **owner, "topics": [{"name": "bids", "partitions": [0]}]}
        assert find_codes(ask(client, 24, begun)) == [0]
        return Target(server, address, offset=offset, **owner)


def ask(client: Wire, key: int, asked: dict[str, Any]) -> dict[str, Any]:
    told = client.ask(key, APIS[key].last, asked)
    assert told is not None
    return told


def find_codes(told: object) -> list[int]:
    """Every error code of an answer; where there are topics, theirs."""
    if isinstance(told, dict) and told.get("topics"):
        return find_codes(told["topics"])
    if isinstance(told, dict):
        own = [told["error"]] if "error" in told else []
        return own + [code for value in told.values() for code in find_codes(value)]
    return [code for each in told for code in find_codes(each)] if isinstance(told, list) else []


def find_leaks(target: Target, *, all_of_them: bool = True) -> list[str]:
    """Of all identities and all requests; or at least one, if there is any."""
    leaks: list[str] = []
    for who in IDENTITIES:
        for each in target.requests():
            for version in versions(each):
                before = target.facts()
                found = _try(target, who, each, version)
                leaks += [f"{who.name}: {each.name}, version {version}: {said}" for said in found]
                is_own = who.is_known and (each.needs == "log" or is_allowed(who, each))
                if not is_own and target.facts() != before:
                    leaks.append(f"{who.name}: {each.name} changed the log")
                if not is_kept(before, target.facts()):
                    leaks.append(f"{who.name}: {each.name} changed what is another's")
                if leaks and not all_of_them:
                    return leaks
    return leaks


def is_kept(before: Any, after: Any) -> bool:
    """Whether what is of the root token, till's transaction above all, is as it was."""
    key = "kafka/txn/anon-/till"
    return key in before[1] and before[1][key] == after[1].get(key)


def is_allowed(who: Identity, each: KafkaRequest) -> bool:
    return each.needs == "nothing" or each.needs in RIGHTS.get(who.name, ())


def _try(target: Target, who: Identity, each: KafkaRequest, version: int) -> list[str]:
    frame = request(each.key, version, each.asked)
    if who.is_known:
        with wire(target.address) as client:
            told = client.log_in(who.token)
            assert told is not None and not told["error"], f"{who.name}: {told}"
            return _judge(who, each, version, client)
    found: list[str] = []
    #: Anybody is told how to log in.
    for shows in (True,) if each.key in (17, 18) else (True, False):
        with wire(target.address) as client:
            # All at once: what follows a token that is none must not be done either.
            if shows:
                client.send(request(17, 1, {"mechanism": "PLAIN"}))
                client.send(request(36, 2, {"auth": b"\0me\0" + who.token.encode()}))
            client.send(frame)
            client.socket.settimeout(CLOSED_SECONDS)
            try:
                answers = list(iter(client.receive, None))
            except TimeoutError:
                return ["the connection stays open"]
        found += _judge_stranger(each, version, answers, shows)
    return found


def _judge_stranger(
    each: KafkaRequest, version: int, answers: list[bytes], shows: bool
) -> list[str]:
    if shows:
        refusal = b"the password is no token of this log"
        is_refused = len(answers) == 2 and refusal in answers[1]
        return [] if is_refused else [f"after a refusal: {answers}"]
    if len(answers) != 1:
        return [f"without a word of who it is: {answers}"]
    codes = find_codes(Wire.decode(each.key, version, answers[0]))
    return [] if set(codes) <= {NOT_LOGGED_IN} and not _tells(answers[0]) else [f"{answers[0]!r}"]


def _judge(who: Identity, each: KafkaRequest, version: int, client: Wire) -> list[str]:
    client.send(request(each.key, version, each.asked))
    raw = client.receive()
    assert raw is not None, f"{who.name}: nothing was said to {each.name}"
    told = Wire.decode(each.key, version, raw)
    codes = find_codes(told)
    if _tells(raw) and not (each.needs == "read" and is_allowed(who, each)):
        return [f"it tells {raw!r}"]
    if each.needs == "nothing":
        return []
    if each.needs == "log" or is_allowed(who, each):
        is_refused = who.name == "no right to the log"
        return [] if (FORBIDDEN in codes) == is_refused else [f"the codes are {codes}"]
    if each.lists:
        return [f"it tells {raw!r}"] if b"bids" in raw else []
    if FORBIDDEN not in codes or not set(codes) <= {FORBIDDEN, NOT_ATTEMPTED}:
        return [f"the codes are {codes}"]
    # Who may not see it cannot find out either whether it is there.
    other = client.ask(each.key, version, renamed(each.asked))
    return [] if shown(other) == shown(renamed(told)) else [f"{told} is not {other}"]


def _tells(raw: bytes) -> bool:
    return ROW in raw or NOTE in raw


def shown(told: object) -> str:
    """Without what the token itself says, of which one part or another stands against it."""
    return re.sub(r"stream/(bids|nope): the token allows [^']*", "", repr(told))


def renamed(asked: Any) -> Any:
    if isinstance(asked, dict):
        return {name: renamed(value) for name, value in asked.items()}
    if isinstance(asked, list):
        return [renamed(each) for each in asked]
    return "nope" if asked == "bids" else asked


def test_the_samples_are_of_every_kind_of_request() -> None:
    assert {each.key for each in requests(1, 0, 0)} | {36} == set(APIS)


async def test_every_bad_identity_is_refused_whatever_it_asks_for(tmp_path: Path) -> None:
    assert len(IDENTITIES) >= 18
    async with serving(tmp_path) as target:
        leaks = await asyncio.to_thread(find_leaks, target)
        assert not leaks, "\n".join(leaks)


# ---- mistakes on purpose


_EVERYBODYS: dict[Any, Any] = {}
_authenticate, _stream = KafkaConnection._authenticate, Session.stream


def _shared_beside(self: Session, kind: Any) -> Any:
    return _EVERYBODYS.setdefault(kind, kind(self.log))


async def _shared_stream(self: Session, name: str, *, fresh: bool = True) -> Any:
    if name not in _EVERYBODYS:
        _EVERYBODYS[name] = await _stream(self, name, fresh=fresh)
    return _EVERYBODYS[name]


async def _go_on(self: KafkaConnection, *given: Any) -> None:
    self._token = ROOT
    with contextlib.suppress(connection._Ended):
        await _authenticate(self, *given)


MUTANTS: dict[str, tuple[str, object]] = {
    "transactions and groups are of all tokens": (
        "penstock.gateway.sessions.Session.beside",
        _shared_beside,
    ),
    "streams that one token has found are known to all": (
        "penstock.gateway.sessions.Session.stream",
        _shared_stream,
    ),
    "a password that is none opens the log": (
        "penstock.gateway.kafka.connection.parse_plain",
        lambda auth: ROOT,
    ),
    "who was refused may go on": (
        "penstock.gateway.kafka.connection.KafkaConnection._authenticate",
        _go_on,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mistake_in_the_gateway_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, wrong = MUTANTS[name]
    _EVERYBODYS.clear()
    monkeypatch.setattr(place, wrong)
    monkeypatch.setattr(__name__ + ".CLOSED_SECONDS", 0.5)
    async with serving(tmp_path) as target:
        assert await asyncio.to_thread(find_leaks, target, all_of_them=False), "nobody noticed"
