"""Bytes, headers, paths and tokens that mean no good: refused, with no 500, traceback or leak."""

from __future__ import annotations

import json
import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fuzzed_listeners import HTTP_WORDS, http_samples
from harness.http_gateway import HttpClient, gateway_thread
from harness.mutation import mutate

import penstock
from penstock.gateway import app, bodies, endpoints, http_server, sessions
from penstock.gateway.config import GatewayConfig
from penstock.log.serving.directory import Address

DDL = "n long, s string"


@pytest.fixture(scope="module")
def address(module_log: penstock.Log) -> Iterator[Address]:
    module_log.create_stream("s", DDL)
    with gateway_thread(GatewayConfig(target=module_log.target, port=0)) as listening:
        yield listening


@pytest.fixture
def token(module_log: penstock.Log) -> str:
    return (Path(module_log.target) / "token").read_text().strip()


def exchange(address: Address, sent: bytes, *, seconds: float = 10.0) -> bytes:
    """What comes back for these bytes, up to the end of the connection or a pause."""
    with closing(socket.create_connection((address.host, address.port), seconds)) as connection:
        answer = b""
        try:
            connection.sendall(sent)
            while part := connection.recv(1 << 16):
                answer += part
        except OSError:
            pass
        return answer


ROUTES = [
    ("GET", "/v1/streams"), ("POST", "/v1/streams"), ("GET", "/v1/streams/s"),
    ("POST", "/v1/streams/s/rows"), ("GET", "/v1/streams/s/rows"), ("GET", "/v1/streams/s/tail"),
    ("GET", "/v1/streams/s/producers/p"), ("GET", "/metrics"), ("HEAD", "/v1/streams/s/tail"),
]  # fmt: skip


def bad_tokens(token: str) -> dict[str, str | None]:
    return {
        "none": None,
        "empty": "Bearer ",
        "other scheme": f"Basic {token}",
        "bare": token,
        "wrong": f"Bearer {'0' * 64}",
        "cut": f"Bearer {token[:-1]}",
        "longer": f"Bearer {token}0",
        "upper": f"Bearer {token.upper()}",
        "spaced": f"Bearer {token[:9]} {token[9:]}",
        "long": "Bearer " + "a" * 5000,
        "not ascii": "Bearer \xe9" + token,
        "quoted": f'Bearer "{token}"',
    }


def test_bad_tokens_get_nothing_on_any_route(address: Address, token: str) -> None:
    for name, shown in bad_tokens(token).items():
        for method, path in ROUTES:
            headers = {} if shown is None else {"Authorization": shown}
            answer = HttpClient(address).ask(method, path, headers=headers)
            assert answer.status == 401, (name, method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert b'"s"' not in answer.body and DDL.encode() not in answer.body


def test_a_bad_token_is_refused_before_the_body_is_read(address: Address) -> None:
    head = (
        b"POST /v1/streams/s/rows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4000000\r\nExpect: 100-continue\r\n"
    )
    with closing(socket.create_connection((address.host, address.port), 10)) as connection:
        connection.sendall(head + b"Authorization: Bearer " + b"0" * 64 + b"\r\n\r\n")
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 401")  # and no 100 Continue before it


def test_a_length_beyond_the_limit_is_refused_before_the_body_is_read(
    address: Address, token: str
) -> None:
    head = (
        "POST /v1/streams/s/rows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: 4000000000\r\n\r\n"
    )
    with closing(socket.create_connection((address.host, address.port), 10)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")


def test_a_head_that_never_ends_is_cut_off(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = exchange(address, b"GET / HTTP/1.1\r\nX: " + b"a" * 600_000, seconds=1)
    assert large == b"" or large.startswith(b"HTTP/1.1 4")

    monkeypatch.setattr(http_server, "HEAD_SECONDS_MAX", 0.2)
    with closing(socket.create_connection((address.host, address.port), 10)) as connection:
        began = time.monotonic()
        connection.sendall(b"GET /healthz HTT")
        try:
            assert connection.recv(100) == b""
        except ConnectionError:
            pass
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("start", "endless"),
    [(b"0\r\n", b"a: b\r\n" * 9000), (b"0\r\na: ", b"b" * 50_000), (b"1;a=", b"b" * 50_000)],
)
def test_trailers_and_chunk_extensions_that_never_end_are_cut_off(
    address: Address, token: str, start: bytes, endless: bytes, is_known: bool
) -> None:
    head = (
        "POST /v1/streams/s/rows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token if is_known else '0' * 64}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    with closing(socket.create_connection((address.host, address.port), 10)) as connection:
        connection.sendall(head.encode() + b"2\r\n[]\r\n" + start)
        with pytest.raises(ConnectionError):
            connection.sendall(endless * 1000)


def test_a_body_in_small_chunks_is_taken_with_its_extensions_and_trailers(
    address: Address, token: str
) -> None:
    rows = b"[" + b",".join([b"{}"] * 20_000) + b"]"
    chunks = b"".join(b"1;a=b\r\n" + rows[at : at + 1] + b"\r\n" for at in range(len(rows)))
    head = (
        "POST /v1/streams/s/rows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    answer = exchange(address, head.encode() + chunks + b"0\r\na: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and b'"rows":20000' in answer


def test_a_body_that_never_ends_is_given_up(
    address: Address, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS_MAX", 0.2)
    head = (
        "POST /v1/streams/s/rows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n["
    )
    with closing(socket.create_connection((address.host, address.port), 10)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_what_is_too_much_is_told_to_come_again(
    address: Address, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HttpClient(address, token)
    with closing(client.connection()) as connection:
        connection.request(
            "GET", "/v1/streams/s/tail", headers={"Authorization": f"Bearer {token}"}
        )
        answer = connection.getresponse()
        assert answer.readline() == b"retry: 1000\n"
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "SESSION_REQUESTS_MAX", 1)
            crowded = client.ask("GET", "/v1/streams")
        with monkeypatch.context() as patch:
            patch.setattr(app, "READERS_MAX", 1)
            read = client.ask("GET", "/v1/streams/s/rows")
        with monkeypatch.context() as patch:
            patch.setattr(endpoints, "REQUESTS_MAX", 1)
            busy = client.ask("GET", "/v1/streams")
    assert (crowded.status, read.status, busy.status) == (429, 503, 503)
    assert all(each.headers["retry-after"] == "1" for each in (crowded, read, busy))
    assert client.ask("GET", "/v1/streams").status == 200


def test_idle_connections_keep_nobody_out(
    address: Address, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    idle = [socket.create_connection((address.host, address.port), 10) for _ in range(12)]
    try:
        assert HttpClient(address, token).ask("GET", "/v1/streams").status == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1", "/v1/streams/", "/v1/streams/..%2f..%2fetc/rows", "/v1/streams/%00/rows",
        "/v1/streams/s%0d%0aX:1/rows", "/v1/streams/" + "x" * 5000, "/v1/streams/%ff%fe",
        "/v1/streams/s/producers/%0a", "/v1/streams/s/producers/" + "p" * 300, "//", "/%2e%2e/",
        "/v1/streams/s/rows?from=" + "9" * 5000, "/v1/streams/s/rows?limit=%F0%9F%92%A9",
    ],
)  # fmt: skip
def test_paths_that_lead_nowhere_are_problems(address: Address, token: str, path: str) -> None:
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        answer = HttpClient(address, token).ask(method, path)
        assert 400 <= answer.status < 500, (method, answer.body)
        assert answer.json["remedy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "x"}, {"Idempotency-Key": "p:-1"}, {"Idempotency-Key": "p:" + "9" * 19},
        {"Idempotency-Key": "p" * 200 + ":0"}, {"Content-Encoding": "gzip"},
        {"Content-Type": "application/xml"}, {"Idempotency-Key": "\xe9:0"},
    ],
)  # fmt: skip
def test_headers_that_make_no_sense_append_nothing(
    address: Address, token: str, module_log: penstock.Log, headers: dict[str, str]
) -> None:
    stream = module_log.create_stream("odd_headers", DDL)
    whole = {"Content-Type": "application/json", **headers}
    body = b'{"n": 1}'
    answer = HttpClient(address, token).ask("POST", "/v1/streams/odd_headers/rows", body, whole)

    assert answer.status in (400, 415)
    assert stream.read().num_rows == 0


def fuzz(address: Address, token: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    seeds = http_samples(token)
    answered = 0
    for _ in range(count):
        sent = mutate(draw, draw.choice(seeds), HTTP_WORDS)
        answer = exchange(address, sent, seconds=0.03)
        answered += bool(answer)
        assert b" 500 " not in answer.split(b"\r\n")[0], (sent, answer)
        assert b"Traceback" not in answer, (sent, answer)
    assert answered > count / 3


def test_mutated_requests_break_nothing(
    address: Address, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    fuzz(address, token, seed=21, count=400)

    assert HttpClient(address, token).ask("GET", "/v1/streams").status == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_what_is_open_to_everybody_says_nothing(address: Address, module_log: penstock.Log) -> None:
    for path in ("/healthz", "/openapi.json", "/docs"):
        answer = HttpClient(address).ask("GET", path)
        assert answer.status == 200
        assert module_log.target.encode() not in answer.body
    assert json.loads(HttpClient(address).ask("GET", "/openapi.json").body)["openapi"] == "3.1.0"


def test_a_log_that_is_away_is_named_to_nobody() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    where = f"penstock://127.0.0.1:{port}"
    with gateway_thread(GatewayConfig(target=where, port=0, timeout_seconds=0.3)) as listening:
        answer = HttpClient(listening, "0" * 64).ask("GET", "/v1/streams")

    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert str(port).encode() not in answer.body
