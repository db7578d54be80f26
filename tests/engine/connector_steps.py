"""Spark and a log around the connector's sink, without Spark: for faults at every call.

Owns who calls the log and what becomes of each call. The real classes run as Spark runs them
(tasks, retries, commit, abort); between them and the log stands `Between`, which knows who calls,
so every call can meet every fault, and two drivers can meet in every order of their calls.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from penstock.connector import connections
from penstock.connector.batch_writer import PenstockBatchWriter
from penstock.connector.commit import commit_batch
from penstock.connector.options import Where, WriteOptions
from penstock.connector.staging import Staged, Staging
from penstock.connector.stream_writer import PenstockStreamWriter
from penstock.errors import PenstockError, Unavailable, Unknown
from penstock.log.records import Kind, Value
from penstock.protocol.batch_commit import Batch
from penstock.protocol.names import STAGING_PREFIX, staging_key
from penstock.protocol.reservations import reserved_from
from penstock.stream.session import Log
from penstock.testing.memory_log import MemoryLog

SCHEMA = StructType([StructField("n", LongType(), False)])
DDL = "n long NOT NULL"
#: As Spark's `spark.task.maxFailures`.
TASK_ATTEMPTS = 4
#: Two tasks, the second with several batches, of which each becomes an entry.
PARTS = ((1, 2), (3, 4, 5))
READING = {"get", "bounds", "list_metadata", "read", "tail"}


# ---- a log in memory, as a client that waits


def run(work: Any) -> Any:
    """A coroutine of a log in memory, which never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a log in memory waits for something")


class MemoryReader:
    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def next_batch(self, _: float | None = None) -> Any:
        try:
            return run(self._reader.__anext__())
        except StopAsyncIteration:
            return None

    def close(self) -> None:
        run(self._reader.close())


class MemoryClient:
    """What BlockingLog is to a server."""

    def __init__(self) -> None:
        self._log = MemoryLog()
        self.log_id = "memory"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        return lambda *given, **named: run(found(*given, **named))

    def ask(self, call: Callable[[Any], Any]) -> Any:
        answer = run(call(self._log))
        return SimpleNamespace(wait=lambda: answer)

    def run(self, call: Callable[[Any], Any]) -> Any:
        return run(call(self._log))

    def append_nowait(self, entries: Any) -> Future[Any]:
        sent: Future[Any] = Future()
        sent.set_result(self.append(entries))
        return sent

    def tail(self, tags: Any, *, start: int, end: int | None = None) -> MemoryReader:
        return MemoryReader(self._log.tail(tags, start=start, end=end))


# ---- faults


class Died(BaseException):
    """The process is gone: nothing that it would have done from here on is done."""


class Fault(Enum):
    """What happens to one call of the log."""

    REFUSED = "nothing was done, and it says so"
    LOST = "nothing was done, and nobody knows"
    DONE = "it was done, and nobody knows"
    LATE = "nobody knows, and it is done just before the process appends again, or after all"
    DIES = "the process dies before it"
    DIED = "the process dies after it"


Faults = Callable[[int, str], Fault | None]


@dataclass(slots=True)
class Process:
    """A process of Spark, as the log sees it: its calls, one after the other."""

    fault: Faults = lambda number, name: None
    #: Waits until it is this one's turn.
    turn: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    #: Still on its way to the log.
    late: Callable[[], Any] | None = None

    def arrive(self) -> None:
        """What was on its way is there."""
        late, self.late = self.late, None
        if late is not None:
            try:
                late()
            except PenstockError:
                pass  # nobody waits for the answer

    def step(self, name: str, do: Callable[[], Any]) -> Any:
        self.turn()
        self.calls.append(name)
        if name not in READING:
            self.arrive()
        match self.fault(len(self.calls) - 1, name):
            case None:
                return do()
            case Fault.REFUSED:
                raise Unavailable("no server answers")
            case Fault.LOST:
                raise Unknown("the connection was lost")
            case Fault.DONE:
                do()
                raise Unknown("the connection was lost")
            case Fault.LATE:
                self.late = do
                raise Unknown("the connection was lost")
            case Fault.DIES:
                raise Died
            case Fault.DIED:
                do()
                raise Died


class Between:
    """A log's client as the connector sees it: each call is a step of who calls."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._who = threading.local()

    def be(self, process: Process | None) -> None:
        """Of this thread, from now on; None: calls are nobody's steps."""
        self._who.process = process

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """For a look that is no step."""
        process = getattr(self._who, "process", None)
        self.be(None)
        yield
        self.be(process)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        process: Process | None = getattr(self._who, "process", None)
        if process is None or not callable(found):
            return found
        if name == "append_nowait":

            def send(*given: Any, **named: Any) -> Future[Any]:
                """The answer comes later, whatever it is; only a death comes at once."""
                sent: Future[Any] = Future()
                try:
                    sent.set_result(process.step(name, lambda: found(*given, **named).result()))
                except PenstockError as error:
                    sent.set_exception(error)
                return sent

            return send
        return lambda *given, **named: process.step(name, lambda: found(*given, **named))


def no_fault(number: int, name: str) -> Fault | None:
    return None


def at(place: int, fault: Fault) -> Faults:
    return lambda number, name: fault if number == place else None


def first_append(fault: Fault, later: Fault | None) -> Faults:
    """What the first append meets, and every call after it."""
    was_called = False

    def meet(number: int, name: str) -> Fault | None:
        nonlocal was_called
        if was_called:
            return later
        was_called = name == "append"
        return fault if was_called else None

    return meet


# ---- Spark


class Query:
    """What Spark does with one query's sink; several may have one id, and one directory."""

    suffixes: tuple[str, ...] = ("",)
    #: A task whose process dies is started again, and the driver lives.
    outlives_tasks = False

    def __init__(self, place: Place, directory: str) -> None:
        self.between = place.between
        self.id = place.name
        self.streams = place.streams
        self.options = WriteOptions(place.where, place.streams[0], (), False, directory)

    def run_batch(self, number: int, parts: Sequence[Sequence[int]] = PARTS) -> None:
        """Raises what stops the query; Died if the driver is lost."""
        self.commit(number, self.stage(number, parts))

    def stage(self, number: int, parts: Sequence[Sequence[int]] = PARTS) -> list[Any]:
        messages = [self.run_task(number, part) for part in parts]
        staged = [one for message in messages for one in self.staged_of(message)]
        self._check_staged(number, staged)
        return messages

    def run_task(self, number: int, rows: Sequence[int]) -> Any:
        """An attempt that fails is followed by another."""
        failure: BaseException | None = None
        for _ in range(TASK_ATTEMPTS):
            try:
                return self.write(number, rows)
            except PenstockError as error:
                failure = error
            except Died as death:
                if not self.outlives_tasks:
                    raise
                failure = death
        assert failure is not None
        raise failure

    def write(self, number: int, rows: Sequence[int]) -> Any:
        """What the process where a task runs does."""
        be_task(self.id, number)
        return sent(sent(self._writer()).write(batches(rows)))

    def commit(self, number: int, messages: list[Any]) -> None:
        try:
            self._writer().commit(messages, number)
        except PenstockError:
            self.abort(number, messages)
            raise

    def abort(self, number: int, messages: list[Any]) -> None:
        """Whatever comes of it, the query fails with what its commit raised."""
        try:
            self._writer().abort(messages, number)
        except PenstockError:
            pass

    def staged_of(self, message: Any) -> list[Staged]:
        return [message.staged]

    def _writer(self) -> PenstockStreamWriter:
        return PenstockStreamWriter.make(self.options, SCHEMA, overwrite=False)

    def _check_staged(self, number: int, staged: Sequence[Staged]) -> None:
        """Nothing of it counts by itself, and who trims knows of it."""
        with self.between.nobody():
            reservation = self.between.get(staging_key(self.id, number))
            for one in [one for part in staged for one in part.ranges]:
                assert reservation is not None
                assert reserved_from(reservation) <= one.first_lsn
                found = self.between.read(start=one.first_lsn, end=one.end)
                assert {entry.kind for entry in found} == {Kind.STAGED}, found


class ThreeStreams(Query):
    """As foreach_batch_writer: each row into three streams, one commit."""

    suffixes = ("a", "b", "c")

    def write(self, number: int, rows: Sequence[int]) -> Any:
        log = connections.connected(self.options.where)
        return [
            Staging(log.client, log.stream(name), reservation=staging_key(self.id, number)).write(
                batches(rows)
            )
            for name in self.streams
        ]

    def commit(self, number: int, messages: list[Any]) -> None:
        client = connections.connected(self.options.where).client
        staged = [one for message in messages for one in message]
        batch = Batch(self.id, number, self.options.checkpoint)
        commit_batch(client, batch, self.streams, staged)

    def staged_of(self, message: Any) -> list[Staged]:
        return [*message]


class WithoutTasks(Query):
    outlives_tasks = True


class ThreeWithoutTasks(ThreeStreams):
    outlives_tasks = True


def sent(thing: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


def be_task(query: str, number: int) -> None:
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
    TaskContext._setTaskContext(None)
    TaskContext._setTaskContext(
        TaskContext(partitionId=0, attemptNumber=0, taskAttemptId=0, localProperties=properties)
    )


def batches(rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    for row in rows:
        yield pa.record_batch([pa.array([row], pa.int64())], schema=schema)


# ---- a place to meet


class Place:
    """Streams and a query's metadata of their own in a log, and what counts in them."""

    numbers = itertools.count()

    def __init__(self, client: Any, kind: type[Query] = Query) -> None:
        number = next(self.numbers)
        self.between = Between(client)
        self.kind = kind
        self.where = Where(f"place-{number}", None, None)
        self.log = Log(self.between, str(self.where.log))  # type: ignore[arg-type]
        connections._LOGS[self.where] = self.log
        #: Also the query's id: several places may be in one log.
        self.name = f"p{number}"
        self.streams = [self.name + suffix for suffix in kind.suffixes]
        self._opened = [self.log.create_stream(stream, DDL) for stream in self.streams]
        #: What counted when the log was last read, and its tail then.
        self._rows: list[int] = []
        self._tail = -1

    def query(self, directory: str = "/c") -> Query:
        return self.kind(self, directory)

    def rows(self) -> list[int]:
        """What counts, which has to be the same in all streams of one commit.

        A log that has not grown holds what it held.
        """
        tail = self.log.bounds().tail
        if tail != self._tail:
            found = [stream.read()["n"].to_pylist() for stream in self._opened]
            assert all(one == found[0] for one in found), f"torn between streams: {found}"
            self._rows, self._tail = found[0], tail
        return [*self._rows]

    def markers(self) -> int:
        entries = self.log.client.read([f"s/{self.streams[0]}"])
        return sum(entry.kind is Kind.MARKER for entry in entries)

    @property
    def reservation(self) -> Value | None:
        """Of any batch."""
        reservations = self.log.client.list_metadata(STAGING_PREFIX + self.name + ".")
        return next(iter(reservations.values()), None)

    def close(self) -> None:
        del connections._LOGS[self.where]


def leave_spark() -> None:
    """What the sink does to the process of a Spark task is not for the tests that follow."""
    TaskContext._setTaskContext(None)
    gc.unfreeze()


def act(place: Place, process: Process | None, work: Callable[[], Any]) -> BaseException | None:
    """Do it as a process; what stopped it."""
    place.between.be(process)
    try:
        work()
    except (PenstockError, Died) as error:
        return error
    finally:
        place.between.be(None)
        if process is not None:
            process.arrive()
    return None


class Race:
    """Several drivers at one log, one call at a time."""

    def __init__(self, place: Place, works: Sequence[Callable[[], Any]]) -> None:
        self._place = place
        self._back = threading.Semaphore(0)
        self._go = [threading.Semaphore(0) for _ in works]
        self.outcomes: list[BaseException | None] = [None] * len(works)
        self._alive = list(range(len(works)))
        self._threads = [
            threading.Thread(target=self._run, args=(number, work), daemon=True)
            for number, work in enumerate(works)
        ]

    def _run(self, number: int, work: Callable[[], Any]) -> None:
        def turn() -> None:
            self._back.release()
            self._go[number].acquire()

        try:
            self.outcomes[number] = act(self._place, Process(turn=turn), work)
        except BaseException as error:  # of the test itself
            self.outcomes[number] = error
        self._alive.remove(number)
        self._back.release()

    def run(self, choose: Callable[[int], int]) -> list[BaseException | None]:
        """`choose` says, of so many that wait for their turn, whose it is."""
        for thread in self._threads:  # each comes to its first call
            thread.start()
            assert self._back.acquire(timeout=60)
        while self._alive:
            self._go[self._alive[choose(len(self._alive))]].release()
            assert self._back.acquire(timeout=60)
        for thread in self._threads:
            thread.join()
        return self.outcomes


def interleavings(race: Callable[[Callable[[int], int]], None]) -> int:
    """Run it in every order of its calls; returns in how many."""
    path: list[tuple[int, int]] = []
    for count in itertools.count(1):
        place = 0

        def choose(alive: int) -> int:
            nonlocal place
            if place == len(path):
                path.append((0, alive))
            choice, known = path[place]
            assert known == alive, "the same choices lead elsewhere"
            place += 1
            return choice

        race(choose)
        del path[place:]
        while path and path[-1][0] == path[-1][1] - 1:
            path.pop()
        if not path:
            return count
        path[-1] = (path[-1][0] + 1, path[-1][1])
    raise AssertionError("unreachable")


class BatchWrite:
    """What Spark does with df.write: the writer that planned it commits it."""

    def __init__(self, place: Place) -> None:
        options = WriteOptions(place.where, place.streams[0], (), False, None)
        self.writer = PenstockBatchWriter.make(options, SCHEMA, overwrite=False)

    def run(self) -> None:
        messages = [self.run_task(part) for part in PARTS]
        writer = sent(self.writer)
        try:
            writer.commit(messages)
        except PenstockError as error:
            try:
                writer.abort(messages)
            except PenstockError:
                pass
            raise error

    def run_task(self, rows: Sequence[int]) -> Any:
        for attempt in range(TASK_ATTEMPTS):
            try:
                return sent(self.writer).write(batches(rows))
            except PenstockError:
                if attempt == TASK_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")
