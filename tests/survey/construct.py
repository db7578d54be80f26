"""What a construct of the survey is: a name, and a few lines as a user of PySpark writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.plan.nodes import Mode

#: From DataFrames by name (and `spark`) to the DataFrame of the query.
Build: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Construct:
    """One thing that users reach for."""

    name: str
    #: SQL text over the views, or a function over the frames.
    query: str | Build
    mode: Mode = "update"
    #: Why batch Spark's result is no measure for it; empty: results must be equal.
    unlike_batch: str = ""


@dataclass(frozen=True, slots=True)
class Habit:
    """One thing that users do with the API: it works if the function returns."""

    name: str
    #: Given a session with a log at hand (habits.py).
    do: Callable[[Any], None]


Group: TypeAlias = tuple[Construct | Habit, ...]


def expressions(texts: Mapping[str, str]) -> Group:
    """SQL expressions over the columns of `orders`, each by its name."""
    return tuple(Construct(name, f"SELECT id, {e} AS x FROM orders") for name, e in texts.items())


def queries(texts: Mapping[str, str | Build], mode: Mode = "update") -> Group:
    """Whole queries in SQL, or functions over the frames, each by its name."""
    return tuple(Construct(name, query, mode) for name, query in texts.items())
