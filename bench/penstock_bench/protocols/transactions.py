"""Kafka Streams' transactions, over the shared log: what Impeller's markers are compared with.

Phase one, which the task waits for: the coordinator notes the streams that take part; the task
appends to each of them, to its change log and to its stream of positions; the coordinator notes
that all is there. Phase two, beside the task's next work: a commit record for every stream, then a
note that they are written; the next transaction begins after that. Impeller 3.6.

    begun ─► entries per stream, changes, position ─► prepared ─► commit record per stream ─► done
             (together)                               ▲ durable: committed   (together)

The coordinator of a task lives in its worker and writes under the task's claim, so what fences one
fences the other; asking it costs no round trip, which Kafka pays three times. A stream has a
substream for every task that reads it, as a Kafka topic has partitions. Readers do not wait for
other producers' open transactions, as Kafka's do. All three favour this protocol.

Law: once `prepared` is durable, every commit record will be written, once: by this instance, or by
the next one's `settle` before it resumes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.ids import Lsn
from penstock.log.client.packing import pack
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Range
from penstock.protocol.names import TaskId, keyed_tag, node_tag
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import (
    CommitProtocol,
    Committer,
    CommittingTask,
    range_of,
)
from penstock.runtime.spec import QuerySpec
from penstock.state.keys import VIRTUAL_NODES
from penstock_bench.protocols.shared import all_of
from penstock_bench.protocols.transaction_records import (
    CommitRecord,
    TransactionRecord,
    commit_record_tag,
    decode_record,
    encode_record,
    position_tag,
    transaction_tag,
)


@dataclass(frozen=True)
class Transactions(CommitProtocol):
    name: ClassVar[str] = "transaction"
    shares_sources: ClassVar[bool] = False

    def committer(self, task: CommittingTask) -> Committer:
        return TransactionCommitter(task)

    def naming_tags(self, task: TaskId) -> tuple[str, ...]:
        return (task.marker_tag, commit_record_tag(task))


class TransactionCommitter(Committer):
    """The task's side and its coordinator."""

    def __init__(self, owner: CommittingTask) -> None:
        self._owner = owner
        self._log = owner.log
        self._appender = owner.appender
        self._task = owner.task
        self._substreams = Substreams(owner.spec, owner.task.stage)
        #: Phase two of the last transaction.
        self._closing: Awaitable[None] | None = None

    # -- the next instance

    async def settle(self) -> None:
        """Write the commit records that are missing of a transaction that was prepared."""
        await self.finish()  # an instance that begins again itself may still be writing them
        last = await self._log.read_last(transaction_tag(self._task))
        if last is None:
            return
        record = decode_record(last.payload)
        if record.state != "prepared":
            return  # begun, and never committed: nothing names its entries
        tail = (await self._log.bounds()).tail
        tags = [commit_record_tag(self._task)]
        written = await self._log.read(tags, start=last.lsn, end=tail)
        there = {frozenset(entry.tags) for entry in written}
        missing = [one for one in record.records if frozenset(one.tags) not in there]
        await all_of([self._appender.append_nowait([_entry(one)]) for one in missing])
        await self._note(TransactionRecord("done", record.number))

    # -- the task

    async def commit(self, commit: Commit) -> None:
        await self.finish()
        number = commit.marker.number
        parts = self._substreams.split(commit)
        changes = (self._task.change_tag,) if commit.changes else ()
        streams = (*parts, *changes, position_tag(self._task))
        await self._note(TransactionRecord("begun", number, streams))
        named = await self._append_all(commit, parts)
        records = self._make_records(commit, named)
        await self._note(TransactionRecord("prepared", number, (), records))
        self._closing = self._owner.beside(self._close(commit, records))

    async def finish(self) -> None:
        if self._closing is not None:
            closing, self._closing = self._closing, None
            await closing

    async def _close(self, commit: Commit, records: Sequence[CommitRecord]) -> None:
        done = await all_of([self._appender.append_nowait([_entry(one)]) for one in records])
        self._owner.visible(commit, Lsn(max(one.first_lsn for one in done)))
        await self._note(TransactionRecord("done", commit.marker.number))

    async def _append_all(
        self, commit: Commit, parts: dict[str, list[NewEntry]]
    ) -> dict[str, list[Range]]:
        """Each stream's entries, in flight together; where they came to stand."""
        position = NewEntry(commit.marker_entry().payload, (position_tag(self._task),), Kind.STAGED)
        wanted: dict[str, Sequence[NewEntry]] = {
            stream: [one._replace(kind=Kind.STAGED) for one in entries]
            for stream, entries in parts.items()
        }
        wanted[self._task.change_tag] = commit.changes
        wanted[position_tag(self._task)] = [position]
        owners: list[str] = []
        groups: list[Sequence[NewEntry]] = []
        for stream, entries in wanted.items():
            for group in pack(entries):
                owners.append(stream)
                groups.append(group)
        done = await all_of([self._appender.append_nowait(group) for group in groups])
        named: dict[str, list[Range]] = {stream: [] for stream in wanted}
        for stream, one in zip(owners, done, strict=True):
            named[stream].append(range_of(one))
        return named

    def _make_records(
        self, commit: Commit, named: dict[str, list[Range]]
    ) -> tuple[CommitRecord, ...]:
        """One for the task itself, which names its changes, and one per substream."""
        task = self._task
        records = []
        for stream, ranges in named.items():
            if stream == task.change_tag:
                continue
            is_own = stream == position_tag(task)
            tag = task.marker_tag if is_own else stream
            tags = (tag, commit_record_tag(task))
            entry = commit.marker_entry(named[task.change_tag] if is_own else ranges, tags=tags)
            records.append(CommitRecord(entry.tags, entry.payload.decode()))
        return tuple(records)

    async def _note(self, record: TransactionRecord) -> None:
        entry = NewEntry(encode_record(record), (transaction_tag(self._task),), Kind.CONTROL)
        await self._appender.append_nowait([entry])


class Substreams:
    """Which readers of a stage's output get what: one substream per task that reads it."""

    def __init__(self, spec: QuerySpec, stage: int) -> None:
        self._keyed = keyed_tag(spec.name, spec.version, stage)
        self._readers: tuple[str, ...] = ()
        self._of_node: dict[str, str] = {}
        if spec.query.stages[stage].keys is not None:
            nodes = [node_tag(spec.name, spec.version, stage, i) for i in range(VIRTUAL_NODES)]
            # The first node of each reader stands for all of its nodes: QuerySpec.owned.
            self._readers = tuple(nodes[: spec.readers(stage)])
            self._of_node = {tag: nodes[i % len(self._readers)] for i, tag in enumerate(nodes)}

    def split(self, commit: Commit) -> dict[str, list[NewEntry]]:
        """By substream, also those that get no entries: they hear what time it is."""
        own = commit.marker.task
        parts: dict[str, list[NewEntry]] = {}
        for tag in commit.tags:
            if tag == self._keyed:
                parts.update((reader, []) for reader in self._readers)
            elif tag != f"T/{own}":
                parts[tag] = []
        for entry in commit.data:
            parts[self._of_node.get(entry.tags[0], entry.tags[0])].append(entry)
        return parts


def _entry(record: CommitRecord) -> NewEntry:
    return NewEntry(record.marker.encode(), record.tags, Kind.MARKER)
