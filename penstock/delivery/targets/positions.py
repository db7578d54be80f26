"""A batch and a position: applied if they meet, otherwise answered with what is stored. Pure.

Law (I14): a batch that does not meet the position changes nothing and is no error, whatever its
rows are, unless a newer player was here. Law: a position is of one delivery; one that was made
later under its name, or is of another log, does not take it for its own.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.delivery.api import Batch, Shard
from penstock.errors import Fenced, Refused, Unavailable
from penstock.ids import Lsn
from penstock.plain_text import plain


def apply_once(
    batch: Batch,
    shard: Shard,
    attempt: Callable[[], bool],
    stored: Callable[[], tuple[int, int] | None],
) -> Lsn:
    """The position after an attempt, which says whether it met; `stored`: (position, term)."""
    refusal = None
    try:
        if attempt():
            return batch.upto
    except Refused as error:
        refusal = error
    position = _answer_to_miss(stored(), batch, shard)
    if refusal is not None and position == batch.after:
        raise refusal
    return position


def _answer_to_miss(stored: tuple[int, int] | None, batch: Batch, shard: Shard) -> Lsn:
    if stored is None:
        raise Unavailable(f"the position of {_name(shard)} is gone: the target must be opened anew")
    position, term = stored
    if term > batch.term:
        raise fenced(shard, term, batch.term)
    return Lsn(position)


def fenced(shard: Shard, stored: int, given: int) -> Fenced:
    return Fenced(
        f"{_name(shard)} has a newer player: its target knows term {stored}, this one has {given}"
    )


def anothers(shard: Shard) -> Refused:
    """Its position tells nothing of this delivery's rows, and its rows are none of this one."""
    return Refused(
        f"{_name(shard)}: the position in its target is of another delivery of this name, which "
        "was removed or is of another log; deliver under another name to another table, or empty "
        "this one and delete the row in penstock_positions"
    )


def _name(shard: Shard) -> str:
    return f"shard {shard.index} of delivery {plain(shard.delivery)}"
