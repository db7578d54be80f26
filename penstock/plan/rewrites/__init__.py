"""Rewrites of the IR, one rule per file, applied once each in the order of RULES.

aim.py               what a plan is rewritten for: the output mode, what can be folded in parts
open_keys.py         keys above a join without time bounds never close
fuse_top_n.py        window functions over the best rows, as one operator
choose_emit.py       operators emit changes, or finals
collapse_distinct.py several distinct aggregates as one aggregation
floor_mod.py         the arithmetic of window() as one kernel
close_keys.py        keys that are made of event time close
prune.py             a scan reads only the columns that are used
count_duplicates.py  distinct rows of a changing stream are counted
aggregate_early.py   aggregate before the exchange, where it pays

A rule changes how a plan runs, never what it shows, and refuses nothing: it may be given a plan
against which there are reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.plan.nodes import Node
from penstock.plan.rewrites.aggregate_early import aggregate_early
from penstock.plan.rewrites.aim import Aim
from penstock.plan.rewrites.choose_emit import choose_emit
from penstock.plan.rewrites.close_keys import close_keys
from penstock.plan.rewrites.collapse_distinct import collapse_distinct
from penstock.plan.rewrites.count_duplicates import count_duplicates
from penstock.plan.rewrites.floor_mod import floor_mod
from penstock.plan.rewrites.fuse_top_n import fuse_top_n
from penstock.plan.rewrites.open_keys import open_keys
from penstock.plan.rewrites.prune import prune

#: choose_emit before whatever asks which rows are taken back.
RULES: Final[tuple[Callable[[Node, Aim], Node], ...]] = (
    open_keys,
    fuse_top_n,
    choose_emit,
    collapse_distinct,
    floor_mod,
    close_keys,
    prune,
    count_duplicates,
    aggregate_early,
)


def rewrite(root: Node, aim: Aim) -> Node:
    """The plan after all rules."""
    for rule in RULES:
        root = rule(root, aim)
    return root
