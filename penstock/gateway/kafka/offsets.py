"""Offsets: where a record stands, as Kafka's clients count. Pure.

    offset = LSN << 16 | row      of the entry or marker at which the row counts

Law: offsets rise along a partition, need no table, and mean the same at every gateway. They leap
from entry to entry, so a difference of two is no number of records; but who has read all that is
there stands at the end, and has no lag.
"""

from __future__ import annotations

from typing import Final

from penstock.ids import Lsn

ROW_BITS: Final = 16
#: Rows that can count at one place.
ROWS_MAX: Final = 1 << ROW_BITS


def offset_of(lsn: int, row: int = 0) -> int:
    """Behind the last of ROWS_MAX rows is the next place."""
    return (lsn << ROW_BITS) + row


def place_of(offset: int) -> tuple[Lsn, int]:
    return Lsn(offset >> ROW_BITS), offset & (ROWS_MAX - 1)
