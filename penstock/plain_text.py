"""Text that is safe to show: what is not to be read is escaped.

Law: whatever a text holds, it never drives the terminal that shows it, nor looks like a line of
ours. What comes from a log, a worker or a server is anybody's who may append or connect.
"""

from __future__ import annotations

import re
from typing import Final

#: C1, DEL; what turns the direction of writing; further ends of lines; halves of characters.
_BEYOND_C0: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL: Final = re.compile(f"[\x00-\x1f{_BEYOND_C0}]")
#: JSON has escaped C0 by itself, and uses the end of a line between values.
_CONTROL_IN_JSON: Final = re.compile(f"[{_BEYOND_C0}]")
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def plain(text: str, *, lines: bool = False) -> str:
    """The text with everything escaped that is not to be read; `lines`: it may have many."""
    if lines:
        return "\n".join(map(plain, text.split("\n")))
    return _CONTROL.sub(_escape, text)


def plain_line(text: str) -> str:
    """The same on one line, whatever it had."""
    return plain(" ".join(text.split()))


def plain_json(text: str) -> str:
    """JSON that says the same, and nothing to a terminal."""
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
