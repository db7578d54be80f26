"""Where rows come from: streams of the log, and static rows that Spark computes."""

from __future__ import annotations

from typing import Final

from penstock.plan import nodes as n
from penstock.plan.translation.registry import Translation, translates
from penstock.plan.tree import PlanTree, schema_of

#: Options of `format("penstock")` that only Spark's own engine can follow, and what to do instead.
_REFUSED_OPTIONS: Final = {
    "streams": "read each stream by itself, and union them",
    "startingPosition": "give start= to penstock.start",
    "endingPosition": "a query without an end has none: leave it out",
}


@translates("StreamingRelation", "StreamingRelationV2")
def translate_stream(translation: Translation, tree: PlanTree) -> n.Node:
    pairs = tree.pairs_of("options")
    options = {name.lower(): value for name, value in pairs}
    for option, remedy in _REFUSED_OPTIONS.items():
        if option.lower() in options:
            translation.refuse(tree, f"option {option} of the source", remedy)
    return n.Scan(
        schema=schema_of(tree.output),
        stream=options.get("stream") or options.get("path") or str(tree.fields["sourceName"]),
        columns=tuple(attribute.name for attribute in tree.output),
        options=pairs,
    )


@translates("Static", "LocalRelation")
def translate_static(translation: Translation, tree: PlanTree) -> n.Node:
    assert tree.rows is not None
    id = len(translation.statics)
    translation.statics[id] = tree.rows
    return n.Static(schema=schema_of(tree.output), id=id, empty=tree.is_streaming)
