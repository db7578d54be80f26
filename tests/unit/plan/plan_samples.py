"""Small pieces of IR for tests of what happens between translation and operators."""

from __future__ import annotations

import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.rewrites.aim import Aim

TIMESTAMP = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
BIDS = pa.schema([("auction#1", pa.int64()), ("price#2", pa.int64()), ("ts#3", TIMESTAMP)])
WINDOWED = pa.schema([("window#7", WINDOW), ("auction#1", pa.int64())])
AUCTIONS = pa.schema([("id#11", pa.int64()), ("category#12", pa.int64()), ("t#13", TIMESTAMP)])


def buffers(call: n.AggregateCall) -> dict[str, pa.DataType] | None:
    return {"count": pa.int64()} if call.function == "Count" else None


APPEND, UPDATE = Aim("append", buffers), Aim("update", buffers)


def column(schema: pa.Schema, name: str) -> Column:
    return Column(name, schema.field(name).type)


def long(value: int) -> Literal:
    return Literal(pa.scalar(value, pa.int64()))


def scan(stream: str = "bids", schema: pa.Schema = BIDS) -> n.Scan:
    names = tuple(name.split("#")[0] for name in schema.names)
    return n.Scan(schema=schema, stream=stream, columns=names)


def count_by(child: n.Node, *keys: str, emit: n.Emit = "changes") -> n.Aggregate:
    chosen = tuple(column(child.schema, key) for key in keys)
    call = n.AggregateCall("Count", (long(1),), pa.int64())
    fields = [(key.name, key.type) for key in chosen] + [("Count#90", pa.int64())]
    return n.Aggregate(schema=pa.schema(fields), child=child, keys=chosen, calls=(call,), emit=emit)


def join(
    left: n.Node, right: n.Node, left_key: str, right_key: str, kind: n.JoinKind = "inner"
) -> n.Join:
    fields = [*left.schema, *right.schema] if kind not in ("semi", "anti") else list(left.schema)
    return n.Join(
        schema=pa.schema(fields),
        left=left,
        right=right,
        kind=kind,
        left_keys=(column(left.schema, left_key),),
        right_keys=(column(right.schema, right_key),),
        null_safe=(False,),
    )


def where(child: n.Node, condition: Expr) -> n.Filter:
    return n.Filter(schema=child.schema, child=child, condition=condition)


def greater(left: Expr, right: Expr) -> Call:
    return Call("GreaterThan", (left, right), pa.bool_())
