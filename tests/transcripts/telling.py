"""How a story is told: commands, a line `----`, and the trace that they give, up to an empty line.

Lines that start with `#` are for the reader. PENSTOCK_REWRITE=1 writes the traces anew; the diff is
the review.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def told(text: str, run: Callable[[str], list[str]]) -> str:
    """The story with the traces that its commands give now."""
    result: list[str] = []
    is_trace = False
    pending: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line == "----":
            is_trace = True
            result.append(line)
            for command in pending:
                result += run(command)
            pending = []
        elif not line:
            is_trace = False
            result.append(line)
        elif not is_trace:
            result.append(line)
            pending += [] if line.startswith("#") else [line]
    return "\n".join(result).rstrip("\n") + "\n"


def check_story(path: Path, run: Callable[[str], list[str]]) -> None:
    """The story goes as it is written, or is written anew."""
    text = path.read_text()
    found = told(text, run)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(found)
    else:
        assert found == text
