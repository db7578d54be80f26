"""After the query: somebody trims who knows nothing of commits, and a newcomer reads what is left.

Owns where is trimmed: most often between staged rows of the result and the marker that names them.
Law: the newcomer, who begins at the "earliest" of stream/earliest.py, is never told Trimmed. It is
shown all that counts at or after the last commit that has lost rows, whole, and nothing else; and
it is told how many commits and entries those have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import Marked, is_named, read_entries
from penstock.protocol.markers import Marker, decode_marker
from penstock.stream import earliest
from penstock.stream.earliest import Earliest
from penstock.stream.registration import stream_tag
from simulation.checkers.evidence import Violation

#: Where rows count, and their payload.
Shown = list[tuple[Lsn, bytes]]

_TRIMS = 3
#: Every trim is judged by all markers that ever were.
_decode_marker = lru_cache(maxsize=4096)(decode_marker)


async def trim_and_read(
    log: AsyncLog,
    entries: Sequence[Entry],
    stream: str,
    random: Random,
    count: Callable[[str], None],
) -> None:
    """`entries`: all that the log ever held."""
    for _ in range(_TRIMS):
        point = (await log.bounds()).trim_point
        point = await log.trim(_choose(entries, stream, point, random))
        try:
            found = await earliest.find_earliest(log, [stream], Lsn(0))
            shown = await _read(log, stream, found.lsn)
        except Trimmed as error:
            raise Violation("earliest", f"trimmed to {point}, nobody can read {stream}") from error
        _check(entries, stream, point, found, shown)
        count("trimmed by hand")
        if found.commits:
            count("commit cut by a trim")


def _choose(entries: Sequence[Entry], stream: str, trim_point: int, random: Random) -> int:
    cuts = [
        random.randint(named.first_lsn + 1, entry.lsn)
        for entry, marker in _markers(entries, stream)
        for named in marker.ranges
        if named.first_lsn >= trim_point
    ]
    # Not far: the next trim is to find something, too.
    return random.choice(sorted(cuts)[:20]) if cuts else random.randint(trim_point, len(entries))


def _markers(entries: Sequence[Entry], stream: str) -> list[tuple[Entry, Marker]]:
    tag = stream_tag(stream)
    found = [entry for entry in entries if entry.kind is Kind.MARKER and tag in entry.tags]
    return [(entry, _decode_marker(entry.payload)) for entry in found]


async def _read(log: AsyncLog, stream: str, start: Lsn) -> Shown:
    """As stream/tail.py does, up to the tail."""
    tags = [stream_tag(stream)]
    committed = read_entries(start)
    shown: Shown = []
    async with log.tail(tags, start=start, end=(await log.bounds()).tail) as reader:
        async for batch in reader:
            for entry in batch.entries:
                counted = committed.take(entry)
                if isinstance(counted, Marked):
                    for named in counted.missing:
                        fetched = await log.read(tags, start=named.first_lsn, end=named.end)
                        counted.supply(named, fetched)
                    shown += [(entry.lsn, one.payload) for one in counted.entries]
                elif counted is not None:
                    shown.append((entry.lsn, counted.payload))
    return shown


def _check(
    entries: Sequence[Entry], stream: str, point: Lsn, found: Earliest, shown: Shown
) -> None:
    tag = stream_tag(stream)
    first, commits, lost = point, 0, 0
    for entry, marker in _markers(entries, stream):
        lsns = [lsn for named in marker.ranges for lsn in range(named.first_lsn, named.end)]
        gone = sum(lsn < point for lsn in lsns)
        if gone and entry.lsn >= point:
            first, commits, lost = Lsn(entry.lsn + 1), commits + 1, lost + gone
    if found != Earliest(first, point, commits, lost):
        raise Violation("earliest", f"{found}, but {commits} commits lost {lost} up to {first}")
    wanted: Shown = []
    for entry in entries[first:]:
        if tag not in entry.tags:
            continue
        if entry.kind is Kind.DATA:
            wanted.append((entry.lsn, entry.payload))
        elif entry.kind is Kind.MARKER:
            for named in _decode_marker(entry.payload).ranges:
                there = entries[named.first_lsn : named.end]
                wanted += [
                    (entry.lsn, one.payload)
                    for one in there
                    if is_named(one, named) and tag in one.tags
                ]
    if shown != wanted:
        raise Violation("earliest", f"from {first} on {len(shown)} are shown of {len(wanted)}")
