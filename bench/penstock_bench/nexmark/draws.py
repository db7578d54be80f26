"""Random numbers without a sequence: slot k of event n is a hash of (seed, n, k).

Law: a draw depends on nothing else, so any subset of events, in any order, on any machine, is the
same events. The hash is splitmix64 over the counter 64 n + k + 1. Slots below POOLS belong to
events, those from there on to the string pools; none may reach 63.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_U = np.uint64

HOT_PERSON, COLD_PERSON, HOT_AUCTION, COLD_AUCTION, CATEGORY, PRICE = range(6)
RESERVE, LENGTH, STATE, CITY, FIRST_NAME, LAST_NAME = range(6, 12)
#: Four slots, one per group of digits.
CARD = 12
ITEM_NAME, DESCRIPTION, EMAIL, EXTRA_LENGTH, EXTRA_OFFSET = range(16, 21)
IS_HOT_CHANNEL, HOT_CHANNEL, COLD_CHANNEL, POOLS = range(21, 25)


#: Events whose draws are made in one go: few enough that all of their slots stay in the cache.
_EVENTS_AT_ONCE = 2048
_GOLDEN = _U(0x9E3779B97F4A7C15)


class Draws:
    """Draws of some slots of some events. All slots in one go: small batches are mostly calls."""

    def __init__(self, n: Ints, slots: Sequence[int], seed: int) -> None:
        self._row = {slot: row for row, slot in enumerate(slots)}
        #: In [0, 1), 53 bits; a row per slot.
        self._drawn: Floats = np.empty((len(slots), len(n)))
        with np.errstate(over="ignore"):
            of_slot = (np.array(slots, _U) + _U(1)) * _GOLDEN + _U(seed)
            of_event = n.astype(_U) * (_U(64) * _GOLDEN)
        for start in range(0, len(n), _EVENTS_AT_ONCE):
            part = slice(start, start + _EVENTS_AT_ONCE)
            mixed = _mix(np.add.outer(of_slot, of_event[part]))
            np.multiply(mixed, 2.0**-53, out=self._drawn[:, part])

    def below(self, bound: int | Ints, slot: int) -> Ints:
        """An integer in [0, bound), every one as likely."""
        return (self._drawn[self._row[slot]] * bound).astype(np.int64)

    def price(self, slot: int) -> Ints:
        """Cents, log-uniform from 100 to 100,000,000."""
        drawn = self._drawn[self._row[slot]]
        return np.floor(10.0 ** (6.0 * drawn) * 100.0 + 0.5).astype(np.int64)


def below(bound: int | Ints, n: Ints, slot: int, seed: int) -> Ints:
    """Draws of one slot: an integer in [0, bound), every one as likely."""
    return Draws(n, [slot], seed).below(bound, slot)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's last steps, in place; the upper 53 bits."""
    shifted = z >> _U(30)
    z ^= shifted
    z *= _U(0xBF58476D1CE4E5B9)
    np.right_shift(z, _U(27), out=shifted)
    z ^= shifted
    z *= _U(0x94D049BB133111EB)
    np.right_shift(z, _U(31), out=shifted)
    z ^= shifted
    z >>= _U(11)
    return z
