"""Bytes that no client of ours sends, against a live server.

Goal: I19 and I20. Method: one server for all tests of this file, one writer that must not notice;
after each case the log's files are byte for byte what they were, and the right counter has moved.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from harness.server_process import ServerProcess
from hostile_groups import GROUPS, PRODUCER
from raw_client import RawClient, log_digest, read_metrics, wait_quiet

from penstock.errors import Fenced, PenstockError, Refused, Retryable, Unauthorized
from penstock.limits import (
    CREDIT_BYTES_MAX,
    FRAME_BODY_BYTES_MAX,
    FRAME_HEAD_BYTES_MAX,
    GUARDS_MAX,
    PREAUTH_FRAME_BYTES_MAX,
    SUBSCRIPTION_TAGS_MAX,
)
from penstock.log.group_format import CLAIM, encode_body
from penstock.log.records import Guard, Kind, NewEntry
from penstock.wire import messages as m
from penstock.wire.frames import encode_frame

SEED = 20260602
HEADER = struct.Struct("<HBBIIII")
MAGIC = 0x4B50
U64_MAX = 2**64 - 1
#: The start of a TLS 1.3 ClientHello.
TLS_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(range(200))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a few entries, and the producer that hostile groups pretend to be."""
    with ServerProcess(tmp_path_factory.mktemp("hostile") / "data") as server:
        with RawClient(server) as client:
            client.hello()
            claim = [NewEntry(b"12345678", (), Kind.CONTROL)]
            body = encode_body(
                producer=PRODUCER, instance=1, first_seq=0, entries=claim, flags=CLAIM
            )
            assert isinstance(client.ask(m.Append((), 0), body), m.AppendDone)
            data = [NewEntry(b"entry", ("tag",))]
            body = encode_body(producer=PRODUCER, instance=1, first_seq=0, entries=data)
            assert isinstance(client.ask(m.Append((), 0), body), m.AppendDone)
        wait_quiet(server)
        yield server
        assert server.stop() == 0


def header(
    *, magic: int = MAGIC, version: int = 1, kind: int = 1, head: int = 0, body: int = 0
) -> bytes:
    """A frame header with lengths of choice, and a CRC that is none."""
    return HEADER.pack(magic, version, kind, 1, head, body, 0)


MEET_HEAD = m.encode_message(m.Meet(bytes(32)))
NO_FRAMES: dict[str, bytes] = {
    "all lengths 0": encode_frame(m.Meet.KIND, 1, b""),
    "a head shorter than its message": encode_frame(m.Meet.KIND, 1, MEET_HEAD[:-1]),
    "a head with trailing bytes": encode_frame(m.Meet.KIND, 1, MEET_HEAD + b"\0"),
    "head of cap + 1": header(head=PREAUTH_FRAME_BYTES_MAX - HEADER.size + 1),
    "body of cap + 1": header(body=PREAUTH_FRAME_BYTES_MAX - HEADER.size + 1),
    "head of 2^31 - 1": header(head=2**31 - 1),
    "head of 2^32 - 1": header(head=2**32 - 1),
    "body of 2^31 - 1": header(body=2**31 - 1),
    "body of 2^32 - 1": header(body=2**32 - 1),
    "head and body that wrap around": header(head=2**32 - 1, body=2**32 - 1),
    "magic of another protocol": header(magic=0x1234),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "a future version": header(version=2),
    "kind 0": encode_frame(0, 1, b""),
    "an unknown kind": encode_frame(max(m.MESSAGES) + 1, 1, b""),
    "kind 255": encode_frame(255, 1, b""),
    "a CRC that does not match": header(head=len(MEET_HEAD)) + MEET_HEAD,
    "a TLS hello": TLS_HELLO,
    "an HTTP POST": b"POST /metrics HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    "an SSH banner": b"SSH-2.0-OpenSSH_9.7\r\n" + bytes(20),
    "a string of 2^32 - 1 bytes": encode_frame(m.Meet.KIND, 1, b"\xff" * 8),
    "a short nonce": encode_frame(m.Meet.KIND, 1, m.encode_message(m.Meet(bytes(31)))),
    "a tag that is no UTF-8": encode_frame(
        m.ReadLast.KIND, 1, struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc" + bytes(8)
    ),
    "guards by the billion": encode_frame(m.Append.KIND, 1, struct.pack("<I", 10**9) + bytes(16)),
}


@pytest.mark.parametrize("name", NO_FRAMES)
def test_bytes_that_are_no_frame_close_the_connection_and_nothing_else(
    server: ServerProcess, name: str
) -> None:
    digest = log_digest(server.data_dir)
    before = read_metrics(server)
    told = server.output().count("closing a connection")

    with RawClient(server) as client:
        client.send(NO_FRAMES[name])
        answer = client.answer()
        assert isinstance(answer, PenstockError)
        assert client.read_frame() is None, "the connection stays open"

    after = read_metrics(server)
    assert after["penstock_bad_frames_total"] == before["penstock_bad_frames_total"] + 1
    assert server.output().count("closing a connection") == told + 1, "one line tells of it"
    assert log_digest(server.data_dir) == digest


TOO_LARGE = {
    "head of cap + 1": header(kind=m.Append.KIND, head=FRAME_HEAD_BYTES_MAX + 1),
    "body of cap + 1": header(kind=m.Append.KIND, body=FRAME_BODY_BYTES_MAX + 1),
    "head of 2^31 - 1": header(kind=m.Append.KIND, head=2**31 - 1),
    "body of 2^32 - 1": header(kind=m.Append.KIND, body=2**32 - 1),
    "zeros": bytes(64),
    "a message with trailing bytes": encode_frame(m.GetBounds.KIND, 5, b"\0"),
    "a cut message": encode_frame(m.Subscribe.KIND, 5, bytes(10)),
    "a flag that is neither 0 nor 1": encode_frame(
        m.GetMetadata.KIND, 5, struct.pack("<I", 0) + b"\x02"
    ),
    "an unknown kind": encode_frame(200, 5, b""),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_client_with_the_token_is_held_to_the_limits_too(
    server: ServerProcess, name: str
) -> None:
    digest = log_digest(server.data_dir)
    before = read_metrics(server)
    memory = server.memory_bytes()

    with RawClient(server) as client:
        client.hello().send(TOO_LARGE[name])
        assert isinstance(client.answer(), PenstockError)
        assert client.read_frame() is None, "the connection stays open"

    after = read_metrics(server)
    assert after["penstock_bad_frames_total"] == before["penstock_bad_frames_total"] + 1
    assert server.memory_bytes() - memory < 16 * 2**20, "it was allocated before it was refused"
    assert log_digest(server.data_dir) == digest


def test_nothing_but_a_challenge_is_answered_before_the_token(server: ServerProcess) -> None:
    """Every other message, well-formed, on a connection of its own."""
    digest = log_digest(server.data_dir)
    before = read_metrics(server)
    body = encode_body(
        producer=PRODUCER, instance=1, first_seq=1, entries=[NewEntry(b"no token", ("tag",))]
    )
    early: list[tuple[m.Message, bytes]] = [
        (m.Append((), 0), body),
        (m.Subscribe(1, None, 0, 2**62, 2**20), b""),
        (m.ReadLast("tag", U64_MAX), b""),
        (m.FindTime(0), b""),
        (m.Trim(1), b""),
        (m.GetMetadata("", False), b""),
        (m.GetProducer(PRODUCER), b""),
        (m.GetStatus(), b""),
        (m.GetBounds(), b""),
        (m.Welcome(b"", 0, 0, 0), b""),
        (m.Hello("raw"), b""),
        (m.Hello("raw"), bytes(32)),
        (m.GetMetrics(), bytes(32)),
    ]
    for message, data in early:
        with RawClient(server) as client:
            assert isinstance(client.ask(message, data), Unauthorized), message
            assert client.read_frame() is None, "the connection stays open"

    after = read_metrics(server)
    assert after["penstock_unauthorized_total"] == before["penstock_unauthorized_total"] + len(
        early
    )
    assert log_digest(server.data_dir) == digest


def test_what_only_a_server_says_is_refused_and_the_connection_lives(server: ServerProcess) -> None:
    answers: list[m.Message] = [
        m.Hello("again"),
        m.Meet(bytes(32)),
        m.Challenge(bytes(32), bytes(32)),
        m.MetricsText(""),
        m.Welcome(b"", 0, 0, 0),
        m.AppendDone(0, 1, False),
        m.Failed(0, "no"),
        m.Delivery(1, 0, False),
        m.LastEntry(),
        m.Position(0),
        m.Metadata(()),
        m.Producer(0, 0),
        m.Status("{}"),
        m.LogBounds(0, 0),
    ]
    with RawClient(server) as client:
        client.hello()
        for message in answers:
            assert isinstance(client.ask(message), Refused), message
            assert isinstance(client.ask(m.GetBounds()), m.LogBounds)


@pytest.mark.parametrize("name", GROUPS)
def test_a_malformed_group_is_refused_and_leaves_no_trace(server: ServerProcess, name: str) -> None:
    digest = log_digest(server.data_dir)

    with RawClient(server) as client:
        client.hello()
        answer = client.ask(m.Append((), 0), GROUPS[name]())

        assert isinstance(answer, Refused | Fenced), answer
        assert isinstance(client.ask(m.GetBounds()), m.LogBounds), "the connection is gone"
    assert log_digest(server.data_dir) == digest


REQUESTS: dict[str, m.Message] = {
    "no tags": m.Subscribe(9, (), 0, 10, 100),
    "too many tags": m.Subscribe(9, ("t",) * (SUBSCRIPTION_TAGS_MAX + 1), 0, 10, 100),
    "no credit": m.Subscribe(9, None, 0, 10, 0),
    "credit beyond all bounds": m.Subscribe(9, None, 0, 10, U64_MAX),
    "credit of cap + 1": m.Subscribe(9, None, 0, 10, CREDIT_BYTES_MAX + 1),
    "an end below its start": m.Subscribe(9, None, 10, 9, 100),
    "more credit than there is": m.Credit(9, U64_MAX),
    "a trim beyond the tail": m.Trim(U64_MAX),
    "too many guards": m.Append((Guard("k", None),) * (GUARDS_MAX + 1), 0),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_beyond_the_limits_is_refused_and_the_connection_lives(
    server: ServerProcess, name: str
) -> None:
    digest = log_digest(server.data_dir)
    with RawClient(server) as client:
        client.hello()

        assert isinstance(client.ask(REQUESTS[name]), Refused | Retryable)

        assert isinstance(client.ask(m.GetBounds()), m.LogBounds)
    assert log_digest(server.data_dir) == digest


@pytest.mark.parametrize(
    "message",
    [
        m.FindTime(U64_MAX),
        m.FindTime(2**63),
        m.ReadLast("no such tag \0 \x1b[31m", U64_MAX),
        m.ReadLast("t" * 100_000, 0),
        m.GetProducer("\0p/" + "x" * 10_000),
        m.GetMetadata("k" * 100_000, True),
        m.GetMetadata("\0", False),
    ],
)
def test_a_strange_question_gets_an_answer(server: ServerProcess, message: m.Message) -> None:
    with RawClient(server) as client:
        client.hello()

        assert client.ask(message) is not None

        assert isinstance(client.ask(m.GetBounds()), m.LogBounds)


def test_strange_subscriptions_do_no_harm(server: ServerProcess) -> None:
    """Subscriptions far above the tail, for tags that cannot be, ended before they were begun."""
    with RawClient(server) as client:
        client.hello()
        for number, message in enumerate(
            [
                m.Subscribe(1, None, U64_MAX, U64_MAX, 1),
                m.Subscribe(2, ("\0p/" + PRODUCER,), 0, 2**62, 100),
                m.Subscribe(3, ("t", "t", "t"), 2**63, U64_MAX, 100),
                m.Subscribe(U64_MAX, ("t" * 1000,), 0, 1, 100),
                m.Unsubscribe(77),
                m.Unsubscribe(1),
                m.Credit(78, 1),
            ]
        ):
            client.send(encode_frame(message.KIND, number, m.encode_message(message)))
        client.send(encode_frame(m.GetBounds.KIND, 99, b""))
        while (frame := client.read_frame()) is not None and frame.request != 99:
            pass
        assert frame is not None, "the connection is gone"


def test_random_damage_to_good_conversations_harms_nobody(server: ServerProcess) -> None:
    """Whole conversations with bytes flipped, cut out, doubled and inserted, seeds fixed."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    digest = log_digest(server.data_dir)
    memory = server.memory_bytes()
    refused = [NewEntry(b"refused", ("tag",))]
    body = encode_body(producer=PRODUCER, instance=0, first_seq=1, entries=refused)
    messages: list[tuple[m.Message, bytes]] = [
        (m.Append((Guard("key", b"value"),), 0), body),
        (m.Subscribe(3, ("tag", "other"), 0, 2**62, 1000), b""),
        (m.Credit(3, 100), b""),
        (m.ReadLast("tag", 10), b""),
        (m.GetMetadata("k", False), b""),
        (m.Unsubscribe(3), b""),
    ]
    for round_number in range(1500):
        with RawClient(server) as client:
            if round_number % 4:
                client.hello()
            talk = b"".join(
                encode_frame(message.KIND, n, m.encode_message(message), len(data)) + data
                for n, (message, data) in enumerate(rng.sample(messages, 4))
            )
            client.send(damage(talk, rng))
            client.end()
            client.read_all()

    assert log_digest(server.data_dir) == digest
    assert server.memory_bytes() - memory < 32 * 2**20
    assert "Traceback" not in server.output()


def damage(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        size = rng.randint(1, 8)
        data = {
            "flip": data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
            "cut": data[:at] + data[at + size :],
            "double": data[: at + size] + data[at:],
            "insert": data[:at] + rng.randbytes(size) + data[at:],
        }[rng.choice(["flip", "cut", "double", "insert"])]
    return data
