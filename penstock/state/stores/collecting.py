"""What of an indexed store is garbage, and which data files are to be emptied for it. Pure.

Law: a data file is `empty` only if no entry in it counts. A deletion is `spent` only if no older
file has an entry that does not count: such an entry might be what it deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.state.stores.commit_format import DELETED, DIGEST_BYTES, Entries
from penstock.state.stores.entry_index import EntryIndex, Rows

#: A data file of which less than this share counts is to be emptied.
LIVE_SHARE_MIN: Final = 0.5
#: Deletions that are kept are a burden from here on, if there are as many as half of the keys.
DELETIONS_MIN: Final = 1024


@dataclass(frozen=True, slots=True)
class Census:
    """Of a store whose newest data file is full."""

    #: Entries of the newest data file that count.
    newest: Entries
    #: Older files of which nothing counts.
    empty: frozenset[int]
    #: Rows of deletions that delete nothing any more.
    spent: Rows
    #: Segment and digest of what commits are to take along, in order.
    leaving: list[tuple[int, bytes]]


def take_census(index: EntryIndex, written: Mapping[int, int], newest: int) -> Census:
    """`written`: entries of each data file, without those of spent deletions."""
    rows = index.live()
    entries, segments = index.entries(rows), index.segments(rows)
    counting = dict.fromkeys(written, 0) | count_by_segment(segments)
    empty = frozenset(n for n, count in counting.items() if count == 0 and n != newest)
    dirty = [n for n in sorted(written) if n not in empty and counting[n] < written[n]]
    oldest_dirty = dirty[0] if dirty else newest
    deletions = entries["value"] == DELETED
    spent = deletions & (segments <= oldest_dirty)
    kept = int(np.count_nonzero(deletions & ~spent))
    is_burden = kept > max(DELETIONS_MIN, (len(rows) - kept) // 2)
    victims = _victims(counting, written, newest, empty)
    if is_burden and oldest_dirty != newest:
        victims = [oldest_dirty, *(n for n in victims if n != oldest_dirty)]
    leaving: list[tuple[int, bytes]] = []
    for victim in victims:
        there = entries[~spent & (segments == victim)]
        digests = np.stack([there["low"], there["high"]], axis=1).tobytes()
        ends = range(DIGEST_BYTES, len(digests) + 1, DIGEST_BYTES)
        leaving += [(victim, digests[end - DIGEST_BYTES : end]) for end in ends]
    return Census(entries[segments == newest], empty, rows[spent], leaving)


def count_by_segment(segments: npt.NDArray[np.int32]) -> dict[int, int]:
    """How many rows each segment has that has any."""
    if not len(segments):
        return {}
    first = int(segments.min())
    counts = np.bincount(segments - first).tolist()
    return {first + place: count for place, count in enumerate(counts) if count}


def _victims(
    counting: Mapping[int, int], written: Mapping[int, int], newest: int, empty: frozenset[int]
) -> list[int]:
    """Those of which least counts first."""
    shares = {
        segment: counting[segment] / max(1, written[segment])
        for segment in written
        if segment != newest and segment not in empty
    }
    return sorted((n for n in shares if shares[n] < LIVE_SHARE_MIN), key=lambda n: (shares[n], n))
