"""Instances of tasks by hand, over the simulated log: for short schedules that are told as stories.

Owns no order of its own: a test says who claims, resumes, reads, captures and appends, and when.
Everything that decides is real. `finish` lets the query run to its end and asks all laws.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import Damaged
from penstock.ids import Lsn
from penstock.log.group_format import CLAIM, encode_body
from penstock.log.records import Appended, Entry, Guard, Kind, NewEntry
from penstock.protocol.committed import Marked, read_entries
from penstock.protocol.markers import Marker, Range, decode_marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.commit import Commit
from penstock.runtime.spec import Settings
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trim_rule import needed_from
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointRef
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag
from simulation.pipeline.fibers import Loop, Promise
from simulation.pipeline.laws import check_all
from simulation.pipeline.log import Known, SimLog
from simulation.pipeline.queries import SOURCE, TIMESTAMP, make_spec
from simulation.pipeline.store import SimStore
from simulation.pipeline.story import PipelineStory


class Bench:
    """A log, a store, and one of the queries of queries.py."""

    def __init__(self, shape: str = "count", *, checkpoints: bool = False) -> None:
        uri = "memory" if checkpoints else None
        self.spec = make_spec(shape, Settings(checkpoints=uri, checkpoint_interval_ms=0))
        self.loop = Loop(0)
        self.log = SimLog(self.loop, 100)
        self.store = SimStore()
        self.story = PipelineStory()
        self.clock_ms = 0
        self._rows = 0
        self._seqs: dict[str, int] = {}

    def task(self, stage: int, index: int) -> TaskId:
        return TaskId(self.spec.name, self.spec.version, stage, index)

    # -- the log, at once

    def send(self, body: bytes, guards: Sequence[Guard] = ()) -> Promise[Appended]:
        """Let a request arrive; its answer comes when the log has written."""
        answer: Promise[Appended] = Promise()
        self.log.append(body, guards, answer)
        return answer

    def settle(self, answer: Promise[Appended]) -> Appended:
        while not answer.is_done:
            self.loop.step()
        return answer.result()

    def order(self, body: bytes, guards: Sequence[Guard] = ()) -> Appended:
        return self.settle(self.send(body, guards))

    def known(self, producer: str) -> Known:
        answer: Promise[Known] = Promise()
        self.log.ask_producer(producer, answer)
        while not answer.is_done:
            self.loop.step()
        return answer.result()

    def claim_body(self, producer: str) -> tuple[int, bytes]:
        known = self.known(producer)
        nonce = [NewEntry(known.instance.to_bytes(8, "little"), (), Kind.CONTROL)]
        instance = known.instance + 1
        return instance, encode_body(
            producer=producer, instance=instance, first_seq=known.next_seq, entries=nonce,
            flags=CLAIM,
        )  # fmt: skip

    def claim(self, producer: str) -> int:
        instance, body = self.claim_body(producer)
        self.order(body)
        return instance

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

    # -- what is there

    def markers(self, task: TaskId) -> list[Marker]:
        found = self.log.read(frozenset([task.marker_tag]), self.log.trim_point, self.log.tail)
        return [decode_marker(entry.payload) for entry in found]

    def start(self, task: TaskId) -> Instance:
        """Claim, adopt, resume."""
        instance = Instance(self, task, self.claim(task.producer))
        instance.resume()
        return instance

    def trim(self) -> Lsn:
        """By the rule."""
        points = []
        for task in self.spec.task_ids:
            last = self.log.read_last(task.marker_tag)
            marker = None if last is None else decode_marker(last.payload)
            points.append(needed_from(marker, Lsn(0)))
        self.story.trims.append((self.log.tail, self.log.trim(min(points))))
        return self.log.trim_point

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


class Instance:
    """One instance of a task; nothing happens that is not asked for."""

    def __init__(self, bench: Bench, task: TaskId, instance: int) -> None:
        self.bench = bench
        self.task = task
        self.instance = instance
        self.next_seq = bench.known(task.producer).next_seq
        self.core = TaskCore(bench.spec, task, instance, lambda: bench.clock_ms)
        self.last_marker: Marker | None = None
        self.base: Lsn | None = None
        self.replayed: list[Lsn] = []

    def resume(self) -> None:
        """As runtime/task.py."""
        last = self.bench.log.read_last(self.task.marker_tag)
        marker = None if last is None else decode_marker(last.payload)
        if last is not None and marker is not None and marker.has_state:
            self.base = base = self._load_checkpoint(marker)
            self.replay(self.bench.log.trim_point if base is None else base + 1, last.lsn + 1)
        self.bench.story.resumed(self, None if last is None else last.lsn)
        self.last_marker = marker
        self.core.begin(marker)

    def _load_checkpoint(self, marker: Marker) -> Lsn | None:
        for found in marker.checkpoints:
            try:
                reference = CheckpointRef.from_json(found)
                self.core.restored(self.bench.store.read(reference), 0)
            except Damaged:
                continue
            return Lsn(reference.marker_lsn)
        return None

    def replay(self, start: int, end: int) -> None:
        tags = frozenset([self.task.marker_tag, self.task.change_tag])
        fold = ChangeFold()
        for entry in self.bench.log.read(tags, start, end):
            for change in fold.step(entry):
                self.replayed.append(change.lsn)
                self.core.restored(decode_changes(change.payload), len(change.payload))

    def read(self, end: int | None = None) -> list[Entry]:
        """Take in what there is (below `end`), and work on it."""
        log, tags = self.bench.log, frozenset(self.core.tags)
        stop = log.tail if end is None else end
        found = log.read(tags, self.core.position, stop)
        committed = read_entries(self.core.position)
        for entry in found:
            counted = committed.take(entry)
            if isinstance(counted, Marked):
                for named in counted.missing:
                    counted.supply(named, log.read(tags, named.first_lsn, named.end))
            self.core.take(entry, counted)
        self.core.looked(Lsn(stop))
        self.core.work()
        return found

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
        self.last_marker = commit.marker
        if commit.frozen is not None:
            self.checkpoint(commit, lsn)
        return lsn

    def checkpoint(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        """Write what the commit froze; the next marker names it."""
        assert commit.frozen is not None
        store = self.bench.store
        reference, data = store.encode(
            str(self.task), lsn, self.instance, self.bench.spec.fingerprint, commit.frozen
        )
        store.publish(reference, data, self.bench.log.tail)
        self.core.checkpointed(reference.to_json(), reference.bytes)
        if self.last_marker is not None and len(self.last_marker.checkpoints) == 2:
            older = CheckpointRef.from_json(self.last_marker.checkpoints[-1])
            store.sweep(str(self.task), older.marker_lsn, self.bench.log.tail)
        return reference
