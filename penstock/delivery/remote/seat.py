"""Who may speak to a target of a host: one opening at a time has its *seat*. Pure.

Law: the newest opening has it, unless a newer player sits there, or another delivery or shard that
is still connected. Of one delivery, the other shard may have rows to give away: who waits for its
seat tries again. A player that was replaced is told so at once, whatever it is doing; what it sends
later changes nothing (and the target's own position would see to that, too).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import Fenced, PenstockError, Refused, Unavailable


@dataclass(frozen=True, slots=True)
class Seat:
    """One opening of a target by a player."""

    delivery: str
    shard: int
    term: int
    #: The player's number for it.
    connection: int


def check_seat(held: Seat | None, wanted: Seat, *, is_connected: bool) -> None:
    """Raise what keeps an opening from the seat; `is_connected`: who holds it is still there."""
    if held is None:
        return
    is_same = (held.delivery, held.shard) == (wanted.delivery, wanted.shard)
    if is_same and held.term > wanted.term:
        raise Fenced(_newer(held, wanted))
    if not is_same and is_connected:
        problem = (
            f"this target is in use by shard {held.shard} of delivery {held.delivery}: give shard "
            f"{wanted.shard} of delivery {wanted.delivery} another, or stop the other"
        )
        if held.delivery == wanted.delivery:
            raise Unavailable(f"{problem}; it is opened when that one has given its rows away")
        raise Refused(f"{problem} delivery")


def loss_of_seat(held: Seat, wanted: Seat) -> PenstockError:
    """What the one is told whose seat is taken."""
    if held.term < wanted.term:
        return Fenced(_newer(wanted, held))
    return Unavailable("the target was opened again on another connection")


def _newer(newer: Seat, older: Seat) -> str:
    return (
        f"shard {older.shard} of delivery {older.delivery} was opened by the player's instance "
        f"{newer.term}, which is newer than {older.term}"
    )
