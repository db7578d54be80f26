"""Requests and answers on one connection, with a transport that only remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.errors import Fenced, PenstockError, TooLarge, Unavailable
from penstock.log.pairing import PairedConnection
from penstock.wire import node_messages as n
from penstock.wire.errors import error_code
from penstock.wire.frames import FrameReader, encode_frame
from penstock.wire.messages import Failed

Link = PairedConnection[n.NodeMessage]


class Transport:
    """What was written, and whether it was cut."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.aborted = False

    def writelines(self, parts: list[bytes]) -> None:
        self.out += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        return None

    def get_extra_info(self, name: str) -> None:
        return None


@dataclass
class Wire:
    """A connection, its transport, and how it ended."""

    link: Link
    transport: Transport = field(default_factory=Transport)
    ends: list[PenstockError] = field(default_factory=list)


@pytest.fixture
def wire() -> AbstractAsyncContextManager[Wire]:
    @asynccontextmanager
    async def connected() -> AsyncIterator[Wire]:
        ends: list[PenstockError] = []
        link: Link = PairedConnection(
            n.encode_node_message,
            n.decode_node_message,
            on_end=ends.append,
            ack_kind=n.BlockAdded.KIND,
        )
        wire = Wire(link, ends=ends)
        link.connection_made(cast(Any, wire.transport))
        yield wire

    return connected()


def receive(link: Link, request: int, message: n.NodeMessage) -> None:
    frame = bytes(encode_frame(message.KIND, request, n.encode_node_message(message)))
    link.get_buffer(-1)[: len(frame)] = frame
    link.buffer_updated(len(frame))


def refusal(error: PenstockError) -> Failed:
    return Failed(error_code(error), str(error))


async def test_what_ended_the_connection_is_nobodys_answer(wire: Wire) -> None:
    """The server refused one frame; others must not be told that theirs was too large."""
    told: list[object] = []
    wire.link.send(1, n.GetNodeStatus(), lambda outcome, _: told.append(outcome))
    wire.link.order(2, n.AddBlock.KIND, b"", [b"block"], 0, told.append)

    receive(wire.link, 0, refusal(TooLarge("frame of 9 MiB")))

    assert [type(outcome) for outcome in told] == [Unavailable, Unavailable]
    assert [type(end) for end in wire.ends] == [TooLarge]
    assert type(await wire.link.closed) is TooLarge


async def test_answers_find_their_requests_in_any_order(wire: Wire) -> None:
    first = asyncio.create_task(wire.link.ask(1, n.GetNodeStatus()))
    second = asyncio.create_task(wire.link.ask(2, n.GetNodeStatus()))
    await asyncio.sleep(0)
    assert wire.link.is_waiting

    receive(wire.link, 2, n.NodeStatus("two"))
    receive(wire.link, 1, refusal(Fenced("one")))

    assert (await second)[0] == n.NodeStatus("two")
    with pytest.raises(Fenced, match="one"):
        await first
    assert not wire.link.is_waiting and not wire.ends


async def test_an_answer_to_a_request_that_was_given_up_is_dropped(wire: Wire) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await wire.link.ask(1, n.GetNodeStatus())

    receive(wire.link, 1, n.NodeStatus("late"))
    receive(wire.link, 1, refusal(Fenced("late")))

    assert not wire.link.closed.done() and not wire.ends


async def test_orders_are_acknowledged_refused_and_counted(wire: Wire) -> None:
    told: list[PenstockError | None] = []
    for request, size in ((1, 100), (2, 200)):
        wire.link.order(request, n.AddBlock.KIND, b"", [b"x"], size - 1, told.append)
    assert wire.link.inflight_bytes == 300

    receive(wire.link, 1, n.BlockAdded())
    receive(wire.link, 2, refusal(Fenced("no")))

    assert told[0] is None and isinstance(told[1], Fenced)
    assert wire.link.inflight_bytes == 0


async def test_the_end_is_told_before_all_that_waits_ends_with_it(wire: Wire) -> None:
    told: list[tuple[str, int]] = []
    wire.link.order(1, n.AddBlock.KIND, b"", [], 9, lambda _: told.append(("ack", len(wire.ends))))
    wire.link.send(2, n.GetNodeStatus(), lambda *_: told.append(("answer", len(wire.ends))))

    wire.link.connection_lost(None)
    wire.link.connection_lost(None)

    assert told == [("ack", 1), ("answer", 1)]
    assert wire.link.inflight_bytes == 0 and len(wire.ends) == 1
    with pytest.raises(Unavailable):
        await wire.link.ask(3, n.GetNodeStatus())


async def test_an_order_that_is_answered_with_something_else_ends_the_connection(
    wire: Wire,
) -> None:
    told: list[PenstockError | None] = []
    wire.link.order(1, n.AddBlock.KIND, b"", [], 1, told.append)

    receive(wire.link, 1, n.NodeStatus("what?"))

    assert isinstance(told[0], Unavailable) and len(told) == 1
    assert wire.transport.aborted and len(wire.ends) == 1


async def test_an_order_whose_answer_cannot_be_read_ends_with_the_connection(wire: Wire) -> None:
    told: list[PenstockError | None] = []
    for request in (1, 2):
        wire.link.order(request, n.AddBlock.KIND, b"", [], 1, told.append)

    frame = bytes(encode_frame(n.BlocksRead.KIND, 1, b""))
    wire.link.get_buffer(-1)[: len(frame)] = frame
    wire.link.buffer_updated(len(frame))

    assert [type(error) for error in told] == [Unavailable, Unavailable]
    assert wire.transport.aborted and len(wire.ends) == 1


async def test_a_failure_under_request_0_ends_the_connection_with_it(wire: Wire) -> None:
    receive(wire.link, 0, refusal(Unavailable("go away")))

    assert [str(error) for error in wire.ends] == ["go away"]
    assert wire.transport.aborted


# ---- the window


def sent(wire: Wire) -> list[int]:
    """Requests that went out since the last look."""
    wire.link.flush()
    out, wire.transport.out = wire.transport.out, bytearray()
    reader = FrameReader(authenticated=True)
    found: list[int] = []
    while out:
        size = min(len(buffer := reader.get_buffer()), len(out))
        buffer[:size] = out[:size]
        del out[:size]
        found += [frame.request for frame in reader.buffer_updated(size)]
    return found


def order(wire: Wire, request: int, size: int, told: list[Any]) -> None:
    def ack(error: PenstockError | None) -> None:
        told.append((request, error))

    wire.link.order(request, n.AddBlock.KIND, b"", [bytes(size)], 0, ack)


async def test_orders_beyond_the_window_wait_in_order_and_are_never_refused(wire: Wire) -> None:
    wire.link._window_bytes = 100
    told: list[Any] = []
    for request, size in ((1, 60), (2, 60), (3, 10), (4, 500), (5, 1)):
        order(wire, request, size, told)
    assert sent(wire) == [1]  # the small third one does not overtake the second

    receive(wire.link, 1, n.BlockAdded())
    assert sent(wire) == [2, 3]
    receive(wire.link, 2, n.BlockAdded())
    assert sent(wire) == []  # the large one waits until it is alone
    receive(wire.link, 3, refusal(Fenced("no")))
    assert sent(wire) == [4]
    receive(wire.link, 4, n.BlockAdded())
    assert sent(wire) == [5]
    receive(wire.link, 5, n.BlockAdded())

    assert [request for request, _ in told] == [1, 2, 3, 4, 5]
    assert [error is None for _, error in told] == [True, True, False, True, True]
    assert wire.link.inflight_bytes == 0


async def test_orders_that_wait_end_with_the_connection(wire: Wire) -> None:
    wire.link._window_bytes = 100
    told: list[Any] = []
    for request in (1, 2, 3):
        order(wire, request, 90, told)

    wire.link.connection_lost(None)

    assert [request for request, _ in told] == [1, 2, 3]
    assert all(isinstance(error, Unavailable) for _, error in told)
    assert len(wire.ends) == 1


async def test_what_is_ordered_by_who_hears_an_answer_waits_behind_the_others(wire: Wire) -> None:
    wire.link._window_bytes = 100
    told: list[Any] = []
    wire.link.order(1, n.AddBlock.KIND, b"", [bytes(90)], 0, lambda _: order(wire, 3, 10, told))
    order(wire, 2, 90, told)
    assert sent(wire) == [1]

    receive(wire.link, 1, n.BlockAdded())
    assert sent(wire) == [2, 3]
