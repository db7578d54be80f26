"""NEXMark's events as lines, written on schedule: for peers that bring their own events.

Runs in Penstock's own Python, since the events are made by its generator: with the same seed, base
and rate they are those that go into the log for the others. Made in a process of their own, ahead
of time; written at the first tick at or after they are due, whatever the reader does. The feeder of
a peer says where to; its one argument is what the contract calls `events`, and more of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from penstock_bench.nexmark import model
from penstock_bench.nexmark.draws import Ints
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.pace import Delays, Schedule, judge

#: Ticks whose events are made in one go.
_MAKE_TICKS: Final = 40
#: Ticks that may wait to be written: bridges pauses of the machine.
_AHEAD_TICKS: Final = 400
_context = multiprocessing.get_context("spawn")


def lines(generator: Generator, ids: Ints) -> list[bytes]:
    """One line per event, in the order of `ids`: the kind, then its columns, apart by tabs."""
    kinds = generator.kinds(ids)
    made = np.empty(len(ids), dtype=object)
    for kind, make in enumerate((generator.persons, generator.auctions, generator.bids)):
        rows = make(ids)
        texts = [pa.array([str(kind)] * rows.num_rows, pa.string())]
        texts += [_text(column) for column in rows.columns]
        joined = pc.binary_join_element_wise(*texts, "\t")
        made[kinds == kind] = joined.cast(pa.binary()).to_numpy(zero_copy_only=False)
    return made.tolist()


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.int64()), 1_000)
    return column.cast(pa.string())


def closing_lines(time_ms: int) -> bytes:
    """One event of each kind, so late that all windows before them are over."""
    made = []
    for number, schema in enumerate(model.KINDS.values()):
        times = {name: str(time_ms) for name in ("dateTime", "expires")}
        fields = [
            times.get(one.name, "" if pa.types.is_string(one.type) else "-1") for one in schema
        ]
        made.append("\t".join([str(number), *fields]) + "\n")
    return "".join(made).encode()


def _make(command: dict[str, Any], pipe: Connection) -> None:
    """The bytes of each tick, in turn."""
    schedule = _schedule(command)
    parameters = Parameters(
        seed=command["seed"], events_per_s=command["rate"], base_ms=command["base_ms"]
    )
    generator = Generator(parameters)
    for first_tick in range(0, schedule.ticks, _MAKE_TICKS):
        end_tick = min(first_tick + _MAKE_TICKS, schedule.ticks)
        made = iter(lines(generator, schedule.ids(first_tick, end_tick)))
        for tick in range(first_tick, end_tick):
            count = len(schedule.ids(tick))
            text = b"".join(next(made) + b"\n" for _ in range(count))
            pipe.send_bytes(text)


def _schedule(command: dict[str, Any]) -> Schedule:
    return Schedule(
        start_us=command["start_us"],
        rate=command["rate"],
        count=command["count"],
        first=command["first"],
        flush_us=command["flush_us"],
    )


def _receive(pipe: Connection, ready: deque[bytes], room: threading.Semaphore, ticks: int) -> None:
    for _ in range(ticks):
        room.acquire()
        ready.append(pipe.recv_bytes())


def feed(command: dict[str, Any], write: Callable[[bytes], object]) -> dict[str, Any]:
    """Write everything, the lines of a tick at once, and say how well the schedule was held."""
    schedule = _schedule(command)
    ours, theirs = _context.Pipe(duplex=False)
    maker = _context.Process(target=_make, args=(command, theirs), daemon=True)
    maker.start()
    theirs.close()
    ready: deque[bytes] = deque()
    room = threading.Semaphore(_AHEAD_TICKS)
    arguments = (ours, ready, room, schedule.ticks)
    threading.Thread(target=_receive, args=arguments, daemon=True).start()
    delays = Delays()
    written = 0
    parent = os.getppid()
    for tick in range(schedule.ticks):
        time.sleep(max(0.0, schedule.tick_us(tick) / 1e6 - time.time()))
        while not ready:
            if not maker.is_alive() and not ready:
                raise RuntimeError("the process that makes the events died")
            time.sleep(0.0005)
        if os.getppid() != parent:
            raise RuntimeError("whoever started the feeder has gone")
        text = ready.popleft()
        room.release()
        write(text)
        written += len(text)
        late = time.time_ns() // 1_000 - schedule.due_us(schedule.ids(tick))
        delays.add(late, tick * schedule.flush_us // 1_000_000)
    if (closing_ms := command.get("closing_ms")) is not None:
        write(closing_lines(closing_ms))
    maker.join()  # only then does its time count as ours
    is_held, note = judge(delays, delays)
    summary = delays.summary_ms()
    return {
        "schedule": {"delay_ms": summary, "is_held": is_held, "note": note},
        "lines": command["count"] + (0 if closing_ms is None else len(model.KINDS)),
        "bytes": written,
        "generator_cpu_s": sum(os.times()[:4]),
    }
