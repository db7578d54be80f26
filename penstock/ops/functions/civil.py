"""The proleptic Gregorian calendar over NumPy vectors: days since 1970-01-01 and what they mean.

Exact for every day that 32 bits can number, and for every microsecond that 64 bits can: years far
outside of 0001..9999, which Spark computes with too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ops.functions.alignment import Ints, Mask

MICROS_PER_SECOND: Final = 1_000_000
MICROS_PER_MINUTE: Final = 60 * MICROS_PER_SECOND
MICROS_PER_HOUR: Final = 60 * MICROS_PER_MINUTE
SECONDS_PER_DAY: Final = 86_400
MICROS_PER_DAY: Final = SECONDS_PER_DAY * MICROS_PER_SECOND
#: The first and last microseconds of 64 bits as day and microsecond of the day.
_FIRST: Final = divmod(-(2**63), MICROS_PER_DAY)
_LAST: Final = divmod(2**63 - 1, MICROS_PER_DAY)


def split_micros(micros: Ints) -> tuple[Ints, Ints]:
    """Day, and microsecond of the day."""
    days = micros // MICROS_PER_DAY
    return days, micros - days * MICROS_PER_DAY


def join_micros(days: Ints, rest: Ints) -> tuple[Ints, Mask]:
    """Microseconds since 1970, and where they do not fit 64 bits. `rest` may be outside its day."""
    carry = rest // MICROS_PER_DAY
    days, rest = days + carry, rest - carry * MICROS_PER_DAY
    below = (days < _FIRST[0]) | ((days == _FIRST[0]) & (rest < _FIRST[1]))
    above = (days > _LAST[0]) | ((days == _LAST[0]) & (rest > _LAST[1]))
    return days * MICROS_PER_DAY + rest, below | above


def months_of(days: Ints) -> Ints:
    """Months since January 1970."""
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def first_days(months: Ints) -> Ints:
    """The first day of each month since January 1970."""
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def years_of(days: Ints) -> Ints:
    """Proleptic years: the year before 1 is 0."""
    return days.astype("M8[D]").astype("M8[Y]").astype(np.int64) + 1970


def new_years(years: Ints) -> Ints:
    """The first day of each year."""
    return first_days((years - 1970) * 12)


def days_of_month(days: Ints) -> Ints:
    """1..31."""
    return days - first_days(months_of(days)) + 1


def days_of_year(days: Ints) -> Ints:
    """1..366."""
    return days - new_years(years_of(days)) + 1


def weekdays(days: Ints) -> Ints:
    """Monday is 0."""
    return (days + 3) % 7


def month_lengths(months: Ints) -> Ints:
    """The number of days of each month since January 1970."""
    return first_days(months + 1) - first_days(months)


def add_months(days: Ints, months: Ints) -> Ints:
    """The same day of another month, or its last day if it is shorter."""
    start = months_of(days)
    day = days - first_days(start)
    target = start + months
    return first_days(target) + np.minimum(day, month_lengths(target) - 1)


def iso_thursdays(days: Ints) -> Ints:
    """The Thursday of the ISO week: its year is the year of the week."""
    return days - weekdays(days) + 3


def date_of(years: Ints, months: Ints, days: Ints) -> tuple[Ints, Mask]:
    """The day of a year, month and day of month, and where there is no such date."""
    wrong = (months < 1) | (months > 12) | (days < 1) | (np.abs(years) > 999_999_999)
    index = (np.where(wrong, 1970, years) - 1970) * 12 + np.where(wrong, 1, months) - 1
    wrong = wrong | (days > month_lengths(index))
    return first_days(index) + days - 1, wrong
