"""The gateway on a real log and real sockets: what clients of HTTP see."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from embedded_server import kill_server
from harness.http_gateway import GatewayProcess, HttpClient, gateway_thread, read_events
from harness.waiting import wait_until
from tls_material import Authority

import penstock
from penstock.cli.main import cli
from penstock.errors import BadConfig, Trimmed
from penstock.gateway import app, server, streaming
from penstock.gateway.config import GatewayConfig
from penstock.log.client.blocking import BlockingLog
from penstock.log.core.owners import revoked_key
from penstock.log.embedded import endpoint
from penstock.log.serving.directory import Address
from penstock.wire.token import TEXT_MAX, make_token

DDL = "n long NOT NULL, s string, t timestamp"


@pytest.fixture(scope="module")
def address(module_log: penstock.Log) -> Iterator[Address]:
    with gateway_thread(GatewayConfig(target=module_log.target, port=0)) as listening:
        yield listening


@pytest.fixture
def client(module_log: penstock.Log, address: Address) -> HttpClient:
    return HttpClient(address, token_of(module_log))


@pytest.fixture
def stream(module_log: penstock.Log, name: str) -> penstock.Stream:
    return module_log.create_stream(name, DDL)


def token_of(log: penstock.Log) -> str:
    return (Path(log.target) / "token").read_text().strip()


def numbers(stream: penstock.Stream) -> list[int]:
    return [row["n"] for row in stream.read().to_pylist()]


def arrow_of(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"n": pa.array(values, pa.int64())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


# ---- streams


def test_streams_are_made_listed_and_described(client: HttpClient, name: str) -> None:
    asked = json.dumps({"name": name, "ddl": "a long, b string COMMENT 'x'", "key": ["a"]})

    made = client.ask("POST", "/v1/streams", asked)
    again = client.ask("POST", "/v1/streams", asked)
    other = client.ask("POST", "/v1/streams", json.dumps({"name": name, "ddl": "a int"}))

    assert (made.status, again.status, other.status) == (201, 200, 409)
    assert made.headers["location"] == f"/v1/streams/{name}"
    assert "column a: expected bigint, got int" in other.json["detail"]
    listed = client.ask("GET", "/v1/streams").json["streams"]
    assert next(each for each in listed if each["name"] == name)["key"] == ["a"]
    described = client.ask("GET", f"/v1/streams/{name}").json
    assert described["columns"][1] == {
        "name": "b", "type": "string", "nullable": True, "comment": "x",
    }  # fmt: skip
    assert described["last_lsn"] is None
    missing = client.ask("GET", f"/v1/streams/{name[:-1]}")
    assert missing.status == 404 and f"did you mean {name}?" in missing.json["detail"]


@pytest.mark.parametrize(
    "asked",
    [
        "[]", "{", "{}", '{"name": "x"}', '{"name": "x", "ddl": 1}',
        '{"name": "é", "ddl": "a int"}',
        '{"name": "x", "ddl": "a int", "lanes": true}', '{"name": "x", "ddl": "a", "key": "a"}',
        '{"name": "x", "ddl": "a int", "lanes": 0}', '{"name": "x", "ddl": "a int", "odd": 0}',
    ],
)  # fmt: skip
def test_streams_that_make_no_sense_are_refused(client: HttpClient, asked: str) -> None:
    answer = client.ask("POST", "/v1/streams", asked.encode())

    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["remedy"]


# ---- appending


def test_rows_come_as_json_lines_and_arrow(client: HttpClient, stream: penstock.Stream) -> None:
    one = client.append(stream.name, {"n": 1, "t": "2026-11-15T08:00:00Z"})
    two = client.append(stream.name, [{"n": 2, "s": "ü"}, {"n": 3}])
    lines = b'{"n": 4}\n\n{"n": 5}\r\n'
    three = client.append(stream.name, lines, kind="application/x-ndjson; charset=utf-8")
    four = client.append(stream.name, arrow_of(6), kind="application/vnd.apache.arrow.stream")
    none = client.append(stream.name, [])

    answers = [one, two, three, four, none]
    assert [each.status for each in answers] == [200] * 5
    assert [each.json["rows"] for each in answers] == [1, 2, 2, 1, 0]
    assert none.json["first_lsn"] is None
    assert numbers(stream) == [1, 2, 3, 4, 5, 6]
    with stream.tail(one.json["first_lsn"], one.json["last_lsn"] + 1) as batches:
        assert [batch.num_rows for batch in batches] == [1]


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b'[{"n": 1}, {"n": "x"}]', "application/json", 422, "row 1, column n: expected bigint"),
        (b'{"n": 1}\n{"m": 1}', "application/x-ndjson", 422, "line 2, column m: unknown column"),
        (b'{"n": 1', "application/json", 422, "not JSON"),
        (b"x", "application/vnd.apache.arrow.stream", 422, "not an Arrow IPC stream"),
        (b"n\n1", "text/csv", 415, "text/csv"),
        (b"n\n1", "", 415, "Content-Type"),
        (b" " * (1 << 20), "application/json", 413, "over 1000000 bytes"),
    ],
)
def test_bad_bodies_append_nothing_and_say_what_to_do(
    module_log: penstock.Log, body: bytes, kind: str, status: int, said: str
) -> None:
    stream = module_log.create_stream("bad_bodies", DDL)
    config = GatewayConfig(target=module_log.target, port=0, body_bytes_max=1_000_000)
    with gateway_thread(config) as listening:
        answer = HttpClient(listening, token_of(module_log)).append(stream.name, body, kind=kind)

    assert answer.status == status
    assert said in answer.json["detail"] and answer.json["remedy"]
    assert answer.json["status"] == status
    assert numbers(stream) == []


def test_a_key_makes_an_append_once_through_any_gateway(
    module_log: penstock.Log, client: HttpClient, stream: penstock.Stream
) -> None:
    with gateway_thread(GatewayConfig(target=module_log.target, port=0)) as second:
        other = HttpClient(second, client.token)
        first = client.append(stream.name, [{"n": 0}], "p:0")
        again = other.append(stream.name, [{"n": 0}], "p:0")
        turns = [client, other, other, client, other]
        for number, each in enumerate(turns, 1):
            assert each.append(stream.name, [{"n": number}], f"p:{number}").json["rows"] == 1
        late = client.append(stream.name, [{"n": 2}], "p:2")

    assert first.json["duplicate"] is False and again.json["duplicate"] is True
    assert first.json["first_lsn"] == again.json["first_lsn"]
    assert first.json["next"] == again.json["next"] == "p:1"
    assert late.json["duplicate"] is True and late.json["next"] == "p:3"
    assert numbers(stream) == [0, 1, 2, 3, 4, 5]
    told = client.ask("GET", f"/v1/streams/{stream.name}/producers/p").json
    assert told == {"producer": "p", "next_seq": 6, "next": "p:6"}


def test_gaps_and_other_shapes_are_conflicts(
    client: HttpClient, name: str, module_log: penstock.Log
) -> None:
    stream = module_log.create_stream(name, DDL, key=["n"])
    rows = [{"n": number} for number in range(40)]

    gap = client.append(stream.name, rows, "p:1")
    done = client.append(stream.name, rows, "p:0")
    mismatch = client.append(stream.name, rows[:1], "p:0")
    inside = client.append(stream.name, rows[:1], "p:1")
    key = done.json["next"]
    more = client.append(stream.name, rows[:1], key)

    assert gap.status == 409 and "the next is 0" in gap.json["detail"]
    assert done.json["rows"] == 40 and int(key.rpartition(":")[2]) > 1
    assert (mismatch.status, inside.status) == (409, 409)
    assert more.status == 200 and more.json["duplicate"] is False
    assert sorted(numbers(stream)) == [0, *range(40)]


def test_many_clients_of_one_key_append_once(client: HttpClient, stream: penstock.Stream) -> None:
    answers: list[object] = []

    def send() -> None:
        answers.append(client.append(stream.name, [{"n": 7}], "p:0").json["duplicate"])

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(str, answers)) == ["False"] + ["True"] * 7
    assert numbers(stream) == [7]


def test_a_replay_of_what_was_trimmed_is_a_duplicate_without_a_place(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", DDL)
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        client = HttpClient(listening, token_of(own_log))
        for number in range(40):
            last = client.append("s", [{"n": number}], f"p:{number}").json
        own_log.trim(last["last_lsn"])
        client.append("s", [{"n": 40}], "p:40")

        old = client.append("s", [{"n": 0}], "p:0")
        gone = client.ask("GET", "/v1/streams/s/rows?from=0")
        tail = client.ask("GET", "/v1/streams/s/tail?from=0")

    assert old.json["duplicate"] is True and old.json["first_lsn"] is None
    assert (gone.status, tail.status) == (410, 410)
    assert numbers(stream) == [39, 40]
    with pytest.raises(Trimmed):
        stream.read(0)


def test_a_log_server_that_dies_is_found_again(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("s", DDL)
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        client = HttpClient(listening, token_of(own_log))
        assert client.append("s", [{"n": 0}], "p:0").status == 200
        kill_server(Path(own_log.target))
        assert client.append("s", [{"n": 1}], "p:1").status == 200
        assert client.append("s", [{"n": 2}]).status == 200
    assert numbers(stream) == [0, 1, 2]


# ---- reading


def test_rows_are_read_by_position_and_time_in_each_form(
    client: HttpClient, stream: penstock.Stream
) -> None:
    path = f"/v1/streams/{stream.name}/rows"
    lsns = [client.append(stream.name, [{"n": n}, {"n": n, "s": "x"}]).json for n in range(3)]
    second = lsns[1]["first_lsn"]

    whole = client.ask("GET", path)
    part = client.ask("GET", f"{path}?from={second}&to={second + 1}&format=csv")
    arrow = client.ask("GET", path, headers={"Accept": "application/vnd.apache.arrow.stream"})
    few = client.ask("GET", f"{path}?limit=3&envelope=true&from=2020-01-01T00:00:00Z")
    late = client.ask("GET", f"{path}?from=2099-01-01T00:00:00Z")
    head = client.ask("HEAD", path)

    assert [json.loads(line)["n"] for line in whole.body.splitlines()] == [0, 0, 1, 1, 2, 2]
    assert whole.headers["content-type"] == "application/x-ndjson"
    assert part.body == b'"n","s","t"\n1,,\n1,"x",\n'
    assert part.headers["penstock-from"] == str(second)
    assert part.headers["penstock-to"] == str(second + 1)
    assert pa.ipc.open_stream(arrow.body).read_all().num_rows == 6
    places = [json.loads(line)["lsn"] for line in few.body.splitlines()]
    assert places == [lsns[0]["first_lsn"]] * 2 + [second]
    assert late.body == b""
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=x", 400), ("to=-1", 400), ("limit=x", 400), ("limit=-1", 400), ("format=xml", 400),
        ("from=99999999999999999999", 400), ("limit=0", 200), ("from=%FF%00", 400),
    ],
)  # fmt: skip
def test_positions_that_are_none_are_refused(
    client: HttpClient, module_log: penstock.Log, query: str, status: int
) -> None:
    module_log.create_stream("positions", DDL)
    assert client.ask("GET", f"/v1/streams/positions/rows?{query}").status == status
    nothing = client.ask("GET", "/v1/streams/positions/rows", headers={"Accept": "image/png"})
    assert nothing.status == 406


def test_a_reader_of_a_large_range_gets_all_of_it(
    client: HttpClient, stream: penstock.Stream
) -> None:
    rows = [{"n": number, "s": "x" * 200} for number in range(20_000)]
    stream.append(rows)

    answer = client.ask("GET", f"/v1/streams/{stream.name}/rows")

    assert [json.loads(line)["n"] for line in answer.body.splitlines()] == list(range(20_000))


# ---- tails


@contextmanager
def follow(
    client: HttpClient, path: str, last: int | None = None
) -> Iterator[http.client.HTTPResponse]:
    headers = {"Authorization": f"Bearer {client.token}"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    with closing(client.connection()) as connection:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            yield answer


def test_a_tail_is_resumed_over_gateways_without_loss_or_repetition(
    own_log: penstock.Log,
) -> None:
    stream = own_log.create_stream("s", DDL)
    token = token_of(own_log)
    seen: list[int] = []
    last: int | None = None
    done = threading.Event()

    def produce() -> None:
        for number in range(60):
            stream.append([{"n": number}, {"n": number}])
            time.sleep(0.01)
        done.set()

    producing = threading.Thread(target=produce)
    producing.start()
    rounds = 0
    while not (done.is_set() and len(seen) == 120):
        rounds += 1
        # Each gateway ends while its client reads: cut off, or told to stop.
        with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
            client = HttpClient(listening, token)
            path = "/v1/streams/s/tail" + ("?from=earliest" if last is None else "")
            with follow(client, path, last) as answer:
                assert answer.status == 200
                wanted = len(seen) + 40
                for event in read_events(iter(answer.readline, b"")):
                    last = event.id
                    seen += [json.loads(line)["n"] for line in event.data]
                    if len(seen) >= min(wanted, 120):
                        break
    producing.join()

    assert seen == [number for number in range(60) for _ in range(2)]
    assert rounds >= 3


def test_a_quiet_tail_beats_and_moves_on(
    client: HttpClient, stream: penstock.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEARTBEAT_SECONDS", 0.05)
    with follow(client, f"/v1/streams/{stream.name}/tail") as answer:
        events = read_events(iter(answer.readline, b""))
        first, second = next(events), next(events)
        stream.append([{"n": 1}])
        rows = next(event for event in events if event.data)

    assert first.id is not None and second.id is not None and second.id >= first.id
    assert rows.event == "rows" and rows.id is not None and rows.id > first.id


def drain(connection: socket.socket) -> bytes:
    """What comes before the end, whichever it is; the last of it."""
    last = b""
    try:
        while part := connection.recv(1 << 20):
            last = (last + part)[-1000:]
    except ConnectionError:
        pass
    return last


def test_a_reader_that_takes_nothing_is_cut_off_and_costs_nobody(
    client: HttpClient, stream: penstock.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "SEND_SECONDS_MAX", 0.3)
    stream.append([{"n": number, "s": "x" * 1000} for number in range(20_001)])
    with closing(socket.create_connection((client.address.host, client.address.port))) as slow:
        slow.sendall(
            f"GET /v1/streams/{stream.name}/rows HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {client.token}\r\n\r\n".encode()
        )
        assert client.append(stream.name, [{"n": 1}]).status == 200
        wait_until(lambda: b"slow_readers_total 1" in client.ask("GET", "/metrics").body)
        assert b"20000" not in drain(slow)


# ---- the process


def test_a_process_finishes_what_is_under_way_and_says_nothing_else(own_log: penstock.Log) -> None:
    own_log.create_stream("s", DDL)
    with GatewayProcess(Path(own_log.target)) as process:
        client = HttpClient(process.ready(), token_of(own_log))
        assert client.ask("GET", "/healthz").json == {"status": "ok"}
        connection = client.connection()
        headers = {"Authorization": f"Bearer {client.token}", "Content-Length": "8"}
        headers["Content-Type"] = "application/json"
        connection.putrequest("POST", "/v1/streams/s/rows")
        for header, value in headers.items():
            connection.putheader(header, value)
        connection.endheaders(b'{"n"')
        with follow(client, "/v1/streams/s/tail") as tail:
            assert tail.readline() == b"retry: 1000\n"
            process.process.terminate()
            assert tail.read().endswith(b"\n\n")  # ended, not cut off
        connection.send(b": 7}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()
        code, said = process.stop()

    assert code == 0
    assert said == ""
    assert own_log.stream("s").read().to_pylist()[0]["n"] == 7


def test_with_a_certificate_it_speaks_tls_and_nothing_else(
    module_log: penstock.Log, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca", "test")
    files = authority.issue("gateway", hosts=("127.0.0.1",))
    config = GatewayConfig(target=module_log.target, port=0, tls_cert=files.cert, tls_key=files.key)
    with gateway_thread(config) as listening:
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        client = HttpClient(listening, token_of(module_log), trusting)
        assert listening.tls
        assert client.ask("GET", "/v1/streams").status == 200
        with pytest.raises(ssl.SSLError):
            HttpClient(listening, client.token, ssl.create_default_context()).ask("GET", "/healthz")
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            HttpClient(listening, client.token).ask("GET", "/healthz")


def test_it_listens_on_this_machine_only_unless_it_has_a_certificate() -> None:
    with pytest.raises(BadConfig, match="needs TLS"):
        server.GatewayServer(GatewayConfig(host="0.0.0.0"))


def test_nobody_is_told_the_token(
    module_log: penstock.Log, client: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "a-token-that-is-wrong-but-long-enough-to-be-one"
    refused = HttpClient(client.address, secret).ask("GET", "/v1/streams")
    client.ask("GET", "/v1/streams")
    known = client.ask("GET", "/metrics")

    assert refused.status == 401 and known.status == 200
    for token in (secret, token_of(module_log)):
        assert token not in caplog.text
        assert token.encode() not in refused.body + known.body


def test_a_narrowed_token_is_used_like_any_other(own_log: penstock.Log) -> None:
    for stream in ("alpha", "beta"):
        own_log.create_stream(stream, DDL)
    root = token_of(own_log)
    id = "00000000000000aa"
    writing = make_token(root, id, ["allow=append:alpha"])
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        writer = HttpClient(listening, writing)
        reader = HttpClient(listening, make_token(root, "0" * 16, ["allow=read:alpha"]))
        late = HttpClient(listening, make_token(root, "1" * 16, ["until=1000"]))
        assert writer.append("alpha", [{"n": 0}], "p:0").status == 200
        assert writer.append("alpha", [{"n": 0}], "p:0").json["duplicate"] is True
        assert writer.append("alpha", [{"n": 1}]).status == 200
        assert writer.append("beta", [{"n": 1}]).status in (403, 404)
        for path in ("/v1/streams/alpha/rows", "/v1/streams/alpha/tail", "/metrics"):
            assert writer.ask("GET", path).status == 403, path
        assert len(reader.ask("GET", "/v1/streams/alpha/rows").body.splitlines()) == 2
        assert reader.append("alpha", [{"n": 2}]).status == 403
        assert [one["name"] for one in reader.ask("GET", "/v1/streams").json["streams"]] == [
            "alpha"
        ]
        assert late.ask("GET", "/v1/streams").status == 401
        own_log.client.compare_and_set(revoked_key(id), expected=None, value=b"")
        wait_until(lambda: writer.append("alpha", [{"n": 9}], "p:0").status == 401, seconds=10)


def test_a_stream_of_bytes_that_cannot_be_read_hides_no_other(own_log: penstock.Log) -> None:
    own_log.create_stream("alpha", DDL)
    writing = make_token(token_of(own_log), "0" * 16, ["allow=append:beta*"])
    with BlockingLog(endpoint(own_log.target, token=writing)) as writer:
        writer.compare_and_set("stream/beta", expected=None, value=b"[" * 100_000)
        alpha = own_log.client.get("stream/alpha")
        assert alpha is not None
        late = json.loads(alpha.data) | {"created_ms": 10**18}
        writer.compare_and_set("stream/beta2", expected=None, value=json.dumps(late).encode())
    assert [stream.name for stream in own_log.streams()] == ["alpha"]
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        listed = HttpClient(listening, token_of(own_log)).ask("GET", "/v1/streams")
        assert [one["name"] for one in listed.json["streams"]] == ["alpha"]
    shown = CliRunner().invoke(cli, ["stream", "list", "--json", "--dir", str(own_log.target)])
    assert [one["name"] for one in json.loads(shown.output)] == ["alpha", "beta", "beta2"]


def test_a_narrowed_token_may_be_as_long_as_tokens_are(own_log: penstock.Log) -> None:
    own_log.create_stream("alpha", DDL)
    rights = "allow=" + " ".join(f"read:other_{number:04d}" for number in range(100))
    long = make_token(token_of(own_log), "0" * 16, [f"{rights} read:alpha"] * 3)
    assert 5000 < len(long) <= TEXT_MAX
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        assert HttpClient(listening, long).ask("GET", "/v1/streams/alpha").status == 200
        longer = HttpClient(listening, long + "0" * TEXT_MAX)
        assert longer.ask("GET", "/v1/streams/alpha").status in (401, 431)


def test_a_schema_that_no_log_keeps_is_refused_before_it_is_read(client: HttpClient) -> None:
    ddl = ", ".join(f"c{number} int" for number in range(30_000))
    asked = client.ask("POST", "/v1/streams", json.dumps({"name": "wide", "ddl": ddl}))
    assert asked.status == 413 and "over 262144 bytes" in asked.json["detail"]
