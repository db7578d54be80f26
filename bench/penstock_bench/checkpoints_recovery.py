"""How soon a task goes on, with its store and without: what `bench checkpoints` asks of a query.

One query counts rows per key, in one task in this process, over a real log server, with checkpoints
in Redis. Then instances of it resume: without a store at all; with the store there; with it killed;
and with one in its place that lets clients connect and never answers. All changes are in the log.

Law: after each resume the state has all keys.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import uvloop

from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.runtime.host import THIS_PROCESS
from penstock.runtime.spec import QuerySpec
from penstock.state.stores.redis_engine import TIMEOUT_SECONDS
from penstock.stream.session import connect
from penstock_bench.checkpoints_peers import own_redis
from penstock_bench.recovery import session, settle
from penstock_bench.report import Check, Report, Say
from penstock_bench.state import StateBenchSizes, append, caught_up, make_spec, running

_ROWS: Final = 20_000
#: Of the time without a store, for a store that is away; and what else than the wait a slow one may
#: cost.
AWAY_BAR: Final = 2.0
SLOW_SECONDS_BAR: Final = 2.0


def measure_recovery(keys: int, place: Path, report: Report, say: Say) -> None:
    """Adds figures and checks to the report."""
    with connect(place / "log") as log, session("local[1]") as spark:
        spec = make_spec(spark, log, StateBenchSizes(keys=keys, interval_ms=100), place)
    found = uvloop.run(_measure(place, spec, keys))
    report.figures["resume, ms"] = {way: round(ms, 1) for way, ms in found.items()}
    ways = ", ".join(f"{way} {ms:,.0f}" for way, ms in found.items())
    say(f"{keys:,} keys, resume in ms: {ways}")
    none = found["no store"]
    if "store away" not in found:
        return
    away = found["store away"]
    detail = f"{away:,.0f} over {none:,.0f} ms, all changes from the log"
    check = Check("resume_without_its_store", away / none, AWAY_BAR, "at most", "x", detail)
    report.judge(check, say)
    waited = found["store slow"] / 1000
    detail = f"it is waited for {TIMEOUT_SECONDS:g} s"
    bar = TIMEOUT_SECONDS + SLOW_SECONDS_BAR + none / 1000
    report.judge(Check("resume_with_a_slow_store", waited, bar, "at most", "s", detail), say)


async def _measure(place: Path, spec: QuerySpec, keys: int) -> dict[str, float]:
    found: dict[str, float] = {}
    async with await AsyncLog.connect(directory_endpoint(place / "log")) as log:
        without = replace(spec, settings=replace(spec.settings, checkpoints=None))
        with own_redis(place / "redis") as url:
            stored = replace(spec, settings=replace(spec.settings, checkpoints=url))
            async with running(log, stored, THIS_PROCESS) as task:
                await append(log, np.arange(keys), _ROWS)
                await settle(log, spec)
                if url is not None:
                    await caught_up(log, task)
            found["no store"] = await _resume(log, without, keys)
            if url is None:
                return found
            found["store there"] = await _resume(log, stored, keys)
        found["store away"] = await _resume(log, stored, keys)
        with socket.create_server(("127.0.0.1", urlsplit(url).port or 0)):
            found["store slow"] = await _resume(log, stored, keys)
    return found


async def _resume(log: AsyncLog, spec: QuerySpec, keys: int) -> float:
    """Milliseconds from the claim of a new instance until it reads on."""
    task: Any
    async with running(log, spec, THIS_PROCESS) as task:
        while not task.resume_ms:
            await asyncio.sleep(0.001)
        assert task.report()["state_rows"] == keys, task.report()["state_rows"]
        return float(task.resume_ms)
