"""Rows of a batch on their way to another process: Arrow messages of a bounded size. Pure.

What was queued in small batches is joined, what is large is cut: so a batch of any number of
commits costs one message and one copy of its rows here, and none where it arrives. Law: joined
again, the parts are the rows, in their order; no part is larger than PART_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from penstock.delivery.messages import Apply, join_rows
from penstock.errors import BadFormat, TooLarge
from penstock.limits import FRAME_BODY_BYTES_MAX, MIB, PAYLOAD_BYTES_MAX
from penstock.log.group_format import Buffer
from penstock.stream.batches import ARRAY_LENGTH_MAX, decode_own, split_batch

#: Below the 4 MiB that gRPC takes unless it is told otherwise.
PART_BYTES_MAX: Final = 2 * MIB
#: One batch: whole commits. Its target holds it in memory, and its player too.
BATCH_BYTES_MAX: Final = 256 * MIB
_NO_ROWS: Final = memoryview(b"")

# A row came in one payload, with others perhaps, so that it fits alone.
assert PAYLOAD_BYTES_MAX < PART_BYTES_MAX
assert PART_BYTES_MAX <= FRAME_BODY_BYTES_MAX // 2


def encode_batch_of(message: Apply) -> list[memoryview]:
    """The parts of a batch, at least one. Raises TooLarge."""
    parts = encode_rows([rows for piece in message.pieces for rows in piece.rows])
    size = sum(map(len, parts))
    if size > BATCH_BYTES_MAX:
        raise TooLarge(
            f"LSN {message.after} to {message.upto - 1} has commits of {size} bytes, and a target "
            f"elsewhere takes {BATCH_BYTES_MAX} at once: let the player itself have this target"
        )
    return parts or [_NO_ROWS]


def encode_rows(batches: Sequence[pa.RecordBatch]) -> list[memoryview]:
    """The parts of some rows; none if there are none."""
    parts: list[memoryview] = []
    for joined in _joined(batches):
        message = _message(joined)
        if len(message) <= PART_BYTES_MAX and joined.num_rows <= ARRAY_LENGTH_MAX:
            parts.append(message)
        else:
            parts += map(_message, split_batch(joined, PART_BYTES_MAX))
    return parts


def _message(rows: pa.RecordBatch) -> memoryview:
    return memoryview(rows.serialize()).cast("B")


def _joined(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As few as there can be without making any much larger than a part."""
    if len(batches) == 1:
        yield from batches
        return
    group: list[pa.RecordBatch] = []
    size = 0
    for rows in batches:
        if group and size + rows.nbytes > PART_BYTES_MAX:
            yield join_rows(group)
            group, size = [], 0
        group.append(rows)
        size += rows.nbytes
    if group:
        yield join_rows(group)


def decode_rows(parts: Iterable[Buffer], empty: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of all parts; `empty` is a batch of the stream without rows. Raises BadFormat."""
    batches = [decode_own(memoryview(part), empty.schema) for part in parts]
    if any(rows.num_rows > ARRAY_LENGTH_MAX for rows in batches):
        raise BadFormat(f"a part with more than {ARRAY_LENGTH_MAX} rows")
    try:
        return join_rows(batches) if batches else empty
    except pa.ArrowException as error:
        raise BadFormat(f"the parts of a batch do not fit together: {error}") from error
