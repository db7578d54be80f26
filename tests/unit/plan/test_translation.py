"""What cannot run is refused by name, and what stands below it is looked at all the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.ops.judges import JUDGES
from penstock.plan import nodes as n
from penstock.plan.refusals import Refusals
from penstock.plan.translation import translate
from penstock.plan.translation.registry import TRANSLATORS, translates
from penstock.plan.tree import Attribute, ExprTree, PlanTree

PRICE = Attribute("price", 2, pa.int64(), nullable=True)
REFERENCE = ExprTree("AttributeReference", pa.int64(), fields={"name": "price", "id": 2})
STREAM = PlanTree("StreamingRelationV2", (PRICE,), fields={"options": (("stream", "bids"),)})
SCAN = n.Scan(
    schema=pa.schema([("price#2", pa.int64())]),
    stream="bids",
    columns=("price",),
    options=(("stream", "bids"),),
)


def translated(tree: PlanTree) -> tuple[n.Node, list[str]]:
    refusals = Refusals()
    root = translate(tree, JUDGES, refusals).root
    return root, [reason.problem for reason in refusals.reasons]


def over(kind: str, child: PlanTree, **fields: object) -> PlanTree:
    return PlanTree(kind, child.output, (child,), fields)


def test_a_stream_is_a_scan() -> None:
    assert translated(STREAM) == (SCAN, [])


@pytest.mark.parametrize("kind", ["Repartition", "ResolvedHint", "LocalLimit"])
def test_what_changes_no_result_is_left_out(kind: str) -> None:
    assert translated(over(kind, STREAM)) == (SCAN, [])


def test_a_projection_that_changes_nothing_is_left_out() -> None:
    assert translated(over("Project", STREAM, projectList=(REFERENCE,))) == (SCAN, [])


def test_an_unknown_node_is_refused_and_so_is_what_is_wrong_below_it() -> None:
    unknown = ExprTree("Riddle", pa.bool_(), (REFERENCE,))
    _, problems = translated(over("Sample", over("Filter", STREAM, condition=unknown)))
    assert problems == ["no operator for Sample", "no function for Riddle"]


def test_the_value_of_an_expression_must_be_repeatable() -> None:
    _, problems = translated(
        over("Filter", STREAM, condition=ExprTree("Rand", pa.float64(), (REFERENCE,)))
    )
    (problem,) = problems
    assert problem.startswith("rand() gives other values")


def test_a_node_is_translated_by_one_function() -> None:
    with pytest.raises(AssertionError, match="Filter is registered twice"):
        translates("Filter")(TRANSLATORS["Filter"])


def test_a_table_whose_partitions_are_gone_is_not_seen_row_by_row() -> None:
    """Spark's plan shows them below the rows; no optimizer of Spark's is known to change that."""
    call = ExprTree(
        "PythonUDTF",
        pa.null(),
        (REFERENCE,),
        {
            "name": "f",
            "evalType": 301,
            "func": object,
            "tableArguments": (True,),
            "elementSchema": "{}",
            "analyzed": None,
            "pythonUDTFPartitionColumnIndexes": "PythonUDTFPartitionColumnIndexes(List(0))",
            "udfDeterministic": False,
            "settings": (),
        },
    )
    _, problems = translated(over("ArrowEvalPythonUDTF", STREAM, udtf=call, requiredChildOutput=()))
    assert problems == ["f(TABLE(...)) with partitions that Spark's optimizer took apart"]
