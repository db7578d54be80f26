"""A named producer of a stream: what it appends is in the log once, however often it is sent.

Owns the numbering of batches for programs that restart. A seq counts entries: an append of up to
one payload (1 MiB) takes one, a larger one takes one per piece; where the stream has a key, each
takes one per lane that it has rows of. So go on at `next_seq`, not at a count of appends. Law: the
append at a seq takes effect once; sent again, also by a later process, it is acknowledged with its
first LSNs.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from typing import Final, Self

import pyarrow as pa

from penstock.errors import BadRequest, SeqGap, Unavailable
from penstock.ids import Lsn
from penstock.limits import PRODUCER_BYTES_MAX
from penstock.log.client.blocking import BlockingAppender, BlockingLog
from penstock.log.client.client import AsyncLog
from penstock.log.group_format import encode_body
from penstock.log.records import Appended
from penstock.stream.groups import Group, RowsAppended, append_groups, make_groups
from penstock.stream.lanes import Lanes
from penstock.wire import messages as m

#: Between a stream's name and a producer's id, in the name under which the log knows the producer.
_SEPARATOR: Final = "/"


class StreamProducer:
    """An open producer; opening it fences all that were opened before under the same id.

    Usable from several threads, whose appends then take turns. Not across a fork: a child opens its
    own, and fences its parent's. After an `Unknown` it appends no more: open it again, and send
    what is not known to be there at the same seq.
    """

    def __init__(
        self, client: BlockingLog, appender: BlockingAppender, *, schema: pa.Schema, lanes: Lanes
    ) -> None:
        self._client = client
        self._appender = appender
        self._schema = schema
        self._lanes = lanes
        #: Which lane has the first turn; the same for all instances, as a replay needs it.
        self._first_turn = zlib.crc32(appender.producer.encode())
        # Two appends on their way at once could travel as one group; a replay of either would then
        # not find its own.
        self._lock = threading.Lock()
        self._closed = False

    @property
    def instance(self) -> int:
        """How often this id was opened, this time included."""
        return self._appender.instance

    @property
    def next_seq(self) -> int:
        """Seq of the next append; entries of this producer so far, over all its instances."""
        return self._appender.next_seq

    def append(self, rows: object, seq: int | None = None) -> RowsAppended:
        """Append rows as `Stream.append` does. `seq` says which append this is, for replays.

        Equal to `next_seq` (or None): a new one. Lower: a replay of what was appended at that seq,
        by this process or an earlier one; it must be cut into as many entries (SeqMismatch if not),
        is acknowledged as `duplicate` with its first LSNs, and whatever of it was missing is
        appended. Higher: SeqGap. Raises Unknown for a replay of what has been trimmed: it was
        appended once, continue at `next_seq`.
        """
        with self._lock:
            place = self.next_seq if seq is None else seq
            if place > self.next_seq or place < 0:
                raise SeqGap(
                    f"seq {place} of producer {self._appender.producer}: "
                    f"the next is {self.next_seq}"
                )
            turns = itertools.count(self._first_turn + place)
            groups = make_groups(rows, schema=self._schema, lanes=self._lanes, turns=turns)

            def append(group: Group) -> Appended:
                nonlocal place
                is_new = place >= self.next_seq
                done = self._appender.append(group) if is_new else self._replay(group, place)
                place += len(group)
                return done

            return append_groups(groups, append)

    def _replay(self, group: Group, seq: int) -> Appended:
        """Send a group at a seq that was used: the log compares it with what stands there."""
        body = encode_body(
            producer=self._appender.producer,
            instance=self._appender.instance,
            first_seq=seq,
            entries=group,
        )

        async def send(log: AsyncLog) -> Appended:
            done, _ = await log.call(m.Append((), 0), m.AppendDone, body)
            return Appended(Lsn(done.first_lsn), done.count, done.duplicate)

        return self._client.run(send)

    def close(self) -> None:
        """Wait for what was submitted. The id and its seqs stay known. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._appender.close()
        except Unavailable:
            pass  # the client was closed before, and its producers with it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<producer {self._appender.producer} instance {self.instance} at seq {self.next_seq}>"
        )


def producer_name(stream: str, id: str) -> str:
    """The name under which the log knows a stream's producer: ids of two streams do not meet."""
    if not isinstance(id, str) or not id or not id.isprintable():
        raise BadRequest(f"producer id {id!r}: use one or more printable characters")
    name = f"{stream}{_SEPARATOR}{id}"
    if len(name.encode()) > PRODUCER_BYTES_MAX:
        room = PRODUCER_BYTES_MAX - len(stream) - len(_SEPARATOR)
        raise BadRequest(
            f"producer id {id!r} is too long: stream {stream} has room for {room} bytes"
        )
    return name
