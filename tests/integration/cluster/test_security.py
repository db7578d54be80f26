"""Who may talk to a cluster: certificates, two tokens that are not each other's, closed ports."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from harness.files import token_file
from harness.in_process_cluster import InProcessCluster, in_process_cluster
from harness.server_process import listening_addresses
from harness.waiting import until, until_refused
from harness.warm_starts import cold_starts
from tls_material import Authority

from penstock.errors import BadConfig, PenstockError, Unauthorized, Unavailable
from penstock.log.client.client import TIMEOUT_SECONDS, AsyncLog, Endpoint
from penstock.log.embedded import endpoint
from penstock.log.local_cluster import ClusterProcess, LocalCluster
from penstock.log.meta.open import open_metadata, read_auth
from penstock.log.records import NewEntry
from penstock.log.serving.directory import read_token
from penstock.wire import messages as m
from penstock.wire import node_messages as n
from penstock.wire.errors import error_from_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.proof import NONCE_BYTES, Nonces, prove_client

HOSTS = ("localhost", "127.0.0.1")
SECONDS = 20.0
SECRET_FILES = ("token", "node-token", "metadata-auth")


class SecureCluster:
    """ZooKeeper, three nodes, a write proxy and a read proxy, all with certificates of `ours`."""

    def __init__(self, directory: Path) -> None:
        self.ours = Authority(directory / "ours", "ours")
        self.other = Authority(directory / "other", "other")
        files = self.ours.issue("server", hosts=HOSTS)
        self._tls = {"tls-cert": files.cert, "tls-key": files.key}
        self.processes = LocalCluster(directory / "cluster")

    def start(self) -> None:
        cluster = self.processes
        cluster.start_metadata()
        started = [cluster.add_node(f"n{number}", self._tls) for number in range(3)]
        options = {**self._tls, "tls-ca": self.ours.ca}
        started.append(cluster.add_proxy("p0", options))
        started.append(cluster.add_proxy("r0", {**options, "role": "read"}))
        for process in started:
            process.wait_ready()

    @property
    def tokens(self) -> dict[str, str]:
        """What each kind of process wants to be shown."""
        cluster = self.processes
        return {
            "proxy": read_token(cluster.token_file),
            "node": read_token(cluster.node_token_file),
        }

    def port(self, name: str) -> int:
        directory = self.processes.directory
        is_node = name in self.processes.nodes
        path = directory / name / "node.json" if is_node else directory / f"{name}.json"
        return int(json.loads(path.read_text())["port"])

    def kind(self, name: str) -> str:
        return "node" if name in self.processes.nodes else "proxy"

    @property
    def all(self) -> dict[str, ClusterProcess]:
        return {**self.processes.nodes, **self.processes.proxies}

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ours.ca))

    async def connect(self, ca: Path | None, timeout: float = SECONDS) -> AsyncLog:
        cluster = self.processes
        route = endpoint(cluster.address, token_file=cluster.token_file, tls_ca=ca)
        return await AsyncLog.connect(route, timeout=timeout)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """With the arguments and the environment that its processes always have."""
    cluster = SecureCluster(tmp_path_factory.mktemp("secure"))
    try:
        with cold_starts():
            cluster.start()
        yield cluster
    finally:
        cluster.processes.stop()


@pytest.fixture(params=["n0", "p0", "r0"])
def name(request: pytest.FixtureRequest) -> str:
    """One process of each kind."""
    found: str = request.param
    return found


class Raw:
    """A TLS connection that says whatever it is told to."""

    def __init__(self, secure: SecureCluster, name: str) -> None:
        plain = socket.create_connection(("127.0.0.1", secure.port(name)), SECONDS)
        self._socket = secure.context().wrap_socket(plain, server_hostname="localhost")
        self._reader = FrameReader(authenticated=True)
        self._frames: list[Frame] = []

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def greet(self, kind: str, token: str, cookie: str = "") -> Frame | PenstockError | None:
        """Ask for a challenge, and say hello with a proof of this token."""
        answer = self.ask(m.Meet(bytes(NONCE_BYTES)))
        assert isinstance(answer, Frame)
        challenge = m.decode_message(answer.kind, answer.head)
        assert isinstance(challenge, m.Challenge)
        said = n.NodeHello("n0", cookie) if kind == "node" else m.Hello("raw", "", "main", True)
        head = m.encode_as(type(said), said)
        nonces = Nonces(bytes(NONCE_BYTES), challenge.nonce)
        return self.ask(said, prove_client(token, nonces, said.KIND, head))

    def ask(self, message: Any, body: bytes = b"") -> Frame | PenstockError | None:
        """The answer; None if the connection was closed instead."""
        head = (
            n.encode_node_message(message)
            if message.KIND >= n.NodeHello.KIND
            else m.encode_message(message)
        )
        self._socket.sendall(encode_frame(message.KIND, 7, head, len(body)) + body)
        return self.answer()

    def answer(self) -> Frame | PenstockError | None:
        while not self._frames:
            try:
                size = self._socket.recv_into(self._reader.get_buffer())
            except (ConnectionResetError, ssl.SSLEOFError):
                size = 0
            if not size:
                return None
            self._frames += self._reader.buffer_updated(size)
        frame = self._frames.pop(0)
        if frame.kind != m.Failed.KIND:
            return frame
        failed = m.decode_message(frame.kind, frame.head)
        assert isinstance(failed, m.Failed)
        return error_from_code(failed.code, failed.message)

    def http(self, request: str) -> bytes:
        self._socket.sendall(request.encode())
        answer = b""
        try:
            while piece := self._socket.recv(65536):
                answer += piece
        except (ConnectionResetError, ssl.SSLEOFError):
            pass
        return answer


async def append_and_read(log: AsyncLog, payload: bytes) -> list[bytes]:
    done = await log.append([NewEntry(payload, ("t",))])
    async with asyncio.timeout(SECONDS), log.tail(["t"], start=done.first_lsn) as reader:
        async for batch in reader:
            if batch.entries:
                return [entry.payload for entry in batch.entries]
    raise AssertionError("the tail has ended")


async def test_clients_proxies_and_nodes_talk_under_tls(secure: SecureCluster) -> None:
    async with await secure.connect(secure.ours.ca) as log:
        assert await append_and_read(log, b"sealed") == [b"sealed"]
    for name in secure.all:
        path = secure.processes.directory
        path = path / name / "node.json" if secure.kind(name) == "node" else path / f"{name}.json"
        assert json.loads(path.read_text())["tls"] is True, name


async def test_a_client_believes_only_the_authority_that_it_was_given(
    secure: SecureCluster,
) -> None:
    for ca, error, words in (
        (secure.other.ca, Unavailable, "certificate verify failed"),
        (None, BadConfig, "speaks TLS: give tls_ca"),
    ):
        await until_refused(lambda ca=ca: secure.connect(ca, timeout=1.0), error, words)


def test_plain_bytes_on_a_tls_port_get_nothing(secure: SecureCluster, name: str) -> None:
    token = secure.tokens[secure.kind(name)]
    request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", secure.port(name)), SECONDS) as plain:
        plain.sendall(request.encode())
        answer = b""
        try:
            while piece := plain.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    assert b"HTTP" not in answer and b"penstock" not in answer


def test_a_token_of_the_other_kind_is_as_wrong_as_any(secure: SecureCluster, name: str) -> None:
    kind = secure.kind(name)
    tokens = secure.tokens
    other = tokens["proxy" if kind == "node" else "node"]
    for token in ("", "0" * 64, other, tokens[kind][:-1], tokens[kind] + "0"):
        with Raw(secure, name) as raw:
            assert isinstance(raw.greet(kind, token), Unauthorized)
            assert raw.answer() is None, "the connection stays open"
    with Raw(secure, name) as raw:
        assert isinstance(raw.greet(kind, tokens[kind]), Frame)


def test_a_hello_of_the_other_kind_is_refused_even_with_the_right_token(
    secure: SecureCluster, name: str
) -> None:
    kind = secure.kind(name)
    for token in secure.tokens.values():
        with Raw(secure, name) as raw:
            answer = raw.greet("proxy" if kind == "node" else "node", token)
            assert isinstance(answer, PenstockError)
            assert raw.answer() is None, "the connection stays open"


@pytest.mark.parametrize(
    "message",
    [
        n.AddBlock("main", 0, 0, 9),
        n.FenceSegment("main", 0, 99),
        n.ReadBlocks("main", 0, 0, 0, 0, 1000, 99, 0),
        n.GetNodeStatus(),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("name", ["p0", "r0"])
async def test_what_is_for_nodes_is_not_done_by_a_proxy(
    secure: SecureCluster, message: Any, name: str
) -> None:
    with Raw(secure, name) as raw:
        assert isinstance(raw.greet("proxy", secure.tokens["proxy"]), Frame)
        assert isinstance(raw.ask(message, b"x" * 200), PenstockError)
    await _still_works(secure)


@pytest.mark.parametrize(
    "message",
    [m.Append((), 0), m.Trim(1), m.GetBounds(), m.GetStatus(), m.ReadLast("t", 9)],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("cookie", ["", "right"])
async def test_what_is_for_proxies_is_not_done_by_a_node(
    secure: SecureCluster, message: Any, cookie: str
) -> None:
    identity = json.loads((secure.processes.directory / "n0" / "identity.json").read_text())
    cookie = identity["cookie"] if cookie else ""
    with Raw(secure, "n0") as raw:
        assert isinstance(raw.greet("node", secure.tokens["node"], cookie), Frame)
        assert isinstance(raw.ask(message, b"x" * 200), PenstockError)
    await _still_works(secure)


async def _still_works(secure: SecureCluster) -> None:
    async with await secure.connect(secure.ours.ca) as log:
        assert await append_and_read(log, b"still") == [b"still"]


def test_a_connection_without_a_cookie_hears_nothing_of_segments(secure: SecureCluster) -> None:
    for message in (n.FenceSegment("main", 0, 99), n.AddBlock("main", 0, 0, 99)):
        with Raw(secure, "n0") as raw:
            assert isinstance(raw.greet("node", secure.tokens["node"]), Frame)
            answer = raw.ask(message)
            assert isinstance(answer, PenstockError) and "status only" in str(answer)


def test_metrics_need_the_token_of_their_kind(secure: SecureCluster, name: str) -> None:
    kind = secure.kind(name)
    other = secure.tokens["proxy" if kind == "node" else "node"]
    for headers in ("", f"Authorization: Bearer {other}\r\n", "Authorization: Bearer \r\n"):
        with Raw(secure, name) as raw:
            answer = raw.http(f"GET /metrics HTTP/1.1\r\n{headers}\r\n")
        assert answer.startswith(b"HTTP/1.1 401") and b"_total" not in answer
    with Raw(secure, name) as raw:
        right = f"Authorization: Bearer {secure.tokens[kind]}\r\n"
        answer = raw.http(f"GET /metrics HTTP/1.1\r\n{right}\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"# EOF\n")


def test_every_process_listens_where_it_says_and_nowhere_else(secure: SecureCluster) -> None:
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    expected = {name: secure.port(name) for name in secure.all}
    pids = {name: process.pid for name, process in secure.all.items()}
    zookeeper = secure.processes.zookeeper
    assert zookeeper is not None
    pids["zookeeper"] = zookeeper.pid
    expected["zookeeper"] = int(zookeeper.hosts.rpartition(":")[2])

    found = {name: listening_addresses(pid) for name, pid in pids.items()}

    assert {name: [port for _, port in ports] for name, ports in found.items()} == {
        name: [port] for name, port in expected.items()
    }
    assert {host for ports in found.values() for host, _ in ports} <= loopback


async def test_no_secret_is_shown_anywhere(secure: SecureCluster) -> None:
    """Neither in what `ps` shows, nor in what the processes say or keep in the metadata."""
    secrets = [token.encode() for token in secure.tokens.values()]
    secrets.append(secure.processes.metadata_auth_file.read_bytes().strip().partition(b":")[2])
    key = secure.ours.issue("again", hosts=HOSTS).key.read_bytes().splitlines()[1]
    async with await secure.connect(secure.ours.ca) as log:
        shown = {"status": (await log.status()).encode()}
    for name, process in secure.all.items():
        shown[f"arguments of {name}"] = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        shown[f"environment of {name}"] = Path(f"/proc/{process.pid}/environ").read_bytes()
        shown[f"output of {name}"] = process.output.read_bytes()
    for place in secure.processes.directory.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile: the processes go on
            if place.is_file() and place.name not in SECRET_FILES:
                shown[str(place)] = place.read_bytes()
    assert len(shown) > 20
    for place, data in shown.items():
        for secret in (*secrets, key):
            assert secret not in data, place
    for name in SECRET_FILES:
        path = secure.processes.directory / name
        assert path.stat().st_mode & 0o077 == 0


async def test_nobody_without_the_password_changes_the_metadata(secure: SecureCluster) -> None:
    """`LocalCluster` makes it; a false entry would send everybody to whoever wrote it."""
    cluster = secure.processes
    store = await open_metadata(cluster.address, session_seconds=30.0)
    try:
        proxies = await store.children("/proxies")
        found = await store.get("/nodes/n0")
        assert proxies and found is not None
        for change in (
            store.create("/proxies/false", b"{}", ephemeral=True),
            store.create("/owners/other", b"{}"),
            store.create("/false", b"{}"),
            store.set("/nodes/n0", b"{}", found.version),
            store.delete(f"/proxies/{proxies[0]}"),
        ):
            with pytest.raises(Unauthorized):
                await change
    finally:
        await store.close()
    auth = read_auth(cluster.metadata_auth_file)
    store = await open_metadata(cluster.address, auth=auth, session_seconds=30.0)
    try:
        await store.create("/draining/n9", b"")
        await store.delete("/draining/n9")
    finally:
        await store.close()


async def test_a_wrong_token_is_told_at_once_to_a_client_of_the_cluster(
    secure: SecureCluster, tmp_path: Path
) -> None:
    for path in (token_file(tmp_path / "wrong"), secure.processes.node_token_file):
        route = endpoint(secure.processes.address, token_file=path, tls_ca=secure.ours.ca)
        async with asyncio.timeout(TIMEOUT_SECONDS - 10):
            with pytest.raises(Unauthorized):
                await AsyncLog.connect(route)


# ---- a proxy and its nodes, in this process


@asynccontextmanager
async def three_nodes(directory: Path, **settings: Any) -> AsyncIterator[InProcessCluster]:
    async with in_process_cluster(directory, nodes=0, proxies=0) as cluster:
        for number in range(3):
            await cluster.start_node(f"n{number}", **settings)
        yield cluster


async def test_a_proxy_believes_only_nodes_that_its_authority_vouches_for(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "a", "ours"), Authority(tmp_path / "b", "other")
    files = other.issue("node", hosts=HOSTS)

    async with three_nodes(tmp_path, tls_cert=files.cert, tls_key=files.key) as cluster:
        proxy = await cluster.start_proxy(tls_ca=ours.ca)
        assert await _refusal(cluster, proxy.info.port) is not None
        await cluster.stop_proxy(proxy)
        for server, _ in cluster.nodes.values():
            assert server.metrics.unauthorized == server.metrics.written_records == 0

        await cluster.start_proxy(tls_ca=other.ca)
        async with await cluster.connect() as log:
            assert await append_and_read(log, b"believed") == [b"believed"]


async def test_a_proxy_with_a_wrong_token_gets_nothing_from_nodes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        token = (tmp_path / "node-token").read_text()
        (tmp_path / "node-token").write_text("1" * 64)
        proxy = await cluster.start_proxy()
        assert await _refusal(cluster, proxy.info.port) is not None
        for server, _ in cluster.nodes.values():
            await until(lambda asked=server.metrics: asked.unauthorized > 0)
            assert server.metrics.written_records == 0
        await cluster.stop_proxy(proxy)

        (tmp_path / "node-token").write_text(token)
        await cluster.start_proxy()
        async with await cluster.connect() as log:
            assert await append_and_read(log, b"believed") == [b"believed"]


async def _refusal(cluster: InProcessCluster, port: int) -> PenstockError | None:
    """What a client hears that wants to append; None if it could."""
    token = (cluster.directory / "token").read_text()

    async def resolve() -> Endpoint:
        return Endpoint("127.0.0.1", port, token, log="main")

    try:
        async with await AsyncLog.connect(resolve, timeout=1.0) as log:
            log.timeout = 1.0
            await log.append([NewEntry(b"x", ("t",))])
    except PenstockError as error:
        return error
    return None
