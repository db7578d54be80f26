"""Lines of a server's log, on standard error.

Law: a message is one line, whatever it repeats. Further lines, which only a traceback has, are
indented: nobody's text begins a line.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from penstock.plain_text import plain

_INDENT = "  "


class PlainFormatter(logging.Formatter):
    """Everything escaped that is not to be read."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(stack_info)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + plain(line) for line in text.split("\n"))


def log_to_stderr(level: str = "INFO") -> None:
    """From here on, for this process; unless somebody has said before where its log goes."""
    formatter = PlainFormatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
