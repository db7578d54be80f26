"""Sets of blocks as ranges: what belongs to a node, what it lacks, how much that is.

Law: a set is a list of ranges [first, end); `union` makes them ascending, so that no two touch.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Blocks [first, end).
Range = tuple[int, int]


def union(ranges: Sequence[Range]) -> list[Range]:
    """The same blocks as ascending ranges that do not touch."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def subtract(ranges: Sequence[Range], less: Sequence[Range]) -> list[Range]:
    """The blocks of `ranges` that are not in `less`."""
    found: list[Range] = []
    cuts = union(less)
    at = 0
    for first, end in union(ranges):
        while at < len(cuts) and cuts[at][1] <= first:
            at += 1
        here = at
        while here < len(cuts) and cuts[here][0] < end:
            if cuts[here][0] > first:
                found.append((first, cuts[here][0]))
            first = max(first, cuts[here][1])
            here += 1
        if first < end:
            found.append((first, end))
    return found


def count(ranges: Sequence[Range]) -> int:
    return sum(end - first for first, end in ranges)


def owed(bounds: Range, place: int, size: int, write_quorum: int) -> list[Range]:
    """The blocks in `bounds` whose write set has the node at `place`: see quorum.write_set."""
    first, end = bounds
    if first >= end:
        return []
    if write_quorum == size:
        return [bounds]
    # Block b goes to the places b .. b + write_quorum - 1, so that a place has the blocks
    # place - write_quorum + 1 .. place, and the same again every `size` blocks.
    start = place - write_quorum + 1
    start += (first - start) // size * size
    found = []
    while start < end:
        low, high = max(start, first), min(start + write_quorum, end)
        if low < high:
            found.append((low, high))
        start += size
    return found
