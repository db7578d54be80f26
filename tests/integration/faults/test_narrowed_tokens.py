"""Narrowed tokens against live servers: who gets in, what they may ask, and when that ends.

Goal: I20. Method: a server in the test's own loop, whose clock the test holds; every bad identity
sends every request of the protocol on a connection of its own, and afterwards the log is what it
was. The same sample is used for the pure rights (tests/unit/log/test_rights.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bad_identities import (
    ID,
    IDENTITIES,
    NOW_MS,
    REQUESTS,
    REVOKED_ID,
    ROOT,
    TASK,
    Identity,
    Request,
    entry,
    token,
)
from harness.in_process_cluster import in_process_cluster
from harness.served_log import ServedLog, served

from penstock.config import ServerConfig
from penstock.errors import (
    Fenced,
    Forbidden,
    PenstockError,
    SeqGap,
    SeqMismatch,
    StaleInstance,
    Unauthorized,
    Unavailable,
)
from penstock.log.client.client import AsyncLog, Endpoint, Resolve
from penstock.log.client.cluster import ClusterRoute, ProxyList
from penstock.log.client.reader import AsyncReader
from penstock.log.core.owners import revoked_key
from penstock.log.core.rights import Rights, allow_caveat, read_rights
from penstock.log.meta.open import ClusterAddress
from penstock.log.proxy.block_source import BlockSource, Fetched
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.log.serving import log_requests
from penstock.log.serving.log_requests import LOOK_SECONDS
from penstock.log.serving.log_service import LogService
from penstock.wire import messages as m
from penstock.wire.errors import error_from_code
from penstock.wire.frames import FrameReader, encode_frame
from penstock.wire.proof import NONCE_BYTES, Nonces, prove_client, prove_server
from penstock.wire.token import Chain, is_narrowed, proof_key, split_token

NONCE = b"n" * NONCE_BYTES
HELLO = m.Hello("narrowed")


@dataclass
class Clock:
    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Wire:
    """One bare connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader = field(default_factory=lambda: FrameReader(authenticated=True))
    waiting: list[m.Message | PenstockError] = field(default_factory=list)

    def send(self, message: m.Message, body: bytes = b"", request: int = 9) -> None:
        head = m.encode_message(message)
        self.writer.write(encode_frame(message.KIND, request, head, len(body)) + body)

    async def answer(self) -> m.Message | PenstockError | None:
        """None: the server has closed the connection."""
        while not self.waiting:
            data = await self.reader.read(65536)
            if not data:
                return None
            while data:
                buffer = self.frames.get_buffer()
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                data = data[size:]
                for frame in self.frames.buffer_updated(size):
                    message = m.decode_message(frame.kind, frame.head)
                    if isinstance(message, m.Failed):
                        self.waiting.append(error_from_code(message.code, message.message))
                    else:
                        self.waiting.append(message)
        return self.waiting.pop(0)

    async def meet(self, shown: str) -> Nonces | None:
        """The nonces of this connection; None if there is no challenge."""
        narrowed = is_narrowed(shown)
        self.send(m.MeetAs(NONCE, split_token(shown)[0].text) if narrowed else m.Meet(NONCE))
        challenge = await self.answer()
        if not isinstance(challenge, m.Challenge):
            self.waiting.insert(0, challenge or Unavailable("closed"))
            return None
        return Nonces(NONCE, challenge.nonce)

    async def hello(self, shown: str, hello: m.Message = HELLO) -> m.Message | PenstockError | None:
        nonces = await self.meet(shown)
        if nonces is not None:
            head = m.encode_message(hello)
            self.send(hello, prove_client(proof_key(shown), nonces, hello.KIND, head))
        return await self.answer()


@contextlib.asynccontextmanager
async def connected(server: ServedLog) -> AsyncIterator[Wire]:
    address = server.server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, clock: Callable[[], int]) -> AsyncIterator[ServedLog]:
    """A log with a row, a definition and a revoked token; its root token is ROOT."""
    tmp_path.chmod(0o700)
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(ROOT)
    async with served(ServerConfig(tmp_path), wall_ms=clock) as server:
        async with await server.connect() as log:
            rows = NewEntry(b"row", ("s/bids",))
            await log.append([rows], sets=[SetKey("stream/bids", b"{}"), SetKey("run/hot", b"1")])
            await log.append([], sets=[SetKey(revoked_key(REVOKED_ID), b"{}")])
        yield server


def facts(server: ServedLog) -> object:
    """What no refused request may change."""
    state = server.server.owner.sequencer.state
    return (state.next_lsn, server.server.owner.trim_point, dict(state.metadata))


async def ask(server: ServedLog, who: Identity, request: Request) -> m.Message | PenstockError:
    """What they are told; requests follow the hello at once, whatever came of that."""
    async with connected(server) as wire:
        if isinstance(request.message, m.GetMetrics):
            answer = await wire.hello(who.token, request.message)
        else:
            answer = await wire.hello(who.token)
            if who.is_known:
                if not isinstance(answer, m.Welcome):
                    return answer or Unavailable("closed")
                wire.send(request.message, request.body)
                if isinstance(request.message, m.Credit | m.Unsubscribe):
                    wire.send(m.Ping(), request=10)  # they are not answered
                answer = await wire.answer()
            elif isinstance(answer, PenstockError):
                wire.send(request.message, request.body)
                while (further := await wire.answer()) is not None:
                    assert isinstance(further, Unauthorized), f"{who.name}: {further}"
        assert answer is not None, f"{who.name}: nothing was said to {request.name}"
        return answer


#: What an append meets that passed the rights: the samples' producers were not opened.
ORDERED = (SeqGap, SeqMismatch, Fenced, StaleInstance, m.AppendDone)


async def find_leaks(server: ServedLog, *, all_of_them: bool = True) -> list[str]:
    """Of all identities and all requests; or at least one, if there is any."""
    leaks = []
    before = facts(server)
    for who in IDENTITIES:
        for request in REQUESTS:
            answer = await ask(server, who, request)
            is_allowed = who.is_known and (request.is_harmless or request.name in who.may)
            if is_allowed:
                if isinstance(answer, Unauthorized) and who.name != "no right to the log":
                    leaks.append(f"{who.name}: {request.name} is refused: {answer}")
            elif not isinstance(answer, Unauthorized):
                leaks.append(f"{who.name}: {request.name}: {answer}")
            elif who.is_known != isinstance(answer, Forbidden) and who.name != "another log":
                leaks.append(f"{who.name}: {request.name}: {answer!r}")
            if not is_allowed and facts(server) != before:
                leaks.append(f"{who.name}: {request.name} changed the log")
            before = facts(server)
            if leaks and not all_of_them:
                break
    return leaks


async def test_every_bad_identity_is_refused_whatever_it_asks_for(tmp_path: Path) -> None:
    assert len(IDENTITIES) >= 18
    async with serving(tmp_path, Clock()) as server:
        assert await find_leaks(server) == []


async def test_without_a_challenge_or_with_a_recorded_proof_nobody_gets_in(tmp_path: Path) -> None:
    good = token("allow=read:bids")
    head = m.encode_message(HELLO)
    async with serving(tmp_path, Clock()) as server:
        async with connected(server) as wire:
            nonces = await wire.meet(good)
            assert nonces is not None
            recorded = prove_client(proof_key(good), nonces, m.Hello.KIND, head)
            wire.send(HELLO, recorded)
            assert isinstance(await wire.answer(), m.Welcome)
        async with connected(server) as wire:
            wire.send(HELLO, recorded)
            assert isinstance(await wire.answer(), Unauthorized)
        for proof in (recorded, prove_server(proof_key(good), nonces), b""):
            async with connected(server) as wire:
                assert await wire.meet(good) is not None
                wire.send(HELLO, proof)
                assert isinstance(await wire.answer(), Unauthorized)
                assert await wire.answer() is None
        async with connected(server) as wire:  # a root token's proof is none of a narrowed one's
            nonces = await wire.meet(good)
            assert nonces is not None
            wire.send(HELLO, prove_client(split_token(good)[0].text, nonces, m.Hello.KIND, head))
            assert isinstance(await wire.answer(), Unauthorized)


async def test_a_false_server_learns_nothing_and_is_noticed() -> None:
    good, seen = token("allow=read:bids"), bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65536)
        seen.extend(data)
        challenge = m.encode_message(m.Challenge(bytes(32), bytes(32)))
        writer.write(encode_frame(m.Challenge.KIND, 1, challenge))
        seen.extend(await reader.read(65536))
        writer.close()

    false = await asyncio.start_server(pretend, "127.0.0.1", 0)
    host, port = false.sockets[0].getsockname()

    async def resolve() -> Endpoint:
        return Endpoint(host, port, good)

    with pytest.raises(Unauthorized, match="does not have this token"):
        await AsyncLog.connect(resolve, timeout=5)
    false.close()
    _, mac = split_token(good)
    assert mac not in seen and mac.hex().encode() not in seen and ROOT.encode() not in seen


def connect_with(server: ServedLog, shown: str) -> Resolve:
    async def resolve() -> Endpoint:
        address = server.server.address
        return Endpoint(address.host, address.port, shown)

    return resolve


async def read_for_ever(tail: AsyncReader) -> None:
    while True:
        await anext(tail)


async def test_a_client_with_a_narrowed_token_works_within_its_rights(tmp_path: Path) -> None:
    shown = token("allow=append:bids read:bids")
    async with serving(tmp_path, Clock()) as server:
        async with await AsyncLog.connect(connect_with(server, shown)) as log:
            done = await log.append([NewEntry(b"mine", ("s/bids",))])
            with pytest.raises(Forbidden, match="tag s/trades"):
                await log.append([NewEntry(b"no", ("s/trades",))])
            again = await log.append([NewEntry(b"more", ("s/bids",))])
            assert again.first_lsn == done.first_lsn + 1, "a refusal costs nothing"
            found = await log.read(["s/bids"])
            assert [each.payload for each in found] == [b"row", b"mine", b"more"]
            assert found[-1].producer.startswith(f"anon-{ID}-")
            with pytest.raises(Forbidden):
                await log.read(["s/trades"])
            with pytest.raises(Forbidden):
                await log.read()
            assert set(await log.list_metadata("")) == {"stream/bids"}
            with pytest.raises(Forbidden):
                await log.trim(1)
        metrics = server.server.metrics_text()
        assert "penstock_forbidden_total 4" in metrics


async def test_a_worker_cannot_commit_for_another_query(tmp_path: Path) -> None:
    """The marker of a neighbour is refused, under any producer; its own is not."""
    shown = token(allow_caveat(["run:hot", "read:bids", "append:result"]))
    async with serving(tmp_path, Clock()) as server:
        async with await server.connect() as log:
            cold = await log.claim("@cold.1/0/0")
            mine = await log.claim(TASK.producer)
        async with await AsyncLog.connect(connect_with(server, shown)) as log:
            own = await log.adopt(TASK.producer, mine)
            await own.append([entry(Kind.MARKER, TASK.marker_tag, "s/result", "M/result")])
            for tags in (("T/cold.1/0/0",), ("T/cold.1/0/0", "s/result"), ("s/cold_result",)):
                forged = entry(Kind.MARKER, *tags)
                with pytest.raises(Forbidden):
                    await own.append([forged])
                with pytest.raises(Forbidden):
                    await log.append([forged])
            for attempt in (log.adopt("@cold.1/0/0", cold), log.claim("@cold.1/0/0")):
                with pytest.raises(Forbidden):
                    await attempt
            with pytest.raises(Forbidden):
                await log.append([], sets=[SetKey("run/cold", b"9")])
            assert await own.append([entry(Kind.CHANGE, TASK.change_tag)])
        state = server.server.owner.sequencer.state
        known = state.producers.get("@cold.1/0/0")
        assert "run/cold" not in state.metadata and known is not None and known.instance == cold


async def test_a_revoked_token_is_cut_off_within_five_seconds(tmp_path: Path) -> None:
    shown, spared = token("allow=append:bids read:bids"), token("allow=read:bids", id="0" * 16)
    async with serving(tmp_path, Clock()) as server:
        async with (
            await AsyncLog.connect(connect_with(server, shown)) as log,
            await AsyncLog.connect(connect_with(server, spared)) as other,
            await server.connect() as root,
        ):
            tail, others = log.tail(["s/bids"], start=0), other.tail(["s/bids"], start=0)
            assert len((await anext(tail)).entries) == 1
            revoked = time.monotonic()
            await root.append([], sets=[SetKey(revoked_key(ID), b"{}")])
            with pytest.raises(Unauthorized, match="revoked"):
                await read_for_ever(tail)
            assert time.monotonic() - revoked < 5 and LOOK_SECONDS < 4
            await root.append([NewEntry(b"later", ("s/bids",))])
            with pytest.raises(Unauthorized):
                await log.append([NewEntry(b"no", ("s/bids",))])
            payloads = [entry.payload for entry in (await anext(others)).entries]
            while b"later" not in payloads:
                payloads += [entry.payload for entry in (await anext(others)).entries]
        with pytest.raises(Unauthorized, match="revoked"):
            await AsyncLog.connect(connect_with(server, shown), timeout=5)


async def test_a_token_that_expires_is_cut_off_and_its_next_request_refused(
    tmp_path: Path,
) -> None:
    clock = Clock()
    shown = token("allow=append:bids read:bids", f"until={NOW_MS + 1000}")
    async with (
        serving(tmp_path, clock) as server,
        connected(server) as wire,
        connected(server) as quiet,
    ):
        for each in (wire, quiet):
            assert isinstance(await each.hello(shown), m.Welcome)
        wire.send(m.GetBounds())
        assert isinstance(await wire.answer(), m.LogBounds)
        clock.now_ms += 1000
        wire.send(m.GetBounds())
        answer = await wire.answer()
        assert isinstance(answer, Unauthorized) and "expired" in str(answer)
        assert await wire.answer() is None
        assert isinstance(await quiet.answer(), Unauthorized), "who asks nothing is cut, too"
        assert await quiet.answer() is None


async def get_metrics(server: ServedLog, bearer: str) -> tuple[int, str]:
    address = server.server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {bearer}\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return int(text.split(" ")[1]), text


async def test_metrics_are_shown_to_a_token_for_them(tmp_path: Path) -> None:
    async with serving(tmp_path, Clock()) as server:
        log_id = server.server.owner.storage.manifest.log_id.hex()
        good = [token("allow=metrics"), token("allow=admin"), token(), token(f"log={log_id}")]
        for shown in (ROOT, *good):
            assert (await get_metrics(server, shown))[0] == 200
        refused = {
            token("allow=read:*"): 403,
            token("allow=metrics", f"until={NOW_MS}"): 403,
            token("allow=metrics", "log=other"): 403,
            token("allow=metrics", "from=here"): 403,
            token("allow=metrics", id=REVOKED_ID): 403,
            good[0][:-1] + ("0" if good[0][-1] != "0" else "1"): 401,
            split_token(good[0])[0].text: 401,
            "": 401,
            "ä": 401,
        }
        for shown, status in refused.items():
            found, text = await get_metrics(server, shown)
            assert found == status, shown
            assert "penstock_appended" not in text


async def test_on_a_cluster_a_token_is_for_its_log_and_revoked_where_others_read(
    tmp_path: Path,
) -> None:
    async with in_process_cluster(tmp_path, proxies=0) as cluster:
        await cluster.start_proxy()
        follower = await cluster.start_proxy(role="read")
        root = cluster._token("token").read_text()
        mine = token("log=orders", "allow=append:bids read:bids", root=root)

        async def connect(log: str, shown: str) -> AsyncLog:
            address = ClusterAddress((), "/memory", log)
            proxies = ProxyList(cluster.open_store)
            route = ClusterRoute(address, proxies, token=shown, tls=None, region="default")
            return await AsyncLog.connect(route, timeout=10)

        async with await cluster.connect("orders") as everybody:
            await everybody.append([NewEntry(b"row", ("s/bids",))])
            async with await connect("orders", mine) as log:
                await log.append([NewEntry(b"mine", ("s/bids",))])
                tail = log.tail(["s/bids"], start=0)
                payloads: list[bytes] = []
                while len(payloads) < 2:
                    payloads += [entry.payload for entry in (await anext(tail)).entries]
                assert follower.service.logs_read(), "it is read where the log is only followed"
                with pytest.raises(Forbidden):
                    await anext(log.tail(["s/trades"], start=0))
                with pytest.raises(Forbidden, match="for log orders"):
                    await connect("other", mine)
                with pytest.raises(Forbidden, match="no log another"):
                    await connect("another", token("allow=append:* read:*", root=root))
                assert {"/logs/other", "/logs/another"}.isdisjoint(cluster.metadata.paths())
                both = token("log=orders", "allow=admin metrics", id="0" * 16, root=root)
                async with await connect("orders", both) as limited:
                    await limited.append([NewEntry(b"x", ("s/trades",))])
                    with pytest.raises(Forbidden, match="a whole server"):
                        await limited.status()
                await everybody.append([], sets=[SetKey(revoked_key(ID), b"{}")])
                with pytest.raises(Unauthorized, match="revoked"):
                    await read_for_ever(tail)
            with pytest.raises(Unauthorized):
                await connect("orders", mine)


async def test_a_proxy_that_begins_to_follow_a_log_honours_no_token_revoked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it has read the snapshot of the segment, and not the revocation that follows."""
    monkeypatch.setattr(log_requests, "LEARN_SECONDS_MAX", 0.2)
    poll, released = BlockSource.poll, asyncio.Event()

    async def poll_slowly(*given: Any, **more: Any) -> Fetched:
        if given[4] >= 1:
            await released.wait()
        return await poll(*given, **{**more, "bytes_max": 1})

    async with in_process_cluster(tmp_path, proxies=0) as cluster:
        await cluster.start_proxy()
        mine = token("allow=read:bids", root=cluster._token("token").read_text())
        async with await cluster.connect("orders") as everybody:
            await everybody.append([NewEntry(b"row", ("s/bids",))])
            await everybody.append([], sets=[SetKey(revoked_key(ID), b"{}")])
            await everybody.append([NewEntry(b"row", ("s/bids",))])
            monkeypatch.setattr(BlockSource, "poll", poll_slowly)
            follower = await cluster.start_proxy(role="read")
            host, port = follower.info.host, follower.info.port
            hello = m.Hello("narrowed", log="orders", reads=True)
            answers = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection(host, port)
                answers.append(await Wire(reader, writer).hello(mine, hello))
                writer.close()
                released.set()
            assert isinstance(answers[0], Unavailable) and "not known here yet" in str(answers[0])
            assert isinstance(answers[1], Unauthorized) and "revoked" in str(answers[1])


# ---- mistakes on purpose

MUTANTS: dict[str, tuple[str, object]] = {
    "expiry is ignored": ("penstock.log.core.rights.Rights.is_over", lambda self, now_ms: False),
    "revocation is ignored": (
        "penstock.log.serving.served_log.SequencedLog.is_revoked",
        lambda self, _: False,
    ),
    "the log is ignored": (
        "penstock.log.core.rights.Rights.refuse_log",
        lambda self, name: None,
    ),
    "one request goes past the check": (
        "penstock.log.serving.log_requests.LogRequests._allow",
        None,
    ),
    "unknown caveats are passed over": (
        "penstock.log.serving.connection.read_rights",
        lambda chain: _known_only(chain),
    ),
}


def _known_only(chain: Chain) -> Rights:
    known = tuple(each for each in chain.caveats if not each.startswith("from="))
    return read_rights(Chain(chain.id, known))


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mistake_in_the_server_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, wrong = MUTANTS[name]
    if wrong is None:
        allow = LogService.allow

        def skip(self: object, message: m.Message, body: object = None) -> None:
            if not isinstance(message, m.ReadLast):
                connection = self.connection  # type: ignore[attr-defined]
                allow(self._service, connection.rights, message, body, ())  # type: ignore

        wrong = skip
    async with serving(tmp_path, Clock()) as server:
        monkeypatch.setattr(place, wrong)
        assert await find_leaks(server, all_of_them=False), "nobody noticed"
