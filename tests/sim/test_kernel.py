"""The simulators' kernel: what it promises to asyncio code, and what its faults may do to it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import uuid
from random import Random
from typing import Any

import pytest
from campaign import check_traces
from simulation.kernel import (
    JobPool,
    JobQueue,
    Network,
    NetworkOdds,
    Process,
    Scheduler,
    Stuck,
    Unforeseen,
    WallClock,
    seeded_secrets,
)
from simulation.kernel.shipped import asked, changed, overheard, tapped


class Recorder(asyncio.Protocol):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.pieces = 0
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Stage:
    """A server and a client on two machines, and the connection between them."""

    def __init__(self, seed: int = 0, **odds: Any) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.network = Network(self.scheduler, NetworkOdds(**odds))
        self.server = self.scheduler.process("server", "m1")
        self.client = self.scheduler.process("client", "m2")
        self.accepted: list[Recorder] = []
        self.run(self.server, self.server.create_server(self._accept, "m1", 7))

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    def run(self, process: Process, work: Any) -> Any:
        task = process.create_task(work)
        self.scheduler.run_until(task.done, seconds=60)
        return task.result()

    def connect(self) -> Recorder:
        _, protocol = self.run(self.client, self.client.create_connection(Recorder, "m1", 7))
        assert isinstance(protocol, Recorder)
        return protocol

    def wait(self, seconds: float = 10.0) -> None:
        self.scheduler.run_for(seconds)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_in_any_pieces(seed: int) -> None:
    stage = Stage(seed, split_odds=0.5)
    client = stage.connect()
    sent = bytearray()
    for number in range(50):
        data = b"%d," % number * (number % 7)
        client.transport.write(data)
        sent += data
        stage.wait(stage.scheduler.random.random() * 0.001)
    stage.wait()

    assert stage.accepted[0].heard == sent
    assert stage.accepted[0].pieces > 1


def test_what_is_written_at_one_moment_travels_together() -> None:
    stage = Stage(split_odds=0.0)
    client = stage.connect()
    client.transport.write(b"one")
    client.transport.writelines([b"two", b"three"])
    stage.wait()

    assert (stage.accepted[0].heard, stage.accepted[0].pieces) == (b"onetwothree", 1)


def test_who_closes_is_told_and_the_other_hears_everything_first() -> None:
    stage = Stage()
    client = stage.connect()
    client.transport.write(b"bye")
    client.transport.close()
    assert client.transport.is_closing()
    stage.wait()

    assert client.events == ["made", "lost NoneType"]
    assert stage.accepted[0].heard == b"bye"
    assert stage.accepted[0].events == ["made", "eof", "lost NoneType"]


def test_nobody_listens_nobody_answers() -> None:
    stage = Stage()
    with pytest.raises(ConnectionRefusedError):
        stage.run(stage.client, stage.client.create_connection(Recorder, "m1", 8))


def test_a_cut_holds_bytes_ends_and_connections_back_one_way() -> None:
    stage = Stage()
    client = stage.connect()
    stage.wait()
    server = stage.accepted[0]
    stage.network.cut("m2", "m1")
    client.transport.write(b"held")
    client.transport.close()
    server.transport.write(b"passes")
    dial = stage.client.create_task(stage.client.create_connection(Recorder, "m1", 7))
    stage.wait()

    assert server.heard == b"" and server.events == ["made"] and not dial.done()
    stage.network.mend("m2", "m1")
    stage.wait()
    assert server.heard == b"held" and server.events[-1] == "lost NoneType" and dial.done()


@pytest.mark.parametrize("seed", range(20))
def test_after_a_reset_a_prefix_has_arrived_and_both_sides_know(seed: int) -> None:
    stage = Stage(seed)
    client = stage.connect()
    stage.wait()
    for number in range(10):
        client.transport.write(b"%d" % number)
        stage.wait(0.0001)
    connection = stage.network.connections[1]
    connection.reset(late=bool(seed % 2))
    client.transport.write(b"more")
    stage.wait()

    server = stage.accepted[0]
    assert b"0123456789more".startswith(bytes(server.heard))
    assert client.events[-1] == server.events[-1] == "lost ConnectionResetError"


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, True)])
def test_a_half_open_connection_drops_everything_and_tells_nobody(ways: tuple[bool, bool]) -> None:
    to_server, to_client = ways
    stage = Stage(late_odds=1.0)
    client = stage.connect()
    stage.wait()
    server = stage.accepted[0]
    stage.network.connections[1].half_open(to_server=to_server, to_client=to_client)
    client.transport.write(b"request")
    server.transport.write(b"answer")
    stage.network.heal()
    stage.wait()

    assert server.heard == (b"" if to_server else b"request")
    assert client.heard == (b"" if to_client else b"answer")
    assert client.events == server.events == ["made"]
    client.transport.abort()
    stage.wait()
    assert server.events == (["made"] if to_server else ["made", "lost ConnectionResetError"])


def test_what_a_client_sent_can_arrive_after_it_sent_it_again() -> None:
    late = 0
    for seed in range(20):
        stage = Stage(seed, late_odds=0.5)
        client = stage.connect()
        client.transport.write(b"request")
        client.transport.close()
        again = stage.connect()
        again.transport.write(b"request")
        stage.scheduler.run_until(lambda stage=stage: bool(stage.accepted[1].heard), seconds=5)
        late += not stage.accepted[0].heard
        stage.wait()
        assert stage.accepted[0].heard == b"request"
        assert stage.accepted[0].events[-1] == "lost NoneType"

    assert 3 < late < 17


@pytest.mark.parametrize("silent", [False, True])
def test_the_peers_of_a_killed_process_get_a_reset_or_silence(silent: bool) -> None:
    stage = Stage()
    client = stage.connect()
    stage.wait()
    stage.accepted[0].transport.write(b"last words")
    stage.server.kill(silent=silent)
    stage.accepted[0].transport.write(b"of the dead")
    stage.wait()

    if silent:
        assert client.heard == b"" and client.events == ["made"]
        stage.network.heal()
        stage.wait()
    else:
        assert client.heard == b"last words"
    assert client.events == ["made", "lost ConnectionResetError"]
    with pytest.raises(ConnectionRefusedError):
        stage.connect()


def test_a_paused_process_is_connected_to_and_hears_of_it_later() -> None:
    stage = Stage()
    stage.server.pause()
    client = stage.connect()
    client.transport.write(b"hello")
    stage.wait()
    assert not stage.accepted

    stage.server.resume()
    stage.wait()
    assert stage.accepted[0].heard == b"hello"


def test_a_writer_waits_for_a_reader_that_does_not_read() -> None:
    stage = Stage(window_bytes=100)
    client = stage.connect()
    stage.wait()
    stage.accepted[0].transport.pause_reading()
    client.transport.set_write_buffer_limits(high=50)
    client.transport.write(b"x" * 120)
    assert client.transport.get_write_buffer_size() == 20 and "pause" not in client.events
    stage.wait()
    client.transport.write(b"x" * 40)
    client.transport.close()
    assert client.events == ["made", "pause"]

    stage.wait()
    assert stage.accepted[0].heard == b""
    stage.accepted[0].transport.resume_reading()
    stage.wait()
    assert len(stage.accepted[0].heard) == 160
    assert stage.accepted[0].events == ["made", "eof", "lost NoneType"]


def test_jobs_happen_as_a_whole_later_or_never() -> None:
    stage = Stage()
    done: list[str] = []

    async def work() -> float:
        await asyncio.to_thread(done.append, "job")
        return stage.scheduler.now

    assert stage.run(stage.client, work()) > 0.0 and done == ["job"]
    pool = JobPool(stage.client)
    stage.client.run_in_executor(pool, done.append, "in the pool")
    stage.server.run_in_executor(None, done.append, "never")
    stage.server.kill()
    pool.shutdown()
    stage.wait()

    assert done == ["job", "in the pool"]


def test_a_queue_does_one_piece_of_work_after_the_other() -> None:
    stage = Stage()
    done: list[tuple[int, float]] = []
    queue = JobQueue(stage.client, lambda: 1.0)
    for number in range(3):
        queue.run(lambda number=number: done.append((number, stage.scheduler.now)))
    stage.run(stage.client, queue.close())

    assert [number for number, _ in done] == [0, 1, 2]
    assert done[2][1] - done[0][1] == 2.0
    stage.run(stage.client, queue.close())


def test_a_task_for_which_nobody_waits_ends_the_world_if_it_fails() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("nobody heard")

    stage = Stage()
    stage.client.spawn(fail())
    with pytest.raises(Unforeseen, match="nobody heard"):
        stage.wait()


def test_a_process_that_dies_in_a_step_does_nothing_more() -> None:
    stage = Stage()
    client = stage.connect()
    stage.wait()

    class Death(BaseException):
        """Unwinds the step."""

    def die() -> None:
        try:
            stage.server.kill()
            raise Death
        finally:
            stage.accepted[0].transport.write(b"on the way out")
            stage.server.call_soon(lambda: stage.accepted[0].transport.write(b"later"))

    stage.server.call_soon(die)
    stage.wait()

    assert client.heard == b"" and client.events[-1] == "lost ConnectionResetError"


def test_an_error_that_nobody_handles_ends_the_world() -> None:
    stage = Stage()
    stage.client.call_soon(lambda: 1 // 0)
    with pytest.raises(Unforeseen, match="ZeroDivisionError"):
        stage.wait()


def test_what_never_happens_is_stuck() -> None:
    stage = Stage()
    with pytest.raises(Stuck):
        stage.scheduler.run_until(lambda: False, seconds=1.0)


def test_the_check_at_the_end_takes_no_time_whatever_was_called_off() -> None:
    scheduler = Scheduler(Random(0))
    process, paused = scheduler.process("a"), scheduler.process("b")
    process.call_soon(print).cancel()
    paused.call_soon(print)
    paused.pause()
    process.call_later(5.0, print)

    scheduler.check()

    assert scheduler.now == 0.0 and scheduler.steps == 0
    paused.resume()
    scheduler.check()
    assert scheduler.now == 0.0 and scheduler.steps == 1


def test_a_world_leaves_classes_as_they_were() -> None:
    class Opened:
        @classmethod
        def open(cls) -> str:
            return cls.__name__

    class Other(Opened):
        pass

    with changed([(Opened, "open", lambda: "tapped"), (Other, "open", lambda: "too")]):
        assert (Opened.open(), Other.open()) == ("tapped", "too")

    assert (Opened.open(), Other.open()) == ("Opened", "Other")
    assert "open" not in vars(Other)


def test_what_other_threads_of_the_process_do_is_no_part_of_a_world() -> None:
    """Clients that an earlier test left behind go on: they draw, report and are called."""

    class Shipped:
        def step(self) -> str:
            return "done"

    def live_on() -> None:
        lived.append((uuid.uuid4(), secrets.token_hex(4), Shipped().step()))
        logging.getLogger("penstock.beside").error("the log is away")

    def play(beside: bool) -> list[Any]:
        stage = Stage(7)
        heard: list[str] = []
        taps = [(Shipped, "step", asked(lambda _: heard.append("step")))]
        with (
            seeded_secrets(stage.scheduler.random),
            tapped(taps),
            overheard(stage.scheduler, lambda record: False),
        ):
            for _ in range(3):
                if beside:
                    other = threading.Thread(target=live_on)
                    other.start()
                    other.join()
                heard += [str(uuid.uuid4()), secrets.token_hex(4), Shipped().step()]
                stage.wait(1.0)
            stage.scheduler.check()
        return heard

    lived: list[Any] = []
    alone = play(beside=False)

    assert play(beside=True) == alone and len(alone) == 12
    assert len({drawn for drawn, _, _ in lived}) == 3 and {said for *_, said in lived} == {"done"}


def test_wall_clocks_jump_and_virtual_time_does_not() -> None:
    scheduler = Scheduler()
    clock = WallClock(scheduler, start_ms=1000)
    scheduler.run_for(0.5)
    clock.jump(-200)

    assert clock.wall_ms() == 1300 and scheduler.now == 0.5


def _play(seed: int) -> str:
    """Tasks in sets, secrets, a network with all its faults."""
    stage = Stage(seed, split_odds=0.3, late_odds=0.3)
    random = stage.scheduler.random

    async def talk(number: int) -> None:
        await asyncio.sleep(random.random())
        _, protocol = await stage.client.create_connection(Recorder, "m1", 7)
        protocol.transport.write(uuid.uuid4().hex.encode() * number)
        await asyncio.sleep(random.random())
        protocol.transport.close()

    async def many() -> None:
        try:
            async with asyncio.timeout(1.0), asyncio.TaskGroup() as group:
                for number in range(1, 20):
                    group.create_task(talk(number))
        except TimeoutError:
            stage.scheduler.note("timeout")

    with seeded_secrets(random):
        stage.run(stage.client, many())
        stage.wait()
    stage.scheduler.note(str(bytes(b"".join(each.heard for each in stage.accepted))))
    return stage.scheduler.trace_hash


def test_the_trace_depends_on_nothing_but_the_seed() -> None:
    traces = check_traces("import test_kernel", "test_kernel._play(seed)", 3)

    assert traces == [_play(seed) for seed in range(3)]
