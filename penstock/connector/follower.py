"""The source's driver side: what counts in the streams, known ahead of the triggers.

Owns a thread that tails the streams from one position on, and the window that it fills, so that a
trigger takes what is there and never waits for the log. Law: the window holds every item from its
start up to `looked_up_to`. It runs ahead of what was planned by a bounded amount, then waits, but
never with an empty window: one commit may be larger than any bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.connector.items import Item, Ledger, Source, Window
from penstock.errors import Trimmed
from penstock.limits import MIB
from penstock.log.client.blocking import BlockingLog, BlockingReader
from penstock.log.records import Entry
from penstock.protocol.markers import Range
from penstock.stream.registration import stream_tag

logger = logging.getLogger(__name__)

#: How far ahead of the last planned position it may be, if a trigger does not take more.
AHEAD_BYTES_MAX: Final = 64 * MIB
#: The thread looks up this often to see whether it was closed.
_LOOK_UP_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a trigger; None: no limit."""

    rows_max: int | None
    bytes_max: int | None
    #: Nothing from here on.
    below: int | None = None


class Follower:
    """Of one reader, from one position on."""

    def __init__(
        self,
        client: BlockingLog,
        sources: tuple[Source, ...],
        start: int,
        *,
        ahead_max: int = AHEAD_BYTES_MAX,
        by_node: bool = False,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._client = client
        self._tags = [stream_tag(source.name) for source in sources]
        self._ledger = Ledger(sources, start, by_node)
        self._ahead_max = ahead_max
        self._fail_on_data_loss = fail_on_data_loss
        #: Guards all below; told whenever something changes.
        self._changed = threading.Condition()
        self._window = Window(start)
        self._looked_up_to = start
        self._planned = start
        self._error: Exception | None = None
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

    def cut(self, start: int, limits: Limits) -> int:
        """Where a trigger from `start` ends; `start` if there is nothing.

        At first, and up to `limits.below`, it waits for what the log has, or as much as is allowed.
        Raises what ended the thread.
        """
        until = self._first_tail if limits.below is None else limits.below
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._has_enough(start, until, limits))
            if self._error is not None:
                raise self._error
            return self._window.cut(
                start,
                rows_max=limits.rows_max,
                bytes_max=limits.bytes_max,
                below=limits.below,
            )

    def items(self, start: int, end: int) -> list[Item] | None:
        """What counts in [start, end); None: it does not know. It may then run on beyond `end`."""
        with self._changed:
            known_to = max(self._looked_up_to, self._window.end)
            if not self._window.start <= start <= end <= known_to:
                return None
            found = self._window.items(start, end)
            self._planned = max(self._planned, end)
            self._changed.notify_all()
            return found

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

    def _has_enough(self, start: int, until: int, limits: Limits) -> bool:
        if self._looked_up_to >= until or self._is_full() or self._closed:
            return True
        _, rows, size = self._window.amount(start)
        enough_rows = limits.rows_max is not None and rows >= limits.rows_max
        return enough_rows or (limits.bytes_max is not None and size >= limits.bytes_max)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # the next trigger raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _follow(self) -> None:
        start = self._looked_up_to
        while not self._closed:
            try:
                with self._client.tail(self._tags, start=start) as reader:
                    while self._wait_for_room():
                        self._take(reader)
            except Trimmed:
                trim_point = self._client.bounds().trim_point
                if self._fail_on_data_loss or trim_point <= self._looked_up_to:
                    raise
                logger.warning(
                    "rows are lost from_lsn=%d trim_point=%d", self._looked_up_to, trim_point
                )
                start = trim_point

    def _wait_for_room(self) -> bool:
        """False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_full())
            return not self._closed

    def _take(self, reader: BlockingReader) -> None:
        try:
            batch = reader.next_batch(_LOOK_UP_SECONDS)
        except TimeoutError:
            return
        assert batch is not None, "a tail without an end ended"
        items = [self._ledger.take(entry, self._fetch) for entry in batch.entries]
        with self._changed:
            for item in items:
                if item is not None:
                    self._window.append(item)
            self._looked_up_to = batch.looked_up_to
            self._changed.notify_all()

    def _fetch(self, named: Range) -> Iterable[Entry]:
        """Staged entries from before it began; what is trimmed of them is lost."""
        first = named.first_lsn
        trim_point = self._client.bounds().trim_point
        if first < trim_point:
            if self._fail_on_data_loss:
                raise Trimmed(
                    f"a commit holds rows from LSN {first} on, but the log was trimmed at "
                    f"{trim_point}: start with a new checkpoint, or pass over what is lost with "
                    "failOnDataLoss=false"
                )
            logger.warning("rows are lost from_lsn=%d trim_point=%d", first, trim_point)
        return self._stream(max(first, trim_point), named.end)

    def _stream(self, start: int, end: int) -> Iterator[Entry]:
        if start < end:
            with self._client.tail(self._tags, start=start, end=end) as reader:
                for batch in reader:
                    yield from batch.entries
