"""When increments are merged, and how. Pure but for what it is given to read.

Files are merged with those after them in two cases, and only in a background thread, when a
checkpoint is written:

    alike     _FANOUT of the newest files, the new one included, are of one size class or smaller
    overgrown all files after the first are together larger than it

So a chain has about _FANOUT files for each size class, each row is written again once per class,
and a restore reads at most about twice what the state has.

Law (I11): the merge of some increments in a row does what they do in a row; if the first goes on
from nothing, so does the merge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.limits import MIB
from penstock.state.api import Change
from penstock.state.fold import merge_changes, nodes_of, places_of
from penstock.state.keys import VIRTUAL_NODES
from penstock.state.parts import Parts

_FANOUT: Final = 4
#: Files of up to so many bytes are of the smallest class, whatever their size.
_CLASS_BYTES_MIN: Final = 256 * 1024
#: About so many bytes are merged at once: as many virtual nodes as have them.
MERGED_BYTES: Final = 32 * MIB

#: The changes of some virtual nodes, and of the task itself, in order.
Source = Callable[[Collection[int]], Sequence[Change]]


def plan_merge(sizes: Sequence[int]) -> int:
    """Which of the files, oldest first, is the first to be merged with all after it.

    The last one is new, and not written yet; if it is the one, nothing is merged.
    """
    last = len(sizes) - 1
    if last > 0 and sum(sizes[1:]) > sizes[0]:
        return 0
    first = last
    while True:
        biggest, start = _class_of(sum(sizes[first:])), first
        while start > 0 and _class_of(sizes[start - 1]) <= biggest:
            start -= 1
        if first - start + 1 < _FANOUT:  # those that are merged already are one
            return first
        first = start


def _class_of(size: int) -> int:
    found = 0
    while size > _CLASS_BYTES_MIN:
        size //= _FANOUT
        found += 1
    return found


def merge_files(
    sources: Sequence[Source], parts: Parts, total_bytes: int, *, is_whole: bool
) -> Iterator[Change]:
    """The merge of sources in a row, some virtual nodes after the others.

    What is the task's, evictions above all, comes once, before the rows of any virtual node.
    """
    own = [change for source in sources for change in source(())]
    yield from merge_changes(own, parts, is_whole=is_whole)
    groups = min(VIRTUAL_NODES, 1 + total_bytes // MERGED_BYTES)
    step = -(-VIRTUAL_NODES // groups)
    for first in range(0, VIRTUAL_NODES, step):
        nodes = range(first, min(first + step, VIRTUAL_NODES))
        changes = [change for source in sources for change in source(nodes)]
        for change in merge_changes(changes, parts, is_whole=is_whole):
            if change.kind not in ("set", "evict"):
                yield change


def source_of(changes: Sequence[Change], parts: Parts) -> Source:
    """Changes that are here already."""

    def source(nodes: Collection[int]) -> list[Change]:
        found = []
        for change in changes:
            if change.kind in ("set", "evict"):
                found.append(change)
                continue
            own = nodes_of(places_of(parts[change.name], change.rows))
            rows = change.rows.filter(pa.array(np.isin(own, list(nodes))))
            if rows.num_rows:
                found.append(Change(change.name, change.kind, rows))
        return found

    return source
