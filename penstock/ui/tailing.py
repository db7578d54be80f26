"""A stream's rows as they come: filtered, and never more than a person reads.

Laws: of a second's rows at most TAIL_LOOKED_MAX are looked at and TAIL_ROWS_MAX sent; how many came
and how many were left out is said, so that nobody takes it for all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from itertools import islice
from typing import Any

from penstock.errors import PenstockError
from penstock.gateway.problems import problem_of
from penstock.gateway.reading import LoopTail, Piece
from penstock.gateway.replies import problem_event
from penstock.plain_text import plain
from penstock.stream.json_lines import rows_to_json_lines
from penstock.ui.config import (
    TAIL_CHARS_MAX,
    TAIL_LOOKED_MAX,
    TAIL_ROWS_MAX,
    UPDATE_SECONDS,
)


class Gleaning:
    """What is kept of the rows of one second."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted.casefold()
        self.rows: list[dict[str, Any]] = []
        self.came = 0
        self.looked = 0
        self.matched = 0

    def take(self, piece: Piece) -> None:
        self.came += piece.batch.num_rows
        left = TAIL_LOOKED_MAX - self.looked
        if left <= 0 or (not self._wanted and len(self.rows) >= TAIL_ROWS_MAX):
            return
        batch = piece.batch.slice(0, left if self._wanted else TAIL_ROWS_MAX - len(self.rows))
        lines: Iterator[str] = rows_to_json_lines(batch)
        for line in islice(lines, left):
            self.looked += 1
            if self._wanted and self._wanted not in line.casefold():
                continue
            self.matched += 1
            if len(self.rows) < TAIL_ROWS_MAX:
                self.rows.append({"lsn": piece.entry.lsn, "time_ms": piece.entry.time_ms,
                                  "row": _cut(line)})  # fmt: skip

    def event(self) -> bytes:
        told = {
            "rows": self.rows,
            "came": self.came,
            "looked": self.looked if self._wanted else self.came,
            "left_out": (self.matched if self._wanted else self.came) - len(self.rows),
        }
        return f"event: rows\ndata: {json.dumps(told)}\n\n".encode()


def _cut(line: str) -> str:
    return plain(line if len(line) <= TAIL_CHARS_MAX else line[: TAIL_CHARS_MAX - 1] + "…")


async def tail_events(tail: LoopTail, wanted: str) -> AsyncGenerator[bytes, None]:
    """One event a second with rows, or with none."""
    loop = asyncio.get_running_loop()
    yield b"retry: 1000\n\n"
    while True:
        gleaning, until = Gleaning(wanted), loop.time() + UPDATE_SECONDS
        while (left := until - loop.time()) > 0:
            try:
                pieces = await tail.next(left)
            except TimeoutError:
                break
            except PenstockError as error:
                yield problem_event(problem_of(error).body())
                return
            for piece in pieces or ():
                gleaning.take(piece)
        yield gleaning.event()
