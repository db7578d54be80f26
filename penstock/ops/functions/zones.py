"""Time zones over NumPy vectors, resolving gaps and overlaps as java.time does.

A zone is a table of offsets and of the instants at which they change. A local time in a gap takes
the offset from before it; one in an overlap takes the earlier offset, unless another is preferred.

Law: UTC and fixed offsets never look anything up. The rules of a region come from `zoneinfo`; the
Gregorian calendar repeats every 400 years, and so do the rules after the last change of law. Two
machines agree on a region as far as their tz databases do, and so do we and a JVM: before 1970 and
after the latest changes of law these can differ.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask
from penstock.ops.functions.civil import (
    MICROS_PER_SECOND,
    SECONDS_PER_DAY,
    join_micros,
    split_micros,
)
from penstock.ops.functions.failures import fail
from penstock.ops.functions.registry import Datum
from penstock.plan.exprs import Call

#: Before this no place had a standard time other than its own; no law reaches beyond the end.
_TABLE_START: Final = int(datetime(1800, 1, 1, tzinfo=UTC).timestamp())
_TABLE_END: Final = int(datetime(2500, 1, 1, tzinfo=UTC).timestamp())
_CYCLE: Final = 146_097 * SECONDS_PER_DAY
#: No zone ever changed its offset twice within three days (Freetown, September 1939: four).
_SAMPLE: Final = 3 * SECONDS_PER_DAY
_OFFSET: Final = re.compile(r"([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?")
#: java.time.ZoneId.SHORT_IDS.
_SHORT_IDS: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}
#: Files beside the zones that are none, or that Java does not have.
_NOT_ZONES: Final = re.compile(r"(posix|right)/.*|posixrules|localtime|Factory|leapseconds|.*\.tab")


class Zone:
    """Offsets in seconds: `offsets[i]` holds before `changes[i]`, the last one after all."""

    def __init__(self, changes: Ints, offsets: Ints) -> None:
        self.is_fixed = len(changes) == 0
        self._offsets = offsets
        self._changes = changes
        before, after = offsets[:-1], offsets[1:]
        # From here on, in local time, the later offset holds; until here only the earlier does.
        self._settled = changes + np.maximum(before, after)
        self._possible = changes + np.minimum(before, after)

    @property
    def is_utc(self) -> bool:
        """Whether local time is UTC."""
        return self.is_fixed and self._offsets[0] == 0

    def offsets_at(self, seconds: Ints) -> Ints:
        """The offset at each second since 1970 UTC."""
        if self.is_fixed:
            return self._offsets
        places = np.searchsorted(self._changes, _fold(seconds), side="right")
        return self._offsets[places]

    def offsets_of_local(self, seconds: Ints, preferred: Ints | None = None) -> Ints:
        """The offset for each local second; in an overlap the preferred one, if it is possible."""
        if self.is_fixed:
            return self._offsets
        folded = _fold(seconds)
        offsets = self._offsets[np.searchsorted(self._settled, folded, side="right")]
        if preferred is None:
            return offsets
        later = self._offsets[np.searchsorted(self._possible, folded, side="right")]
        return np.where((later < offsets) & (later == preferred), later, offsets)

    def to_local(self, micros: Ints) -> tuple[Ints, Ints]:
        """Local day, and microsecond of that day."""
        days, rest = split_micros(micros)
        if self.is_utc:
            return days, rest
        rest = rest + self.offsets_at(micros // MICROS_PER_SECOND) * MICROS_PER_SECOND
        carry = rest // (SECONDS_PER_DAY * MICROS_PER_SECOND)
        return days + carry, rest - carry * (SECONDS_PER_DAY * MICROS_PER_SECOND)

    def from_local(
        self, days: Ints, rest: Ints, preferred: Ints | None = None
    ) -> tuple[Ints, Mask]:
        """Microseconds since 1970 UTC, and where they do not fit 64 bits."""
        if self.is_utc:
            return join_micros(days, rest)
        seconds = days * SECONDS_PER_DAY + rest // MICROS_PER_SECOND
        offsets = self.offsets_of_local(seconds, preferred)
        return join_micros(days, rest - offsets * MICROS_PER_SECOND)

    def last_from_local(self, days: Ints, rest: Ints) -> tuple[Ints, Mask]:
        """The same, but in an overlap the later moment: from then on local time is never below."""
        if self.is_fixed:
            return self.from_local(days, rest)
        seconds = _fold(days * SECONDS_PER_DAY + rest // MICROS_PER_SECOND)
        earlier = self._offsets[np.searchsorted(self._settled, seconds, side="right")]
        later = self._offsets[np.searchsorted(self._possible, seconds, side="right")]
        return join_micros(days, rest - np.minimum(earlier, later) * MICROS_PER_SECOND)

    def day_starts(self, days: Ints) -> tuple[Ints, Mask]:
        """The first moment of each local day: a gap at midnight is passed, not shifted over."""
        micros, wrong = self.from_local(days, np.zeros_like(days))
        if self.is_fixed:
            return micros, wrong
        places = np.searchsorted(self._possible, _fold(days * SECONDS_PER_DAY), side="right") - 1
        local = _fold(days * SECONDS_PER_DAY)
        near = np.maximum(places, 0)
        is_gap = (
            (places >= 0)
            & (self._offsets[near + 1] > self._offsets[near])
            & (local < self._settled[near])
        )
        shift = self._changes[near] + self._offsets[near] - local
        return micros + np.where(is_gap, shift, 0) * MICROS_PER_SECOND, wrong


def _fold(seconds: Ints) -> Ints:
    """The second of the table at which the same rules hold."""
    beyond = np.maximum(seconds - _TABLE_END + _CYCLE, 0) // _CYCLE
    return seconds - beyond * _CYCLE


UTC_ZONE: Final = Zone(np.empty(0, np.int64), np.zeros(1, np.int64))


@functools.lru_cache(maxsize=1024)
def find_zone(id: str) -> Zone | None:
    """The zone that Spark means by this id, or None."""
    id = re.sub(r"([+-])(\d):", r"\g<1>0\2:", id, count=1)
    id = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", id)
    id = _SHORT_IDS.get(id, id)
    if id in ("Z", "UTC", "GMT", "UT"):
        return UTC_ZONE
    prefixed = re.fullmatch(r"(?:UTC|GMT|UT)?([+-].*)", id)
    if prefixed is not None:
        return _fixed(prefixed[1])
    if _NOT_ZONES.fullmatch(id):
        return None
    try:
        return _region(ZoneInfo(id))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def zone_of(call: Call, type: pa.DataType | None = None) -> Zone:
    """The zone of a call; values of a type without zone are as if in UTC."""
    if type is not None and pa.types.is_timestamp(type) and type.tz is None:
        return UTC_ZONE
    zone = find_zone(str(call.option("timeZoneId")))
    assert zone is not None, "refused by knows_zone"
    return zone


def knows_zone(call: Call) -> str | None:
    """Why the call's zone cannot be used, or None."""
    id = str(call.option("timeZoneId"))
    return None if find_zone(id) is not None else f"{call.function} in the unknown time zone {id}"


def named_zone(id: str) -> Zone:
    """The zone that a row names; fails as Spark does if there is none."""
    zone = find_zone(id)
    if zone is None:
        fail("INVALID_TIMEZONE", f"the timezone {id} is invalid")
    return zone


def zones_named(names: Datum, nulls: Mask | None) -> Iterator[tuple[Zone, Mask]]:
    """Each zone that a row names, with its rows; rows with nulls name none."""
    array = pa.repeat(names, 1) if isinstance(names, pa.Scalar) else names
    codes = array.dictionary_encode()
    places = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for place, name in enumerate(codes.dictionary.to_pylist()):
        rows = places == place if nulls is None else (places == place) & ~nulls
        if rows.any():
            yield named_zone(name), rows


def _fixed(text: str) -> Zone | None:
    match = _OFFSET.fullmatch(text)
    if match is None or (match[3] is not None and len(match[2]) == 1):
        return None
    hours, minutes, seconds = int(match[2]), int(match[3] or 0), int(match[4] or 0)
    total = hours * 3600 + minutes * 60 + seconds
    if total > 18 * 3600 or minutes > 59 or seconds > 59:
        return None
    offset = -total if match[1] == "-" else total
    return Zone(np.empty(0, np.int64), np.array([offset], np.int64))


def _region(info: ZoneInfo) -> Zone:
    """The table of a region, found by looking at every third day."""

    def offset_at(second: int) -> int:
        offset = datetime.fromtimestamp(second, info).utcoffset()
        assert offset is not None
        return offset.days * SECONDS_PER_DAY + offset.seconds

    changes: list[int] = []
    offsets = [offset_at(_TABLE_START)]
    for second in range(_TABLE_START + _SAMPLE, _TABLE_END, _SAMPLE):
        if offset_at(second) != offsets[-1]:
            low, high = second - _SAMPLE, second
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_at(middle) == offsets[-1] else (low, middle)
            changes.append(high)
            offsets.append(offset_at(second))
    return Zone(np.array(changes, np.int64), np.array(offsets, np.int64))
