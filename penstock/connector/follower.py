"""The source's driver side: what counts in the streams, known ahead of the triggers.

Owns a thread that tails the streams from one position on, and the window that it fills, so that a
trigger takes what is there and never waits for the log. Law: the window holds every item from its
start up to `looked_up_to`. It runs ahead of what was planned by a bounded amount, then waits, but
never with an empty window: one commit may be larger than any bound.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.connector.items import Division, Item, ItemReader, ItemSource, ItemWindow
from penstock.connector.read_partition import commit_lost, data_lost
from penstock.errors import Trimmed, Unavailable
from penstock.limits import MIB
from penstock.log.api import ReadBatch
from penstock.log.client.blocking import BlockingLog, BlockingReader
from penstock.log.records import Entry
from penstock.protocol.markers import Range
from penstock.stream.registration import stream_tag

logger = logging.getLogger(__name__)

#: How far ahead of the last planned position it may be, if a trigger does not take more.
AHEAD_BYTES_MAX: Final = 64 * MIB
#: The thread looks up this often to see whether it was closed.
_LOOK_UP_SECONDS: Final = 0.5
#: After so long without a delivery it asks whether the server is there at all.
QUIET_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """Of a trigger; None: no limit."""

    rows_max: int | None
    bytes_max: int | None
    #: Nothing from here on.
    below: int | None = None


class _Closed(Exception):
    """The follower was closed while its thread waited for the log."""


class _CommitLost(Exception):
    """Rows of a commit are trimmed: not what the tail itself would raise."""

    def __init__(self, told: Trimmed) -> None:
        super().__init__(str(told))
        self.told = told


class SourceFollower:
    """Of one source, from one position on.

    What counts in [start, tail_from) is known to be nothing, or lost.
    """

    def __init__(
        self,
        client: BlockingLog,
        sources: tuple[ItemSource, ...],
        start: int,
        *,
        tail_from: int | None = None,
        ahead_max: int = AHEAD_BYTES_MAX,
        by: Division | None = None,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._client = client
        self._tags = [stream_tag(source.name) for source in sources]
        self._sources = sources
        self._by = by
        self._ahead_max = ahead_max
        self._fail_on_data_loss = fail_on_data_loss
        #: Guards all below; told whenever something changes.
        self._changed = threading.Condition()
        self._window = ItemWindow(start)
        self._looked_up_to = start if tail_from is None else tail_from
        self._planned = start
        self._error: BaseException | None = None
        self._closed = False
        #: What was there when it began.
        self._first_tail = client.bounds().tail
        self._thread = threading.Thread(target=self._run, name="penstock-follower", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether it has seen all that was there when it began, and is not held up since."""
        with self._changed:
            return self._looked_up_to >= self._first_tail and not self._is_full()

    @property
    def end(self) -> int:
        """After the last item that is known."""
        with self._changed:
            return self._window.end

    def covers(self, start: int) -> bool:
        """Whether triggers can go on here: nothing from `start` on was missed or forgotten."""
        with self._changed:
            return self._window.start <= start <= max(self._looked_up_to, self._window.end)

    def cut(self, start: int, limits: FollowerLimits) -> int:
        """Where a trigger from `start` ends; `start` if there is nothing.

        At first, and up to `limits.below`, it waits for what the log has, or as much as is allowed.
        Raises what ended the thread.
        """
        until = self._first_tail if limits.below is None else limits.below
        with self._changed:
            if start > self._planned:
                self._planned = start
                self._changed.notify_all()  # there may be room now
            self._changed.wait_for(lambda: self._error or self._has_enough(start, until, limits))
            if isinstance(self._error, Exception):
                raise self._error
            if self._error is not None:
                text = f"the source stopped following the log: {self._error!r}"
                raise Unavailable(text) from self._error
            return self._window.cut(
                start,
                rows_max=limits.rows_max,
                bytes_max=limits.bytes_max,
                below=limits.below,
            )

    def items(self, start: int, end: int) -> list[Item] | None:
        """What counts in [start, end); None: it does not know. It may then run on beyond `end`."""
        with self._changed:
            last = max(self._looked_up_to, self._window.end)
            if not self._window.start <= start <= end <= last:
                return None
            items = self._window.items(start, end)
            self._planned = max(self._planned, end)
            self._changed.notify_all()
            return items

    def forget(self, below: int) -> None:
        """What is below was read and is not asked for again."""
        with self._changed:
            self._window.forget(min(below, self._planned))

    def close(self) -> None:
        """Idempotent; the thread ends soon after."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return self._window.weight(self._planned) >= self._ahead_max

    def _has_enough(self, start: int, until: int, limits: FollowerLimits) -> bool:
        if self._looked_up_to >= until or self._is_full() or self._closed:
            return True
        _, rows, size = self._window.amount(start)
        enough_rows = limits.rows_max is not None and rows >= limits.rows_max
        return enough_rows or (limits.bytes_max is not None and size >= limits.bytes_max)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # also a cancelled request; the next trigger raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _follow(self) -> None:
        start = self._looked_up_to
        while not self._closed:
            # Anew for every tail: what was shown of a delivery that was not finished comes again.
            committed = ItemReader(self._sources, start, self._by)
            try:
                with self._client.tail(self._tags, start=start) as reader:
                    while self._wait_for_room():
                        self._take(reader, committed)
            except _Closed:
                return
            except _CommitLost as lost:
                raise lost.told from lost.__cause__
            except Trimmed as error:
                position = max(start, self._looked_up_to)
                trim_point = self._client.bounds().trim_point
                if self._fail_on_data_loss or trim_point <= position:
                    raise data_lost(self._names(), position, trim_point) from error
                logger.warning("rows are lost from_lsn=%d trim_point=%d", position, trim_point)
                start = trim_point

    def _wait_for_room(self) -> bool:
        """False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_full())
            return not self._closed

    def _take(self, reader: BlockingReader, committed: ItemReader) -> None:
        batch = self._next(reader)
        assert batch is not None, "a tail without an end ended"
        items = [committed.take(entry, partial(self._fetch, entry.lsn)) for entry in batch.entries]
        with self._changed:
            for item in items:
                if item is not None:
                    self._window.append(item)
            self._looked_up_to = batch.looked_up_to
            self._changed.notify_all()

    def _next(self, reader: BlockingReader) -> ReadBatch | None:
        """Raises _Closed; Unavailable, within the client's own time, if the server is gone."""
        heard = time.monotonic()
        while not self._closed:
            try:
                return reader.next_batch(_LOOK_UP_SECONDS)
            except TimeoutError:
                if time.monotonic() - heard >= QUIET_SECONDS:
                    self._client.bounds()
                    heard = time.monotonic()
        raise _Closed

    def _fetch(self, marker_lsn: int, named: Range) -> Iterator[Entry]:
        """Staged entries from before it began; what is trimmed of them is lost."""
        start: int = named.first_lsn
        while start < named.end:
            try:
                with self._client.tail(self._tags, start=start, end=named.end) as reader:
                    while (batch := self._next(reader)) is not None:
                        yield from batch.entries
                        start = batch.looked_up_to
                return
            except Trimmed as error:
                trim_point = self._client.bounds().trim_point
                if self._fail_on_data_loss or trim_point <= start:
                    told = commit_lost(self._names(), start, marker_lsn, trim_point)
                    raise _CommitLost(told) from error
                logger.warning("rows are lost from_lsn=%d trim_point=%d", start, trim_point)
                start = trim_point

    def _names(self) -> list[str]:
        return [source.name for source in self._sources]
