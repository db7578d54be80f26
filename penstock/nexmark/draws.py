"""Random numbers without a sequence: slot k of event n is a hash of (seed, n, k).

Law: a draw depends on nothing else, so any subset of events, in any order, on any machine, is the
same events. The hash is splitmix64 over the counter 64 n + k + 1. Slots below POOLS belong to
events, those from there on to the string pools; none may reach 63.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_U = np.uint64

HOT_PERSON = 0
COLD_PERSON = 1
HOT_AUCTION = 2
COLD_AUCTION = 3
CATEGORY = 4
PRICE = 5
RESERVE = 6
LENGTH = 7
STATE = 8
CITY = 9
FIRST_NAME = 10
LAST_NAME = 11
#: Four slots, one per group of digits.
CARD = 12
ITEM_NAME = 16
DESCRIPTION = 17
EMAIL = 18
EXTRA_LENGTH = 19
EXTRA_OFFSET = 20
IS_HOT_CHANNEL = 21
HOT_CHANNEL = 22
COLD_CHANNEL = 23
POOLS = 24


def uniform(n: Ints, slot: int, seed: int) -> Floats:
    """In [0, 1), 53 bits."""
    with np.errstate(over="ignore"):
        z = _U(seed) + (n.astype(_U) * _U(64) + _U(slot + 1)) * _U(0x9E3779B97F4A7C15)
        z = (z ^ (z >> _U(30))) * _U(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> _U(27))) * _U(0x94D049BB133111EB)
        z = z ^ (z >> _U(31))
    return (z >> _U(11)).astype(np.float64) * 2.0**-53


def below(bound: int | Ints, n: Ints, slot: int, seed: int) -> Ints:
    """An integer in [0, bound), every one as likely."""
    return (uniform(n, slot, seed) * bound).astype(np.int64)


def price(n: Ints, slot: int, seed: int) -> Ints:
    """Cents, log-uniform from 100 to 100,000,000."""
    return np.floor(10.0 ** (6.0 * uniform(n, slot, seed)) * 100.0 + 0.5).astype(np.int64)
