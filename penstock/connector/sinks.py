"""What all sinks do before the first row: find or make the stream, and check that rows fit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.connector.connections import connected
from penstock.connector.options import Where
from penstock.errors import BadRequest, SchemaMismatch
from penstock.stream.schema import describe_difference, normalise
from penstock.stream.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Streams that were checked, by process: Spark asks for a writer twice per batch.
_READY: Final[dict[tuple[Where, str, str], Stream]] = {}


def ready_stream(
    where: Where, name: str, schema: StructType, *, key_by: tuple[str, ...] = ()
) -> Stream:
    """The stream that takes rows of this schema; made if there is none, with columns that may be
    null, since what Spark infers of that changes with the query.

    Raises SchemaMismatch naming each column that differs. A column may be nullable here and not
    there: rows are checked.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    missing = [key for key in key_by if key not in schema.names]
    if missing:
        raise BadRequest(
            f"option keyBy names {', '.join(missing)}: the rows have {', '.join(schema.names)}"
        )
    place = (where, name, schema.json())
    stream = _READY.get(place)
    if stream is not None:
        return stream
    check_types(schema)
    given = normalise(to_arrow_schema(schema, timezone="UTC"))
    log = connected(where)
    try:
        stream = log.create_stream(name, _nullable(given))
    except SchemaMismatch:
        stream = log.stream(name)
        _check_fits(stream, given)
    _READY[place] = stream
    return stream


def check_types(schema: StructType) -> None:
    """Raises BadRequest naming a column whose type no stream has.

    Spark itself would say so of some, without the column, and turn a variant into a struct.
    """
    for field in schema:
        odd = _odd_type(field.dataType)
        if odd is not None:
            raise BadRequest(
                f"column {field.name} has the type {odd.simpleString()}, which no stream has: "
                "cast it, to string for example"
            )


def _odd_type(kind: Any) -> Any:
    """The first type in it that Arrow cannot carry as Spark means it; None if there is none."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, t.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, t.MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, t.StringType):
        return None if kind.collation == t.StringType().collation else kind
    else:
        odd = (t.VariantType, t.CalendarIntervalType, t.YearMonthIntervalType, t.SpatialType)
        return kind if isinstance(kind, (*odd, t.UserDefinedType)) else None
    odd_types = (_odd_type(inside) for inside in inner)
    return next((kind for kind in odd_types if kind is not None), None)


def _check_fits(stream: Stream, given: pa.Schema) -> None:
    schema = stream.schema
    if sorted(schema.names) == sorted(given.names):
        given = pa.schema([given.field(name) for name in schema.names])
    difference = describe_difference(_nullable(schema), _nullable(given))
    if difference:
        raise SchemaMismatch(
            f"the rows do not fit stream {stream.name}: {difference}. Select and cast the columns "
            f"to {stream.ddl}, or write to another stream"
        )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_nullable_field(field) for field in schema])


def _nullable_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _nullable_type(field.type))


def _nullable_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable_field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_nullable_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_nullable_type(kind.key_type), _nullable_field(kind.item_field))
    return kind
