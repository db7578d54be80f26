"""Parts whose files cannot be used: what they cost the others, and the node, is bounded."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from node_blocks import make_block

from penstock.errors import PenstockError, Unavailable
from penstock.limits import KIB
from penstock.log.node.journal import write_state
from penstock.log.node.metrics import NodeMetrics
from penstock.log.node.owner import NodeOwner
from penstock.log.node.server import NodeDisks, recover_node
from penstock.log.replication.manifest import SegmentKey
from penstock.log.storage.disk import RealDisk, RealFile

JOURNAL = 256 * KIB


class SegmentDisk(RealDisk):
    """A directory in which files of some logs cannot be made."""

    refused: tuple[str, ...] = ("main", "bad")

    def create(self, name: str) -> RealFile:
        if name.startswith(self.refused):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return super().create(name)


class CountedFile(RealFile):
    """How many bytes were appended to all of them."""

    written = 0

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        CountedFile.written += sum(map(len, buffers))
        super().append(buffers)


class JournalDisk(RealDisk):
    def create(self, name: str) -> RealFile:
        file = super().create(name)
        file.__class__ = CountedFile
        return file


@asynccontextmanager
async def owner_on(tmp_path: Path) -> AsyncIterator[tuple[NodeOwner, SegmentDisk]]:
    journal, segments = JournalDisk(tmp_path / "journal"), SegmentDisk(tmp_path / "segments")
    if not journal.exists("state"):
        write_state(journal, 0, [])
    store, core, recovered = recover_node(NodeDisks(RealDisk(tmp_path), journal, segments))
    nothing: Any = lambda *_: None  # noqa: E731
    owner = NodeOwner(
        journal,
        store,
        core,
        recovered,
        metrics=NodeMetrics(),
        after_event=nothing,
        on_drained=nothing,
        on_fatal=nothing,
        journal_bytes=JOURNAL,
    )
    try:
        yield owner, segments
    finally:
        await owner.stop(clean=False)


async def add(owner: NodeOwner, key: SegmentKey, data: bytes) -> PenstockError | None:
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    owner.add(future.set_result, key, 1, data, True)
    owner.pump()
    return await future


async def fill(owner: NodeOwner, segments: int) -> int:
    """Blocks of one segment after the other, half a journal each; how many were taken."""
    body = bytes(16 * KIB)
    taken = 0
    for segment in range(segments):
        for block in range(JOURNAL // len(body) // 2):
            key = SegmentKey("main", segment)
            outcome = await add(owner, key, make_block(block, body, segment=segment))
            if outcome is not None:
                assert isinstance(outcome, Unavailable)
                return taken
            taken += 1
        await owner.flush()
    return taken


async def test_a_node_that_can_make_no_file_soon_takes_nothing_more(tmp_path: Path) -> None:
    async with owner_on(tmp_path) as (owner, disk):
        assert await fill(owner, 40) < 40
        assert owner.is_burdened and owner.store.memory_bytes == 0
        assert JOURNAL < owner.store.aside_bytes <= owner._unflushed_bytes_max
        assert len(owner.store.aside) > 1 and owner.problems(9)

        disk.refused = ()
        await owner.flush()
        assert not owner.is_burdened and owner.store.aside_bytes == owner.store.memory_bytes == 0
        assert await add(owner, SegmentKey("main", 50), make_block(0, segment=50)) is None


async def test_what_is_set_aside_is_given_up_with_its_log(tmp_path: Path) -> None:
    async with owner_on(tmp_path) as (owner, _):
        await fill(owner, 40)
        await owner.trim("main", 99)
        assert owner.store.aside_bytes == owner.store.memory_bytes == 0
        assert not owner.is_burdened and not owner.store.aside


async def test_parts_set_aside_cost_others_little(tmp_path: Path) -> None:
    """They hold nearly a journal: it is not written again with each one that begins."""
    async with owner_on(tmp_path) as (owner, _):
        body = bytes(64 * KIB)
        for block in range(JOURNAL // len(body) - 1):
            assert await add(owner, SegmentKey("bad", 0), make_block(block, body)) is None
        await owner.flush()
        assert owner.store.aside
        owner.start()
        before, tiny = CountedFile.written, 0
        for number in range(400):
            data = make_block(0, bytes(2 * KIB), segment=number)
            tiny += len(data)
            await add(owner, SegmentKey("other", number), data)
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        written = CountedFile.written - before
        assert written < 3 * tiny
