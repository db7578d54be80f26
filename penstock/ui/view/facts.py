"""Facts as they come: anybody's words, who may append to the log, read without trust. Pure.

Law: nothing that a fact holds makes these raise. What is missing, of another kind, or no finite
number is None, or empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.plain_text import plain_line

Facts = Mapping[str, Any]

#: Of a name or a sentence on the page.
TEXT_CHARS_MAX: Final = 300
#: Of things of one kind: tasks of a query, streams of a log.
THINGS_MAX: Final = 2_000


def sub(facts: object, *names: str) -> Facts:
    """What stands below these names, if it is an object."""
    found = facts
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def things(facts: object, name: str) -> list[Facts]:
    """The objects of a list."""
    found = facts.get(name) if isinstance(facts, Mapping) else None
    if not isinstance(found, list):
        return []
    return [one for one in found if isinstance(one, Mapping)][:THINGS_MAX]


def named(facts: object, *names: str) -> Iterator[tuple[str, Facts]]:
    """The objects of an object, with their names."""
    for number, (name, one) in enumerate(sub(facts, *names).items()):
        if number >= THINGS_MAX:
            return
        if isinstance(one, Mapping):
            yield str(name), one


def texts(facts: object, name: str) -> list[str]:
    """The texts of a list, fit to be shown."""
    return [shown(one) for one in keys(facts, name)]


def flag(facts: object, name: str) -> bool | None:
    """Yes or no."""
    found = facts.get(name) if isinstance(facts, Mapping) else None
    return found if isinstance(found, bool) else None


def keys(facts: object, name: str) -> list[str]:
    """The texts of a list as they are, to look things up by."""
    found = facts.get(name) if isinstance(facts, Mapping) else None
    if not isinstance(found, list):
        return []
    return [one for one in found[:THINGS_MAX] if isinstance(one, str)]


def number(facts: object, *names: str) -> float | int | None:
    """A finite number; truth is none."""
    found = facts
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return finite(found)


def finite(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if abs(value) < 2**63 else None


def text(facts: object, name: str) -> str | None:
    """Fit to be shown."""
    found = facts.get(name) if isinstance(facts, Mapping) else None
    return shown(found) if isinstance(found, str) else None


def shown(value: str) -> str:
    """On one line, with everything escaped that is not to be read, and not without end."""
    line = plain_line(value[: 2 * TEXT_CHARS_MAX])
    return line if len(line) <= TEXT_CHARS_MAX else line[: TEXT_CHARS_MAX - 1] + "…"
