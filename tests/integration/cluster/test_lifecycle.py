"""The life of segments on a cluster: rolled, indexed, copied, given up, removed; and restarts.

Everything runs in one event loop with real files; segments are 64 KiB, so that all of it happens.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from harness.async_tests import async_fixture
from harness.files import flip_bit
from harness.in_process_cluster import SMALL, InProcessCluster
from harness.waiting import until

from penstock.errors import PenstockError, Trimmed
from penstock.log.client.client import AsyncLog
from penstock.log.proxy import logs as proxy_logs
from penstock.log.proxy.housekeeping import Housekeeper
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.records import Kind, NewEntry
from penstock.log.serving.served_log import wall_ms

SECONDS = 60.0
NODES = ("n0", "n1", "n2")
#: Between two looks of a node at the manifests of its logs.
TRIM_SECONDS = 0.1
ENTRIES = 300
TAGS = 20


class Cluster(InProcessCluster):
    """With what these tests look at: manifests and files."""

    async def start_nodes(self) -> None:
        for name in NODES:
            server = await self.start_node(name, trim_seconds=TRIM_SECONDS)
            await server.wait_registered()

    async def flush(self) -> None:
        """Blocks come from the journals into files, as they would when a journal is full."""

        def is_done() -> bool:
            owners = [server.owner for server, _ in self.nodes.values()]
            for owner in owners:
                owner._flush_due.set()  # again: the log may have written a last block meanwhile
            return not any(owner.store.unflushed() for owner in owners)

        await until(is_done, "some blocks are in no file")

    async def settle(self) -> None:
        """Everything is in files only, and all processes are stopped: now files can be damaged.

        A node starts with a new journal; once it has flushed, the one before is dropped.
        """
        await self.stop_proxies()
        await self.stop_nodes()
        await self.start_nodes()
        await self.flush()
        await until(
            lambda: all(len(s.owner.journal.numbers) <= 1 for s, _ in self.nodes.values()),
            "a journal is kept",
        )
        await self.stop_nodes()

    def files(self, log: str = "main", part: int | None = None) -> set[tuple[str, int, int]]:
        """(node, segment, part) of every file of a log."""
        found = set()
        for node in NODES:
            for path in (self.directory / node / "segments").glob(f"{log}.*.blocks"):
                _, segment, number, _ = path.name.split(".")
                if part is None or part == int(number):
                    found.add((node, int(segment), int(number)))
        return found

    def path(self, node: str, segment: int, part: int, log: str = "main") -> Path:
        return self.directory / node / "segments" / f"{log}.{segment:010d}.{part}.blocks"

    def sealed(self, log: str = "main") -> list[int]:
        return [segment.id for segment in self.manifest(log).segments if segment.sealed]

    async def until_sealed(self, kind: Literal["index_blocks", "cold"], log: str = "main") -> None:
        """Until every sealed segment of the log has its index, or its cold copy."""
        await until(
            lambda: all(getattr(s, kind) for s in self.manifest(log).segments if s.sealed),
            f"a sealed segment has no {kind}",
        )


@asynccontextmanager
async def cluster(
    directory: Path, rule: Replication = SMALL, **proxy: Any
) -> AsyncIterator[Cluster]:
    directory.mkdir(exist_ok=True)
    found = Cluster(directory, rule)
    try:
        await found.start_nodes()
        await found.start_proxy(**proxy)
        yield found
    finally:
        await found.stop()


@async_fixture
async def here(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as here:
        yield here


async def append(log: AsyncLog, first: int = 0, count: int = ENTRIES) -> list[int]:
    """Entries of 1 KB, one tag of twenty each; returns their LSNs."""
    lsns = []
    async with asyncio.timeout(SECONDS):
        for number in range(first, first + count):
            entry = NewEntry(payload(number), (f"t/{number % TAGS}",))
            lsns.append(int((await log.append([entry])).first_lsn))
    return lsns


def payload(number: int) -> bytes:
    return b"%06d" % number + bytes(1000)


async def read(log: AsyncLog, tags: list[str] | None = None, start: int = 0) -> list[bytes]:
    end = (await log.bounds()).tail
    found = []
    async with asyncio.timeout(SECONDS), log.tail(tags, start=start, end=end) as reader:
        async for batch in reader:
            entries = [entry for entry in batch.entries if entry.kind == Kind.DATA]
            found += [entry.payload for entry in entries if entry.payload[:1].isdigit()]
    return found


EXPECTED = [payload(number) for number in range(ENTRIES)]


# ---- giving up


async def test_trim_removes_the_files_of_given_up_segments_and_no_others(here: Cluster) -> None:
    async with await here.connect() as log, await here.connect("other") as other:
        lsns = await append(log)
        await append(other)
        await here.until_sealed("index_blocks")
        await here.until_sealed("index_blocks", "other")
        await here.flush()
        before, others = here.files(), here.files("other")
        assert len({segment for _, segment, _ in before}) > 3

        await log.trim(lsns[150])
        kept = here.manifest().segments
        first = here.manifest().first_segment
        # The segment that the point lies in is kept as a whole.
        assert first > 1 and kept[0].id == first and kept[0].base_lsn <= lsns[150]
        await until(
            lambda: all(segment >= first for _, segment, _ in here.files()),
            "files of given up segments are still there",
        )
        assert here.files() == {found for found in before if found[1] >= first}
        assert here.files("other") == others

        assert await read(log, start=lsns[150]) == EXPECTED[150:]
        with pytest.raises(Trimmed):
            await read(log, start=0)
        assert await read(other) == EXPECTED


class ShiftedClock:
    """The time of day, as long after the true one as a test says."""

    shift_ms = 0

    def __call__(self) -> int:
        return wall_ms() + self.shift_ms


HOUR_MS = 3_600_000


async def test_entries_beyond_their_age_are_trimmed_a_segment_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_logs, "HOUSE_SECONDS", 0.1)
    rounds = count_rounds(monkeypatch)
    clock = ShiftedClock()
    async with (
        cluster(tmp_path, ttl_seconds=3600.0, wall_ms=clock) as here,
        await here.connect() as log,
    ):
        await append(log)
        await here.flush()
        clock.shift_ms = HOUR_MS // 2
        wanted = len(rounds) + 2  # one may be under way
        await until(lambda: len(rounds) >= wanted)
        assert here.manifest().trim_point == 0
        old = here.sealed()
        clock.shift_ms = HOUR_MS
        await until(lambda: here.manifest().first_segment > old[-1], "nothing has expired")
        await until(
            lambda: all(segment > old[-1] for _, segment, _ in here.files()),
            "files of expired segments are still there",
        )
        # What is in the open segment has no age yet: it goes when a later one does.
        last = here.manifest().segments[-1]
        assert not last.sealed and here.manifest().trim_point == last.base_lsn
        assert await append(log, ENTRIES, 5)


def count_rounds(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one whenever a log was looked after."""
    rounds: list[None] = []
    keep = Housekeeper.keep

    async def counted(self: Housekeeper, log: OwnedLog) -> None:
        await keep(self, log)
        rounds.append(None)

    monkeypatch.setattr(Housekeeper, "keep", counted)
    return rounds


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut", "another log's"])
async def test_a_manifest_that_cannot_be_read_removes_nothing(damage: str, here: Cluster) -> None:
    """R40: only a manifest that says so gives a segment up."""
    async with await here.connect() as log:
        await append(log)
        await here.until_sealed("index_blocks")
    await here.flush()
    await here.stop_proxies()
    before = here.files()
    assert before
    store = here.metadata.session()
    found = await store.get("/logs/main")
    assert found is not None
    version = found.version
    if damage == "missing":
        await store.delete("/logs/main")
    else:
        data = {
            "empty": b"",
            "garbage": b"\xff" * 300,
            "cut": found.data[:-20],
            "another log's": b"{}",
        }[damage]
        version = await store.set("/logs/main", data, version)
    await asyncio.sleep(5 * TRIM_SECONDS)
    assert here.files() == before
    assert all(server.metrics.removed_files == 0 for server, _ in here.nodes.values())

    if damage == "missing":
        await store.create("/logs/main", found.data)
    else:
        await store.set("/logs/main", found.data, version)
    await store.close()
    await here.start_proxy()
    async with await here.connect() as log:
        assert await read(log) == EXPECTED


# ---- cold copies


def cold_files(directory: Path) -> set[int]:
    return {int(path.stem.removeprefix("seg-")) for path in directory.rglob("seg-*.blocks")}


async def test_cold_copies_are_written_used_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    cold = tmp_path / "cold"
    async with cluster(tmp_path / "c", cold_uri=cold.as_uri()) as here:
        async with await here.connect() as log:
            lsns = await append(log)
            await here.until_sealed("cold")
            assert cold_files(cold) == set(here.sealed())
        await here.settle()
        sealed = here.sealed()
        lost = sealed[: len(sealed) - 1]  # of the last one, an owner needs the snapshot
        for node in NODES:
            for segment in lost:
                for part in (0, 1):
                    here.path(node, segment, part).unlink(missing_ok=True)
        await here.start_nodes()
        await here.start_proxy(cold_uri=cold.as_uri())
        async with await here.connect() as log:
            assert await read(log) == EXPECTED
            said = [r.getMessage() for r in caplog.records if "cold copy" in r.getMessage()]
            assert said, "nothing was read from the cold copies"
            assert await read(log, ["t/7"]) == EXPECTED[7::TAGS]

            await log.trim(lsns[-1])
            first = here.manifest().first_segment
            await until(
                lambda: not {n for n in cold_files(cold) if n < first},
                "cold copies of given up segments are still there",
            )
            assert cold_files(cold) >= {n for n in here.sealed() if n in sealed}


async def test_a_damaged_cold_copy_is_an_error_and_never_an_answer(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    async with cluster(tmp_path / "c", cold_uri=cold.as_uri()) as here:
        async with await here.connect() as log:
            await append(log)
            await here.until_sealed("cold")
        await here.settle()
        for node in NODES:
            here.path(node, 0, 0).unlink()
        (copy,) = cold.rglob("seg-0000000000.blocks")
        flip_bit(copy)
        await here.start_nodes()
        await here.start_proxy(cold_uri=cold.as_uri())
        async with await here.connect() as log:
            with pytest.raises((PenstockError, TimeoutError)):
                async with asyncio.timeout(2.0):
                    await read(log)
            start = here.manifest().segments[1].base_lsn
            whole = await read(log, start=start)
            assert whole == EXPECTED[-len(whole) :] and len(whole) > ENTRIES // 2


# ---- indexes


def _swap(path: Path) -> None:
    """R12: the index of another segment, whole and with a right CRC."""
    if ".0000000000." in path.name:
        shutil.copy(path.with_name(path.name.replace(".0000000000.", ".0000000001.")), path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip_bit(path, -9, 0x40),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "lost": Path.unlink,
    "of another segment": _swap,
}


@pytest.mark.parametrize("damage", ["none", *DAMAGES])
async def test_an_index_is_used_if_it_is_whole_and_made_again_if_not(
    damage: str, caplog: pytest.LogCaptureFixture, here: Cluster
) -> None:
    """R11, R12: what a tag holds never depends on the index, only what it costs to read it."""
    caplog.set_level(logging.WARNING)

    async with await here.connect() as log:
        await append(log)
        await here.until_sealed("index_blocks")
    await here.settle()
    indexed = here.files(part=1)
    assert {segment for _, segment, _ in indexed} == set(here.sealed())
    if damage != "none":
        for node, segment, _ in sorted(indexed):
            DAMAGES[damage](here.path(node, segment, 1))
    await here.start_nodes()
    await here.start_proxy()
    async with await here.connect() as log:
        assert await read(log, ["t/7"]) == EXPECTED[7::TAGS]
        assert await read(log, ["t/7", "t/8"]) == sorted([*EXPECTED[7::TAGS], *EXPECTED[8::TAGS]])
        last = await log.read_last("t/3")
        assert last is not None and last.payload == EXPECTED[3::TAGS][-1]
    said = any("index cannot be read" in r.getMessage() for r in caplog.records)
    assert said == (damage != "none")


# ---- rolling


async def test_a_segment_ends_when_it_is_old_enough(tmp_path: Path) -> None:
    rule = Replication(segment_bytes=64 * 1024, segment_seconds=3600.0)
    clock = ShiftedClock()
    async with cluster(tmp_path, rule, wall_ms=clock) as here, await here.connect() as log:
        for number in range(6):  # every second one is an hour after the first of its segment
            await append(log, number, 1)
            clock.shift_ms += HOUR_MS // 2 + 1000
        await until(lambda: len(here.sealed()) >= 2, "no segment ended")
        for segment in here.manifest().segments:
            if segment.sealed:
                assert segment.bytes < 64 * 1024
                assert HOUR_MS // 2 < segment.last_ms - segment.first_ms < HOUR_MS
        assert await read(log) == [payload(number) for number in range(6)]


async def test_entries_larger_than_a_segment_fit_all_the_same(here: Cluster) -> None:
    large = b"1" * 1_000_000

    async with await here.connect() as log:
        for _ in range(3):
            await append(log, 0, 3)
            await log.append([NewEntry(large, ("large",))])
        assert await read(log, ["large"]) == [large] * 3
        assert await read(log, ["t/0"]) == [payload(0)] * 3
        assert len(here.manifest().segments) >= 3
        here.manifest().check()


# ---- restarts


async def test_a_restart_of_everything_keeps_everything(here: Cluster) -> None:
    """Entries, tags, LSNs, the trim point, values of keys, and what producers had appended."""
    async with await here.connect() as log:
        lsns = await append(log)
        await log.trim(lsns[100])
        await log.compare_and_set("k/1", expected=None, value=b"one")
        instance = await log.claim("producer")
        appender = await log.adopt("producer", instance)
        done = await appender.append([NewEntry(b"mine", ("own",))])
        bounds = await log.bounds()
    for turn in range(3):
        await here.stop_proxies()
        await here.stop_nodes()
        await here.start_nodes()
        await here.start_proxy()
        async with await here.connect() as log:
            again = await log.bounds()
            assert again.trim_point == bounds.trim_point == lsns[100]
            assert again.tail >= bounds.tail
            assert await read(log, start=lsns[100]) == [
                *EXPECTED[100:],
                *(payload(1000 + n) for n in range(turn)),
            ]
            value = await log.get("k/1")
            assert value is not None and value.data == b"one"
            last = await log.read_last("own")
            assert last is not None and last.lsn == done.first_lsn
            adopted = await log.adopt("producer", instance)
            assert adopted.next_seq == appender.next_seq
            new = await append(log, 1000 + turn, 1)
            assert new[0] >= again.tail
        assert len({node.split(":")[1] for node in _nodes(here)}) == len(NODES)


def _nodes(here: Cluster) -> set[str]:
    """All nodes that any segment names: none of them has changed its cookie."""
    segments = here.manifest().segments
    return {str(node) for s in segments for e in s.ensembles for node in e.nodes}
