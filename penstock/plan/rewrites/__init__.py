"""Rewrites of the IR, one rule per file, applied once each in the order of RULES.

collapse_distinct.py several distinct aggregates as one aggregation
floor_mod.py         the arithmetic of window() as one kernel
prune.py             a scan reads only the columns that are used
count_duplicates.py  distinct rows of a changing stream are counted
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.plan.nodes import Node
from penstock.plan.rewrites.collapse_distinct import collapse_distinct
from penstock.plan.rewrites.count_duplicates import count_duplicates
from penstock.plan.rewrites.floor_mod import floor_mod
from penstock.plan.rewrites.prune import prune

RULES: tuple[Callable[[Node], Node], ...] = (collapse_distinct, floor_mod, prune, count_duplicates)


def rewrite(root: Node) -> Node:
    """The plan after all rules."""
    for rule in RULES:
        root = rule(root)
    return root
