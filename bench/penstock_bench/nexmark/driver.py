"""What the Spark driver of `penstock nexmark` is asked for: measured queries, and batch Spark.

One session (driver_process.py) for all queries of a bench, one query at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError, Unavailable
from penstock.log.client.client import AsyncLog
from penstock.plan import nodes as n
from penstock.protocol.markers import decode_marker
from penstock_bench.child import Child
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.measure import now_us
from penstock_bench.nexmark.figures import Position
from penstock_bench.nexmark.model import KINDS, side_input
from penstock_bench.nexmark.queries import QUERIES, split_events
from penstock_bench.nexmark.timed import APPEND, BY_ARRIVAL, LAT_TS, timed
from penstock_bench.protocols.choosing import ProtocolName

#: From the start of a query until all of its tasks run.
_RUNNING_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "4",
    # What pyarrow reads as it was written; the default is a form of twelve bytes.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

#: What the windows of a query take the time of, in append mode: they close, or are forgotten.
_WATERMARKED: Final = {
    "q5": ("bid",),
    "q7": ("bid",),
    "q8": ("person", "auction"),
    "q11": ("bid",),
    "q12": ("bid",),
    "nbq5": ("bid",),
    "nbq8": ("person", "auction"),
    "nbqx": ("auction", "bid"),
}


def start_nexmark_driver(target: Path) -> Child:
    """The driver of a bench whose log is there."""
    return start_driver(target, "nexmark", _SETTINGS)


def start_timed(
    session: Session,
    query: str,
    mode: str,
    source: str,
    result: str,
    workers: int,
    protocol: ProtocolName,
    commit_interval_ms: int,
    watermark_ms: int,
    joins_stages: bool = True,
) -> None:
    """Run a timed query from a stream of events into a result stream."""
    metadata = ["_time"] if query in BY_ARRIVAL else []
    events = session.log.stream(source).df(session.spark, metadata=metadata)
    frame = timed_frame(query, mode, events, watermark_ms)
    session.run(
        frame, protocol, to=result, mode=mode, workers=workers,
        commit_interval_ms=commit_interval_ms, joins_stages=joins_stages,
    )  # fmt: skip
    deadline = time.monotonic() + _RUNNING_SECONDS
    while not session.query.status["isTriggerActive"]:
        session.query.awaitTermination(0.02)
        if time.monotonic() > deadline:
            raise Unavailable(f"the query did not run within {_RUNNING_SECONDS:g} s")


def timed_frame(query: str, mode: str, events: Any, watermark_ms: int) -> Any:
    """A timed query over the mixed stream of events."""
    frames = dict(zip(KINDS, split_events(events), strict=True))
    if mode == APPEND:
        time, delay_ms = ("_time", 0) if query in BY_ARRIVAL else ("dateTime", watermark_ms)
        for kind in _WATERMARKED.get(query, ()):
            frames[kind] = frames[kind].withWatermark(time, f"{delay_ms} milliseconds")
    return timed(query, *frames.values(), *_side(events.sparkSession, query), mode=mode)


def _side(spark: Any, query: str) -> list[Any]:
    is_wanted = QUERIES[query].takes_side_input
    return [spark.createDataFrame(side_input())] if is_wanted else []


def look(session: Session) -> Position | None:
    """By what its tasks reported, and by their markers, which are newer; None: not known."""
    session.check()
    spec = session.query._spec
    reads = [any(isinstance(x, n.Scan) for x in spec.inputs(id)) for id, _ in enumerate(spec.tasks)]
    tasks = spec.task_ids

    async def newest(log: AsyncLog) -> list[Any]:
        return [await log.read_last(task.marker_tag) for task in tasks]

    entries = session.log.client.run(newest)
    last_markers = [None if entry is None else decode_marker(entry.payload) for entry in entries]
    told = (session.query.lastProgress or {}).get("sources", [])
    told_lsn = min((source["endOffset"] or 0 for source in told), default=0)
    marked = [
        -1 if marker is None else int(marker.position)
        for task, marker in zip(tasks, last_markers, strict=True)
        if reads[task.stage]
    ]
    markers = sum(0 if marker is None else marker.number + 1 for marker in last_markers)
    lsn = max(told_lsn, min(marked))
    return Position(now_us(), lsn, markers) if lsn > 0 else None


def settle(session: Session, seconds: float) -> bool:
    """Wait until all that is in the source is processed and visible, or so long: say whether."""
    settled = threading.Event()

    def wait() -> None:
        with contextlib.suppress(PenstockError):  # the query was stopped before, or failed
            session.query.processAllAvailable()
            settled.set()

    threading.Thread(target=wait, name="settle", daemon=True).start()
    deadline = time.monotonic() + seconds
    while not settled.wait(0.1) and time.monotonic() < deadline:
        session.check()
    return settled.is_set()


def run_batch(session: Session, query: str, events: Path, result: Path) -> None:
    """Run a plain query by batch Spark, from parquet files by kind, into parquet files."""
    frames = [session.spark.read.parquet(str(events / kind)) for kind in KINDS]
    rows = QUERIES[query].build(*frames, *_side(session.spark, query))
    assert LAT_TS not in rows.columns
    rows.write.parquet(str(result))
