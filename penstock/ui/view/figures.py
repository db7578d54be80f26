"""Figures of the page: a text for people, the value behind it, and where that stands in the facts.

Pure. Law: what is not known is "n/a" and the value null, never 0; the text is made of the value and
of nothing else.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from penstock.cli.output import bytes_text
from penstock.ui.view.facts import Facts, finite, number, shown

UNKNOWN: Final = "n/a"
#: [text, value, where]: `where` is a path in `penstock query status --json`, or empty.
Figure = list[Any]


def unknown(where: str = "") -> Figure:
    return [UNKNOWN, None, where]


def count(value: object, where: str = "", *, more: bool = False) -> Figure:
    """A whole number of things; `more`: there are more than were counted."""
    found = finite(value)
    if found is None:
        return unknown(where)
    return [f"{found:,.0f}{'+' if more else ''}", found, where]


def rate(value: object, where: str = "", *, of: str = "rows") -> Figure:
    found = finite(value)
    if found is None:
        return unknown(where)
    text = f"{found:,.1f}" if abs(found) < 10 and found != int(found) else f"{found:,.0f}"
    return [f"{text} {of}/s", found, where]


def span(ms: object, where: str = "") -> Figure:
    """So many milliseconds."""
    found = finite(ms)
    return unknown(where) if found is None else [span_text(found), found, where]


def seconds(value: object, where: str = "") -> Figure:
    found = finite(value)
    return unknown(where) if found is None else [span_text(found * 1000), found, where]


def span_text(ms: float) -> str:
    if abs(ms) < 100:
        return f"{ms:.1f} ms"
    if abs(ms) < 1_000:
        return f"{ms:.0f} ms"
    if abs(ms) < 100_000:
        return f"{ms / 1000:.1f} s"
    if abs(ms) < 600_000:
        return _two(ms / 1000, 60, "min", "s")
    if abs(ms) < 7_200_000:
        return f"{ms / 60_000:.0f} min"
    if abs(ms) < 172_800_000:
        return _two(ms / 60_000, 60, "h", "min")
    return f"{ms / 86_400_000:,.0f} days"


def _two(small: float, of: int, large_unit: str, small_unit: str) -> str:
    large, rest = divmod(round(abs(small)), of)
    return f"{'-' if small < 0 else ''}{large} {large_unit} {rest} {small_unit}"


def size(value: object, where: str = "") -> Figure:
    found = finite(value)
    return unknown(where) if found is None else [bytes_text(int(found)), found, where]


def share(value: object, where: str = "") -> Figure:
    """A part of one, as a percentage."""
    found = finite(value)
    return unknown(where) if found is None else [f"{100 * found:.0f} %", found, where]


def words(value: object, where: str = "") -> Figure:
    """A text as it is."""
    return [shown(value), value, where] if isinstance(value, str) else unknown(where)


def ago(at_ms: object, now_ms: float, where: str = "") -> Figure:
    """A moment of this machine's clock, or another's: never in the future."""
    found = finite(at_ms)
    if found is None:
        return unknown(where)
    return [f"{span_text(max(now_ms - found, 0))} ago", found, where]


def age(moment: object, now_ms: float, where: str = "") -> Figure:
    """The same of a moment that is written out."""
    at_ms = moment_ms(moment)
    if at_ms is None:
        return unknown(where)
    return [f"{span_text(max(now_ms - at_ms, 0))} ago", moment, where]


def event_time(moment: object, now_ms: float, where: str = "") -> Figure:
    """A watermark: rows may bring times that are ahead of every clock."""
    at_ms = moment_ms(moment)
    if at_ms is None or at_ms <= now_ms:
        return age(moment, now_ms, where)
    return [f"{span_text(at_ms - now_ms)} ahead", moment, where]


def moment_ms(moment: object) -> float | None:
    if not isinstance(moment, str):
        return None
    try:
        return datetime.fromisoformat(moment).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        return None


def lag_rows(lag: Facts, where: str) -> Figure:
    more = lag.get("isLowerBound") is True
    return count(number(lag, "records"), where and f"{where}.records", more=more)


def lag_seconds(lag: Facts, where: str) -> Figure:
    return seconds(number(lag, "seconds"), where and f"{where}.seconds")
