"""Read Spark's optimized plan through py4j into the neutral tree. The one place that touches it.

`toJSON` would be one call, but loses evaluation modes, watermark delays, options and functions, so
every node is read field by field. A call costs about 60 us, an error of Java's and the name of a
package each some ms; what all nodes of a class share (field names, which of them hold expressions)
is asked once.

Duties: the JVM's objects do not leave this file; a plan without streaming sources becomes one leaf
whose rows Spark itself computes when asked; nothing is judged here, only read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.errors import EvaluationFailed
from penstock.plan.tree import Attribute, ExprTree, PlanTree, Value
from penstock.plan.types import NoArrowType, from_spark, is_months

#: How Catalyst prints a column: name, id, L for longs, and the delay of its watermark.
_ATTRIBUTE: Final = re.compile(r"(?s)(?P<name>.*)#(?P<id>\d+)L?(-T(?P<delay>\d+)ms)?")
_SQL: Final = "org.apache.spark.sql"
_EXPRESSION: Final = "org.apache.spark.sql.catalyst.expressions.Expression"
#: Expressions too, but interfaces in Java, which has no interface that extends a class.
_TRAITS: Final = ("NamedExpression", "Generator")
_PLAN: Final = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_SEQ: Final = "scala.collection.Seq"
_OPTION: Final = "scala.Option"
_SEQS: Final = (".Seq", ".IndexedSeq", ".List", ".Vector")
#: How the type ends of a sequence that holds nothing but expressions, as Java prints a method.
_OF_EXPRESSIONS: Final = re.compile(
    r"\.expressions\.(Expression|NamedExpression|Attribute|SortOrder)> "
)
_TEXT_WIDTH: Final = 160
_PRIMITIVES: Final = (bool, int, float, str, bytes, bytearray)


class Walker:
    """Walks the plans of one DataFrame. Not for keeps: make one per walk."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._gateway = spark.sparkContext._gateway
        self._jvm = spark.sparkContext._jvm
        self._types: dict[str, _Typed] = {}
        self._attributes: dict[int, Attribute] = {}
        self._literals: dict[tuple[str, pa.DataType], pa.Scalar] = {}
        self._for_name = self._java("java.lang.Class").forName
        self._classes: dict[str, Any] = {}

    def _java(self, name: str) -> Any:
        """A class by its whole name: part by part, Java would look into all jars for each."""
        return getattr(self._jvm, name)

    def java_version(self) -> int:
        """The feature release of the Java that Spark runs on: 17, 21."""
        return int(self._java("java.lang.Runtime").version().feature())

    def read(self, plan: Any) -> PlanTree:
        """The tree of a logical plan."""
        if not plan.isStreaming():
            return self._read_static(plan)
        children = tuple(self.read(child) for child in _seq(plan.children()))
        kind = plan.nodeName()
        fields = self._read_fields(plan, kind)
        output = self._read_output(plan)
        rows = None
        if kind == "LocalRelation":  # what is left when the optimizer proves a stream empty
            schema = pa.schema([pa.field(a.column, a.type, a.nullable) for a in output])
            rows = schema.empty_table
        reader = _EXTRA.get(kind)
        if reader is not None:
            fields = {**fields, **reader(self, plan)}
        text = plan.simpleString(_TEXT_WIDTH)
        return PlanTree(kind, output, children, fields, True, text, rows)

    def _read_static(self, plan: Any) -> PlanTree:
        def rows() -> pa.Table:
            from pyspark.sql import DataFrame  # the caller has it loaded already

            dataset = self._java(f"{_SQL}.classic.Dataset")
            jdf = dataset.ofRows(self._spark._jsparkSession, plan)
            frame = DataFrame(jdf, self._spark)
            if frame.columns:
                return frame.toArrow()
            # Without columns there are still rows, which only a batch of empty structs can count.
            structs = pa.array([{}] * frame.count(), pa.struct([]))
            return pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])

        text = plan.simpleString(_TEXT_WIDTH)
        return PlanTree("Static", self._read_output(plan), is_streaming=False, text=text, rows=rows)

    def _read_output(self, plan: Any) -> tuple[Attribute, ...]:
        fields = json.loads(plan.schema().json())["fields"]
        if not fields:
            return ()
        printed = plan.output().mkString("\x01").split("\x01")
        output = []
        for field, text in zip(fields, printed, strict=True):
            match = _ATTRIBUTE.fullmatch(text)
            assert match is not None, text
            spelled = json.dumps(field["type"])
            arrow_type, problem, months = self._to_arrow(spelled)
            if problem is None and months:
                problem = "columns of year-month intervals have no Arrow type in Python"
            delay = match["delay"]
            attribute = Attribute(
                name=field["name"],
                id=int(match["id"]),
                type=arrow_type if arrow_type is not None else pa.null(),
                nullable=field["nullable"],
                watermark_ms=int(delay) if delay is not None else None,
                is_session="spark.sessionWindow" in field["metadata"],
                problem=problem,
            )
            self._attributes[attribute.id] = attribute
            output.append(attribute)
        return tuple(output)

    def _to_arrow(self, spelled: str) -> _Typed:
        if spelled not in self._types:
            try:
                self._types[spelled] = _Typed(from_spark(spelled), None, is_months(spelled))
            except NoArrowType as error:
                self._types[spelled] = _Typed(None, f"type {error}", False)
        return self._types[spelled]

    # -- expressions

    def expression(self, node: Any) -> ExprTree:
        """The tree of an expression."""
        kind = node.nodeName()
        if kind == "AttributeReference":
            return self._read_reference(node)
        children = tuple(self.expression(child) for child in self._operands(node, kind))
        fields = self._read_fields(node, kind)
        reader = _EXTRA.get(kind)
        if reader is not None:
            fields = {**fields, **reader(self, node)}
        known = _KNOWN_TYPES.get(kind)
        typed = self._type_of(node) if known is None else known
        return ExprTree(
            kind, typed.type, children, fields, problem=typed.problem, is_months=typed.is_months
        )

    def _read_reference(self, node: Any) -> ExprTree:
        text = node.toString()
        match = _ATTRIBUTE.fullmatch(text)
        assert match is not None, text
        id = int(match["id"])
        attribute = self._attributes.get(id)
        if attribute is not None:
            arrow_type, problem, name = attribute.type, attribute.problem, attribute.name
        else:
            arrow_type, problem, _ = self._type_of(node)
            name = node.name()
        delay = match["delay"]
        fields: dict[str, Value] = {
            "name": name,
            "id": id,
            "watermark_ms": int(delay) if delay is not None else None,
        }
        return ExprTree("AttributeReference", arrow_type, (), fields, text, problem)

    def _type_of(self, node: Any) -> _Typed:
        from py4j.protocol import Py4JJavaError

        try:
            return self._to_arrow(node.dataType().json())
        except Py4JJavaError:  # specifications and the like have no type
            return _UNTYPED

    def _operands(self, node: Any, kind: str) -> list[Any]:
        """The arguments; the evaluator that an Invoke is called on is a constant, and none."""
        shape = self._shape(node, kind)
        if shape.children is not None:
            children = [node.productElement(index) for index in shape.children]
        else:
            children = _seq(node.children())
        is_evaluator = kind == "Invoke" and children[0].nodeName() == "Literal"
        return children[1:] if is_evaluator else children

    # -- fields

    def _read_fields(self, node: Any, kind: str) -> dict[str, Value]:
        shape = self._shape(node, kind)
        fields: dict[str, Value] = {}
        for index, name, held in shape.fields:
            if held == "node" and not shape.is_plan:
                continue  # read as a child already
            read = self._to_value(node.productElement(index), held, shape.is_plan)
            if read is not _SKIP:
                fields[name] = read
        return fields

    def _shape(self, node: Any, kind: str) -> _Shape:
        if kind not in _SHAPES:
            _SHAPES[kind] = self._describe(node)
        return _SHAPES[kind]

    def _describe(self, node: Any) -> _Shape:
        is_plan = self._is(node, _PLAN)
        if not self._is(node, "scala.Product"):
            return _Shape(is_plan, (), None)
        java_class = node.getClass()
        no_arguments = self._gateway.new_array(self._java("java.lang.Class"), 0)
        expression = self._class_named(_EXPRESSION)
        described = []
        for index in range(node.productArity()):
            name = node.productElementName(index)
            if (node.nodeName(), name) in _USELESS:
                continue
            getter = java_class.getMethod(name, no_arguments)
            declared = getter.getReturnType()
            class_name = declared.getName()
            if class_name.endswith("LogicalPlan"):
                continue
            of_nodes = _OF_EXPRESSIONS.search(getter.toGenericString())
            if expression.isAssignableFrom(declared) or class_name.endswith(_TRAITS):
                held = "node"
            elif class_name == _OPTION:
                held = "option"
            elif class_name.startswith("scala.collection.") and class_name.endswith(_SEQS):
                held = "nodes" if of_nodes else "seq"
            else:
                held = "value"
            described.append((index, name, held))
        return _Shape(is_plan, tuple(described), _as_children(node, described))

    def _class_named(self, name: str) -> Any:
        if name not in self._classes:
            self._classes[name] = self._for_name(name)
        return self._classes[name]

    def _is(self, value: Any, class_name: str) -> bool:
        return bool(self._class_named(class_name).isInstance(value))

    def _to_value(self, value: Any, held: str, is_plan: bool) -> Any:
        if value is None or isinstance(value, _PRIMITIVES):
            return bytes(value) if isinstance(value, bytearray) else value
        if held == "node":
            return self.expression(value)
        if held == "option":
            return None if value.isEmpty() else self._to_value(value.get(), "any", is_plan)
        if held == "nodes":
            if not is_plan:  # read as children already
                return _SKIP if value.length() else ()
            return tuple(self.expression(element) for element in _seq(value))
        if held == "seq":
            read = []
            for element in _seq(value):
                read.append(self._to_value(element, "any", is_plan))
                if read[-1] is _SKIP:
                    return _SKIP
            return tuple(read)
        if held == "any":
            if self._is(value, _EXPRESSION):
                return self.expression(value) if is_plan else _SKIP
            if self._is(value, _PLAN):
                return _SKIP
            if self._is(value, _SEQ):
                return self._to_value(value, "seq", is_plan)
        return value.toString()


@dataclass(frozen=True, slots=True)
class _Shape:
    """What all nodes of one class share: fields as (position, name, what it holds)."""

    is_plan: bool
    fields: tuple[tuple[int, str, str], ...]
    #: The fields that are the children, in order; None if others may hold children too.
    children: tuple[int, ...] | None


class _Typed(NamedTuple):
    """The type of an expression: Arrow's, or why there is none."""

    type: pa.DataType | None
    problem: str | None
    is_months: bool


_BOOLEAN: Final = _Typed(pa.bool_(), None, False)
_UNTYPED: Final = _Typed(None, None, False)
_PREDICATES: Final = (
    "And",
    "EqualTo",
    "GreaterThan",
    "GreaterThanOrEqual",
    "IsNotNull",
    "IsNull",
    "LessThan",
    "LessThanOrEqual",
    "Not",
    "Or",
)
#: Kinds that need not be asked for their type; those without one would answer with an error.
_KNOWN_TYPES: Final = {
    **dict.fromkeys(_PREDICATES, _BOOLEAN),
    **dict.fromkeys(("SpecifiedWindowFrame", "WindowSpecDefinition"), _UNTYPED),
}


def _as_children(node: Any, described: list[tuple[int, str, str]]) -> tuple[int, ...] | None:
    """The fields that hold one expression each, if they are what `children` answers."""
    held = [index for index, _, what in described if what == "node"]
    others = any(what in ("option", "nodes", "seq") for _, _, what in described)
    children = node.children()
    if others or children.length() != len(held):
        return None
    same = all(
        children.apply(place).equals(node.productElement(index)) for place, index in enumerate(held)
    )
    return tuple(held) if same else None


class _Skip:
    """Stands for a field that is read as a child instead."""


_SKIP: Final = _Skip()
#: By kind; Spark's classes do not change while we run.
_SHAPES: Final[dict[str, _Shape]] = {}
#: Fields that say again what children or other fields say, and are slow to read.
_USELESS: Final = {
    ("CaseWhen", "branches"),
    ("Literal", "value"),
    ("Literal", "dataType"),
    ("InSet", "hset"),
    ("NamedLambdaVariable", "value"),
    ("NamedLambdaVariable", "exprId"),
    ("NamedLambdaVariable", "dataType"),
    ("FlatMapGroupsInPandasWithState", "stateType"),
    ("PythonUDAF", "func"),
    ("PythonUDAF", "resultId"),
    ("PythonUDF", "func"),
    ("PythonUDF", "resultId"),
    ("PythonUDTF", "elementSchema"),
    ("PythonUDTF", "func"),
    ("PythonUDTF", "pickledAnalyzeResult"),
    ("PythonUDTF", "resultId"),
    ("StaticInvoke", "staticObject"),
    ("StreamingRelation", "dataSource"),
    ("StreamingRelation", "output"),
    ("StreamingRelationV2", "source"),
    ("StreamingRelationV2", "table"),
    ("StreamingRelationV2", "extraOptions"),
    ("StreamingRelationV2", "output"),
}


def _seq(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.length())]


# -- what the generic reading cannot see, by kind


def _literal(walker: Walker, node: Any) -> dict[str, Value]:
    """The constant as an Arrow scalar: `value`, or nothing if its type is not one of ours."""
    arrow_type = walker._type_of(node).type
    if arrow_type is None:
        return {"value": None}
    value = node.value()
    if value is None:
        return {"value": pa.scalar(None, arrow_type)}
    scalar = _simple_scalar(value, arrow_type)
    if scalar is None:
        scalar = _compute_literal(walker, node, arrow_type)
    return {"value": scalar}


def _simple_scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar | None:
    if isinstance(value, bytearray):
        value = bytes(value)
    if isinstance(value, _PRIMITIVES):
        if pa.types.is_temporal(arrow_type):
            integers = pa.int32() if pa.types.is_date32(arrow_type) else pa.int64()
            if pa.types.is_interval(arrow_type):
                return None
            return pa.scalar(value, integers).cast(arrow_type)
        return pa.scalar(value, arrow_type)
    if pa.types.is_string(arrow_type):
        return pa.scalar(value.toString(), arrow_type)
    if pa.types.is_decimal(arrow_type):
        import decimal

        return pa.scalar(decimal.Decimal(value.toString()), arrow_type)
    if pa.types.is_interval(arrow_type):
        from py4j.java_gateway import get_field

        months, days, micros = (get_field(value, f) for f in ("months", "days", "microseconds"))
        return pa.scalar((months, days, micros * 1000), arrow_type)
    return None


def _compute_literal(walker: Walker, node: Any, arrow_type: pa.DataType) -> pa.Scalar:
    """Arrays, maps and structs: Spark computes the one-row plan `SELECT literal`, once each."""
    from pyspark.sql import DataFrame

    computed = walker._literals.get((node.sql(), arrow_type))
    if computed is not None:
        return computed
    frame = walker._spark.range(1)
    column = walker._java(f"{_SQL}.classic.ExpressionUtils").column(node)
    jdf = frame._jdf.select(_java_array(walker, column))
    table = DataFrame(jdf, walker._spark).toArrow()
    computed = table.column(0).combine_chunks().cast(arrow_type)[0]
    walker._literals[node.sql(), arrow_type] = computed
    return computed


def _java_array(walker: Walker, column: Any) -> Any:
    array = walker._gateway.new_array(walker._java(f"{_SQL}.Column"), 1)
    array[0] = column
    return array


def _in_set(walker: Walker, node: Any) -> dict[str, Value]:
    """`IN` with many values; they are Catalyst's internal values, as a literal's are."""
    child_type = walker._type_of(node.child()).type
    if child_type is None:
        return {"hset": None}
    literal = walker._java(f"{_SQL}.catalyst.expressions.Literal")
    values = []
    iterator = node.hset().iterator()
    while iterator.hasNext():
        value = iterator.next()
        if value is None:
            values.append(pa.scalar(None, child_type))
            continue
        scalar = _simple_scalar(value, child_type)
        if scalar is None:
            made = literal.apply(value, node.child().dataType())
            scalar = _compute_literal(walker, made, child_type)
        values.append(scalar)
    return {"hset": tuple(sorted(values, key=repr))}


def _python_udf(walker: Walker, node: Any) -> dict[str, Value]:
    """The function itself, and what Spark would tell the worker that runs it."""
    loaded = _command_of(walker, node)
    return {"func": None if loaded is None else loaded[0], "settings": _runner_conf(walker)}


def _command_of(walker: Walker, node: Any) -> Any:
    # Loads pyspark, which the caller has.
    from penstock.spark.commands import load_command

    command = node.func().command().unsafeArray()
    return load_command(walker._spark.sparkContext, command, node.func().broadcastVars())


def _runner_conf(walker: Walker) -> tuple[tuple[str, str], ...]:
    conf = walker._spark._jsparkSession.sessionState().conf()
    runner = walker._java(f"{_SQL}.execution.python.ArrowPythonRunner")
    settings = runner.getPythonRunnerConfMap(conf)
    names = sorted(_seq(settings.keys().toSeq()))
    return tuple((name, settings.apply(name)) for name in names)


def _python_udtf(walker: Walker, node: Any) -> dict[str, Value]:
    """The class, the columns of its result, and what its own `analyze` told Spark of them."""
    from penstock.spark.commands import load_pickle

    told = node.pickledAnalyzeResult()
    return {
        "func": _command_of(walker, node),
        "settings": _runner_conf(walker),
        "elementSchema": node.elementSchema().json(),
        "analyzed": None if told.isEmpty() else load_pickle(told.get()),
    }


def _with_state(walker: Walker, node: Any) -> dict[str, Value]:
    return {"stateType": node.stateType().json()}


def _scalar_subquery(walker: Walker, node: Any) -> dict[str, Value]:
    """Its rows, which are one, with a null if there is none."""
    read = walker._read_static(node.plan())
    return {"plan": replace(read, rows=partial(_one_row, read))}


def _one_row(read: PlanTree) -> pa.Table:
    assert read.rows is not None
    rows = read.rows()
    if rows.num_rows > 1:
        raise EvaluationFailed(
            "SCALAR_SUBQUERY_TOO_MANY_ROWS", f"more than one row was returned by {read.text}"
        )
    return (
        rows if rows.num_rows else pa.table([pa.nulls(1, f.type) for f in rows.schema], rows.schema)
    )


def _lambda_variable(walker: Walker, node: Any) -> dict[str, Value]:
    return {"id": node.exprId().id()}


def _static_invoke(walker: Walker, node: Any) -> dict[str, Value]:
    return {"staticObject": node.staticObject().getName()}


def _invoke(walker: Walker, node: Any) -> dict[str, Value]:
    """A constant object whose method is called, as it prints: its settings are in there."""
    target = node.targetObject()
    if target.nodeName() != "Literal":
        return {}
    spelled = target.toString()
    if not spelled.startswith("StructsToJsonEvaluator("):
        return {"target": spelled}
    evaluator = target.value()
    zone = evaluator.timeZoneId()
    told: dict[str, Value] = {"target": spelled, "options": _pairs(evaluator.options())}
    return told if zone.isEmpty() else {**told, "timeZoneId": zone.get()}


def _format_options(walker: Walker, node: Any) -> dict[str, Value]:
    """The options that the user gave, and the whole schema of what may be pruned."""
    told: dict[str, Value] = {"options": _pairs(node.options())}
    if node.nodeName() == "CsvToStructs":
        told["schema"] = node.schema().json()
    return told


def _pairs(options: Any) -> tuple[tuple[str, str], ...]:
    """A map of Scala's, sorted, so that a plan prints the same every day."""
    pairs = []
    iterator = options.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        pairs.append((pair._1(), pair._2()))
    return tuple(sorted(pairs))


def _watermark(walker: Walker, node: Any) -> dict[str, Value]:
    delay = node.delay()
    watermark = walker._java(f"{_SQL}.catalyst.plans.logical.EventTimeWatermark")
    return {"delay_ms": watermark.getDelayMs(delay)}


def _stream(walker: Walker, node: Any) -> dict[str, Value]:
    """The source's name and options, sorted, so that a plan prints the same every day."""
    options: dict[str, str] = {}
    if node.nodeName() == "StreamingRelationV2":
        options = dict(node.extraOptions().asCaseSensitiveMap())
    else:
        options = dict(_pairs(node.dataSource().options()))
    return {"options": tuple(sorted(options.items()))}


def _word_boundaries(walker: Walker, node: Any) -> dict[str, Value]:
    r"""Java's version, if the pattern has \b or \B: what is a word depends on it."""
    pattern = node.children().apply(1).toString()
    return {"javaVersion": walker.java_version()} if "\\b" in pattern.lower() else {}


_PATTERNS: Final = (
    "RLike",
    "RegExpExtract",
    "RegExpExtractAll",
    "RegExpInStr",
    "RegExpReplace",
    "StringSplit",
)
_EXTRA: Final[dict[str, Callable[[Walker, Any], dict[str, Value]]]] = {
    "Literal": _literal,
    "InSet": _in_set,
    "FlatMapGroupsInPandasWithState": _with_state,
    "PythonUDAF": _python_udf,
    "PythonUDF": _python_udf,
    "PythonUDTF": _python_udtf,
    "ScalarSubquery": _scalar_subquery,
    "NamedLambdaVariable": _lambda_variable,
    "StaticInvoke": _static_invoke,
    "Invoke": _invoke,
    **dict.fromkeys(("JsonToStructs", "CsvToStructs", "StructsToCsv"), _format_options),
    **dict.fromkeys(_PATTERNS, _word_boundaries),
    "EventTimeWatermark": _watermark,
    "StreamingRelation": _stream,
    "StreamingRelationV2": _stream,
}
