"""Who may talk to a server, and what its one open port shows to the others."""

from __future__ import annotations

import asyncio
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.server_process import ServerProcess
from harness.warm_starts import cold_starts
from openmetrics_rules import check_openmetrics
from raw_client import NONCE, RawClient, log_digest, read_metrics, wait_quiet

from penstock.config import ServerConfig
from penstock.errors import BadConfig, BadRequest, PenstockError, Unauthorized
from penstock.limits import PREAUTH_FRAME_BYTES_MAX
from penstock.log.client.client import TIMEOUT_SECONDS, AsyncLog, Endpoint
from penstock.log.embedded import address_endpoint, directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.serving.directory import read_address, read_token
from penstock.log.serving.process import EXIT_FATAL
from penstock.wire import messages as m
from penstock.wire.frames import encode_frame
from penstock.wire.proof import Nonces, prove_client, prove_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With the arguments and the environment that it always has."""
    with cold_starts(), ServerProcess(tmp_path_factory.mktemp("access") / "data") as server:
        asyncio.run(append_some(server))
        wait_quiet(server)
        yield server


async def append_some(server: ServerProcess) -> None:
    async with await AsyncLog.connect(server.endpoint()) as log:
        for number in range(5):
            await log.append([NewEntry(b"%d" % number, ("t",))])


def token_of(server: ServerProcess) -> str:
    return read_token(server.data_dir / "token")


def near_tokens(token: str) -> dict[str, str]:
    return {
        "none": "",
        "another": "0" * 64,
        "its start": token[:-1],
        "one byte more": token + "0",
        "a line end more": token + "\n",
        "upper case": token.upper() + "X",
        "another last byte": token[:-1] + ("0" if token[-1] != "0" else "1"),
        "a very long one": token * 200,
        "another script": "п" * 64,
    }


def test_every_token_but_the_right_one_is_refused_and_leaves_no_trace(
    server: ServerProcess,
) -> None:
    digest = log_digest(server.data_dir)
    before = read_metrics(server)
    told = server.output().count("cause=unauthorized")
    wrong = near_tokens(token_of(server))

    for name, token in wrong.items():
        with RawClient(server) as client:
            answer = client.prove(token)
            assert isinstance(answer, Unauthorized), name
            assert client.read_frame() is None, "the connection stays open"

    after = read_metrics(server)
    assert after["penstock_unauthorized_total"] == before["penstock_unauthorized_total"] + len(
        wrong
    )
    assert server.output().count("cause=unauthorized") == told + len(wrong), (
        "one line tells of each"
    )
    assert log_digest(server.data_dir) == digest


def old_hello(token: str) -> bytes:
    """The head of a hello as it was before the challenge: token, client, session, log, reads."""
    texts = (token.encode(), b"raw", b"", b"")
    return b"".join(struct.pack("<I", len(text)) + text for text in texts) + b"\0"


def test_a_client_that_shows_the_token_is_told_to_be_upgraded(server: ServerProcess) -> None:
    with RawClient(server) as client:
        answer = client.ask_raw(m.Hello.KIND, old_hello(token_of(server)))
        assert isinstance(answer, Unauthorized) and "must be upgraded" in str(answer)
        assert client.read_frame() is None, "the connection stays open"


def test_what_was_recorded_on_one_connection_proves_nothing_on_another(
    server: ServerProcess,
) -> None:
    head = m.encode_message(m.Hello("raw"))
    with RawClient(server) as client:
        recorded = prove_client(token_of(server), client.nonces(), m.Hello.KIND, head)
        assert isinstance(client.ask_raw(m.Hello.KIND, head, recorded), m.Welcome)
    with RawClient(server) as client:
        client.nonces()
        assert isinstance(client.ask_raw(m.Hello.KIND, head, recorded), Unauthorized)
    with RawClient(server) as client:
        assert isinstance(client.ask_raw(m.Hello.KIND, head, recorded), Unauthorized)


def test_a_proof_is_of_one_hello_and_not_the_servers_own(server: ServerProcess) -> None:
    head = m.encode_message(m.Hello("raw"))
    with RawClient(server) as client:
        proof = prove_client(token_of(server), client.nonces(), m.Hello.KIND, head)
        other = m.encode_message(m.Hello("another"))
        assert isinstance(client.ask_raw(m.Hello.KIND, other, proof), Unauthorized)
    with RawClient(server) as client:
        challenge = client.ask(m.Meet(NONCE))
        assert isinstance(challenge, m.Challenge)
        assert challenge.proof == prove_server(token_of(server), Nonces(NONCE, challenge.nonce))
        assert isinstance(client.ask_raw(m.Hello.KIND, head, challenge.proof), Unauthorized)


def test_a_challenge_is_given_once_per_connection_and_never_again_the_same(
    server: ServerProcess,
) -> None:
    nonces = set()
    for _ in range(3):
        with RawClient(server) as client:
            nonces.add(client.nonces().server)
            assert isinstance(client.ask(m.Meet(NONCE)), Unauthorized)
    assert len(nonces) == 3


def test_metrics_are_told_to_who_proves_the_token_without_a_log(server: ServerProcess) -> None:
    with RawClient(server) as client:
        proof = prove_client(token_of(server), client.nonces(), m.GetMetrics.KIND, b"")
        answer = client.ask_raw(m.GetMetrics.KIND, b"", proof)
        assert isinstance(answer, m.MetricsText) and answer.text.endswith("# EOF\n")
        assert isinstance(client.ask(m.GetBounds()), BadRequest), "there is no log"
    with RawClient(server) as client:
        client.nonces()
        assert isinstance(client.ask_raw(m.GetMetrics.KIND, b"", bytes(32)), Unauthorized)


def test_requests_sent_right_behind_a_wrong_token_are_not_done(server: ServerProcess) -> None:
    digest = log_digest(server.data_dir)
    trim = m.encode_message(m.Trim(3))
    head = m.encode_message(m.Hello("raw"))

    with RawClient(server) as client:
        proof = prove_client("0" * 64, client.nonces(), m.Hello.KIND, head)
        hello = encode_frame(m.Hello.KIND, 1, head, len(proof)) + proof
        client.send(hello + encode_frame(m.Trim.KIND, 2, trim) * 3)
        assert isinstance(client.answer(), Unauthorized)
        while (frame := client.read_frame()) is not None:
            assert frame.kind == m.Failed.KIND

    assert log_digest(server.data_dir) == digest
    with RawClient(server) as client:
        bounds = client.hello().ask(m.GetBounds())
        assert isinstance(bounds, m.LogBounds) and bounds.trim_point == 0


async def test_a_client_with_a_wrong_token_is_told_at_once_and_does_not_try_again(
    server: ServerProcess,
) -> None:
    before = read_metrics(server)["penstock_unauthorized_total"]
    address = read_address(server.data_dir)
    assert address is not None

    async def resolve() -> Endpoint:
        return Endpoint(address.host, address.port, "0" * 64)

    async with asyncio.timeout(TIMEOUT_SECONDS - 10):
        with pytest.raises(Unauthorized):
            await AsyncLog.connect(resolve)

    assert read_metrics(server)["penstock_unauthorized_total"] == before + 1


def test_a_token_that_others_may_read_is_refused_by_server_and_client(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with server:
        token = token_of(server)
        assert server.stop() == 0
    for mode in (0o644, 0o640, 0o604, 0o660):
        (server.data_dir / "token").chmod(mode)
        server.launch()

        assert server.wait() == EXIT_FATAL

        assert "others may read the token file" in server.output()
        with pytest.raises(BadConfig, match="others may read"):
            read_token(server.data_dir / "token")
    assert token not in server.output()


def test_a_client_of_a_directory_refuses_a_token_that_others_may_read(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        (server.data_dir / "token").chmod(0o644)

        with pytest.raises(BadConfig, match="others may read"):
            asyncio.run(AsyncLog.connect(directory_endpoint(server.data_dir, start=False)))


async def test_a_new_token_locks_out_the_old_one_and_clients_of_the_directory_follow(
    tmp_path: Path,
) -> None:
    """Rotation: remove the file, restart the server."""

    with ServerProcess(tmp_path / "data") as server:
        old = token_of(server)
        async with await AsyncLog.connect(server.endpoint()) as log:
            await log.append([NewEntry(b"before", ("t",))])
            assert server.stop() == 0
            (server.data_dir / "token").unlink()
            await asyncio.to_thread(server.start)
            await log.append([NewEntry(b"after", ("t",))])
            assert [entry.payload for entry in await log.read(["t"])] == [b"before", b"after"]

        assert token_of(server) != old
        with RawClient(server) as client:
            assert isinstance(client.prove(old), Unauthorized)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "127.0.0.1.nip.io"]
)
def test_listening_beyond_loopback_without_tls_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadConfig, match="needs TLS"):
        ServerConfig(tmp_path, host=host, port=0).validate()


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "127.0.0.1.nip.io", "[::]"])
def test_a_client_shows_its_token_to_another_machine_under_tls_only(host: str) -> None:
    with pytest.raises(BadConfig, match="give tls_ca"):
        address_endpoint(f"penstock://{host}:7070", token_file=None, tls_ca=None)


def test_a_token_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadConfig) as caught:
        address_endpoint("penstock://sesame@localhost:7070", token_file=None, tls_ca=None)

    assert "sesame" not in str(caught.value)


def test_the_server_listens_on_one_port_of_loopback(server: ServerProcess) -> None:
    address = read_address(server.data_dir)
    assert address is not None

    assert server.listening() == [("0100007F", address.port)]


def test_the_data_directory_is_closed_to_others(server: ServerProcess) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(server.data_dir) == 0o700
    assert mode(server.data_dir / "log") == 0o700
    assert mode(server.data_dir / "token") == 0o600
    for path in (server.data_dir / "log").iterdir():
        assert mode(path) == 0o600, path


def test_the_token_shows_up_nowhere(server: ServerProcess) -> None:
    """Not in arguments, environment, logs, answers, errors, status or the address file."""
    token = token_of(server)
    heard = [server.command_line(), server.environment()]
    hello = m.encode_message(m.Hello(token))
    for head in (hello + b"\0", hello[:-1], hello[: len(token)], old_hello(token)):
        with RawClient(server) as client:
            client.send(encode_frame(m.Hello.KIND, 1, head))
            heard.append(client.read_all())
    for request in (
        f"GET /other HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n",
        f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}x\r\n\r\n",
        f"GET /{token} HTTP/1.1\r\n\r\n",
        f"POST /{token} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n",
    ):
        with RawClient(server) as client:
            heard.append(client.http(request.encode()))
    with RawClient(server) as client:
        status = client.hello().ask(m.GetStatus())
        assert isinstance(status, m.Status)
        heard.append(status.json.encode())
    for message in (m.Hello(token), m.GetMetadata(token, True), m.ReadLast(token, 0)):
        with RawClient(server) as client:
            answer = client.hello().ask(message)
            heard.append(repr(answer).encode() if isinstance(answer, PenstockError) else b"")
    heard.append((server.data_dir / "server.json").read_bytes())
    heard.append(server.output().encode())

    for text in heard:
        assert token.encode() not in text


def test_names_from_the_network_do_not_forge_lines_of_the_log(server: ServerProcess) -> None:
    forged = "forged line"
    name = f"x\n{forged}\r\n\x1b[31m{forged}"
    with RawClient(server) as client:
        client.prove("0" * 64, name)
    with RawClient(server) as client:
        client.hello()
        for message in (m.ReadLast(name, 0), m.GetMetadata(name, True), m.GetProducer(name)):
            client.ask(message)
        client.send(b"\n" + forged.encode() * 10)
        client.read_all()

    for line in server.output().splitlines():
        assert not line.startswith(forged)
        assert "\x1b" not in line


def test_metrics_need_the_token_and_nothing_else_is_served(server: ServerProcess) -> None:
    token = token_of(server)
    right = f"Authorization: Bearer {token}\r\n"
    cases = {
        "GET /metrics HTTP/1.1\r\n\r\n": 401,
        "GET /metrics HTTP/1.1\r\nAuthorization: Bearer \r\n\r\n": 401,
        f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token[:-1]}\r\n\r\n": 401,
        f"GET /metrics HTTP/1.1\r\nAuthorization: {token}\r\n\r\n": 401,
        f"GET /metrics?token={token} HTTP/1.1\r\n\r\n": 401,
        "GET / HTTP/1.1\r\n\r\n": 401,
        f"GET / HTTP/1.1\r\n{right}\r\n": 404,
        f"GET /metrics/../token HTTP/1.1\r\n{right}\r\n": 404,
        f"GET /metrics HTTP/1.1\r\n{right}\r\n": 200,
        f"GET /metrics HTTP/1.0\r\nauthorization:bearer {token}\r\n\r\n": 200,
        "GET " + "x" * (2 * PREAUTH_FRAME_BYTES_MAX): 401,
        "GET  \r\n\r\n": 401,
    }
    before = read_metrics(server)["penstock_unauthorized_total"]
    told = server.output().count("cause=unauthorized")

    for request, status in cases.items():
        with RawClient(server) as client:
            answer = client.http(request.encode())
        assert answer.startswith(b"HTTP/1.1 %d " % status), request[:80]
        if status != 200:
            assert b"penstock_" not in answer

    refused = sum(status == 401 for status in cases.values())
    assert read_metrics(server)["penstock_unauthorized_total"] == before + refused
    assert server.output().count("cause=unauthorized") == told + refused, "one line tells of each"


def test_metrics_that_arrive_byte_by_byte_are_answered_too(server: ServerProcess) -> None:
    request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token_of(server)}\r\n\r\n"
    with RawClient(server) as client:
        for byte in request.encode():
            client.send(bytes([byte]))

        assert client.read_all().startswith(b"HTTP/1.1 200 OK")


def test_metrics_are_valid_openmetrics_text(server: ServerProcess) -> None:
    """The rules of the OpenMetrics text format that a scraper insists on."""
    request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token_of(server)}\r\n\r\n"
    with RawClient(server) as client:
        head, _, body = client.http(request.encode()).partition(b"\r\n\r\n")
    assert b"content-type: application/openmetrics-text; version=1.0.0; charset=utf-8" in head
    assert f"content-length: {len(body)}".encode() in head
    assert len(check_openmetrics(body.decode())) >= 15
