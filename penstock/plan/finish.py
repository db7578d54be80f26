"""Sorting and limits: the part of a plan that only a whole result can show.

A stream has no first row, so a sorted or limited result exists only where all of it is at hand: in
a complete-mode sink, which evaluates this part anew whenever it is read.
"""

from __future__ import annotations

from penstock.plan import nodes as n


def split_finish(root: n.Node) -> tuple[n.Node, tuple[n.Node, ...]]:
    """What runs as a stream, and the nodes that the sink then applies to its result, in order."""
    chain: list[n.Node] = []
    node = root
    while isinstance(node, n.Project | n.Filter | n.Sort | n.Limit):
        chain.append(node)
        node = node.child
    while chain and not isinstance(chain[-1], n.Sort | n.Limit):
        node = chain.pop()
    return node, tuple(reversed(chain))


def needs_whole_result(node: n.Node) -> str | None:
    """The first sort or limit of a plan that is to run as a stream, by name."""
    names = (type(part).__name__ for part in node.walk() if isinstance(part, n.Sort | n.Limit))
    return next(names, None)
