"""The messages of the protocol and their bytes."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from damage import peak_bytes

from penstock.errors import BadFormat
from penstock.log.records import Guard
from penstock.wire import messages as m

SAMPLES: list[m.Message] = [
    m.Hello("name é", "session"),
    m.Meet(bytes(32)),
    m.MeetAs(bytes(32), "pt1.0123456789abcdef"),
    m.Challenge(bytes(32), bytes(range(32))),
    m.GetMetrics(),
    m.MetricsText("# EOF\n"),
    m.Welcome(bytes(16), 3, 2**64 - 1, 0),
    m.Append((Guard("k", b"v"), Guard("absent", None), Guard("", b"")), 250),
    m.Append((), 0),
    m.AppendDone(7, 2, True),
    m.Failed(12, "a message\nof two lines"),
    m.Subscribe(1, ("a", "é"), 0, 2**62, 4096),
    m.Subscribe(1, None, 0, 0, 1),
    m.Subscribe(1, (), 0, 0, 1),
    m.Credit(1, 2),
    m.Unsubscribe(9),
    m.Delivery(1, 2, False),
    m.ReadLast("tag", 5),
    m.LastEntry(),
    m.FindTime(1),
    m.Position(2),
    m.Trim(3),
    m.GetMetadata("pre", True),
    m.Metadata((m.MetadataValue("k", b"\x00", 4), m.MetadataValue("", b"", 0))),
    m.GetProducer("p"),
    m.Producer(1, 2),
    m.GetStatus(),
    m.Status("{}"),
    m.Ping(),
    m.Pong(),
    m.GetBounds(),
    m.LogBounds(1, 2),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message: m.Message) -> None:
    assert m.decode_message(message.KIND, m.encode_message(message)) == message


def test_every_message_has_a_sample_and_a_kind_of_its_own() -> None:
    assert {type(message) for message in SAMPLES} == set(m.MESSAGES.values())
    assert sorted(m.MESSAGES) == list(range(1, 30))


def test_the_bytes_of_a_message_are_those_of_the_format() -> None:
    append = m.Append((Guard("k", None), Guard("j", b"v")), 5)

    assert m.encode_message(append).hex(" ") == (
        "02 00 00 00 "  # two guards
        "01 00 00 00 6b 00 "  # "k" must be absent
        "01 00 00 00 6a 01 01 00 00 00 76 "  # "j" must be "v"
        "05 00 00 00 00 00 00 00"
    )


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_cut_and_every_trailing_byte_is_noticed(message: m.Message) -> None:
    data = m.encode_message(message)

    for size in range(len(data)):
        with pytest.raises(BadFormat):
            m.decode_message(message.KIND, data[:size])
    with pytest.raises(BadFormat, match="too many"):
        m.decode_message(message.KIND, data + b"\x00")


@pytest.mark.parametrize("kind", [0, 30, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(BadFormat, match="kind"):
        m.decode_message(kind, b"")


@pytest.mark.parametrize("count", [2, 10**9, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        (m.Append.KIND, b""),
        (m.Subscribe.KIND, bytes(8) + b"\x01"),
        (m.Hello.KIND, b""),
        (m.Metadata.KIND, b""),
    ],
    ids=["guards", "tags", "text", "values"],
)
def test_a_count_beyond_the_bytes_allocates_nothing(kind: int, prefix: bytes, count: int) -> None:
    """10^9 tags in 13 bytes."""
    data = prefix + struct.pack("<I", count) + b"\x00"

    def attempt() -> None:
        with pytest.raises(BadFormat):
            m.decode_message(kind, data)

    assert peak_bytes(attempt) < 64 * 1024


def test_text_that_is_not_utf8_is_noticed() -> None:
    with pytest.raises(BadFormat, match="UTF-8"):
        m.decode_message(m.GetProducer.KIND, struct.pack("<I", 1) + b"\xff")


@pytest.mark.parametrize("flag", [2, 255])
def test_a_flag_is_0_or_1(flag: int) -> None:
    with pytest.raises(BadFormat, match="flag"):
        m.decode_message(m.AppendDone.KIND, bytes(16) + bytes([flag]))
    with pytest.raises(BadFormat, match="flag"):
        m.decode_message(m.Subscribe.KIND, bytes(8) + bytes([flag]) + bytes(24))


def test_messages_are_values() -> None:
    for message in SAMPLES:
        assert dataclasses.is_dataclass(message)
        assert message == dataclasses.replace(message)
        assert hash(message) == hash(dataclasses.replace(message))
