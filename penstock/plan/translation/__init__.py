"""Spark's optimized plan, as a neutral tree, to the IR. Refuses what cannot run, all at once.

registry.py          which function translates which plan node; what such a function may ask
remedies.py          what to do instead of functions that are refused
expressions.py       expressions
sources.py           streams and static rows
rows.py              nodes that look at each row by itself
aggregates.py        aggregations, and the calls of aggregate functions
joins.py             joins, and dropping duplicates
windows.py           window functions
python_functions.py  Python functions and processors
python_groups.py     Python functions over groups
python_calls.py      calls of the user's aggregate functions
table_functions.py   Python UDTFs
whole_results.py     sorting and limits

Spark's quirks live here; from the IR on, nothing remembers Spark. What a node needs beyond its own
fields it asks from its children's output attributes: which columns carry event time, which are
sessions.

Law: translate either returns a plan whose every node has an operator, or notes every reason against
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.refusals import Refusals
from penstock.plan.supply import supply
from penstock.plan.translation import (  # noqa: F401 -- each registers what it translates
    aggregates,
    joins,
    python_functions,
    python_groups,
    rows,
    sources,
    table_functions,
    whole_results,
    windows,
)
from penstock.plan.translation.registry import Judges, Translation
from penstock.plan.tree import PlanTree


@dataclass(frozen=True, slots=True)
class Translated:
    """The IR of a query, and the rows of its static inputs by id."""

    root: n.Node
    #: The names that the user gave to the columns of the result.
    names: tuple[str, ...]
    statics: dict[int, Callable[[], pa.Table]]


def translate(tree: PlanTree, judges: Judges, refusals: Refusals) -> Translated:
    """The IR of the plan; reasons against it go to `refusals`, the caller checks them."""
    translation = Translation(judges, refusals)
    root = supply(translation.node(tree), translation.subqueries, translation.own_times, refusals)
    names = tuple(attribute.name for attribute in tree.output)
    return Translated(root, names, translation.statics)
