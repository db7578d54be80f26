"""Where window functions look: partitions, peers and frames, as positions in sorted rows.

Everything here is about positions; what stands there is window_calls.py's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from penstock.ops.aggregates.api import Accumulator, Buffers
from penstock.ops.ordering import Ints, differs_from_previous
from penstock.plan.nodes import WindowCall

#: Rows that a frame holds, summed over the frames that are folded at once: bounds memory.
_FOLDED_MAX = 1 << 20
#: As many are folded row by row: fewer calls than any other way takes.
_FOLDED_SHORT = 1 << 12


class Partitions:
    """Sorted rows, row by row: ranges [start, end) of its partition and of its peers."""

    def __init__(self, groups: Ints, keys: Sequence[Ints]) -> None:
        self._groups = groups
        self._keys = keys
        self.start, self.end, _ = _runs(differs_from_previous([groups], len(groups)))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def peer_start(self) -> Ints:
        return self._peers[0]

    @property
    def peer_end(self) -> Ints:
        return self._peers[1]

    @property
    def peers(self) -> Ints:
        """The number of the row's run of peers, counted over all partitions."""
        return self._peers[2]

    @cached_property
    def _peers(self) -> tuple[Ints, Ints, Ints]:
        keys = [self._groups, *self._keys]
        return _runs(differs_from_previous(keys, len(self)))


def find_partitions(groups: Ints, keys: Sequence[Ints]) -> Partitions:
    """The partitions of rows sorted by group, then by the keys of their order."""
    return Partitions(groups, keys)


def _runs(begins: np.ndarray) -> tuple[Ints, Ints, Ints]:
    """Of rows where a run begins: each row's run as [start, end), and the run's number."""
    firsts = begins.nonzero()[0]
    number = begins.cumsum() - 1
    ends = np.concatenate([firsts[1:], [len(begins)]])
    return firsts[number], ends[number], number


def find_frames(call: WindowCall, parts: Partitions) -> tuple[Ints, Ints]:
    """Each row's frame as [low, high); empty frames have low == high. Ranges are of peers here."""
    rows = np.arange(len(parts))
    if call.frame == "range":
        low = parts.start if call.lower is None else parts.peer_start
        high = parts.end if call.upper is None else parts.peer_end
        return low, high
    low, high = parts.start, parts.end
    if call.lower is not None:
        low = np.clip(rows + int(call.lower), parts.start, parts.end)
    if call.upper is not None:
        high = np.clip(rows + int(call.upper) + 1, parts.start, parts.end)
    return low, np.maximum(low, high)


def fold_frames(
    accumulator: Accumulator, each: Buffers, low: Ints, high: Ints, start: Ints
) -> Buffers:
    """The buffers of every frame; `each` has the buffer of every row."""
    if accumulator.adds:
        return [_add_frames(part, low, high) for part in each]
    if int((high - low).sum()) <= _FOLDED_SHORT:
        return _fold_each(accumulator, each, low, high)
    if accumulator.exact:
        return _fold_blocks(accumulator, each, low, high)
    # Floating point numbers are added from left to right only, as Spark adds them.
    if (low == start).all():
        return _fold_growing(accumulator, each, high, start)
    return _fold_each(accumulator, each, low, high)


def _add_frames(values: Ints, low: Ints, high: Ints) -> Ints:
    """Sums of every frame; they wrap around as often before a frame as behind it."""
    sums = np.zeros(len(values) + 1, np.int64)
    values.cumsum(out=sums[1:])
    return sums[high] - sums[low]


def _fold_blocks(accumulator: Accumulator, each: Buffers, low: Ints, high: Ints) -> Buffers:
    """Frames as sums of blocks of 1, 2, 4 ... rows, from left to right: n log n merges."""
    rows = len(low)
    lengths = high - low
    folded = _nothing(accumulator, each, rows)
    place = low.copy()
    block, size = each, 1
    own = np.arange(rows)
    longest = int(lengths.max(initial=0))
    while size <= longest:
        wanted = np.flatnonzero(lengths & size)
        if len(wanted):
            taken = _take(block, place[wanted])
            folded = accumulator.merge(_concat(folded, taken), np.concatenate([own, wanted]), rows)
            place[wanted] += size
        if 2 * size <= longest:
            shifted = _take(block, own[size:])
            block = accumulator.merge(
                _concat(block, shifted), np.concatenate([own, own[: rows - size]]), rows
            )
        size *= 2
    return folded


def _fold_growing(accumulator: Accumulator, each: Buffers, high: Ints, start: Ints) -> Buffers:
    """Frames that begin where their partition does: one running buffer per partition."""
    rows = len(start)
    depth = np.arange(rows) - start
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    running = [part.copy() for part in each]
    # Each row continues the row before it, so depth goes step by step; partitions go together.
    for step in range(1, len(bounds) - 1):
        places = by_depth[bounds[step] : bounds[step + 1]]
        together = _concat(_take(running, places - 1), _take(each, places))
        own = np.arange(len(places))
        merged = accumulator.merge(together, np.concatenate([own, own]), len(places))
        for column, values in zip(running, merged, strict=True):
            column[places] = values
    folded = _nothing(accumulator, each, rows)
    filled = np.flatnonzero(high > start)
    for column, values in zip(folded, running, strict=True):
        column[filled] = values[high[filled] - 1]
    return folded


def _fold_each(accumulator: Accumulator, each: Buffers, low: Ints, high: Ints) -> Buffers:
    """Frames one by one, as many at once as memory allows."""
    parts = [
        accumulator.merge(_take(each, places), owner, count)
        for places, owner, count in unfold(low, high)
    ]
    if not parts:
        return _nothing(accumulator, each, 0)
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def unfold(low: Ints, high: Ints) -> Iterator[tuple[Ints, Ints, int]]:
    """The rows of every frame, in pieces: positions, the frame of each, the number of frames."""
    lengths = high - low
    total = np.cumsum(lengths)
    first = 0
    while first < len(low):
        done = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, done + _FOLDED_MAX, "right")))
        sizes = lengths[first:last]
        owner = np.repeat(np.arange(last - first), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        yield np.repeat(low[first:last], sizes) + within, owner, last - first
        first = last


def _nothing(accumulator: Accumulator, like: Buffers, rows: int) -> Buffers:
    """The buffers of frames without rows."""
    none = np.zeros(0, np.int64)
    return accumulator.merge([part[:0] for part in like], none, rows)


def _take(buffers: Buffers, places: Ints) -> Buffers:
    return [part[places] for part in buffers]


def _concat(first: Buffers, second: Buffers) -> Buffers:
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]
