"""Entries into groups: in order, and as few groups as one pass from the front gives. Pure.

Owns what fits into a group, for everybody who has more to append than one: rows of a producer, the
rows that a Spark task stages, a commit of a query's task.
Law: every group can be appended, by a producer of whatever name, with one small entry more: a key
that is set in the same step, or a marker (`fits` is asked whether that is small enough).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.limits import (
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GROUP_TAGS_MAX,
    KEY_BYTES_MAX,
    KIB,
    PRODUCER_BYTES_MAX,
)
from penstock.log.group_format import BODY_HEADER_BYTES
from penstock.log.records import NewEntry

#: What an entry takes in a group beyond its payload and tags, at most.
ENTRY_OVERHEAD_BYTES: Final = 64
#: The headroom: header, producer's name, and a key with a short value.
HEADROOM_BYTES: Final = 4 * KIB
GROUP_BYTES: Final = GROUP_BYTES_MAX - HEADROOM_BYTES
GROUP_ENTRIES: Final = GROUP_ENTRIES_MAX - 1
#: The tags of what is added later are among the others, or these.
GROUP_TAGS: Final = GROUP_TAGS_MAX - 64

assert (
    BODY_HEADER_BYTES + PRODUCER_BYTES_MAX + ENTRY_OVERHEAD_BYTES + 4 * (KEY_BYTES_MAX + 4) + KIB
    <= HEADROOM_BYTES
)


def group_bytes(entries: Sequence[NewEntry]) -> int:
    """Upper estimate of the encoded size."""
    size = 0
    for entry in entries:
        size += len(entry.payload) + ENTRY_OVERHEAD_BYTES
        for tag in entry.tags:
            size += 4 * len(tag) + 4
    return size


def fits(entries: Sequence[NewEntry], last: NewEntry) -> bool:
    """Whether the entries, and one that is added last, make one group."""
    if len(entries) > GROUP_ENTRIES or group_bytes([*entries, last]) > GROUP_BYTES:
        return False
    # Few have so many tags that it must be asked how many are different.
    return (
        sum(len(entry.tags) for entry in entries) <= GROUP_TAGS
        or len({tag for entry in entries for tag in entry.tags}) <= GROUP_TAGS
    )


def pack(entries: Iterable[NewEntry]) -> Iterator[list[NewEntry]]:
    """The groups, each as soon as it is full. An entry that fits nowhere is a group of its own."""
    group: list[NewEntry] = []
    size = 0
    tags: set[str] = set()
    for entry in entries:
        more = group_bytes([entry])
        tags.update(entry.tags)
        is_full = size + more > GROUP_BYTES or len(group) == GROUP_ENTRIES or len(tags) > GROUP_TAGS
        if group and is_full:
            yield group
            group, size, tags = [], 0, set(entry.tags)
        group.append(entry)
        size += more
    if group:
        yield group
