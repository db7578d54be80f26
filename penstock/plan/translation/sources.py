"""Where rows come from: streams of the log, and static rows that Spark computes."""

from __future__ import annotations

from typing import Final

from penstock.plan import nodes as n
from penstock.plan.supply import TIME
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
    stream = options.get("stream") or options.get("path") or str(tree.fields["sourceName"])
    names = tuple(attribute.name for attribute in tree.output)
    is_log = tree.kind == "StreamingRelationV2"
    if is_log and TIME in names and TIME not in options.get("metadata", "").split(","):
        translation.own_times.add(stream)
    return n.Scan(
        schema=schema_of(tree.output),
        stream=stream,
        columns=names,
        options=pairs,
    )


@translates("Static", "LocalRelation")
def translate_static(translation: Translation, tree: PlanTree) -> n.Node:
    return translation.static(tree)
