"""Cut a query into stages, where rows must move to the task that owns their key.

A stage is a piece of the plan that one task runs by itself over its share of the input. It reads
streams of the log and writes one: the result, or a keyed stream in between, whose rows go to
virtual nodes by the hash of their key (state/keys.py). A keyed stream has a fixed number of virtual
nodes; tasks own sets of them.

Law: rows that meet in an operator's state have equal partition hashes, so they meet in one task, no
matter how many tasks there are. An exchange is left out only where rows already sit by a subset of
the keys that are asked for. What is asked for twice by the same keys (sharing.py) is one stage with
several readers, all of which have equally many tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static, kept_static
from penstock.plan.exprs import Column, Expr
from penstock.plan.finish import split_finish
from penstock.plan.sharing import Form, find_core, form_of, put_back


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. `keys` is None for the last one, whose output is the query's result."""

    id: int
    root: n.Node
    keys: tuple[Expr, ...] | None
    #: Whether its output takes rows back.
    changing: bool

    @property
    def inputs(self) -> tuple[n.Scan | n.StageInput, ...]:
        """The leaves that are streams, from left to right."""
        return tuple(node for node in self.root.walk() if isinstance(node, n.Scan | n.StageInput))


@dataclass(frozen=True, slots=True)
class Query:
    """A whole query, ready to run: stages in an order in which each reads only earlier ones."""

    stages: tuple[Stage, ...]
    mode: n.Mode
    schema: pa.Schema
    #: What the sink does with the whole result of the last stage, first things first.
    finish: tuple[n.Node, ...] = ()

    @property
    def streams(self) -> tuple[str, ...]:
        """The source streams that it reads, sorted."""
        names = {leaf.stream for s in self.stages for leaf in s.inputs if isinstance(leaf, n.Scan)}
        return tuple(sorted(names))


def cut(root: n.Node, mode: n.Mode, names: tuple[str, ...]) -> Query:
    """The stages of a plan whose result is written in this mode."""
    streaming, finish = split_finish(root)
    stages = _cut(streaming, shares=True)
    if not _read_alike(stages):
        stages = _cut(streaming, shares=False)
    fields = [field.with_name(name) for field, name in zip(root.schema, names, strict=True)]
    return Query(stages, mode, pa.schema(fields), finish)


def _cut(root: n.Node, *, shares: bool) -> tuple[Stage, ...]:
    cutter = _Cutter(_repeated(root) if shares else None)
    cutter.add(cutter.place(root), None)
    return tuple(cutter.stages)


def _read_alike(stages: tuple[Stage, ...]) -> bool:
    """Whether the readers of a shared stage have equally many tasks, each the same nodes of it.

    A stage that also reads a source may have one task alone (runtime/spec.py).
    """
    readers: dict[int, set[int]] = {}
    for stage in stages:
        for leaf in stage.inputs:
            if isinstance(leaf, n.StageInput):
                readers.setdefault(leaf.stage, set()).add(stage.id)
    both = (id for ids in readers.values() if len(ids) > 1 for id in ids)
    return not any(isinstance(leaf, n.Scan) for id in both for leaf in stages[id].inputs)


def _repeated(root: n.Node) -> list[Form]:
    """The forms of what is asked for by the same keys more than once, projections aside."""
    seen: list[Form] = []
    repeated: list[Form] = []
    for node in root.walk():
        wanted = required_keys(node)
        for child, keys in zip(node.children, wanted or (), strict=False):
            core = None if keys is None else find_core(child, keys)
            if core is not None and required_keys(core[0]) is not None:
                form = form_of(*core)
                (repeated if form in seen else seen).append(form)
    return repeated


class _Cutter:
    def __init__(self, repeated: list[Form] | None) -> None:
        self.stages: list[Stage] = []
        #: None: nothing is shared.
        self._repeated = repeated
        self._forms: list[Form] = []

    def add(self, root: n.Node, keys: tuple[Expr, ...] | None) -> int:
        """The id of the stage that computes this: an equal one that there is, or a new one."""
        form = form_of(root, keys)
        if self._repeated is not None and form in self._forms:
            return self._forms.index(form)
        id = len(self.stages)
        self.stages.append(Stage(id, root, keys, not is_append_only(root)))
        self._forms.append(form)
        return id

    def place(self, node: n.Node) -> n.Node:
        """The node with exchanges below it replaced by inputs from earlier stages."""
        children = tuple(self.place(child) for child in node.children)
        wanted = required_keys(node)
        if wanted is not None:
            exact = len(wanted) > 1  # both sides of a join must be placed by the same rule
            children = tuple(
                self._exchange(child, keys, exact=exact, shared=self._is_repeated(before, keys))
                for before, child, keys in zip(node.children, children, wanted, strict=True)
            )
        return node.with_children(children) if children else node

    def _is_repeated(self, child: n.Node, keys: tuple[Expr, ...] | None) -> bool:
        core = find_core(child, keys) if self._repeated and keys is not None else None
        return core is not None and form_of(*core) in (self._repeated or ())

    def _exchange(
        self, child: n.Node, keys: tuple[Expr, ...] | None, *, exact: bool, shared: bool
    ) -> n.Node:
        if keys is None or _sits_by(child, keys, exact=exact):
            return child
        core = find_core(child, keys) if shared else None
        if core is None:
            return self._read(child, keys)
        # Each reader projects for itself what all of them are sent.
        return put_back(child, core[0], self._read(*core))

    def _read(self, child: n.Node, keys: tuple[Expr, ...]) -> n.StageInput:
        id = self.add(child, keys)
        append_only = not self.stages[id].changing
        return n.StageInput(schema=child.schema, stage=id, keys=keys, append_only=append_only)


def required_keys(node: n.Node) -> tuple[tuple[Expr, ...] | None, ...] | None:
    """Per child, the keys by which its rows must sit; None where that does not matter."""
    match node:
        case n.Aggregate():
            return (tuple(key for key in node.keys if key.name != node.session),)
        case n.Deduplicate():
            return (node.keys,)
        case n.Window() | n.TopN():
            return (node.partition,)
        case n.GroupedMap():
            return node.keys
        case n.GroupedMapWithState():
            return (node.keys,)
        case n.TransformWithState():
            return (node.keys, None) if node.initial is not None else (node.keys,)
        case n.Join():
            kept = kept_static(node)
            if kept is not None:  # its rows are with the owners of their keys
                return (node.left_keys, None) if kept == 1 else (None, node.right_keys)
            if is_static(node.right) or is_static(node.left):
                return (None, None)
            return (node.left_keys, node.right_keys)
        case _:
            return None


def _sits_by(node: n.Node, keys: tuple[Expr, ...], *, exact: bool) -> bool:
    """Whether rows with equal keys are in one task already."""
    have = partitioning(node)
    return have is not None and _covers(have, keys, exact=exact)


def _covers(have: tuple[Expr, ...], keys: tuple[Expr, ...], *, exact: bool) -> bool:
    return have == keys if exact else all(key in keys for key in have)


#: By stream, the columns by which its rows sit.
Placed = Mapping[str, tuple[str, ...]]
_NOWHERE: Final[Placed] = MappingProxyType({})


def sits_where_needed(stage: Stage, placed: Placed, *, exact: bool) -> bool:
    """Whether the rows that a stage hands on are already with the owner of their key.

    `exact`: other rows meet them there, by the same rule.
    """
    if not stage.keys:
        return False
    have = partitioning(stage.root, placed)
    return have is not None and _covers(have, stage.keys, exact=exact)


def partitioning(node: n.Node, placed: Placed = _NOWHERE) -> tuple[Expr, ...] | None:
    """The keys by which the node's rows sit, in the columns of its output; None if unknown."""
    match node:
        case n.Scan():
            return _of_scan(node, placed.get(node.stream, ()))
        case n.StageInput():
            return node.keys
        case n.Filter() | n.Watermark() | n.Deduplicate() | n.Window() | n.TopN() | n.PythonEval():
            return partitioning(node.child, placed)
        case n.Aggregate():
            below = partitioning(node.child, placed)
            return below if below is not None and set(below) <= set(node.keys) else None
        case n.Join():
            return _through_join(node)
        case n.Project():
            return _through_projections(node, (node.exprs,), placed)
        case n.Expand():
            return _through_projections(node, node.projections, placed)
        case _:
            return None


def _of_scan(node: n.Scan, key: tuple[str, ...]) -> tuple[Expr, ...] | None:
    if not key or not set(key) <= set(node.columns):
        return None
    fields = [node.schema.field(node.columns.index(name)) for name in key]
    return tuple(Column(field.name, field.type) for field in fields)


def _through_join(node: n.Join) -> tuple[Expr, ...] | None:
    """A join's rows sit by its keys, seen from a side whose columns are never padded with nulls."""
    if kept_static(node) is not None:
        return None
    if is_static(node.right):
        return partitioning(node.left)
    if is_static(node.left):
        return partitioning(node.right)
    names = set(node.schema.names)
    for keys, kinds in (
        (node.left_keys, ("inner", "left", "semi", "anti")),
        (node.right_keys, ("inner", "right")),
    ):
        if node.kind in kinds and all(isinstance(k, Column) and k.name in names for k in keys):
            return keys
    return None


def _through_projections(
    node: n.Project | n.Expand, projections: tuple[tuple[Expr, ...], ...], placed: Placed
) -> tuple[Expr, ...] | None:
    """A key that every projection hands on in the same column."""
    below = partitioning(node.child, placed)
    if below is None:
        return None
    renamed: list[Expr] = []
    for key in below:
        for column, field in enumerate(node.schema):
            if all(exprs[column] == key for exprs in projections):
                renamed.append(Column(field.name, field.type))
                break
        else:
            return None
    return tuple(renamed)
