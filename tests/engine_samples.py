"""Small queries, and their tasks wired by hand over a list that stands for the log.

`Wired` owns no decision of the engine: it reads by tags, appends groups whole, and resumes a task
as runtime/task.py does. So what it shows is what the task cores, markers and folds say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind, NewEntry
from penstock.ops.api import Delta, batch_of
from penstock.ops.sink import read_result
from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Literal
from penstock.plan.stages import cut
from penstock.protocol.committed import Counted, Marked, read_entries
from penstock.protocol.markers import Marker, Range, decode_marker
from penstock.protocol.names import TaskId, flush_tag
from penstock.protocol.resume import ChangeFold
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Settings, Source
from penstock.runtime.task_core import Commit, TaskCore
from penstock.state.changelog import decode_changes
from penstock.stream.batches import decode_batch, encode_trusted
from penstock.stream.lanes import Lanes
from penstock.stream.registration import stream_tag

LONG = pa.int64()
TIMESTAMP = pa.timestamp("us", tz="UTC")
ONE = Literal(pa.scalar(1, LONG))
SOURCE = pa.schema([("k", LONG), ("v", LONG)])
SETTINGS = Settings()
TIMED = pa.schema([("k", LONG), ("ts", TIMESTAMP)])


# ---- plans


def scan(stream: str = "in", schema: pa.Schema = SOURCE, id: int = 1) -> n.Scan:
    fields = [field.with_name(f"{field.name}#{id + at}") for at, field in enumerate(schema)]
    return n.Scan(schema=pa.schema(fields), stream=stream, columns=tuple(schema.names))


def column(node: n.Node, at: int) -> Column:
    field = node.schema.field(at)
    return Column(field.name, field.type)


def count_by(child: n.Node, *places: int, id: int = 90) -> n.Aggregate:
    """How many rows there are per value of these columns."""
    keys = tuple(column(child, at) for at in places)
    fields = [(key.name, key.type) for key in keys] + [(f"c#{id}", LONG)]
    call = n.AggregateCall("Count", (ONE,), LONG)
    return n.Aggregate(schema=pa.schema(fields), child=child, keys=keys, calls=(call,))


def watermark(child: n.Node, delay_ms: int = 0) -> n.Watermark:
    name = child.schema.names[-1]
    return n.Watermark(schema=child.schema, child=child, column=name, delay_ms=delay_ms)


def finals(child: n.Node) -> n.Aggregate:
    """Rows per event time, the last column, shown once the watermark has passed it."""
    at = len(child.schema) - 1
    counted = count_by(child, at)
    return replace(counted, event_time=counted.keys[0].name, emit="finals")


def timed(stream: str = "in", id: int = 1, delay_ms: int = 0) -> n.Watermark:
    return watermark(scan(stream, TIMED, id), delay_ms)


def join(left: n.Node, right: n.Node) -> n.Join:
    """Pairs with equal first columns."""
    return n.Join(
        schema=pa.schema([*left.schema, *right.schema]),
        left=left,
        right=right,
        kind="inner",
        left_keys=(column(left, 0),),
        right_keys=(column(right, 0),),
        null_safe=(False,),
    )


def spec_of(
    root: n.Node,
    *,
    mode: n.Mode = "update",
    tasks: int | Sequence[int] = 1,
    starts: Mapping[str, int] | None = None,
    settings: Settings = SETTINGS,
) -> QuerySpec:
    names = tuple(name.replace("#", "_") for name in root.schema.names)
    query = cut(root, mode, names)
    leaves = [leaf for stage in query.stages for leaf in stage.inputs if isinstance(leaf, n.Scan)]
    sources = {}
    for leaf in leaves:
        pairs = zip(leaf.columns, leaf.schema, strict=True)
        schema = pa.schema([field.with_name(name) for name, field in pairs])
        sources[leaf.stream] = Source(schema, Lsn((starts or {}).get(leaf.stream, 0)))
    return QuerySpec(
        name="q",
        version=1,
        fingerprint="f",
        query=query,
        statics={},
        sources=sources,
        to="out",
        to_schema=result_schema(query.schema, changing=query.stages[-1].changing),
        tasks=tuple([tasks] * len(query.stages) if isinstance(tasks, int) else tasks),
        settings=settings,
    )


# ---- rows


def pairs(*rows: tuple[Any, Any]) -> pa.RecordBatch:
    """Rows of SOURCE."""
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SOURCE)


def times(*seconds: int, key: int = 1) -> pa.RecordBatch:
    """Rows of TIMED."""
    at = pa.array([second * 1_000_000 for second in seconds], LONG).cast(TIMESTAMP)
    return pa.RecordBatch.from_arrays([pa.array([key] * len(seconds), LONG), at], schema=TIMED)


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as sorted tuples; event times as seconds."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    shown = [tuple(int(v.timestamp()) if hasattr(v, "timestamp") else v for v in r) for r in rows]
    return sorted(shown)


# ---- the log, and tasks on it


class Wired:
    """A query's tasks over one list of entries; time is `now_ms`, and moves by hand."""

    def __init__(self, spec: QuerySpec) -> None:
        self.spec = spec
        self.log: list[Entry] = []
        self.now_ms = 1_000
        self.cores: dict[TaskId, TaskCore] = {}
        self._instances = 0
        #: Of new instances: where they read on.
        self._unread: dict[TaskId, Lsn] = {}
        for task in spec.task_ids:
            self.start(task)

    # -- the log

    def append(self, producer: str, instance: int, entries: Iterable[NewEntry]) -> Range:
        first = Lsn(len(self.log))
        for entry in entries:
            lsn = Lsn(len(self.log))
            self.log.append(
                Entry(
                    lsn, entry.kind, entry.tags, producer, instance, 0, self.now_ms, entry.rows,
                    entry.payload,
                )
            )  # fmt: skip
        return Range(first, len(self.log) - first)

    def feed(self, rows: pa.RecordBatch, stream: str = "in", lanes: Lanes | None = None) -> Lsn:
        pieces = (lanes or Lanes(stream)).split(rows, len(self.log))
        new = [NewEntry(encode_trusted(piece), tags, rows=len(piece)) for piece, tags in pieces]
        return self.append("user", 1, new).first_lsn

    def ask_to_flush(self, stage: int) -> Lsn:
        tag = flush_tag(self.spec.name, self.spec.version, stage)
        return self.append("@q", 1, [NewEntry(b"", (tag,), Kind.CONTROL)]).first_lsn

    def read(self, tags: Sequence[str], start: int, end: int | None = None) -> list[Entry]:
        wanted = set(tags)
        return [entry for entry in self.log[start:end] if wanted.intersection(entry.tags)]

    def markers(self, task: TaskId) -> list[Marker]:
        found = [entry for entry in self.read([task.marker_tag], 0) if entry.kind is Kind.MARKER]
        return [decode_marker(entry.payload) for entry in found]

    # -- tasks

    def task(self, stage: int = 0, index: int = 0) -> TaskId:
        return TaskId(self.spec.name, self.spec.version, stage, index)

    def core(self, stage: int = 0, index: int = 0) -> TaskCore:
        return self.cores[self.task(stage, index)]

    def start(self, task: TaskId, *, careful_upto: Lsn | None = None) -> TaskCore:
        """A new instance, from the task's last marker; whatever the last one had is gone."""
        self._instances += 1
        core = TaskCore(self.spec, task, self._instances, lambda: self.now_ms)
        fold = ChangeFold()
        last = max((e.lsn for e in self.read([task.marker_tag], 0)), default=-1)
        for entry in self.read([task.marker_tag, task.change_tag], 0, last + 1):
            for change in fold.step(entry):
                core.restored(decode_changes(change.payload), len(change.payload))
        core.begin(fold.marker, careful_upto=careful_upto)
        self.cores[task] = core
        self._unread[task] = core.read_from
        return core

    def take(self, task: TaskId, end: int | None = None) -> None:
        """Everything for the task below `end`, taken in and worked on."""
        core = self.cores[task]
        end = len(self.log) if end is None else end
        start = self._unread.pop(task, core.position)
        for entry, counted in self.counted(core.tags, start, end):
            core.take(entry, counted)
        core.looked(Lsn(end))
        core.work()

    def counted(
        self, tags: Sequence[str], start: int, end: int | None = None
    ) -> list[tuple[Entry, Counted]]:
        """Every entry, and what counts at its place."""
        committed = read_entries(start)
        taken: list[tuple[Entry, Counted]] = []
        for entry in self.read(tags, start, end):
            counted = committed.take(entry)
            if isinstance(counted, Marked):
                for named in counted.missing:
                    counted.supply(named, self.read(tags, named.first_lsn, named.end))
            taken.append((entry, counted))
        return taken

    def commit(self, task: TaskId) -> Commit | None:
        core = self.cores[task]
        commit = core.take_commit()
        if commit is not None:
            self.append_commit(core, commit)
        return commit

    def append_commit(self, core: TaskCore, commit: Commit) -> None:
        """As MarkerCommitter does."""
        producer, cut = core.task.producer, commit.cut()
        ranges = [self.append(producer, core.instance, group) for group in cut.ahead]
        self.append(producer, core.instance, cut.group(ranges))

    def settle(self) -> None:
        """Until nobody has anything more to say."""
        is_news = True
        while is_news:
            is_news = False
            for task in self.cores:
                self.take(task)
                is_news |= self.commit(task) is not None

    def put_through(self, rows: pa.RecordBatch, stream: str = "in") -> Lsn:
        """Rows come, and nobody has anything more to say about them."""
        lsn = self.feed(rows, stream)
        self.settle()
        return lsn

    def last_marker(self, stage: int = 0, index: int = 0) -> Marker:
        return self.markers(self.task(stage, index))[-1]

    # -- results

    def committed(self, stream: str) -> list[Entry]:
        """The data entries of a stream that count, where they count."""
        entries: list[Entry] = []
        for _, counted in self.counted([stream_tag(stream)], 0):
            if isinstance(counted, Marked):
                entries += counted.entries
            elif counted is not None:
                entries.append(counted)
        return entries

    def result(self) -> pa.Table:
        """What a reader of the result stream sees, added up."""
        last = self.spec.query.stages[-1]
        deltas = []
        for entry in self.committed(self.spec.to):
            batch = decode_batch(entry.payload, self.spec.to_schema)
            columns = batch.columns
            weights = None
            if last.changing:
                weights = columns.pop().to_numpy()
            deltas.append(Delta(batch_of(columns, last.root.schema, batch.num_rows), weights))
        return read_result(self.spec.query, deltas)
