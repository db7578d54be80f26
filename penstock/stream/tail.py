"""A stream followed: its committed batches in log order, each once, over any number of
reconnections.

Owns the position. Law: `position` is where a new tail continues without a gap or a repetition,
whenever it is read between two batches.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Self

import pyarrow as pa

from penstock.errors import BadFormat, Unavailable
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry
from penstock.protocol.committed import Counts, Marked, is_named, judge
from penstock.protocol.markers import Range
from penstock.protocol.staged import StagedEntries
from penstock.stream.batches import decode_batch
from penstock.stream.registration import stream_tag


class StreamTail:
    """Iterate over it for `pyarrow.RecordBatch`es; close it, or use it in a `with`, when done.

    It ends at its `end`, or when no batch came for `timeout` seconds: then continue, if you want,
    with a new tail from `position`. One thread at a time; not across a fork.
    """

    def __init__(
        self,
        client: BlockingLog,
        *,
        name: str,
        schema: pa.Schema,
        start: Lsn,
        end: Lsn | None,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._reader = client.tail([stream_tag(name)], start=start, end=end)
        self._name = name
        self._schema = schema
        self._timeout = timeout
        #: What counts at an entry's place: its own payload, or all that a marker names.
        self._pending: deque[tuple[Entry, list[bytes]]] = deque()
        self._looked_up_to = start
        self._seen = StagedEntries(start)
        self._closed = False
        #: The log entry at which the last batch counts: its LSN, append time, producer, seq.
        self.entry: Entry | None = None
        #: Start here to continue after the last batch.
        self.position = start

    @property
    def lsn(self) -> Lsn | None:
        """LSN of the last batch; None before the first."""
        return None if self.entry is None else self.entry.lsn

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._pending:
            found = None if self._closed else self._fetch(deadline)
            if found is None:
                self.close()
                raise StopIteration
            try:
                for entry in found.entries:
                    self._take(entry)
            except BaseException:
                self.close()  # continue with a new tail from `position`: nothing of this was given
                self._pending.clear()
                raise
            self._looked_up_to = found.looked_up_to
            if not self._pending:
                self.position = found.looked_up_to
        entry, payloads = self._pending.popleft()
        try:
            batches = [decode_batch(payload, self._schema) for payload in payloads]
        except BadFormat as error:
            raise BadFormat(f"stream {self._name}, LSN {entry.lsn}: {error}") from error
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self.entry = entry
        self.position = Lsn(entry.lsn + 1) if self._pending else self._looked_up_to
        return batch

    def _take(self, entry: Entry) -> None:
        """Only what counts, where it counts (protocol/committed.py)."""
        self._seen.show(entry)
        match judge(entry):
            case Counts(entry=data):
                self._pending.append((data, [data.payload]))
            case Marked(marker=marker):
                payloads = [
                    staged.payload for named in marker.ranges for staged in self._staged(named)
                ]
                if payloads:
                    # One batch: no position lies between what counts at one place.
                    self._pending.append((entry, payloads))
            case None:
                pass

    def _staged(self, named: Range) -> list[Entry]:
        known = self._seen.find(named)
        if known is not None:
            return known
        tags = [stream_tag(self._name)]
        fetched = self._client.read(tags, start=named.first_lsn, end=named.end)
        return [staged for staged in fetched if is_named(staged, named)]

    def _fetch(self, deadline: float | None) -> ReadBatch | None:
        """None at the end and at the deadline."""
        try:
            wait = None if deadline is None else max(deadline - time.monotonic(), 0)
            return self._reader.next_batch(wait)
        except TimeoutError:
            return None

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._pending.clear()
        try:
            self._reader.close()
        except Unavailable:
            pass  # the client was closed before, and its readers with it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tail of stream {self._name} at LSN {self.position}>"
