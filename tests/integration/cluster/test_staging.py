"""Tasks of Spark that stage large partitions at once, onto a replicated log.

The real staging of format("penstock"), each task on a connection and a thread of its own. Law: what
is on its way to the nodes is bounded, however much the tasks have in flight, so that no node stops
to read, which would keep reads and fences waiting, too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from harness.in_process_cluster import InProcessCluster, in_process_cluster

from penstock.connector.staging import Staged, Staging
from penstock.limits import BLOCK_BYTES_MAX, LOG_INFLIGHT_BYTES_MAX, MIB
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.client import AsyncLog
from penstock.log.node import owner as node_owner
from penstock.log.proxy.open_log import Replication
from penstock.log.records import Appended, Guard, NewEntry, SetKey
from penstock.log.serving.group_commit import WriterThread
from penstock.protocol.names import staging_key
from penstock.protocol.reservations import reserved_from
from penstock.stream.registration import Registration
from penstock.stream.stream import Stream

TASKS = 4
#: Of half a megabyte, each an entry: a group that brings the reservation, and four in flight.
BATCHES = 33
#: The first group is durable before a task asks for the next of them.
BATCHES_OF_FIRST = 10
SCHEMA = pa.schema([pa.field("n", pa.int64())])
RESERVATION = staging_key("query", 0)
#: A node that says nothing for ten is cut off.
STALLED_SECONDS_MAX = 7.0


class Disks:
    """The disks of all nodes: they stall while `work` is clear. A gate of real threads."""

    def __init__(self) -> None:
        self.work = threading.Event()
        self.work.set()

    def make_thread(self, name: str) -> WriterThread:
        disks = self

        class StallingThread(WriterThread):
            def run(self, work: Callable[[], None]) -> None:
                def late() -> None:
                    disks.work.wait()
                    work()

                super().run(late)

        return StallingThread(name)


class Client:
    """What a task's staging asks of its client, from its thread to the loop of the cluster."""

    def __init__(self, log: AsyncLog) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.log_id = log.log_id

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
    ) -> Appended:
        return self._submit(self._log.append(entries, guards=guards, sets=sets)).result()

    def append_nowait(self, entries: Sequence[NewEntry]) -> Future[Appended]:
        return self._submit(self._log.append(entries))

    def _submit(self, work: Coroutine[Any, Any, Appended]) -> Future[Appended]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def batches(begun: threading.Barrier) -> Iterator[pa.RecordBatch]:
    rows = np.random.default_rng(1).integers(0, 2**62, MIB // 16)
    batch = pa.record_batch([pa.array(rows)], schema=SCHEMA)
    for number in range(BATCHES):
        if number == BATCHES_OF_FIRST:
            begun.wait(60)
        yield batch


def stage(log: AsyncLog, begun: threading.Barrier) -> asyncio.Future[Staged]:
    """A task, begun in a thread."""
    client = cast(BlockingLog, Client(log))
    stream = Stream(client, Registration("out", SCHEMA, created_ms=0))
    staging = Staging(client, stream, reservation=RESERVATION)
    return asyncio.ensure_future(asyncio.to_thread(staging.write, batches(begun)))


async def held_by_two(cluster: InProcessCluster, disks: Disks) -> int:
    """The bytes of unanswered blocks that two nodes at least have not more than, once they stall
    and nothing more comes. A third may still owe an answer to what two have."""
    while disks.work.is_set():
        await asyncio.sleep(0.01)
    stalled = changed = time.monotonic()
    most = 0
    while most < LOG_INFLIGHT_BYTES_MAX or time.monotonic() < changed + 1.0:
        if time.monotonic() > stalled + STALLED_SECONDS_MAX:
            break
        _, second, _ = sorted(node.listener.inflight_bytes for node, _ in cluster.nodes.values())
        if second != most:
            most, changed = second, time.monotonic()
        await asyncio.sleep(0.01)
    return most


@pytest.mark.timeout(240)
async def test_tasks_that_stage_large_partitions_at_once_do_not_fill_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks()
    monkeypatch.setattr(node_owner, "WriterThread", disks.make_thread)
    begun = threading.Barrier(TASKS, action=disks.work.clear)
    large = Replication(segment_bytes=64 * MIB)
    async with in_process_cluster(tmp_path, replication=large) as cluster:
        logs = [await cluster.connect(timeout=180.0) for _ in range(TASKS)]
        try:
            tasks = asyncio.gather(*(stage(log, begun) for log in logs))
            held = await held_by_two(cluster, disks)
            disks.work.set()
            staged = await tasks
            reservation = await logs[0].get(RESERVATION)
            tail = (await logs[0].bounds()).tail
        finally:
            disks.work.set()
            for log in logs:
                await log.close()

    assert LOG_INFLIGHT_BYTES_MAX <= held <= LOG_INFLIGHT_BYTES_MAX + BLOCK_BYTES_MAX
    assert [one.rows for one in staged] == [BATCHES * MIB // 16] * TASKS
    named = [lsn for one in staged for r in one.ranges for lsn in range(r.first_lsn, r.end)]
    assert len(named) == len(set(named)) == TASKS * BATCHES
    # One task reserved it, and with its first group: there is nothing staged below.
    assert reservation is not None and reserved_from(reservation) <= min(named) <= max(named) < tail
