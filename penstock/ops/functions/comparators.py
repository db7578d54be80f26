"""array_sort by a comparator: the arrays of all rows are sorted side by side.

Each array is sorted by a routine that stops where it must know how two elements compare. In each
round the lambda is evaluated once, over the one question of every array that is not done yet. The
questions are those of Java's sort up to 31 elements, so that a comparator that contradicts itself,
or fails, gives what it gives in Spark. Longer arrays are merged from such pieces; that is the same
for every comparator that is an order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Ints
from penstock.ops.functions.lists import Lists

#: Yields pairs of places in an array, is sent how they compare, and returns the sorted places.
_Sort: TypeAlias = Generator[tuple[int, int], int, list[int]]
#: How elements compare: (rows, left, right), as places among all elements, to signs.
Compare: TypeAlias = Callable[[Ints, Ints, Ints], Ints]

#: Java sorts fewer elements than this by insertion.
_PIECE: Final = 32


def sort_by(lists: Lists, compare: Compare) -> Lists:
    """The arrays sorted; `compare` answers negative, zero or positive."""
    order = np.arange(len(lists.elements))
    rows = np.flatnonzero(lists.lengths > 1)
    begins = lists.offsets[rows].tolist()
    lengths = lists.lengths[rows].tolist()
    open_sorts = {
        row: (begin, _sort(list(range(length))))
        for row, begin, length in zip(rows.tolist(), begins, lengths, strict=True)
    }
    asked = {row: next(sort) for row, (_, sort) in open_sorts.items()}
    while asked:
        of_rows = np.fromiter(asked, np.int64, len(asked))
        places = np.array(
            [(open_sorts[row][0] + a, open_sorts[row][0] + b) for row, (a, b) in asked.items()]
        )
        answers = compare(of_rows, places[:, 0], places[:, 1]).tolist()
        for row, answer in zip(list(asked), answers, strict=True):
            begin, sort = open_sorts[row]
            try:
                asked[row] = sort.send(answer)
            except StopIteration as done:
                del asked[row]
                order[begin : begin + len(done.value)] = begin + np.array(done.value)
    return Lists(lists.offsets, lists.elements.take(pa.array(order)), lists.valid)


def _sort(places: list[int]) -> _Sort:
    if len(places) < _PIECE:
        return (yield from _insert(places))
    middle = len(places) // 2
    left = yield from _sort(places[:middle])
    right = yield from _sort(places[middle:])
    merged: list[int] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if (yield right[j], left[i]) < 0:
            merged.append(right[j])
            j += 1
        else:
            merged.append(left[i])
            i += 1
    return merged + left[i:] + right[j:]


def _insert(places: list[int]) -> _Sort:
    """Java's binary insertion sort, behind the run with which the array begins."""
    if len(places) < 2:
        return places
    end = 2
    if (yield places[1], places[0]) < 0:
        while end < len(places) and (yield places[end], places[end - 1]) < 0:
            end += 1
        places[:end] = places[:end][::-1]
    else:
        while end < len(places) and (yield places[end], places[end - 1]) >= 0:
            end += 1
    for start in range(end, len(places)):
        pivot, low, high = places[start], 0, start
        while low < high:
            middle = (low + high) >> 1
            if (yield pivot, places[middle]) < 0:
                high = middle
            else:
                low = middle + 1
        places[low : start + 1] = [pivot, *places[low:start]]
    return places
