"""When rows of a result became visible: one tail, which takes bytes and decodes nothing.

Owns the moment: the wall clock when a reader of the stream has all bytes of what counts, staged
entries fetched. What the bytes say is looked at after the load has ended, not beside it.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import Unavailable
from penstock.runtime.outputs import RESULT_WEIGHT
from penstock.stream.batches import decode_batch
from penstock.stream.registration import stream_tag
from penstock.stream.session import Log
from penstock.stream.tail import CommittedTail
from penstock_bench.arrivals import appeared
from penstock_bench.measure import now_us
from penstock_bench.nexmark.figures import Floats
from penstock_bench.nexmark.timed import LAT_TS

#: A tail without rows for so long looks whether it is still wanted.
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry of rows: when it was visible, and when the log had appended it."""

    visible_us: int
    appended_ms: int
    payload: bytes


class Latencies(NamedTuple):
    """Per row: since when, and milliseconds until it was visible, and until it was appended."""

    since_us: Any
    visible: Floats
    emitted: Floats


@dataclass(frozen=True, slots=True)
class Rows:
    """A result, decoded: its own columns, and per row a weight, a time, and when it was seen."""

    table: pa.Table
    weights: pa.Array | None
    lat_us: Any
    visible_us: Any
    appended_us: Any

    def latencies_ms(self, from_us: int, to_us: int) -> Latencies:
        """Of rows whose time is in [from, to); none is dropped.

        A row that takes another back is none.
        """
        wanted = (self.lat_us >= from_us) & (self.lat_us < to_us)
        times = np.ones(len(self.lat_us), np.int64)
        if self.weights is not None:
            times = np.maximum(self.weights.to_numpy(zero_copy_only=False), 0)
        counts = np.where(wanted, times, 0)
        visible = np.repeat((self.visible_us - self.lat_us) / 1_000, counts)
        emitted = np.repeat((self.appended_us - self.lat_us) / 1_000, counts)
        return Latencies(np.repeat(self.lat_us, counts), visible, emitted)


class Visible:
    """A tail in a thread, from the start of the stream until `stop`."""

    def __init__(self, log: Log, name: str) -> None:
        self._stream = appeared(log, name)
        self._log = log
        self._tags = [stream_tag(name)]
        self._seen: list[Seen] = []
        #: Everything below it was looked at.
        self._upto = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name=f"visible-{name}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            start = self._stream.resolve("earliest")
            tail = CommittedTail(self._log.client, self._tags, start=start)
            with closing(tail):
                while not self._stopped:
                    self._look(tail)
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _look(self, tail: CommittedTail) -> None:
        counted = tail.next(_LOOK_SECONDS) or []
        now = now_us()
        with self._changed:
            for _, entries in counted:
                self._seen += [Seen(now, entry.time_ms, entry.payload) for entry in entries]
            self._upto = tail.position
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until everything that is in the stream now was looked at. Raises Unavailable."""
        last = self._log.client.read_last(self._tags[0])
        wanted = 0 if last is None else last.lsn + 1
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._upto >= wanted or self._error is not None, seconds
            )
            if self._error is not None:
                raise self._error
        if not done:
            raise Unavailable(f"the tail of the result is at {self._upto}, not at {wanted}")

    def stop(self) -> list[Seen]:
        """End the tail; what it saw."""
        self._stopped = True
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._seen

    @property
    def schema(self) -> pa.Schema:
        return self._stream.schema


def decode(seen: list[Seen], schema: pa.Schema) -> Rows:
    """The rows of all entries, in their order."""
    batches = [decode_batch(one.payload, schema) for one in seen]
    table = pa.Table.from_batches(batches, schema)
    counts = [batch.num_rows for batch in batches]
    lat_us = table.column(LAT_TS).cast(pa.int64()).to_numpy()
    weights = None
    if RESULT_WEIGHT in table.column_names:
        weights = table.column(RESULT_WEIGHT).combine_chunks()
        table = table.drop_columns(RESULT_WEIGHT)
    return Rows(
        table.drop_columns(LAT_TS),
        weights,
        lat_us,
        np.repeat(np.array([one.visible_us for one in seen], np.int64), counts),
        np.repeat(np.array([one.appended_ms * 1_000 for one in seen], np.int64), counts),
    )
