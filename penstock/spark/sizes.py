"""Sizes as users give them. Pure."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadRequest

#: More than 18 digits are no size of anything.
_SIZE: Final = re.compile(r"(\d{1,18}) ?(?:([kmgt])i?)?b?")
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def read_size(name: str, size: int | str) -> int:
    """A size as Spark's settings have it: "256m" are 256 MiB."""
    found = _SIZE.fullmatch(str(size).strip().lower()) if type(size) in (int, str) else None
    if found is None or not int(found[1]):
        raise BadRequest(f'{name}={size!r}: give a number of bytes, or a size such as "256m"')
    return int(found[1]) << _SHIFTS[found[2] or ""]
