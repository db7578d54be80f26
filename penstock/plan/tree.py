"""The neutral tree: Spark's optimized plan as plain values, read once, free of the JVM.

The walker (spark/walker.py) makes it, everything in plan/ starts from it. A node keeps Catalyst's
own class name as its kind and its constructor's fields under their own names, so that a reader can
lay Spark's sources beside it. Nothing here knows what a kind means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

#: What a field of a node may hold: nothing, a number, text, bytes, an Arrow scalar, an ExprTree,
#: the user's own function out of a PythonUDF, or a tuple of these. Its reader checks what it is.
Value: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a plan node's output. `id` is Catalyst's exprId: equal ids, equal column."""

    name: str
    id: int
    type: pa.DataType
    nullable: bool
    #: The delay of the watermark on this column, if it carries event time.
    watermark_ms: int | None = None
    #: Whether this is the struct column of a session window, whose rows are yet to be merged.
    is_session: bool = False
    #: A problem that keeps this column from being one of ours, e.g. its type.
    problem: str | None = None

    @property
    def column(self) -> str:
        """The name of this column in our batches: unique within a query."""
        return f"{self.name}#{self.id}"


@dataclass(frozen=True, slots=True)
class ExprTree:
    """An expression. `type` is None where Spark's type has no Arrow type; `problem` says so."""

    kind: str
    type: pa.DataType | None
    children: tuple[ExprTree, ...] = ()
    fields: Mapping[str, Value] = field(default_factory=dict)
    #: Spark's own text of it, for messages.
    text: str = ""
    problem: str | None = None
    #: Whether its value is a year-month interval, whose Arrow type does not tell it from an int.
    is_months: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """Its type; that of null where there is none, so that the rest can be looked at."""
        return self.type if self.type is not None else pa.null()

    @property
    def column(self) -> str:
        """The name of this column in our batches, if this is a reference to one."""
        return f"{self.text_of('name')}#{self.text_of('id')}"

    def text_of(self, name: str) -> str:
        """A field as text."""
        return str(self.fields[name])

    def pairs_of(self, name: str) -> tuple[tuple[str, str], ...]:
        """A field of names and their values."""
        return _as_pairs(self.fields[name])

    def walk(self) -> Iterator[ExprTree]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class PlanTree:
    """A plan node."""

    kind: str
    output: tuple[Attribute, ...]
    children: tuple[PlanTree, ...] = ()
    fields: Mapping[str, Value] = field(default_factory=dict)
    is_streaming: bool = True
    #: Spark's own one-line text of it, for messages.
    text: str = ""
    #: For a plan without streaming sources: computes its rows, by Spark.
    rows: Callable[[], pa.Table] | None = None

    @property
    def watermarks(self) -> dict[str, int]:
        """The delay of the watermark of each output column that carries event time."""
        return {a.column: a.watermark_ms for a in self.output if a.watermark_ms is not None}

    def expr_of(self, name: str) -> ExprTree:
        """A field that is one expression."""
        value = self.fields[name]
        assert isinstance(value, ExprTree), value
        return value

    def exprs_of(self, name: str) -> tuple[ExprTree, ...]:
        """A field that is a list of expressions."""
        value = self.fields[name]
        assert isinstance(value, tuple)
        assert all(isinstance(item, ExprTree) for item in value), value
        return value

    def int_of(self, name: str) -> int:
        """A field that is a whole number."""
        value = self.fields[name]
        assert isinstance(value, int), value
        return value

    def pairs_of(self, name: str) -> tuple[tuple[str, str], ...]:
        """A field of names and their values; empty if the node has none."""
        return _as_pairs(self.fields.get(name, ()))


def _as_pairs(value: Value) -> tuple[tuple[str, str], ...]:
    assert isinstance(value, tuple)
    return tuple((str(pair[0]), str(pair[1])) for pair in value if isinstance(pair, tuple))


def schema_of(output: tuple[Attribute, ...]) -> pa.Schema:
    """The columns of a node, under their unique names."""
    return pa.schema([pa.field(a.column, a.type) for a in output])


def user_schema(output: tuple[Attribute, ...]) -> pa.Schema:
    """The columns of a node, under the user's names."""
    return pa.schema([pa.field(a.name, a.type, a.nullable) for a in output])
