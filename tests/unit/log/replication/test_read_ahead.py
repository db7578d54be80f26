"""The pace of a reader: more while it has to wait, less while it is slow, one poll at the tail."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.replication.read_ahead import ReadAhead, ReadAheadLimits, Request

LIMITS = ReadAheadLimits(
    request_bytes_min=100, request_bytes_max=1_000, window_bytes_max=3_000, requests_max=4
)
FAR = 1_000_000


class Reader:
    """A reader of blocks of 50 bytes, with `check()` after each event."""

    def __init__(self, limits: ReadAheadLimits = LIMITS) -> None:
        self.core = ReadAhead(limits)
        self.under_way: deque[Request] = deque()
        self.position = 0
        self.now_ms = 0.0

    def ask(self, durable: int = FAR) -> list[Request]:
        found = []
        while (request := self.core.next_request(self.position, durable)) is not None:
            assert len(found) < 100
            self.core.check()
            assert self.core.buffered_bytes + self.core.asked_bytes <= self.core.window_bytes
            self.position += -(-request.bytes // 50)
            found.append(request)
        self.under_way += found
        return found

    def answer(self, latency_ms: float = 5.0, bytes: int | None = None) -> None:
        request = self.under_way.popleft()
        size = -(-request.bytes // 50) * 50 if bytes is None else bytes
        self.core.answered(request, bytes=size, latency_ms=latency_ms)
        self.core.check()

    def catch_up(self, times: int, latency_ms: float = 5.0) -> list[int]:
        """Ask, wait and consume; the windows that it had."""
        windows = []
        for _ in range(times):
            self.ask()
            self.answer(latency_ms)
            self.consume()
            windows.append(self.core.window_bytes)
        return windows

    def consume(self, bytes: int | None = None, passed_ms: float = 1.0) -> None:
        self.now_ms += passed_ms
        self.core.consumed(self.core.buffered_bytes if bytes is None else bytes, self.now_ms)
        self.core.check()


def test_catching_up_doubles_the_window_up_to_its_bound() -> None:
    reader = Reader()

    assert reader.catch_up(8) == [200, 400, 800, 1600, 3000, 3000, 3000, 3000]
    assert reader.core.requests_wanted > 1
    assert max(request.bytes for request in reader.under_way) == 1_000
    reader.ask()
    assert (reader.core.requests, reader.core.asked_bytes) == (3, 3_000)


def test_a_longer_way_needs_more_requests_at_once() -> None:
    """The same pace of the consumer, two latencies; nobody waits, so the pace is its own."""
    wanted = []
    for latency_ms in (1.0, 400.0):
        reader = Reader()
        reader.catch_up(8, latency_ms)  # to the largest window
        reader.ask()
        reader.answer(latency_ms)
        for _ in range(9):
            reader.consume(100, passed_ms=20.0)
        wanted.append(reader.core.requests_wanted)

    assert wanted[0] == 1
    assert wanted[1] == 3


def test_tailing_is_one_long_poll() -> None:
    reader = Reader()

    assert reader.ask(durable=0) == [Request(100, long_poll=True)]
    assert reader.ask(durable=0) == []
    reader.answer(latency_ms=30_000.0, bytes=0)
    assert reader.ask(durable=0) == [Request(100, long_poll=True)]
    assert reader.core.window_bytes == 100


def test_nothing_is_asked_beside_a_poll_until_it_comes_back() -> None:
    reader = Reader()
    reader.ask(durable=0)

    assert reader.ask(durable=FAR) == []
    reader.answer(bytes=50)
    assert [request.long_poll for request in reader.ask(durable=FAR)] != [True]


def test_whoever_reaches_the_tail_shrinks_and_polls_once_all_is_there() -> None:
    reader = Reader()
    reader.catch_up(6)
    reader.ask()

    assert reader.ask(durable=reader.position) == []
    while reader.under_way:
        reader.answer()
        reader.consume()

    assert reader.ask(durable=reader.position) == [Request(100, long_poll=True)]


def test_a_slow_consumer_gets_a_smaller_window() -> None:
    reader = Reader()
    reader.catch_up(8)
    assert reader.core.window_bytes == 3_000

    for _ in range(200):
        reader.ask()
        if reader.under_way:
            reader.answer(latency_ms=1.0)
        reader.consume(min(50, reader.core.buffered_bytes), passed_ms=100.0)

    assert reader.core.window_bytes < 1_000


def test_a_consumer_that_stops_is_asked_for_nothing_more() -> None:
    reader = Reader()
    for _ in range(50):
        reader.ask()
        if reader.under_way:
            reader.answer()

    assert not reader.under_way
    assert reader.core.buffered_bytes <= LIMITS.window_bytes_max
    assert reader.ask(durable=reader.position) == []  # not even a poll


def test_a_failed_request_frees_its_place() -> None:
    reader = Reader()
    [request] = reader.ask()

    reader.core.failed(request)

    assert reader.core.requests == 0
    assert reader.core.window_bytes == 100
    assert reader.core.next_request(0, FAR) == request


def test_nobody_consumes_what_did_not_come() -> None:
    with pytest.raises(AssertionError):
        ReadAhead(LIMITS).consumed(1, 0.0)


@given(st.data())
def test_memory_is_bounded_and_the_reader_never_stands_still(data: st.DataObject) -> None:
    """Any order of answers, overshoot by a block, losses, any consumer and any tail."""
    reader = Reader()
    durable = data.draw(st.integers(0, 200))

    for _ in range(data.draw(st.integers(1, 60))):
        reader.ask(durable)
        core = reader.core
        # Each answer may be one block longer than what was asked for.
        bound = LIMITS.window_bytes_max + LIMITS.requests_max * 50
        assert core.buffered_bytes + core.asked_bytes <= bound
        assert core.requests or core.buffered_bytes, "nothing under way and nothing to consume"
        match data.draw(st.sampled_from(["answer", "consume", "lose", "write"])):
            case "answer" if reader.under_way:
                reader.under_way.rotate(data.draw(st.integers(0, 3)))
                asked = reader.under_way[0].bytes
                reader.answer(data.draw(st.floats(0, 1e4)), data.draw(st.integers(0, asked + 50)))
            case "consume":
                reader.consume(
                    data.draw(st.integers(0, core.buffered_bytes)), data.draw(st.floats(0, 1e4))
                )
            case "lose" if reader.under_way:
                core.failed(reader.under_way.popleft())
            case _:
                durable += data.draw(st.integers(0, 50))
