"""`penstock bench state`: what checkpoints cost a task that keeps very many keys.

One query counts rows per key, in one task in this process, over a real log server; its checkpoints
go to a local folder, and every byte that is written there is counted. The keys are filled in, and
then one of a hundred is changed at a time, in small batches, with a checkpoint after each turn.

pause   the longest time for which the task's event loop stood still while a checkpoint was made;
        beside it the longest while none was: what its own work, and the machine, take anyway
bytes   what a checkpoint of one changed key of a hundred writes, over what the whole state is in
        the same files; and, over the fill and all turns, bytes written per byte of increments: a
        merge of all files falls into the turns of one run in two, and the fill has a share in it
resume  a new instance, from its claim until it reads on; also with few keys. Beside it its first
        commit, of random keys, and how long until all rows of the checkpoint are in memory
memory  rows at random beside RocksDB, and a state larger than its bound (state_memory.py)

Law: the states before and after the resume have the same number of rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import uvloop

from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.host import Host, ThisProcess
from penstock.runtime.outputs import result_schema
from penstock.runtime.spec import QuerySpec, Settings, Source, count_tasks, join_stages
from penstock.runtime.task import Task
from penstock.spark.frontend import plan as plan_frame
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.folders import Folder, open_folder
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import Lanes
from penstock.stream.session import Log, connect
from penstock_bench.measure import busy_load, scratch
from penstock_bench.recovery import session, settle
from penstock_bench.report import Check, Report, Say
from penstock_bench.state_memory import MemorySizes, judge_memory, measure_memory

PAUSE_MS_BAR: Final = 10.0
SHARE_BAR: Final = 0.02
AMPLIFICATION_BAR: Final = 6.0
RESUME_MS_BAR: Final = 250.0
RESUME_RATIO_BAR: Final = 2.0
_STREAM: Final = "rows"
_FILL_ROWS: Final = 20_000
_CHANGE_ROWS: Final = 500
#: How often the loop is asked whether it stands still.
_LOOK_SECONDS: Final = 0.001
_PATIENCE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class StateBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    keys: int = 5_000_000
    turns: int = 12
    #: One key of so many is changed in each turn.
    share: int = 100
    interval_ms: int = 1_000
    #: Resumed with so many keys, too.
    few_keys: int = 100_000
    memory: MemorySizes = MemorySizes()


FULL: Final = StateBenchSizes()
QUICK: Final = StateBenchSizes(
    keys=100_000, turns=3, interval_ms=100, few_keys=30_000,
    memory=MemorySizes(100_000, 400_000, 20_000, 4 * MIB),
)  # fmt: skip


@dataclass(slots=True)
class StateFigures:
    """Everything that was measured."""

    fill_seconds: float = 0.0
    state_rows: int = 0
    #: Of all files that a restore reads, in one copy, once the keys were filled in.
    whole_bytes: int = 0
    #: Written while the keys were filled in.
    fill_bytes: int = 0
    #: Written in each turn, both copies and the manifest.
    turn_bytes: list[int] = field(default_factory=list)
    turn_keys: int = 0
    #: Of the files that a restore reads after the last turn.
    files: int = 0
    restore_bytes: int = 0
    #: The longest times for which the loop stood still, while checkpoints were made and while not.
    still_ms: float = 0.0
    usual_ms: float = 0.0
    resume_ms: float = 0.0
    #: The first commit after it, of rows of random keys; and until all rows were in memory.
    first_commit_ms: float = 0.0
    all_read_ms: float = 0.0
    resumed_rows: int = 0


def run_bench(plan: StateBenchSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("state", parameters={"plan": asdict(plan), "load": busy_load(say)})
    found = StateFigures()
    with (
        scratch("penstock-state-", directory) as root,
        connect(root / "log") as log,
        scratch("penstock-state-", directory) as few,
        connect(few / "log") as few_log,
    ):
        with session("local[1]") as spark:
            spec = make_spec(spark, log, plan, root)
            few_spec = make_spec(spark, few_log, plan, few)
        uvloop.run(_measure(root, spec, plan, found, say))
        few_plan, of_few = replace(plan, keys=plan.few_keys, turns=0), StateFigures()
        uvloop.run(_measure(few, few_spec, few_plan, of_few, say))
        memory = measure_memory(spec.query, plan.memory, root, say)
    judge(report, found, of_few, plan, say)
    judge_memory(report, memory, plan.memory, say)
    report.figures = {
        **asdict(found), "resume_few_ms": of_few.resume_ms, "memory": asdict(memory)
    }  # fmt: skip
    return report


def judge(
    report: Report, found: StateFigures, of_few: StateFigures, plan: StateBenchSizes, say: Say
) -> None:
    """The verdict; `of_few` is of a state with few keys."""
    usual, longest = found.usual_ms, found.still_ms
    median = statistics.median(found.turn_bytes)
    whole = 2 * found.whole_bytes  # a whole state would be written in two copies too
    least = min(found.turn_bytes)
    detail = f"{longest:.1f} ms, without {usual:.1f} ms, {plan.keys:,} keys"
    wrote = f"{median / 1e6:.2f} MB of {whole / 1e6:.1f} MB, median of {len(found.turn_bytes)}"
    mean = statistics.fmean(found.turn_bytes)
    written = found.fill_bytes + sum(found.turn_bytes)
    spread = (
        f"{written / 1e6:.0f} MB; {mean / 1e6:.2f} MB a turn, {least / 1e6:.2f} MB where nothing "
        "was merged"
    )
    rows = f"{found.resumed_rows:,} rows of {found.state_rows:,}"
    resumes = (
        f"{found.resume_ms:.0f} ms, with {plan.few_keys:,} keys {of_few.resume_ms:.0f} ms; first "
        f"commit {found.first_commit_ms:.0f} ms, all rows read after {found.all_read_ms:.0f} ms"
    )
    for check in (
        Check("checkpoint_pause", longest, PAUSE_MS_BAR, "at most", "ms", detail),
        Check("one_percent_writes", median / whole, SHARE_BAR, "at most", "x", wrote),
        Check(
            "write_amplification",
            written / (whole + len(found.turn_bytes) * least),
            AMPLIFICATION_BAR,
            "at most",
            "x",
            spread,
        ),
        Check("restore_reads", found.restore_bytes / found.whole_bytes, 2.1, "at most", "x"),
        Check("resume", found.resume_ms, RESUME_MS_BAR, "at most", "ms", resumes),
        Check(
            "resume_over_few_keys",
            found.resume_ms / of_few.resume_ms,
            RESUME_RATIO_BAR,
            "at most",
            "x",
        ),
        Check(
            "rows_lost_by_the_resume",
            abs(found.state_rows - found.resumed_rows),
            0,
            "at most",
            "rows",
            rows,
        ),
    ):
        report.judge(check, say)
    say(f"resumed from {found.files} files")


def make_spec(spark: Any, log: Log, plan: StateBenchSizes, directory: Path) -> QuerySpec:
    stream = log.create_stream(_STREAM, "k long")
    query = plan_frame(stream.df(spark).groupBy("k").count(), mode="update").query
    schema = result_schema(query.schema, changing=query.stages[-1].changing)
    return QuerySpec(
        name="counts",
        version=1,
        fingerprint="bench",
        query=query,
        statics={},
        sources={_STREAM: Source(stream.schema, Lsn(0), stream.lanes)},
        to="counts",
        to_schema=log.create_stream("counts", schema).schema,
        tasks=join_stages(query, count_tasks(query, 1, {_STREAM: stream.lanes})),
        settings=Settings(
            checkpoints=str(directory / "checkpoints"), checkpoint_interval_ms=plan.interval_ms
        ),
    )


class _Counted:
    """A folder that counts what is written to it."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        def counted() -> Iterator[bytes]:
            for piece in pieces:
                self.bytes += len(piece)
                yield piece

        self._folder.write(path, counted())


class _Host(ThisProcess):
    """This process; what its checkpoints write is counted."""

    def __init__(self) -> None:
        self.folder: Any = None
        self.store: Any = None

    def open_checkpoints(self, uri: str, log_id: str) -> CheckpointStore:
        self.folder = _Counted(open_folder(uri))
        self.store = CheckpointStore(uri, log_id, self.folder)
        return self.store  # type: ignore[no-any-return]


class _Watch:
    """How long the event loop stood still at most while checkpoints were made, and while not."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self._still = {False: 0.0, True: 0.0}
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        before = time.perf_counter()
        while True:
            was_writing = self._checkpointer.is_writing
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.perf_counter()
            is_writing = was_writing or self._checkpointer.is_writing
            self._still[is_writing] = max(self._still[is_writing], now - before - _LOOK_SECONDS)
            before = now

    def longest_ms(self, *, is_writing: bool) -> float:
        return round(self._still[is_writing] * 1000, 2)

    def close(self) -> None:
        self._looking.cancel()


@contextlib.asynccontextmanager
async def running(log: AsyncLog, spec: QuerySpec, host: Host) -> AsyncIterator[Task]:
    """The last stage's task; with it those before, if they do not run in it."""
    loops: list[asyncio.Future[None]] = []
    tasks: list[Task] = []
    for task in spec.task_ids:
        instance = await log.claim(task.producer)
        tasks.append(await Task.open(log, spec, task, instance, host=host))
        loops.append(asyncio.ensure_future(tasks[-1].run()))
    try:
        yield tasks[-1]
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def _measure(
    directory: Path, spec: QuerySpec, plan: StateBenchSizes, found: StateFigures, say: Say
) -> None:
    rng, host = np.random.default_rng(1), _Host()
    async with await AsyncLog.connect(directory_endpoint(directory / "log")) as log:
        async with running(log, spec, host) as task:
            say(f"filling in {plan.keys:,} keys")
            began = time.monotonic()
            await append(log, rng.permutation(plan.keys), _FILL_ROWS)
            await settle(log, spec)
            found.fill_seconds = round(time.monotonic() - began, 1)
            await caught_up(log, task)
            found.state_rows = task.report()["state_rows"]
            found.whole_bytes = sum(line.bytes for line in _files(task, host))
            found.fill_bytes = host.folder.bytes
            assert task.checkpointer is not None
            gc.collect()
            gc.freeze()  # as workers do: collections need not look at all that is there
            watch = _Watch(task.checkpointer)
            found.turn_keys = max(1, plan.keys // plan.share)
            for _ in range(plan.turns):
                keys = rng.choice(plan.keys, found.turn_keys, replace=False)
                written = host.folder.bytes
                await append(log, keys, _CHANGE_ROWS)
                await settle(log, spec)
                await caught_up(log, task)
                found.turn_bytes.append(host.folder.bytes - written)
            found.still_ms = watch.longest_ms(is_writing=True)
            found.usual_ms = watch.longest_ms(is_writing=False)
            watch.close()
            gc.unfreeze()
            found.files = len(_files(task, host))
            found.restore_bytes = sum(line.bytes for line in _files(task, host))
        say("resuming")
        began = time.monotonic()
        async with running(log, spec, host) as task:
            while not task.resume_ms:
                await asyncio.sleep(0.001)
            found.resume_ms = round(task.resume_ms, 1)
            await _first_commit(log, task, found)
            while task.report()["state_rows_unread"]:
                await asyncio.sleep(0.01)
            found.all_read_ms = round((time.monotonic() - began) * 1000, 1)
            found.resumed_rows = task.report()["state_rows"]


async def _first_commit(log: AsyncLog, task: Task, found: StateFigures) -> None:
    """How long rows of some random keys take, once it reads on."""
    began = time.monotonic()
    keys = np.random.default_rng(2).integers(0, found.state_rows, _CHANGE_ROWS)
    number = -1 if task.last_marker is None else task.last_marker.number
    await append(log, keys, _CHANGE_ROWS)
    while task.last_marker is None or task.last_marker.number <= number:
        await asyncio.sleep(0.001)
    found.first_commit_ms = round((time.monotonic() - began) * 1000, 1)


async def caught_up(log: AsyncLog, task: Task) -> None:
    """Until a checkpoint has all that is committed now, and nothing is being written."""
    assert task.checkpointer is not None
    last = await log.read_last(task.task.marker_tag)
    assert last is not None
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (task.core.checkpoint_lsn or 0) < last.lsn or task.checkpointer.is_writing:
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was written")
        # The next commit takes the checkpoint that is due.
        await append(log, np.zeros(1, np.int64), 1)
        await asyncio.sleep(0.05)


def _files(task: Task, host: _Host) -> Any:
    return host.store.increments(CheckpointRef.from_json(task.core.checkpoints.named[0]))


async def append(log: AsyncLog, keys: Any, rows: int) -> None:
    source = await log.own_appender()
    for first in range(0, len(keys), rows):
        piece = pa.record_batch({"k": keys[first : first + rows]})
        tags = Lanes(_STREAM, 1).tags(0)
        await source.append([NewEntry(encode_batch(piece), tags, rows=piece.num_rows)])
