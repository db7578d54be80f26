"""Who a storage node is after it lost something, and what it says to whom (R05)."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.files import flip_bit
from node_blocks import make_block
from served_node import add, client_of, end_of, serving

from penstock.errors import BadConfig, Unavailable
from penstock.log.meta.memory import MemoryMetadata
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Found

KEY = SegmentKey("main", 0)


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


async def test_a_former_cookie_is_shown_what_is_here_and_denied_nothing(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    async with serving(tmp_path / "n1", metadata) as server:
        old = server.info
        async with client_of(server) as client:
            for number in range(4):
                await add(client, KEY, make_block(number))
    journal = next((tmp_path / "n1" / "journal").glob("journal-*"))
    end = end_of(journal, make_block(1))
    flip_bit(journal, end - len(make_block(1)) - 20)
    flip_bit(journal, end + 20)

    async with serving(tmp_path / "n1", metadata) as server:
        assert server.info.cookie != old.cookie
        assert metadata.paths()["/cookies/n1"].data.decode() == server.info.cookie
        async with client_of(server, old.cookie) as client:
            assert bytes((await client.read(KEY, 3, durable_block=9)).data) == make_block(3)
            assert not client.is_trusted
            assert (await client.read(KEY, 1, durable_block=9)).found is Found.UNKNOWN
            assert (await client.read(KEY, 8, durable_block=9)).found is Found.UNKNOWN
            assert (await client.read(KEY, 8, fence_epoch=9)).found is Found.UNKNOWN
            assert isinstance(await add(client, KEY, make_block(9)), Unavailable)
            with pytest.raises(Unavailable):
                await client.fence(KEY, 9)
        async with client_of(server) as client:
            assert await add(client, KEY, make_block(1)) is None
        async with client_of(server, "0123456789abcdef") as client:
            with pytest.raises(Unavailable):
                await client.read(KEY, 0)
    async with serving(tmp_path / "n1", metadata) as again:
        assert again.identity == server.identity  # the damage was mended


async def test_a_wiped_node_comes_back_as_another(tmp_path: Path, metadata: MemoryMetadata) -> None:
    async with serving(tmp_path / "old", metadata) as server:
        old = server.info
        async with client_of(server) as client:
            await add(client, KEY, make_block(0))
    async with serving(tmp_path / "new", metadata) as server:
        assert server.info.id != old.id
        async with client_of(server, old.cookie) as client:
            assert (await client.read(KEY, 0, durable_block=1)).found is Found.UNKNOWN
        async with client_of(server) as client:
            assert (await client.read(KEY, 0, durable_block=1)).found is Found.ABSENT
    with pytest.raises(BadConfig, match="old disk"):
        async with serving(tmp_path / "old", metadata):
            pass


@pytest.mark.parametrize("part", ["journal", "segments"])
async def test_a_directory_that_was_emptied_makes_another_node(
    tmp_path: Path, part: str, metadata: MemoryMetadata
) -> None:
    async with serving(tmp_path / "n1", metadata) as server:
        old = server.info
        async with client_of(server) as client:
            await add(client, KEY, make_block(0))
    for path in (tmp_path / "n1" / part).iterdir():
        path.unlink()
    async with serving(tmp_path / "n1", metadata) as server:
        assert server.info.cookie != old.cookie
        assert server.identity.past_cookies == (old.cookie,)


async def test_a_directory_of_another_node_is_refused(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    async with serving(tmp_path / "n1", metadata):
        with pytest.raises(Unavailable, match="another process"):
            async with serving(tmp_path / "n1", metadata):
                pass
    with pytest.raises(BadConfig, match="belongs to node 'n1'"):
        async with serving(tmp_path / "n1", metadata, "n2"):
            pass
