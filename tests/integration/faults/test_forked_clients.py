"""The blocking client over forks: children append for themselves while the parent goes on.

Goal: I2 and I7 when one client object is used in several processes. Method: children are forked,
as Spark's Python workers are, from a process whose client has a thread, a connection and appends on
their way; each reports what it did, and one history is checked.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection

import pytest
from harness.history import History
from harness.server_process import ServerProcess

from penstock.errors import Unavailable
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Appended, NewEntry

CHILDREN = 4
APPENDS = 150
JOIN_SECONDS = 40.0

#: What a process did: payloads, tag and first LSN of each append, in order.
Report = list[tuple[list[bytes], str, int]]


def child_appends(log: BlockingLog, name: str, report: Connection) -> None:
    """Half through the inherited client's own producer, half through a named one."""
    did: Report = []
    with log.appender(name) as appender:
        for number in range(APPENDS):
            payloads = [b"%s/%d/%d" % (name.encode(), number, n) for n in range(1 + number % 3)]
            entries = [NewEntry(payload, (name,)) for payload in payloads]
            done = (appender if number % 2 else log).append(entries)
            did.append((payloads, name, done.first_lsn))
    log.close()
    report.send(did)
    report.close()


def fork(
    work: object, *arguments: object
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    """Start a forked child that gets one end of a pipe as its last argument."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    return process, ours


def collect(process: multiprocessing.process.BaseProcess, pipe: Connection) -> Report:
    assert pipe.poll(JOIN_SECONDS), "a child hangs"
    report: Report = pipe.recv()
    process.join(JOIN_SECONDS)
    assert process.exitcode == 0
    pipe.close()
    return report


def add(history: History, client: str, report: Report) -> None:
    """A child's own appends; seen from here they all happened at once."""
    for payloads, tag, lsn in report:
        append = history.invoke(client, [NewEntry(payload, (tag,)) for payload in payloads])
        append.invoked = 0
        history.ok(append, Appended(lsn, len(payloads)))


@pytest.mark.timeout(120)
def test_children_append_with_their_own_producers_while_the_parent_goes_on(
    server: ServerProcess,
) -> None:
    history = History()
    with BlockingLog(server.endpoint()) as log, log.appender("parent") as appender:
        opened = log.append([NewEntry(b"the parent's own producer is open", ("parent",))])
        done: list[tuple[list[bytes], str, Future[Appended]]] = []
        children = []
        for number in range(8 * CHILDREN):
            for n in range(50):
                payload = b"parent/%d/%d" % (number, n)
                future = appender.append_nowait([NewEntry(payload, ("parent",))])
                done.append(([payload], "parent", future))
            if number % 8 == 0:
                # Right now appends are on their way on the parent's thread.
                name = f"child-{number // 8}"
                children.append((name, *fork(child_appends, log, name)))
        reports = {name: collect(process, pipe) for name, process, pipe in children}
        reports["parent"] = [
            (payloads, tag, future.result(JOIN_SECONDS).first_lsn) for payloads, tag, future in done
        ]

        after = log.append([NewEntry(b"after all", ("parent",))])
        final = log.read()
        by_tag = {name: log.read([name]) for name in reports}
    first = history.invoke("own", [NewEntry(b"the parent's own producer is open", ("parent",))])
    history.ok(first, opened)
    for name, report in reports.items():
        # A child's even appends and its odd ones are two producers', as its code says.
        add(history, f"{name}/even", report[::2])
        add(history, f"{name}/odd", report[1::2])
    last = history.invoke("own", [NewEntry(b"after all", ("parent",))])
    history.ok(last, after)
    assert history.check(final, by_tag) == []
    assert set(reports) == {"parent", *(f"child-{n}" for n in range(CHILDREN))}
    producers = {entry.producer for entry in final if entry.kind.name == "DATA"}
    assert len(producers) == 2 * (CHILDREN + 1), "two producers of each process, none shared"


def child_misuses(log: BlockingLog, appender: object, reader: object, report: Connection) -> None:
    """What the parent opened is not for the child, and it is told so instead of hanging."""
    told = []
    for use in (lambda: appender.append([NewEntry(b"stolen")]), lambda: reader.next_batch(1.0)):
        try:
            use()
        except Unavailable as error:
            told.append(str(error))
    with log.tail(["t"], start=0) as own:
        batch = own.next_batch(10.0)
        assert batch is not None
        told.append(repr([entry.payload for entry in batch.entries]))
    log.close()
    report.send(told)
    report.close()


@pytest.mark.timeout(60)
def test_a_childs_use_of_what_its_parent_opened_is_refused_with_the_remedy(
    server: ServerProcess,
) -> None:
    with (
        BlockingLog(server.endpoint()) as log,
        log.appender("parent") as appender,
        log.tail(["t"], start=0) as reader,
    ):
        appender.append([NewEntry(b"one", ("t",))])
        told = collect(*fork(child_misuses, log, appender, reader))

        assert "open it again here" in told[0]
        assert "open one here" in told[1]
        assert told[2] == "[b'one']"
        appender.append([NewEntry(b"two", ("t",))])
        seen = []
        while len(seen) < 2:
            batch = reader.next_batch(10.0)
            assert batch is not None
            seen += [entry.payload for entry in batch.entries]
        assert seen == [b"one", b"two"], "the parent's reader is still its own"


def child_appends_one(log: BlockingLog, report: Connection) -> None:
    done = log.append([NewEntry(b"child %d" % os.getpid(), ("child",))])
    log.close()
    report.send([([], "", done.first_lsn)])
    report.close()


@pytest.mark.timeout(120)
def test_forks_from_a_busy_multithreaded_client_neither_hang_nor_disturb_it(
    server: ServerProcess,
) -> None:
    """Children that use the client, forked while four threads of the parent use it, too."""
    with BlockingLog(server.endpoint()) as log:
        stop = threading.Event()
        counts = [0] * 4

        def use(number: int) -> None:
            while not stop.is_set():
                log.append([NewEntry(b"%d/%d" % (number, counts[number]), (f"t{number}",))])
                counts[number] += 1

        threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                collect(*fork(child_appends_one, log))
        finally:
            stop.set()
            for thread in threads:
                thread.join()

        assert len(log.read(["child"])) == 15
        for number, count in enumerate(counts):
            payloads = [entry.payload for entry in log.read([f"t{number}"])]
            assert payloads == [b"%d/%d" % (number, n) for n in range(count)]
            assert count > 0


@pytest.mark.timeout(60)
def test_a_child_forked_while_a_thread_is_inside_the_client_does_not_wait_for_it(
    server: ServerProcess,
) -> None:
    """A lock that is held at the fork stays held in the child, by a thread that is not there."""
    with BlockingLog(server.endpoint()) as log:
        with log._lock:
            process, pipe = fork(child_appends_one, log)
        try:
            collect(process, pipe)
        finally:
            process.kill()
            process.join()

        assert len(log.read(["child"])) == 1
