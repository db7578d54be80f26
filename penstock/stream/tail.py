"""A stream followed: its committed batches in log order, each once, over any number of
reconnections.

`CommittedTail` gives entries, `StreamTail` the rows in them. Law: `position` is where a new tail
continues without a gap or a repetition, whenever it is read between two batches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Self

import pyarrow as pa

from penstock.errors import BadFormat, Unavailable
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry
from penstock.protocol.committed import Marked, read_entries
from penstock.stream.batches import decode_batch
from penstock.stream.registration import stream_tag

#: A data entry or a marker, and the entries with rows that count at its place.
Counted = tuple[Entry, list[Entry]]


class CommittedTail:
    """What counts under some tags: the committed reader on a blocking client."""

    def __init__(
        self, client: BlockingLog, tags: Sequence[str], *, start: Lsn, end: Lsn | None = None
    ) -> None:
        self._client = client
        self._tags = tags
        self._reader = client.tail(tags, start=start, end=end)
        self._committed = read_entries(start)
        self._closed = False
        #: All that counts below it was given.
        self.position = start

    def next(self, seconds: float | None) -> list[Counted] | None:
        """What counts in the next delivery, in order; None: nothing came in time, or it ended."""
        if self._closed:
            return None
        try:
            delivery = self._reader.next_batch(seconds)
        except TimeoutError:
            return None
        if delivery is None:
            return None
        take = self._committed.take
        counted: list[Counted] = []
        for entry in delivery.entries:
            taken = take(entry)
            if taken is entry:
                counted.append((entry, [entry]))
            elif isinstance(taken, Marked):
                entries = self._fetch(taken)
                if entries:
                    counted.append((entry, entries))
        self.position = delivery.looked_up_to
        return counted

    def _fetch(self, marked: Marked[Entry]) -> list[Entry]:
        for named in marked.missing:
            fetched = self._client.read(self._tags, start=named.first_lsn, end=named.end)
            marked.supply(named, fetched)
        return marked.entries

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._reader.close()
        except Unavailable:
            pass  # the client was closed before, and its readers with it


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
        self._tail = CommittedTail(client, [stream_tag(name)], start=start, end=end)
        self._name = name
        self._schema = schema
        self._timeout = timeout
        #: What counts in the last delivery, and was not given yet.
        self._pending: deque[Counted] = deque()
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
            self._look(deadline)
        place, entries = self._pending.popleft()
        try:
            batches = [decode_batch(entry.payload, self._schema) for entry in entries]
        except BadFormat as error:
            raise BadFormat(f"stream {self._name}, LSN {place.lsn}: {error}") from error
        # One batch: no position lies between what counts at one place.
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self.entry = place
        self.position = Lsn(place.lsn + 1) if self._pending else self._tail.position
        return batch

    def _look(self, deadline: float | None) -> None:
        """Wait for a delivery. Raises StopIteration at the end and at the deadline."""
        try:
            seconds = None if deadline is None else max(deadline - time.monotonic(), 0)
            counted = self._tail.next(seconds)
        except BaseException:
            self.close()  # continue with a new tail from `position`: nothing of this was given
            raise
        if counted is None:
            self.close()
            raise StopIteration
        self._pending.extend(counted)
        if not counted:
            self.position = self._tail.position

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._tail.close()
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tail of stream {self._name} at LSN {self.position}>"
