"""What the world once found in the shells of server and client, as short schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from simulation.log.lives import HOST, PORT, TOKEN
from simulation.log.swarm import Swarm
from simulation.log.world import World

from penstock.log.client.connection import open_connection
from penstock.log.records import NewEntry


@pytest.fixture
def world() -> Iterator[World]:
    """A server, and nothing from memory for readers that begin below the tail."""
    world = World(1, swarm=Swarm(recent_bytes=1))
    with world.running():
        world.server.start()
        world.until(lambda: world.server.is_up)
        yield world


def play(world: World, name: str, work: Any) -> Any:
    task = world.client(name).process.create_task(work)
    world.until(task.done)
    return task.result()


def test_a_reader_goes_on_after_a_read_of_the_server_failed(world: World) -> None:
    """The connection lives on, so nobody but the reader itself can ask again."""

    async def append_and_read() -> list[bytes]:
        log = await world.client("reader").log()
        for text in (b"1", b"2", b"3"):
            await log.append([NewEntry(text, ("t",))])
        world.server.disk.fail_read = True
        async with asyncio.timeout(10):
            return [entry.payload for entry in await log.read(["t"])]

    assert play(world, "reader", append_and_read()) == [b"1", b"2", b"3"]
    assert world.counts["read failed"] == 1


def test_a_connection_is_not_heard_once_its_client_has_a_newer_one(world: World) -> None:
    async def connect_again() -> None:
        async def connect(session: str) -> Any:
            connection, _ = await open_connection(
                HOST,
                PORT,
                token=TOKEN,
                name="test",
                session=session,
                tls=None,
                timeout=10,
                on_delivery=lambda message, body: None,
            )
            return connection

        old, stranger = await connect("mine"), await connect("another's")
        new = await connect("mine")

        async with asyncio.timeout(10):
            await old.closed
        assert not new.closed.done()
        assert not stranger.closed.done()

    play(world, "client", connect_again())
