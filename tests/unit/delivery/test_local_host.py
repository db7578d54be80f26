"""Targets on threads of their own: every message has its answer, in order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget
from harness.waiting import until

from penstock.delivery.api import Batch, Shard
from penstock.delivery.local_host import LocalHost
from penstock.delivery.messages import Ack, Apply, At, Bye, Failure, FromTarget, Hello
from penstock.errors import Unavailable
from penstock.ids import Lsn

SCHEMA = pa.schema([("k", pa.int64())])


class Watched(MemoryTarget):
    """Remembers who called what."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def _call(self, name: str) -> None:
        self.calls.append((name, threading.get_ident()))

    def open(self, shard: Shard, term: int) -> Lsn:
        self._call("open")
        return super().open(shard, term)

    def apply(self, batch: Batch) -> Lsn:
        self._call("apply")
        return super().apply(batch)

    def close(self) -> None:
        self._call("close")


def host(*targets: MemoryTarget) -> tuple[LocalHost, list[FromTarget]]:
    shards = [
        Shard("d", index, len(targets), Lsn(3), SCHEMA, False, (), "t")
        for index in range(len(targets))
    ]
    made = LocalHost(targets, shards, SCHEMA)
    answers: list[FromTarget] = []
    made.start(answers.append)
    return made, answers


def move(shard: int, connection: int, after: int, upto: int) -> Apply:
    return Apply(shard, connection, 1, Lsn(after), Lsn(upto), ())


async def test_each_message_has_its_answer_and_each_target_its_thread() -> None:
    targets = [Watched(), Watched()]
    local, answers = host(*targets)

    local.send([Hello(0, 1, 1), Hello(1, 1, 1), move(0, 1, 3, 5), move(1, 1, 4, 6)])
    await until(lambda: len(answers) == 4)
    local.send([Bye(0, 1)])
    await local.close()
    await local.close()

    assert [one for one in answers if one.shard == 0] == [At(0, 1, Lsn(3)), Ack(0, 1, Lsn(5))]
    assert [one for one in answers if one.shard == 1] == [At(1, 1, Lsn(3)), Ack(1, 1, Lsn(3))]
    threads = [{thread for _, thread in target.calls} for target in targets]
    assert len(threads[0]) == len(threads[1]) == 1
    assert threads[0] != threads[1]
    assert threading.get_ident() not in threads[0] | threads[1]
    assert targets[0].calls[-1][0] == "close"


async def test_after_a_failure_nothing_more_of_the_connection_is_done() -> None:
    target = Watched()

    def fail(_: Batch) -> None:
        raise Unavailable("gone")

    target.before.append(fail)
    local, answers = host(target)

    local.send([Hello(0, 1, 1), move(0, 1, 3, 5), move(0, 1, 5, 6), Hello(0, 2, 1)])
    await until(lambda: len(answers) == 3)
    await local.close()

    assert answers[0] == At(0, 1, Lsn(3))
    assert isinstance(answers[1], Failure)
    assert answers[2] == At(0, 2, Lsn(3))
    assert [name for name, _ in target.calls].count("apply") == 1


async def test_a_target_that_hangs_keeps_no_other_waiting() -> None:
    hanging, other = Watched(), MemoryTarget()
    hanging.runs.clear()
    local, answers = host(hanging, other)

    local.send([Hello(0, 1, 1), move(0, 1, 3, 5), Hello(1, 1, 1), move(1, 1, 3, 5)])
    await until(lambda: Ack(1, 1, Lsn(5)) in answers)
    await until(lambda: hanging.calls[-1][0] == "apply")  # its thread may be late
    assert Ack(0, 1, Lsn(5)) not in answers
    try:
        async with asyncio.timeout(0.2):
            await local.close()
        raise AssertionError("it waits for the call that is under way")
    except TimeoutError:
        pass
    hanging.runs.set()


async def test_a_close_that_raises_is_passed_over() -> None:
    class Rude(MemoryTarget):
        def close(self) -> Any:
            raise OSError("rude")

    local, answers = host(Rude())

    local.send([Hello(0, 1, 1), Bye(0, 1), Hello(0, 2, 1)])
    await until(lambda: len(answers) == 2)
    await local.close()

    assert answers == [At(0, 1, Lsn(3)), At(0, 2, Lsn(3))]


async def test_whatever_a_target_raises_is_an_answer() -> None:
    """Libraries that are written in Rust raise what is no Exception."""

    class Panic(BaseException):
        pass

    def fault(*_: object) -> None:
        raise Panic("at the disco")

    target = MemoryTarget()
    target.before.append(fault)
    made, answers = host(target)

    made.send([Hello(0, 1, 1), move(0, 1, 3, 4)])
    await until(lambda: len(answers) == 2)
    made.send([Hello(0, 2, 1), move(0, 2, 3, 4)])
    await until(lambda: len(answers) == 4)

    failure = answers[1]
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, Exception)
    assert "Panic" in str(failure.error)
    assert answers[2:] == [At(0, 2, Lsn(3)), Ack(0, 2, Lsn(4))]
    await made.close()


class Answering(MemoryTarget):
    """Answers anything, as targets of users may."""

    def __init__(self, opened: Any, applied: Any) -> None:
        super().__init__()
        self.answers = opened, applied

    def open(self, shard: Shard, term: int) -> Any:
        return self.answers[0]

    def apply(self, batch: Batch) -> Any:
        return self.answers[1]


@pytest.mark.parametrize("answer", [None, "4", 4.0, np.array([4, 4])], ids=lambda one: str(one))
async def test_an_answer_that_is_no_position_is_the_targets_failure(answer: Any) -> None:
    """What it is compared with, and what it is written to, would fail for all others as well."""
    target = Answering(answer, None)
    local, answers = host(target)
    local.send([Hello(0, 1, 1)])
    await until(lambda: len(answers) == 1)
    target.answers = np.int64(3), answer
    local.send([Hello(0, 2, 1), move(0, 2, 3, 4)])
    await until(lambda: len(answers) == 3)
    target.answers = 3, np.int64(4)
    local.send([Hello(0, 3, 1), move(0, 3, 3, 4)])
    await until(lambda: len(answers) == 5)
    await local.close()

    kinds = [type(one) for one in answers]
    assert kinds == [Failure, At, Failure, At, Ack]
    assert isinstance(answers[1], At) and type(answers[1].position) is int
    assert isinstance(answers[4], Ack) and type(answers[4].position) is int
    assert isinstance(answers[2], Failure)
    assert "return the position" in str(answers[2].error)
