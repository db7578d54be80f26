"""The auditor on real nodes: refills, replaces, empties; and never makes things worse."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.async_tests import async_fixture
from harness.files import flip_bit
from harness.in_process_cluster import InProcessCluster, in_process_cluster
from harness.waiting import until

from penstock.errors import NotFound, Unknown
from penstock.log.block_format import check_block
from penstock.log.client.client import AsyncLog
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.memory import MemoryMetadata
from penstock.log.proxy import auditor as auditor_module
from penstock.log.proxy.auditor import Auditor, RollCall
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.server import ProxyServer
from penstock.log.records import NewEntry
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.placement import machine_of
from penstock.log.replication.quorum import replicas


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(auditor_module, "GONE_SECONDS", 0.5)


@pytest.fixture
def nodes() -> int:
    return 4


@async_fixture
async def cluster(tmp_path: Path, nodes: int) -> AsyncIterator[InProcessCluster]:
    async with in_process_cluster(tmp_path, nodes=nodes) as cluster:
        yield cluster


@async_fixture
async def log(cluster: InProcessCluster) -> AsyncIterator[AsyncLog]:
    """One of some sealed segments, each with its index."""
    log = await cluster.connect()
    for number in range(20):
        await log.append([NewEntry(bytes([number]) * 20_000, ("t",))])
    await until(lambda: is_indexed(cluster))
    yield log
    await log.close()


def is_indexed(cluster: InProcessCluster) -> bool:
    sealed = [segment for segment in cluster.manifest().segments if segment.sealed]
    return len(sealed) >= 3 and all(segment.index_blocks for segment in sealed)


def machines(cluster: InProcessCluster) -> set[str]:
    return {
        node
        for segment in cluster.manifest().segments
        for ensemble in segment.ensembles
        for node in ensemble.nodes
    }


async def is_whole(cluster: InProcessCluster) -> bool:
    """Every node of every sealed segment holds every block that it should."""
    nodes = cluster.proxies[0][0]._nodes
    manifest = cluster.manifest()
    for segment in manifest.segments:
        if not segment.sealed:
            continue
        for part, end in ((0, segment.blocks), (1, segment.index_blocks)):
            key = SegmentKey("main", segment.id, part)
            for block in range(end):
                for node in replicas(segment, block, part):
                    client = nodes.client(node)
                    if client is None or not await client.list_blocks(key, block, block + 1):
                        return False
    return True


async def until_left(cluster: InProcessCluster, name: str) -> None:
    """Until nothing lies on the node any more."""
    await until(lambda: name not in {machine_of(node) for node in machines(cluster)})


async def rounds(proxy: ProxyServer) -> None:
    """Until the auditor has looked at everything as it is now."""
    report = proxy.work.auditor.report
    wanted = report.rounds + 2  # one may be under way
    await until(lambda: report.rounds >= wanted)


async def payloads(log: AsyncLog) -> list[int]:
    return [entry.payload[0] for entry in await log.read(["t"])]


def wipe(cluster: InProcessCluster, name: str) -> None:
    shutil.rmtree(cluster.directory / name)


# ---- repairs


@pytest.mark.parametrize("nodes", [3])
async def test_a_wiped_node_gets_everything_back_under_its_new_cookie(
    cluster: InProcessCluster, log: AsyncLog
) -> None:
    before = machines(cluster)
    await cluster.stop_node("n1")
    wipe(cluster, "n1")
    server = await cluster.start_node("n1")
    assert server.info.id not in before

    await until(lambda: is_whole(cluster))
    now = machines(cluster)
    assert server.info.id in now
    assert {machine_of(node) for node in now} == {"n0", "n1", "n2"}
    # The owner, whose manifest is older, finds the new places, too.
    await cluster.stop_node("n0")

    async def reads_all() -> bool:
        return await payloads(log) == list(range(20))

    await until(reads_all)


async def test_a_node_that_stays_away_is_replaced_and_one_that_comes_back_is_not(
    cluster: InProcessCluster, log: AsyncLog
) -> None:
    proxy = cluster.proxies[0][0]
    manifest = cluster.manifest()
    victim = machine_of(manifest.segments[0].ensembles[0].nodes[0])
    call = proxy.work.auditor._roll_call
    gone_seconds, call._gone_seconds = call._gone_seconds, 3600.0  # however long a restart takes
    await cluster.stop_node(victim)
    await until(lambda: victim in {machine_of(node) for node in call.missing})
    await rounds(proxy)
    await cluster.start_node(victim)
    await until(lambda: not call.missing)
    call._gone_seconds = gone_seconds
    await rounds(proxy)
    assert proxy.work.auditor.report.repairs == 0

    await cluster.stop_node(victim)
    await until_left(cluster, victim)
    await until(lambda: is_whole(cluster))
    assert proxy.work.auditor.report.repairs > 0
    assert await payloads(log) == list(range(20))
    await _check_that_the_owner_knows(cluster, proxy)


async def _check_that_the_owner_knows(cluster: InProcessCluster, proxy: ProxyServer) -> None:
    """It finds the copies in their new places, also when nobody else has them any more."""
    view = proxy.work.logs.owned["main"].view
    newest = cluster.manifest()
    await until(lambda: view.manifest.segments[0].ensembles == newest.segments[0].ensembles)
    copied = newest.segments[0].ensembles[0].nodes[0]
    proxy.work.source._cache.clear()
    for name in list(cluster.nodes):
        if name != machine_of(copied):
            await cluster.stop_node(name)
    segment = view.manifest.segments[0]
    for number in range(segment.blocks):
        block = await view.source.get("main", view.mark, segment, number)
        assert block.header.block == number
    for name in ("n0", "n1", "n2", "n3"):
        if name not in cluster.nodes:
            await cluster.start_node(name)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
async def test_a_draining_node_is_emptied_although_its_segment_is_open(
    tmp_path: Path, is_busy: bool
) -> None:
    # The segment would not end by itself.
    async with in_process_cluster(tmp_path, nodes=4, replication=Replication()) as cluster:
        log = await cluster.connect()
        for number in range(20):
            await log.append([NewEntry(bytes([number]), ("t",))])
        (segment,) = cluster.manifest().segments
        name = machine_of(segment.ensembles[0].nodes[0])
        acknowledged: list[int] = []
        busy = asyncio.create_task(_write(log, acknowledged if is_busy else None))
        await until(lambda: acknowledged or not is_busy)
        store = await cluster.open_store()
        await store.create(f"/draining/{name}", b"")
        await until_left(cluster, name)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before or not is_busy)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        await cluster.stop_node(name)
        assert await is_whole(cluster)
        found = [entry.lsn for entry in await log.read(["t"])]
        assert len(found) >= 20 and set(acknowledged) <= set(found)
        await log.append([NewEntry(b"after", ("t",))])
        await log.close()


async def _write(log: AsyncLog, acknowledged: list[int] | None) -> None:
    while acknowledged is not None:
        done = await log.append([NewEntry(b"x" * 500, ("t",))])
        acknowledged.append(int(done.first_lsn))


async def test_a_log_that_nobody_owns_is_adopted_when_its_node_must_be_emptied(
    cluster: InProcessCluster, log: AsyncLog
) -> None:
    name = machine_of(cluster.manifest().segments[-1].ensembles[-1].nodes[0])
    await log.close()
    await cluster.stop_proxy(cluster.proxies[0][0])
    await cluster.start_proxy()
    store = await cluster.open_store()
    await store.create(f"/draining/{name}", b"")
    await until_left(cluster, name)
    await until(lambda: is_whole(cluster))


@pytest.mark.parametrize("nodes", [3])
async def test_a_damaged_block_is_not_copied_and_is_replaced_by_a_good_one(
    cluster: InProcessCluster, log: AsyncLog
) -> None:
    manifest = cluster.manifest()
    segment = manifest.segments[0]
    node = segment.ensembles[0].nodes[0]
    name = machine_of(node)
    await cluster.stop_node(name)
    server = await cluster.start_node(name)  # what is in its journal goes into files
    await until(lambda: server.owner.store.memory_bytes == 0)
    file = data_file(cluster.directory / name, int(segment.id))
    flip_bit(file)
    nodes = cluster.proxies[0][0]._nodes
    # In this very process, not the one before it.
    await until(lambda: nodes.alive().get(server.info.id) == server.info)
    client = nodes.client(node)
    assert client is not None
    key = SegmentKey("main", segment.id)
    for block in range(segment.blocks):
        await client.read(key, block, durable_block=segment.blocks, bytes_max=1)

    await until(lambda: is_whole(cluster))
    for other in list(cluster.nodes):
        if other != name:
            await cluster.stop_node(other)
    for block in range(segment.blocks):
        answer = await client.read(key, block, durable_block=segment.blocks, bytes_max=1)
        check_block(answer.data)
    await cluster.start_node("n0" if name != "n0" else "n1")


def data_file(data_dir: Path, segment: int) -> Path:
    """The file of a segment's blocks on a node: the index is smaller."""
    files = (data_dir / "segments").glob(f"*{segment:010d}*")
    return max(files, key=lambda file: file.stat().st_size)


# ---- what it does not do


class BlindStore:
    """A store that lists nothing, and remembers what was changed."""

    def __init__(self, inner: MetadataStore, *, no_children: bool, unknown_sets: int = 0) -> None:
        self._inner = inner
        self._no_children = no_children
        self._unknown_sets = unknown_sets
        self.changed: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def children(self, path: str) -> list[str]:
        if self._no_children:
            raise NotFound(path)
        return await self._inner.children(path)

    async def set(self, path: str, data: bytes, version: int) -> int:
        self.changed.append(path)
        done = await self._inner.set(path, data, version)
        if self._unknown_sets:
            self._unknown_sets -= 1
            raise Unknown("the answer was lost")
        return done

    async def delete(self, path: str, version: int | None = None) -> None:
        self.changed.append(path)
        await self._inner.delete(path, version)


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.glob("n*/segments/*")}


def own_auditor(proxy: ProxyServer, store: object, name: str = "test") -> Auditor:
    """Another auditor on the same nodes, which runs only when it is told to."""

    async def adopt(log: str) -> None:
        raise AssertionError("nothing is to be adopted")

    loop = asyncio.get_running_loop()
    return Auditor(
        lambda: store,  # type: ignore[return-value, arg-type]
        proxy.work.nodes,
        RollCall(loop.time, gone_seconds=0.0),
        proxy=name,
        adopt=adopt,
    )


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "ROUND_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_rounds")
async def test_a_missing_listing_changes_and_deletes_nothing(
    tmp_path: Path, cluster: InProcessCluster, log: AsyncLog
) -> None:
    proxy = cluster.proxies[0][0]
    before, files = cluster.manifest(), files_of(tmp_path)
    store = BlindStore(await cluster.open_store(), no_children=True)
    auditor = own_auditor(proxy, store)
    plan = await auditor.round()
    assert plan.repairs == () and store.changed == []

    # Nor does a manifest that cannot be read, or nodes that say nothing at all.
    raw = await cluster.open_store()
    found = await raw.get("/logs/main")
    assert found is not None
    version = await raw.set("/logs/main", found.data[:-1], found.version)
    await own_auditor(proxy, BlindStore(raw, no_children=False)).round()
    await raw.set("/logs/main", found.data, version)
    for name in list(cluster.nodes):
        await cluster.stop_node(name)
    silent = BlindStore(raw, no_children=False)
    auditor = own_auditor(proxy, silent)
    await auditor.round()
    assert silent.changed == []
    assert auditor.report.stuck and auditor.report.repairs == 0
    assert cluster.manifest() == before
    assert files_of(tmp_path) >= files
    for name in ("n0", "n1", "n2", "n3"):
        await cluster.start_node(name)


@pytest.mark.usefixtures("no_rounds")
async def test_a_change_whose_answer_was_lost_is_found_to_have_been_made(
    cluster: InProcessCluster, log: AsyncLog
) -> None:
    proxy = cluster.proxies[0][0]
    manifest = cluster.manifest()
    victim = machine_of(manifest.segments[0].ensembles[0].nodes[0])
    await cluster.stop_node(victim)
    await until(lambda: victim not in {info.name for info in proxy._nodes.alive().values()})
    store = BlindStore(await cluster.open_store(), no_children=False, unknown_sets=1)
    auditor = own_auditor(proxy, store)
    while (await auditor.round()).repairs:
        pass
    assert auditor.report.failures == 0
    assert await is_whole(cluster)


@pytest.mark.usefixtures("no_rounds")
async def test_only_one_proxy_audits_and_another_takes_over(cluster: InProcessCluster) -> None:
    metadata = MemoryMetadata()
    proxy = cluster.proxies[0][0]
    first, second = metadata.session(), metadata.session()
    one, two = own_auditor(proxy, first, "one"), own_auditor(proxy, second, "two")
    assert [await one._take_office(), await two._take_office()] == [True, False]
    assert [await one._take_office(), await two._take_office()] == [True, False]
    await first.close()
    assert await two._take_office()
    await second.close()
