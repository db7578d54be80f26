"""Ten writers and ten readers at once, with every operation written down and checked.

`make test` runs it for 10 seconds, `make soak` for a minute or more; PENSTOCK_LOAD_SECONDS sets any
other length.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
import uvloop
from fault_workload import TAGS, Writer, clients, count_up, follow, read_final, settle
from harness.history import History, Outcome, Reading, check_counter
from harness.server_process import ServerProcess
from harness.soak import SOAK_SECONDS
from harness.waiting import until

from penstock.limits import MIB
from penstock.log.client.client import AsyncLog

SEED = 20260606
WRITERS = 10
READERS = 10
LOAD_SECONDS = float(os.environ.get("PENSTOCK_LOAD_SECONDS", "10"))


def tags_of(number: int) -> tuple[str, ...] | None:
    """Readers of everything, of one tag, of several, and of a tag that hardly anybody writes."""
    return (None, TAGS[:1], TAGS[3:4], TAGS[2:6], ("counted",))[number % 5]


async def start_readers(
    logs: list[AsyncLog], history: History, seconds: float
) -> tuple[list[Reading], list[asyncio.Task[None]]]:
    """Half the readers follow from the start; the others come later, at the tail or from zero."""
    readings: list[Reading] = []
    tasks: list[asyncio.Task[None]] = []
    for number, log in enumerate(logs):
        start = 0
        if number >= READERS // 2:
            await asyncio.sleep(seconds / READERS)
            start = (await log.bounds()).tail if number % 2 else 0
        readings.append(history.reading(f"reader-{number}", tags_of(number), start))
        pause_seconds = 0.001 if number % 4 == 3 else 0.0
        tasks.append(asyncio.create_task(follow(log, readings[-1], pause_seconds=pause_seconds)))
    return readings, tasks


async def run_load(server: ServerProcess, seconds: float) -> History:
    """The load, and all its checks."""
    history = History()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with clients(server.endpoint(), WRITERS + READERS) as logs:
        ends = loop.time() + seconds
        work = [
            asyncio.create_task(
                Writer(
                    logs[n],
                    history,
                    f"writer-{n}",
                    random.Random(SEED + n),
                    pause_seconds=0.008,
                    payload_bytes_max=400,
                ).run(stop)
            )
            for n in range(WRITERS)
        ]
        work += [
            asyncio.create_task(count_up(logs[n], history, f"counter-{n}", "count", stop))
            for n in range(3)
        ]
        readings, tails = await start_readers(logs[WRITERS:], history, seconds)
        await asyncio.sleep(ends - loop.time())
        await until(lambda: history.count(Outcome.OK) > 50 * seconds, seconds=120)
        stop.set()
        await asyncio.gather(*work)
        final, by_tag = await read_final(logs[0], (*TAGS[:2], "counted"))
        await settle(readings, tails, final[-1].lsn + 1)
    assert history.count(Outcome.UNKNOWN) == 0, "nothing was done to this server"
    assert history.check(final, by_tag) == []
    counted = [append for append in history.appends if append.client.startswith("counter-")]
    ok = sum(append.outcome is Outcome.OK for append in counted)
    assert check_counter(final, "count", ok=ok, unknown=0) == []
    assert ok > 0 and len(counted) > ok, "the counters never met"
    return history


def load_and_check(tmp_path: Path, seconds: float) -> None:
    print(f"seed {SEED}")
    with ServerProcess(tmp_path / "data", segment_bytes=MIB) as server:
        history = uvloop.run(run_load(server, seconds))
        print(f"{history.count(Outcome.OK)} appends in {seconds:g} s")
        assert server.stop() == 0


@pytest.mark.timeout(300)
def test_ten_writers_and_ten_readers_agree_on_one_log(tmp_path: Path) -> None:
    load_and_check(tmp_path, LOAD_SECONDS)


@pytest.mark.soak
def test_ten_writers_and_ten_readers_agree_on_one_log_for_long(tmp_path: Path) -> None:
    load_and_check(tmp_path, max(LOAD_SECONDS, SOAK_SECONDS, 60.0))
