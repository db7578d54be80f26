"""Python UDTFs of the neutral tree: LATERAL calls, and calls with TABLE(t) row by row."""

from __future__ import annotations

from typing import Final

from penstock.plan import nodes as n
from penstock.plan.translation.python_functions import function_of, named_arguments
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import ExprTree, PlanTree, schema_of

#: What Spark puts below the rows of a TABLE argument to bring partitions together, and sort them.
_TOGETHER: Final = ("Repartition", "RepartitionByExpression", "Sort")


@translates("ArrowEvalPythonUDTF", "BatchEvalPythonUDTF")
def translate_table_function(translation: Translation, tree: PlanTree) -> n.Node:
    """The child's columns that are kept, then those of the result."""
    call = tree.expr_of("udtf")
    child = translation.child(tree)
    tables = _tables(call)
    if tables:
        _check_table(translation, tree, call)
    kind, handler = function_of(translation, call, tree)
    args, keywords = named_arguments(translation, call.children, tree)
    return n.TableFunction(
        schema=schema_of(tree.output),
        child=child,
        handler=handler if isinstance(handler, type) else object,
        kind=kind,
        name=str(call.fields["name"]),
        args=args,
        keywords=keywords,
        tables=tables,
        kept=tuple(expr.column for expr in tree.exprs_of("requiredChildOutput")),
        result_type=str(call.fields["elementSchema"]),
        analyzed=call.fields["analyzed"],
        deterministic=bool(call.fields["udfDeterministic"]),
        settings=call.pairs_of("settings"),
    )


def _tables(call: ExprTree) -> tuple[int, ...]:
    """The positions of arguments that are whole rows."""
    are_tables = call.fields["tableArguments"]
    if not isinstance(are_tables, tuple):
        return ()
    return tuple(at for at, is_table in enumerate(are_tables) if is_table)


def _check_table(translation: Translation, tree: PlanTree, call: ExprTree) -> None:
    """All rows of a partition before the first: a stream has no such partition."""
    (rows,) = tree.children
    below = rows.children[0].kind if rows.children else ""
    if call.fields["pythonUDTFPartitionColumnIndexes"] is not None or below in _TOGETHER:
        translation.refuse(
            tree,
            f"{call.fields['name']}(TABLE(...)) with PARTITION BY, ORDER BY or SINGLE PARTITION, "
            "which a stream never has whole",
            "leave them out if each row counts by itself; otherwise use "
            "groupBy(...).applyInPandas, or transformWithState",
        )
