"""Requests and answers on one connection, with a transport that only remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.log.pairing import PairedConnection
from penstock.wire import node_messages as n
from penstock.wire.errors import error_code
from penstock.wire.frames import encode_frame
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


def play(story: Callable[[Link, Transport, list[PenstockError]], Awaitable[None]]) -> None:
    async def main() -> None:
        ends: list[PenstockError] = []
        transport = Transport()
        link: Link = PairedConnection(
            n.encode_node_message,
            n.decode_node_message,
            on_end=ends.append,
            ack_kind=n.BlockAdded.KIND,
        )
        link.connection_made(cast(Any, transport))
        await story(link, transport, ends)

    asyncio.run(main())


def receive(link: Link, request: int, message: n.NodeMessage) -> None:
    frame = bytes(encode_frame(message.KIND, request, n.encode_node_message(message)))
    link.get_buffer(-1)[: len(frame)] = frame
    link.buffer_updated(len(frame))


def refusal(error: PenstockError) -> Failed:
    return Failed(error_code(error), str(error))


def test_answers_find_their_requests_in_any_order() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        first = asyncio.create_task(link.ask(1, n.GetNodeStatus()))
        second = asyncio.create_task(link.ask(2, n.GetNodeStatus()))
        await asyncio.sleep(0)
        assert link.is_waiting

        receive(link, 2, n.NodeStatus("two"))
        receive(link, 1, refusal(Fenced("one")))

        assert (await second)[0] == n.NodeStatus("two")
        with pytest.raises(Fenced, match="one"):
            await first
        assert not link.is_waiting and not ends

    play(story)


def test_an_answer_to_a_request_that_was_given_up_is_dropped() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await link.ask(1, n.GetNodeStatus())

        receive(link, 1, n.NodeStatus("late"))
        receive(link, 1, refusal(Fenced("late")))

        assert not link.closed.done() and not ends

    play(story)


def test_orders_are_acknowledged_refused_and_counted() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        told: list[PenstockError | None] = []
        for request, size in ((1, 100), (2, 200)):
            link.order(request, n.AddBlock.KIND, b"", [b"x"], size - 1, told.append)
        assert link.inflight_bytes == 300

        receive(link, 1, n.BlockAdded())
        receive(link, 2, refusal(Fenced("no")))

        assert told[0] is None and isinstance(told[1], Fenced)
        assert link.inflight_bytes == 0

    play(story)


def test_the_end_is_told_before_all_that_waits_ends_with_it() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        told: list[tuple[str, int]] = []
        link.order(1, n.AddBlock.KIND, b"", [], 9, lambda _: told.append(("ack", len(ends))))
        link.send(2, n.GetNodeStatus(), lambda *_: told.append(("answer", len(ends))))

        link.connection_lost(None)
        link.connection_lost(None)

        assert told == [("ack", 1), ("answer", 1)]
        assert link.inflight_bytes == 0 and len(ends) == 1
        with pytest.raises(Unavailable):
            await link.ask(3, n.GetNodeStatus())

    play(story)


def test_an_order_that_is_answered_with_something_else_ends_the_connection() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        told: list[PenstockError | None] = []
        link.order(1, n.AddBlock.KIND, b"", [], 1, told.append)

        receive(link, 1, n.NodeStatus("what?"))

        assert isinstance(told[0], Unavailable) and len(told) == 1
        assert transport.aborted and len(ends) == 1

    play(story)


def test_a_failure_under_request_0_ends_the_connection_with_it() -> None:
    async def story(link: Link, transport: Transport, ends: list[PenstockError]) -> None:
        receive(link, 0, refusal(Unavailable("go away")))

        assert [str(error) for error in ends] == ["go away"]
        assert transport.aborted

    play(story)
