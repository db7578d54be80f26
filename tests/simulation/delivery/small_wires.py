"""What is on its way between a player and a target, in small worlds.

Owns wires, by number. On the newest connection everything comes in order, both ways. What is left
of earlier ones may come at any time, in any order, or never; all of it knows its *age*: 0 is the
newest connection, and each that is begun makes the others older.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from simulation.delivery.small_player import Order

#: ("hello", term) · ("apply", term, after, upto, rows)
#: ("at", position) · ("ack", position) · ("fenced",) · ("read", start, upto)
Message = tuple[Any, ...]
#: The number of a wire on which nothing is.
IDLE: Final = 0


class Wire(NamedTuple):
    """Between one player and one target."""

    to: tuple[Message, ...] = ()
    back: tuple[Message, ...] = ()
    #: The player's own read for the target: its bounds.
    read: tuple[int, int] | None = None
    #: By age. Sorted.
    late: tuple[tuple[int, Message], ...] = ()


class Wires:
    """All that were met."""

    def __init__(self) -> None:
        self._wires: list[Wire] = []
        self._numbers: dict[Wire, int] = {}
        self._ordered: dict[tuple[int, int, tuple[Order, ...]], int] = {}
        self._pruned: dict[tuple[int, int, int], int] = {}
        assert self._number(Wire()) == IDLE

    def __getitem__(self, number: int) -> Wire:
        return self._wires[number]

    def _number(self, wire: Wire) -> int:
        number = self._numbers.setdefault(wire, len(self._wires))
        if number == len(self._wires):
            self._wires.append(wire)
        return number

    # ---- all return the number of a wire

    def without_message(self, number: int, which: int) -> int:
        to = self._wires[number].to
        return self._number(self._wires[number]._replace(to=(*to[:which], *to[which + 1 :])))

    def with_answer(self, number: int, answer: Message) -> int:
        wire = self._wires[number]
        return self._number(wire._replace(back=(*wire.back, answer)))

    def without_answer(self, number: int) -> int:
        wire = self._wires[number]
        return self._number(wire._replace(back=wire.back[1:]))

    def without_read(self, number: int) -> int:
        return self._number(self._wires[number]._replace(read=None))

    def without_late(self, number: int, which: int) -> int:
        late = self._wires[number].late
        left = (*late[:which], *late[which + 1 :])
        return self._number(self._wires[number]._replace(late=left))

    def ordered(self, number: int, begun: int, orders: tuple[Order, ...]) -> int:
        """What a player has ordered, after which so many connections were begun."""
        key = (number, begun, orders)
        found = self._ordered.get(key)
        if found is None:
            found = self._ordered[key] = self._number(_ordered(self._wires[number], begun, orders))
        return found

    def left_alone(self, number: int) -> int:
        """The player is over: nobody hears answers any more."""
        late = _hung_up(self._wires[number]).late
        sent = tuple(one for one in late if one[1][0] in ("hello", "apply"))
        return self._number(Wire(late=sent))

    def pruned(self, number: int, term: int, floor: int) -> int:
        """Without greetings that change no term, and batches below the floor."""
        key = (number, term, floor)
        found = self._pruned.get(key)
        if found is None:
            wire = self._wires[number]
            late = tuple(
                (age, message)
                for age, message in wire.late
                if not (message[0] == "hello" and message[1] <= term)
                and not (message[0] == "apply" and message[2] < floor)
            )
            found = self._pruned[key] = self._number(wire._replace(late=late))
        return found


def _ordered(wire: Wire, begun: int, orders: tuple[Order, ...]) -> Wire:
    for order in orders:
        if order[0] == "bye":
            wire = _hung_up(wire)
        elif order[0] == "read":
            wire = wire._replace(read=(order[1], order[2]))
        elif order[0] == "hello":
            late = tuple((age + begun, message) for age, message in wire.late)
            wire = wire._replace(to=(*wire.to, order), late=late)
        else:
            wire = wire._replace(to=(*wire.to, order))
    return wire


def _hung_up(wire: Wire) -> Wire:
    """What is on its way is not waited for any more."""
    left = [*wire.to, *wire.back]
    if wire.read is not None:
        left.append(("read", *wire.read))
    late = sorted([*wire.late, *((0, message) for message in left)], key=_order_of)
    return Wire(late=tuple(late))


def _order_of(late: tuple[int, Message]) -> tuple[str, tuple[int, Message]]:
    return late[1][0], late
