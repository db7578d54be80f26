"""Instances of tasks by hand, over the simulated log: for short schedules that are told as stories.

Owns no order of its own: a test says who claims, resumes, reads, captures and appends, and when.
Everything that decides is shipped. `finish` lets the query run to its end and asks all laws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from random import Random
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.client.reader import split_records
from penstock.log.group_format import CLAIM, encode_body
from penstock.log.records import Appended, Entry, Guard, Kind, NewEntry
from penstock.protocol.committed import Marked, read_entries
from penstock.protocol.markers import Marker, Range, decode_marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.commit import Commit
from penstock.runtime.spec import Settings
from penstock.runtime.task import Task
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trim_rule import needed_from
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.stores.api import Reference
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag
from penstock.wire import messages as m
from simulation.kernel import Network, Scheduler
from simulation.pipeline.host import SimHost
from simulation.pipeline.laws import check_all
from simulation.pipeline.log import SimLog
from simulation.pipeline.queries import SOURCE, TIMESTAMP, make_spec
from simulation.pipeline.store import SimFolder
from simulation.pipeline.story import PipelineStory
from simulation.pipeline.taps import taps

T = TypeVar("T")

#: Whatever a test asks for is done within this much virtual time.
_SECONDS_MAX = 60.0


class Bench:
    """A log, a folder for checkpoints, a client, and one of the queries of queries.py."""

    _open: ClassVar[list[Bench]] = []

    def __init__(self, shape: str = "count", *, checkpoints: bool = False) -> None:
        uri = "memory" if checkpoints else None
        self.spec = make_spec(shape, Settings(checkpoints=uri, checkpoint_interval_ms=0))
        self.scheduler = Scheduler(Random(0))
        Network(self.scheduler)
        self.log = SimLog(self.scheduler, fsync_seconds_max=0.0001)
        self.log.start()
        self.process = self.scheduler.process("bench")
        self.story = PipelineStory()
        self.folder = SimFolder(lambda: self.log.tail)
        self.clock_ms = 0
        self.client: AsyncLog
        self._rows = 0
        self._seqs: dict[str, int] = {}
        self._open.append(self)
        self.run(self._connect())

    async def _connect(self) -> None:
        self.client = await AsyncLog.connect(self.log.resolve(), name="bench")

    def count(self, what: str) -> None:
        """For the taps; nobody asks."""

    def check_kept(self, tags: Sequence[str], marked: Marked[Entry]) -> None:
        """For the taps; what instances read here is not read by their shells."""

    @classmethod
    def close_all(cls) -> None:
        """When a test is over."""
        while cls._open:
            cls._open.pop().scheduler.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """To its end, and everything with it that is on its way to the log."""
        return self.settle(self.process.create_task(work))

    def settle(self, task: asyncio.Task[T]) -> T:
        self.scheduler.run_until(task.done, seconds=_SECONDS_MAX)
        looking = self.process.create_task(self._look())
        self.scheduler.run_until(looking.done, seconds=_SECONDS_MAX)
        looking.result()
        return task.result()

    async def _look(self) -> None:
        """Note what the log has that was not there before."""
        tail = (await self.client.bounds()).tail
        if tail == self.log.tail:
            return
        async with self.client.tail(start=self.log.tail, end=tail) as reader:
            while self.log.tail < tail:
                _, records = await reader.next_delivery()
                for header, body in split_records(records):
                    self.log.add(header, body)

    def task(self, stage: int, index: int) -> TaskId:
        return TaskId(self.spec.name, self.spec.version, stage, index)

    # -- the log, at once

    def send(self, body: bytes, guards: Sequence[Guard] = ()) -> asyncio.Task[Appended]:
        """Let a request arrive; its answer comes when the log has written."""

        async def send() -> Appended:
            done, _ = await self.client.call(m.Append(tuple(guards), 0), m.AppendDone, body)
            return Appended(Lsn(done.first_lsn), done.count, done.duplicate)

        return self.process.create_task(send())

    def order(self, body: bytes, guards: Sequence[Guard] = ()) -> Appended:
        return self.settle(self.send(body, guards))

    def producer(self, name: str) -> m.Producer:
        found, _ = self.run(self.client.call(m.GetProducer(name), m.Producer))
        return found

    def claim_body(self, producer: str) -> tuple[int, bytes]:
        known = self.producer(producer)
        nonce = [NewEntry(known.instance.to_bytes(8, "little"), (), Kind.CONTROL)]
        instance = known.instance + 1
        return instance, encode_body(
            producer=producer, instance=instance, first_seq=known.next_seq, entries=nonce,
            flags=CLAIM,
        )  # fmt: skip

    def claim(self, producer: str) -> int:
        return self.run(self.client.claim(producer))

    def append(self, producer: str, entries: Sequence[NewEntry]) -> Appended:
        """As a plain producer."""
        if producer not in self._seqs:
            self.claim(producer)
        seq = self._seqs.get(producer, 0)
        self._seqs[producer] = seq + len(entries)
        return self.order(
            encode_body(producer=producer, instance=1, first_seq=seq, entries=entries)
        )

    def put(self, stream: str, *rows: tuple[int, int]) -> Lsn:
        """Rows of (key, second), in one entry; every row gets a value of its own."""
        first, self._rows = self._rows, self._rows + len(rows)
        columns = [
            pa.array([key for key, _ in rows], pa.int64()),
            pa.array(range(first, self._rows), pa.int64()),
            pa.array([second * 1_000_000 for _, second in rows], pa.int64()).cast(TIMESTAMP),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SOURCE)
        entry = NewEntry(encode_batch(batch), (stream_tag(stream),), rows=len(rows))
        return self.append(f"p-{stream}", [entry]).first_lsn

    def read(self, tags: Iterable[str], start: int, end: int) -> list[Entry]:
        return self.run(self.client.read(list(tags), start=start, end=end))

    # -- what is there

    @property
    def trim_point(self) -> Lsn:
        return self.run(self.client.bounds()).trim_point

    def last_marker(self, task: TaskId) -> Marker | None:
        last = self.run(self.client.read_last(task.marker_tag))
        return None if last is None else decode_marker(last.payload)

    def markers(self, task: TaskId) -> list[Marker]:
        entries = self.read([task.marker_tag], self.trim_point, self.log.tail)
        return [decode_marker(entry.payload) for entry in entries]

    def start(self, task: TaskId) -> Instance:
        """Claim, adopt, resume."""
        instance = Instance(self, task, self.claim(task.producer))
        instance.resume()
        return instance

    def trim(self) -> Lsn:
        """By the rule."""
        points = [needed_from(self.last_marker(task), Lsn(0)) for task in self.spec.task_ids]
        tail, point = self.log.tail, self.run(self.client.trim(min(points)))
        self.log.trims.append((tail, point))
        return point

    def finish(self) -> None:
        """New instances take everything in, stage by stage; then the laws have their say."""
        for task in self.spec.task_ids:
            instance = self.start(task)
            while True:
                position = instance.core.position
                instance.read()
                instance.commit()
                if instance.core.position == position:
                    break
        self.story.shown = self.show()
        check_all(self)

    def show(self) -> list[tuple[Lsn, bytes]]:
        """What a committed reader of the result is shown."""
        tags = frozenset([stream_tag(self.spec.to)])
        committed = read_entries(0)
        shown: list[tuple[Lsn, bytes]] = []
        for entry in self.log.entries:
            if tags.isdisjoint(entry.tags):
                continue
            counted = committed.take(entry)
            if isinstance(counted, Marked):
                assert not counted.missing
                shown += [(entry.lsn, staged.payload) for staged in counted.entries]
            elif counted is not None:
                shown.append((entry.lsn, counted.payload))
        return shown


class _BenchHost(SimHost):
    """Its clock is the test's."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._bench = bench

    def now_ms(self) -> int:
        return self._bench.clock_ms


class Instance:
    """One instance of a task; nothing happens that is not asked for."""

    def __init__(self, bench: Bench, task: TaskId, instance: int) -> None:
        self.bench = bench
        self.task = task
        self.instance = instance
        self.next_seq = bench.producer(task.producer).next_seq
        self.shell = bench.run(self._open())

    async def _open(self) -> Task:
        """As `Task.open` does, with the test's clock and folder."""
        bench = self.bench
        return Task(
            bench.client, bench.spec, self.task, self.instance,
            appender=await bench.client.adopt(self.task.producer, self.instance),
            store=CheckpointStore("memory", bench.client.log_id, bench.folder),
            cohort=None, host=_BenchHost(bench),
        )  # fmt: skip

    @property
    def core(self) -> TaskCore:
        return self.shell.core

    def resume(self) -> None:
        """As the shipped shell does; it is noted what was found."""
        with taps(self.bench):
            self.bench.run(self.shell._resume(None))

    def replay(self, start: int, end: int) -> None:
        """Some of the task's changes, without a checkpoint."""
        fold = ChangeFold()
        for entry in self.bench.read([self.task.marker_tag, self.task.change_tag], start, end):
            for change in fold.step(entry):
                self.core.restored(decode_changes(change.payload), len(change.payload))

    def read(self, end: int | None = None) -> list[Entry]:
        """Take in what there is (below `end`), and work on it."""
        bench, tags = self.bench, self.core.tags
        stop = bench.log.tail if end is None else end
        entries = bench.read(tags, self.core.position, stop)
        committed = read_entries(self.core.position)
        for entry in entries:
            counted = committed.take(entry)
            if isinstance(counted, Marked):
                for named in counted.missing:
                    counted.supply(named, bench.read(tags, named.first_lsn, named.end))
            self.core.take(entry, counted)
        self.core.looked(Lsn(stop))
        self.core.work()
        return entries

    def capture(self) -> Commit:
        commit = self.core.take_commit()
        assert commit is not None, "there is nothing to commit"
        return commit

    def body(self, entries: Sequence[NewEntry]) -> bytes:
        """The request of the next append; it may arrive whenever the test says so."""
        body = encode_body(
            producer=self.task.producer, instance=self.instance, first_seq=self.next_seq,
            entries=entries,
        )  # fmt: skip
        self.next_seq += len(entries)
        return body

    def flush(self, commit: Commit) -> list[Range]:
        ranges = []
        for entries in commit.cut().ahead:
            done = self.bench.order(self.body(entries))
            ranges.append(Range(done.first_lsn, done.count))
        return ranges

    def commit(self) -> Lsn | None:
        """Capture, flush, append; the LSN of the marker, None if there was nothing to say."""
        commit = self.core.take_commit()
        if commit is None:
            return None
        done = self.bench.order(self.body(commit.cut().group(self.flush(commit))))
        lsn = Lsn(done.first_lsn + done.count - 1)
        self.shell.durable(commit)
        if commit.is_checkpoint:
            self._checkpoint(commit, lsn)
        return lsn

    def checkpoint(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        """Write what the commit makes due; the next marker names it."""
        written = self._checkpoint(commit, lsn)
        assert written is not None, "the checkpoint was not written"
        return CheckpointRef.from_json(written)

    def _checkpoint(self, commit: Commit, lsn: Lsn) -> Reference | None:
        checkpointer = self.shell.checkpointer
        assert checkpointer is not None
        checkpointer.begin(lsn)  # tests append without telling it: it is to read the log
        return self.bench.run(checkpointer.write(commit, lsn))
