"""Python UDTFs of the neutral tree: LATERAL, TABLE(t) row by row, and TABLE(t) by partitions.

Below the rows of a TABLE argument with partitions Spark puts what brings a partition together and
sorts it. That is a function over groups, which is computed anew when a partition gets rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Column, Expr, Literal
from penstock.plan.translation.python_functions import function_of, named_arguments
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import ExprTree, PlanTree, schema_of, user_schema


@translates("ArrowEvalPythonUDTF", "BatchEvalPythonUDTF")
def translate_table_function(translation: Translation, tree: PlanTree) -> n.Node:
    """The child's columns that are kept, then those of the result."""
    call = tree.expr_of("udtf")
    args, keywords = named_arguments(translation, call.children, tree)
    kind, handler = function_of(translation, call, tree)
    called = n.TableCall(
        handler=handler if isinstance(handler, type) else object,
        kind=kind,
        name=str(call.fields["name"]),
        keywords=keywords,
        tables=_tables(call),
        result_type=str(call.fields["elementSchema"]),
        analyzed=call.fields["analyzed"],
        partition_fields=_numbers(call.fields["pythonUDTFPartitionColumnIndexes"]),
        settings=call.pairs_of("settings"),
    )
    partitions = _partitions(tree, called)
    if partitions is not None:
        return _over_partitions(translation, tree, called, args, partitions)
    if called.partition_fields:
        _refuse_partitions(translation, tree, called)
    return n.TableFunction(
        schema=schema_of(tree.output),
        child=translation.child(tree),
        call=called,
        args=args,
        kept=tuple(expr.column for expr in tree.exprs_of("requiredChildOutput")),
        deterministic=bool(call.fields["udfDeterministic"]),
    )


def _tables(call: ExprTree) -> tuple[int, ...]:
    """The positions of arguments that are whole rows."""
    are_tables = call.fields["tableArguments"]
    if not isinstance(are_tables, tuple):
        return ()
    return tuple(at for at, is_table in enumerate(are_tables) if is_table)


def _numbers(printed: object) -> tuple[int, ...]:
    """The numbers in PythonUDTFPartitionColumnIndexes(List(2, 3)), as Scala prints it."""
    if printed is None:
        return ()
    return tuple(map(int, str(printed).rpartition("(")[2].strip(")").split(", ")))


@dataclass(frozen=True, slots=True)
class _Partitions:
    """What is below a TABLE argument: the rows, what they are put together by, and sorted by."""

    rows: PlanTree
    by: tuple[ExprTree, ...]
    order: tuple[ExprTree, ...]


def _partitions(tree: PlanTree, called: n.TableCall) -> _Partitions | None:
    """The partitions of the TABLE argument, if it has any.

    Other rows may be partitioned too, by the user, which is for Spark's tasks alone.
    """
    (structs,) = tree.children
    if not called.tables or structs.kind != "Project":
        return None
    below = structs.children[0]
    order: tuple[ExprTree, ...] = ()
    if below.kind == "Sort":
        order, below = below.exprs_of("order"), below.children[0]
    if called.partition_fields and below.kind == "RepartitionByExpression":
        by = below.exprs_of("partitionExpressions")
        return _Partitions(below.children[0], by, order)
    if below.kind == "Repartition" and below.int_of("numPartitions") == 1:
        return _Partitions(below.children[0], (), order)
    return None


def _refuse_partitions(translation: Translation, tree: PlanTree, called: n.TableCall) -> None:
    translation.refuse(
        tree,
        f"{called.name}(TABLE(...)) with partitions that Spark's optimizer took apart",
        "use groupBy(...).applyInPandas",
    )


def _over_partitions(
    translation: Translation,
    tree: PlanTree,
    called: n.TableCall,
    args: tuple[Expr, ...],
    partitions: _Partitions,
) -> n.Node:
    """A function over groups, of the arguments; columns to sort by stand beside them."""
    (structs,) = tree.children
    exprs = translation.exprs(partitions.by, tree)
    by = [expr for expr in exprs if not isinstance(expr, Literal)]  # constants do not partition
    keys = tuple(Column(f"udtf#key{at}", expr.type) for at, expr in enumerate(by))
    terms = translation.order(partitions.order, tree)
    sorts = [Column(f"udtf#order{at}", term.expr.type) for at, term in enumerate(terms)]
    made = translation.exprs(structs.exprs_of("projectList"), tree)
    beside = [pa.field(each.name, each.type) for each in (*keys, *sorts)]
    rows = n.Project(
        schema=pa.schema([*schema_of(structs.output), *beside]),
        child=translation.node(partitions.rows),
        exprs=(*made, *by, *(term.expr for term in terms)),
    )
    handed = [pa.field(f"udtf#arg{at}", arg.type) for at, arg in enumerate(args)]
    child = n.Project(
        schema=pa.schema([*handed, *beside]), child=rows, exprs=(*args, *keys, *sorts)
    )
    timed = partitions.rows.watermarks
    are_timed = [isinstance(expr, Column) and expr.name in timed for expr in by]
    return n.GroupedMap(
        schema=schema_of(tree.output),
        inputs=(child,),
        keys=(keys,),
        function=called,
        kind=called.kind,
        name=called.name,
        input_schemas=(child.schema,),
        output_schema=user_schema(tree.output),
        values=(tuple(range(len(args))),),
        time_key=are_timed.index(True) if True in are_timed else None,
        settings=called.settings,
        order=tuple(
            n.Order(expr=column, descending=term.descending, nulls_first=term.nulls_first)
            for column, term in zip(sorts, terms, strict=True)
        ),
    )
