"""The IR: what a query computes, as immutable nodes over named, typed columns.

Every node knows its output schema; columns are named `name#id`, unique within a query, so that no
node ever has to disambiguate. A node says what, never how: operators (ops/) are built from nodes,
stages (stages.py) are cut between them.

Two words run through all of it. A stream is *append-only*, or *changing*: rows are also taken back
(a retraction is a row with weight -1). An operator emits *changes*, or *finals*: rows that no later
input can change, told by the watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal as OneOf
from typing import TypeAlias

import pyarrow as pa

from penstock.plan.exprs import Column, Expr

#: existence: every left row, and whether it has a partner; only with a static right side.
JoinKind: TypeAlias = OneOf["inner", "left", "right", "full", "semi", "anti", "existence"]
Mode: TypeAlias = OneOf["append", "update", "complete"]
Emit: TypeAlias = OneOf["changes", "finals"]
TimeMode: TypeAlias = OneOf["none", "processingtime", "eventtime"]
Settings: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; `schema` is what comes out of it."""

    schema: pa.Schema

    @property
    def children(self) -> tuple[Node, ...]:
        """The nodes whose rows come in, by port."""
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        children: list[Node] = []
        for value in values:
            if isinstance(value, Node):
                children.append(value)
            elif isinstance(value, tuple):
                children += [item for item in value if isinstance(item, Node)]
        return tuple(children)

    def with_children(self, children: tuple[Node, ...]) -> Node:
        """The same node over other inputs, in the order of `children`."""
        waiting = list(children)
        changed: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                changed[field.name] = waiting.pop(0)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changed[field.name] = tuple(waiting.pop(0) for _ in value)
        assert not waiting
        return replace(self, **changed)

    def rebuild(self, change: Callable[[Node], Node]) -> Node:
        """The plan after `change` of every node, children first."""
        children = tuple(child.rebuild(change) for child in self.children)
        return change(self.with_children(children) if children else self)

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """The rows of a stream. `columns` are the names, in the stream, of what the query reads."""

    stream: str
    columns: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput(Node):
    """Rows of the keyed stream that stage `stage` writes; they sit by `keys` (stages.py)."""

    stage: int
    keys: tuple[Expr, ...]
    append_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Static(Node):
    """Rows that do not change while the query runs; Spark computed them. `id` finds them."""

    id: int
    #: Whether Spark's optimizer proved that this, once a stream, has no rows.
    empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    child: Node
    #: One per output column, in order.
    exprs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    child: Node
    condition: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Expand(Node):
    """Each row becomes one row per projection: sliding windows, rollups, several distincts."""

    child: Node
    projections: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Node):
    """All rows of all inputs; columns correspond by position."""

    inputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(Node):
    """Each row becomes one row per element of the generator's array or map."""

    child: Node
    #: Catalyst's name: Explode, PosExplode, Inline, Stack, ReplicateRows.
    generator: str
    args: tuple[Expr, ...]
    #: Whether a row with no elements stays, with nulls.
    outer: bool
    #: Columns of the child that are kept, in order; the generated ones follow.
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark(Node):
    """Event time of these rows is `column`; rows may come up to delay_ms late."""

    child: Node
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfCall:
    """One Python function over columns; `kind` is Spark's eval type."""

    function: Callable[..., object]
    kind: int
    args: tuple[Expr | UdfCall, ...]
    type: pa.DataType
    name: str
    #: Names for keyword arguments, by position; None for positional ones.
    keywords: tuple[str | None, ...] = ()
    #: Whether equal arguments give equal results, as the user declared it.
    deterministic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEval(Node):
    """The child's columns, then one column per call of a Python, pandas or Arrow function."""

    child: Node
    calls: tuple[UdfCall, ...]
    #: What Spark would tell its Python workers: time zone, how strictly to convert.
    settings: Settings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(Node):
    """mapInArrow and mapInPandas: a function from an iterator of batches to one."""

    child: Node
    function: Callable[..., object]
    kind: int
    name: str
    #: Columns as the function sees and returns them, by the user's names.
    input_schema: pa.Schema
    output_schema: pa.Schema
    settings: Settings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCall:
    """A call of a Python UDTF, over columns that are its arguments."""

    #: The user's class.
    handler: type
    #: Spark's eval type: 300 pickled, 301 Arrow-optimised, 302 Arrow.
    kind: int
    name: str
    #: Names for keyword arguments, by position; None for positional ones.
    keywords: tuple[str | None, ...]
    #: Which arguments are whole rows: TABLE(t).
    tables: tuple[int, ...]
    #: The result's columns, as Spark writes them in JSON.
    result_type: str
    #: What the class's own `analyze` told, if it has one.
    analyzed: object | None = None
    #: Fields of a whole row that only say to which partition it belongs: not the class's.
    partition_fields: tuple[int, ...] = ()
    settings: Settings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFunction(Node):
    """A Python UDTF: each row becomes the rows that the user's class yields for it."""

    child: Node
    call: TableCall
    args: tuple[Expr, ...]
    #: Columns of the child that are kept, in order; those of the result follow.
    kept: tuple[str, ...]
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMap(Node):
    """applyInPandas and applyInArrow: a function from all rows of a group to the group's result.

    With two inputs, that of a cogroup: from the rows that both have for a key. Also a Python UDTF
    over a table by partitions: a new instance of the class for each.
    """

    inputs: tuple[Node, ...]
    #: Of each input. Keys of several correspond by position.
    keys: tuple[tuple[Column, ...], ...]
    function: Callable[..., object] | TableCall
    #: Spark's eval type: 201, 216, 209, 215; of cogroups 206, 210; of UDTFs 300 to 302.
    kind: int
    name: str
    #: Columns as the function sees and returns them, by the user's names.
    input_schemas: tuple[pa.Schema, ...]
    output_schema: pa.Schema
    #: Of each input, the columns that the function is handed: positions, some maybe twice.
    values: tuple[tuple[int, ...], ...]
    #: The position of the key that carries event time, in all inputs.
    time_key: int | None = None
    emit: Emit = "changes"
    settings: Settings = ()
    #: In which order the function sees the rows, if not in that in which they came.
    order: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMapWithState(Node):
    """applyInPandasWithState: a function of a key, its new rows, and what it keeps for the key."""

    child: Node
    keys: tuple[Column, ...]
    function: Callable[..., object]
    name: str
    #: The kept value's type, as Spark writes it in JSON.
    state_type: str
    #: NoTimeout, ProcessingTimeTimeout or EventTimeTimeout.
    timeout: str
    input_schema: pa.Schema
    output_schema: pa.Schema
    #: The columns that the function is handed: positions, some maybe twice.
    values: tuple[int, ...]
    event_time: str | None = None
    settings: Settings = ()


@dataclass(frozen=True, slots=True, eq=False)
class PythonAggregate:
    """The user's function behind an aggregate call; equal only to itself."""

    function: Callable[..., object]
    #: Spark's eval type: 202, 217, 252, 254.
    kind: int
    name: str
    #: Names for keyword arguments, by position; None for positional ones.
    keywords: tuple[str | None, ...] = ()
    settings: Settings = ()


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate function. `function` is Catalyst's name: Sum, Count, MaxBy.

    That of a user's is PythonUDAF, and its option `python` a PythonAggregate.
    """

    function: str
    args: tuple[Expr, ...]
    type: pa.DataType
    #: Only rows for which it is true count.
    filter: Expr | None = None
    distinct: bool = False
    options: tuple[tuple[str, object], ...] = ()

    def option(self, name: str, default: object = None) -> object:
        """The option of this name as Catalyst spelled it, or the default."""
        return next((value for key, value in self.options if key == name), default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """One row per key: the key columns, then one column per call."""

    child: Node
    keys: tuple[Column, ...]
    calls: tuple[AggregateCall, ...]
    #: The key column that carries event time: a timestamp, or a window (then its end counts).
    event_time: str | None = None
    #: The key column that holds sessions yet to be merged: [start, end) of every row.
    session: str | None = None
    emit: Emit = "changes"
    #: Whether the rows that come in are buffers of a PartialAggregate.
    merges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialAggregate(Node):
    """One row of buffers per key and batch, for an Aggregate on the other side of an exchange."""

    child: Node
    keys: tuple[Column, ...]
    calls: tuple[AggregateCall, ...]


@dataclass(frozen=True, slots=True)
class EventTime:
    """How long a join must remember a row, by its event time t.

    No partner can come any more once the watermark passed t + reach_ms: its fate is decided. It is
    forgotten once the watermark passed t + keep_ms, when no partner of it is undecided either.
    """

    column: str
    reach_ms: int
    keep_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Pairs of rows whose keys are equal and for which the condition holds."""

    left: Node
    right: Node
    kind: JoinKind
    left_keys: tuple[Column, ...]
    right_keys: tuple[Column, ...]
    #: Whether null equals null, per key.
    null_safe: tuple[bool, ...]
    #: Over the columns of both sides.
    condition: Expr | None = None
    left_time: EventTime | None = None
    right_time: EventTime | None = None
    emit: Emit = "changes"

    @property
    def lag_ms(self) -> int:
        """How far behind the watermark an event time of its output may be: such a row waited."""
        times = (self.left_time, self.right_time)
        return max(0, *(0 if time is None else time.reach_ms for time in times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate(Node):
    """The first row of each key."""

    child: Node
    keys: tuple[Column, ...]
    event_time: str | None = None
    #: dropDuplicatesWithinWatermark: a key is forgotten this long after its row's event time.
    within_ms: int | None = None

    @property
    def keeps_rows(self) -> bool:
        """Whether rows are equal only if all of their columns are."""
        return {key.name for key in self.keys} == set(self.child.schema.names)


@dataclass(frozen=True, slots=True)
class Order:
    """One term of ORDER BY."""

    expr: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class WindowCall:
    """One window function. `function` is Catalyst's name: RowNumber, Rank, Lag, or an aggregate."""

    function: str
    args: tuple[Expr, ...]
    type: pa.DataType
    #: rows or range; bounds are offsets from the current row, None is unbounded. A range's offsets
    #: other than 0 are in units of the order's values: microseconds for timestamps.
    frame: OneOf["rows", "range"] = "rows"
    lower: int | float | None = None
    upper: int | float | None = 0
    #: The one term of the order, if a range has offsets.
    range_by: Order | None = None
    options: tuple[tuple[str, object], ...] = ()
    aggregate: AggregateCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Node):
    """The child's columns, then one column per window function over (partition, order)."""

    child: Node
    partition: tuple[Column, ...]
    order: tuple[Order, ...]
    calls: tuple[WindowCall, ...]
    #: The partition column that carries event time, if any: when it has passed, rows are forgotten.
    event_time: str | None = None
    emit: Emit = "changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN(Node):
    """Only rows whose rank within their partition is at most `limit`; window functions over those.

    What Window is, with state cut to the rows that can still matter.
    """

    child: Node
    partition: tuple[Column, ...]
    order: tuple[Order, ...]
    #: RowNumber, Rank or DenseRank.
    function: str
    limit: int
    calls: tuple[WindowCall, ...] = ()
    event_time: str | None = None
    emit: Emit = "changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithState(Node):
    """The user's StatefulProcessor over rows grouped by key."""

    child: Node
    processor: object
    #: Spark's eval types: 211 and 212 pandas, 213 and 214 rows.
    kind: int
    keys: tuple[Column, ...]
    time_mode: TimeMode
    #: Columns as the processor sees and returns them, by the user's names.
    input_schema: pa.Schema
    output_schema: pa.Schema
    event_time: str | None = None
    #: The column of the output that is its event time: never older than the watermark.
    output_time: str | None = None
    #: Rows that the state begins with: the key columns, then all columns, as Spark lists them.
    initial: Static | None = None
    settings: Settings = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Node):
    """Order of the whole result; only a complete-mode sink can show it."""

    child: Node
    order: tuple[Order, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Node):
    """The first rows of a sorted result; only a complete-mode sink can show them."""

    child: Node
    #: None is all of them.
    count: int | None
    offset: int = 0


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The schema's fields as expressions."""
    return tuple(Column(field.name, field.type) for field in schema)
