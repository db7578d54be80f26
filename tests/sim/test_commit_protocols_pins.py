"""Findings in the other commit protocols, each as a short schedule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from penstock_bench.protocols.aligned import AlignedCommitter
from penstock_bench.protocols.transaction_records import (
    commit_record_tag,
    decode_record,
    transaction_tag,
)
from penstock_bench.protocols.transactions import TransactionCommitter, Transactions
from simulation.pipeline.bench import Bench

from penstock.errors import StaleInstance
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import TaskId, query_key
from penstock.runtime.commit import Commit
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trim import find_trim_point
from penstock.state.checkpoint_store import CheckpointRef


@pytest.fixture
def bench() -> Iterator[Bench]:
    """The count query: stage 0 scans, stage 1 counts; two tasks each."""
    yield Bench()
    Bench.close_all()


def first_commit(bench: Bench, task: TaskId, instance: int) -> Commit:
    core = TaskCore(bench.spec, task, instance, lambda: 0)
    core.begin(None)
    commit = core.take_commit()
    assert commit is not None
    return commit


def test_an_instance_that_begins_again_settles_after_its_own_phase_two(bench: Bench) -> None:
    """A row fails while the commit records of the last transaction are on their way; the instance
    resumes, to find the rows to blame, and wrote those records a second time."""
    task = bench.task(1, 0)
    instance = bench.claim(task.producer)

    async def run() -> None:
        host: Any = SimpleNamespace(
            spec=bench.spec,
            task=task,
            log=bench.client,
            appender=await bench.client.adopt(task.producer, instance),
            visible=lambda commit, lsn: None,
            beside=asyncio.ensure_future,
        )
        committer = TransactionCommitter(host)
        await committer.commit(first_commit(bench, task, instance))
        await committer.settle()

    bench.run(run())
    notes = bench.read([transaction_tag(task)], 0, bench.log.tail)
    assert [decode_record(note.payload).state for note in notes] == ["begun", "prepared", "done"]
    entries = bench.read([commit_record_tag(task)], 0, bench.log.tail)
    assert [entry.tags[0] for entry in entries] == ["s/out", task.marker_tag]


class Host:
    """A task whose checkpoint store remembers what it was asked."""

    def __init__(self, bench: Bench, task: TaskId, instance: int, appender: AsyncAppender) -> None:
        self.spec = bench.spec
        self.task = task
        self.instance = instance
        self.appender = appender
        self.sweeps: list[int] = []

    def durable(self, commit: Commit) -> None:
        pass

    async def write_state(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        return CheckpointRef("count.1/0/0/00000000000000000001-1-00000000.ckpt", 1, 1, 1, 0)

    async def sweep_states(self, keep_from: Lsn) -> None:
        self.sweeps.append(keep_from)


@pytest.mark.parametrize("is_zombie", [False, True], ids=["alive", "zombie"])
def test_a_part_that_the_log_refuses_deletes_nothing(bench: Bench, is_zombie: bool) -> None:
    """A checkpoint was given up after this instance wrote its part. Its successor's barrier comes
    here as well, while we do not know that we were replaced: what we take for the last complete
    checkpoint is not, and the one before it is what the successor resumes from."""
    task = bench.task(0, 0)
    instance = bench.claim(task.producer)
    hosts: list[Any] = []

    async def run() -> None:
        appender = await bench.client.adopt(task.producer, instance)
        hosts.append(Host(bench, task, instance, appender))
        committer = AlignedCommitter(hosts[0])
        commit = first_commit(bench, task, instance)
        await committer.pass_on(commit, 1)
        if is_zombie:
            await bench.client.claim(task.producer)
        await committer.pass_on(commit, 2)

    if is_zombie:
        with pytest.raises(StaleInstance):
            bench.run(run())
    else:
        bench.run(run())
    assert hosts[0].sweeps == ([] if is_zombie else [0])


def test_a_trim_spares_what_a_commit_record_of_the_result_names(bench: Bench) -> None:
    """With transactions a task's own marker does not name its results: another does."""
    spec = bench.spec
    query = RegisteredQuery(
        spec.name, "id", spec.version, "", "", spec.to, {"bids": 0}, list(spec.tasks), 0,
        protocol=Transactions.name,
    )  # fmt: skip
    value = encode_query(query)
    bench.run(bench.client.compare_and_set(query_key(spec.name), expected=None, value=value))
    staged = bench.append("results", [NewEntry(b"", ("s/out",), Kind.STAGED)]).first_lsn
    for _ in range(20):
        bench.append("others", [NewEntry(b"", ("other",))])
    position = bench.log.tail
    for task in bench.spec.task_ids:
        marker = Marker(str(task), 1, 0, position, 0)
        records = [NewEntry(encode_marker(marker), (task.marker_tag,), Kind.MARKER)]
        if task == bench.task(1, 0):
            named = Marker(str(task), 1, 0, position, 0, ranges=(Range(staged, 1),))
            tags = ("s/out", commit_record_tag(task))
            records.insert(0, NewEntry(encode_marker(named), tags, Kind.MARKER))
        bench.append(task.producer, records)

    assert bench.run(find_trim_point(bench.client, Transactions())) == staged
    assert bench.run(find_trim_point(bench.client)) == 0, "who knows markers only trims nothing"
