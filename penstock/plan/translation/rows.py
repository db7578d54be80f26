"""Nodes that look at each row by itself, and what makes columns of expressions."""

from __future__ import annotations

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr
from penstock.plan.refusals import MICRO_BATCH
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.translation.remedies import remedy_of
from penstock.plan.tree import PlanTree, schema_of


@translates("Project")
def translate_project(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    exprs = translation.exprs(tree.exprs_of("projectList"), tree)
    return project(child, exprs, schema_of(tree.output))


@translates("Filter")
def translate_filter(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    condition = translation.expr(tree.expr_of("condition"), tree)
    return n.Filter(schema=child.schema, child=child, condition=condition)


@translates("Expand")
def translate_expand(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    projections = tree.fields["projections"]
    assert isinstance(projections, tuple)
    exprs = tuple(translation.exprs(projection, tree) for projection in projections)
    return n.Expand(schema=schema_of(tree.output), child=child, projections=exprs)


@translates("Union")
def translate_union(translation: Translation, tree: PlanTree) -> n.Node:
    inputs = tuple(translation.node(child) for child in tree.children)
    return n.Union(schema=schema_of(tree.output), inputs=inputs)


@translates("Generate")
def translate_generate(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    generator = tree.expr_of("generator")
    problem = translation.judges.generator(generator.kind)
    translation.refuse(tree, problem, remedy_of(problem, MICRO_BATCH))
    generated = {expr.column for expr in tree.exprs_of("generatorOutput")}
    # ReplicateRows gives columns again, under their own names: one of each is enough.
    shown = {attribute.column: attribute for attribute in tree.output}
    shown |= {name: shown.pop(name) for name in list(shown) if name in generated}
    return n.Generate(
        schema=schema_of(tuple(shown.values())),
        child=child,
        generator=generator.kind,
        args=translation.exprs(generator.children, tree),
        outer=bool(tree.fields["outer"]),
        kept=tuple(name for name in shown if name not in generated),
    )


@translates("EventTimeWatermark")
def translate_watermark(translation: Translation, tree: PlanTree) -> n.Node:
    child = translation.child(tree)
    column = tree.expr_of("eventTime").column
    return n.Watermark(
        schema=child.schema, child=child, column=column, delay_ms=tree.int_of("delay_ms")
    )


def project(child: n.Node, exprs: tuple[Expr, ...], schema: pa.Schema) -> n.Node:
    """A projection, unless it changes nothing."""
    same = len(exprs) == len(child.schema) and all(
        isinstance(expr, Column) and expr.name == have.name == want.name
        for expr, have, want in zip(exprs, child.schema, schema, strict=True)
    )
    return child if same else n.Project(schema=schema, child=child, exprs=exprs)


def as_columns(
    child: n.Node, exprs: tuple[Expr, ...], prefix: str
) -> tuple[n.Node, tuple[Column, ...]]:
    """The child with a column more for every expression that is none, and all as columns."""
    columns: list[Column] = []
    for position, expr in enumerate(exprs):
        if not isinstance(expr, Column):
            child, expr = _append_column(child, f"{prefix}#key{position}", expr)
        columns.append(expr)
    return child, tuple(columns)


def _append_column(child: n.Node, name: str, expr: Expr) -> tuple[n.Node, Column]:
    schema = child.schema.append(pa.field(name, expr.type))
    exprs: tuple[Expr, ...] = (*n.columns_of(child.schema), expr)
    return n.Project(schema=schema, child=child, exprs=exprs), Column(name, expr.type)
