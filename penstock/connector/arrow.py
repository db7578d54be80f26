"""The columns of streams as Spark wants them, and the metadata columns.

Owns which columns a reader gives: those of the stream, in Spark's exact Arrow schema, then the
metadata columns that were asked for; or those of a schema that the user gave, which names some of
them. Law: a batch of `target_schema` is accepted by Spark without a cast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.connector.connections import connected
from penstock.connector.items import ItemSource
from penstock.connector.options import ReadOptions
from penstock.errors import BadRequest, SchemaMismatch
from penstock.stream.metadata import METADATA
from penstock.stream.schema import describe_difference
from penstock.stream.session import Log


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that are read, as they are registered now."""

    sources: tuple[ItemSource, ...]
    #: Of all of them.
    schema: pa.Schema
    #: A short text that differs if the schema does.
    schema_hash: str


def find_streams(log: Log, options: ReadOptions) -> Streams:
    """Raises NotFound; SchemaMismatch if they are not of one schema."""
    streams = [log.stream(name) for name in options.streams]
    schema = streams[0].schema
    for stream in streams[1:]:
        difference = describe_difference(schema, stream.schema)
        if difference:
            raise SchemaMismatch(
                f"streams {streams[0].name} and {stream.name} are read as one, but their schemas "
                f"differ: {difference}; read them apart"
            )
    for name in options.metadata:
        if name in schema.names:
            raise BadRequest(
                f"option metadata asks for {name}, but stream {streams[0].name} has a column of "
                "that name: do not ask for it"
            )
    sources = tuple(ItemSource(stream.name, stream.start_lsn) for stream in streams)
    return Streams(sources, schema, schema_hash(schema))


def stream_struct(options: ReadOptions) -> StructType:
    """The columns that a reader gives if the user says nothing."""
    streams = find_streams(connected(options.where), options)
    return from_arrow_schema(_all_columns(streams.schema, options.metadata))


def target_schema(columns: StructType) -> pa.Schema:
    """What Spark wants batches of these columns to have, to the letter."""
    return to_arrow_schema(columns, timezone="UTC")


def check_columns(columns: StructType, schema: pa.Schema, options: ReadOptions) -> None:
    """Whether these columns, which the user may have given, can be read from streams of `schema`.

    Raises SchemaMismatch, naming each that differs.
    """
    offered = _all_columns(schema, options.metadata)
    problems: list[str] = []
    for given in target_schema(columns):
        index = offered.get_field_index(given.name)
        if index >= 0:
            expected = pa.schema([_loosened(offered.field(index), given)])
            problems.append(describe_difference(expected, pa.schema([given])))
        elif given.name in METADATA:
            problems.append(f"column {given.name}: ask for it with option metadata")
        else:
            problems.append(f"column {given.name}: not there; there are {', '.join(offered.names)}")
    text = "; ".join(problem for problem in problems if problem)
    if text:
        names = ", ".join(options.streams)
        raise SchemaMismatch(f"the schema given to read stream {names} does not fit: {text}")


def schema_hash(schema: pa.Schema) -> str:
    """Comments do not count: they do not change what a row may hold."""
    text = ";".join(_describe(field) for field in schema)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _all_columns(schema: pa.Schema, metadata: Sequence[str]) -> pa.Schema:
    wanted = [pa.field(name, METADATA[name], nullable=False) for name in metadata]
    return pa.schema([*schema, *wanted])


def _loosened(field: pa.Field, given: pa.Field) -> pa.Field:
    """The field, but nullable wherever the given one is: no value of it is then lost."""
    kind, other = field.type, given.type
    if pt.is_struct(kind) and pt.is_struct(other):
        fields = [
            _loosened(field, other.field(field.name))
            if other.get_field_index(field.name) >= 0
            else field
            for field in kind
        ]
        kind = pa.struct(fields)
    elif pt.is_list(kind) and pt.is_list(other):
        kind = pa.list_(_loosened(kind.value_field, other.value_field))
    elif pt.is_map(kind) and pt.is_map(other):
        kind = pa.map_(kind.key_field, _loosened(kind.item_field, other.item_field))
    return pa.field(field.name, kind, nullable=field.nullable or given.nullable)


def _describe(field: pa.Field) -> str:
    kind = field.type
    if pt.is_struct(kind):
        text = f"struct<{','.join(_describe(field) for field in kind)}>"
    elif pt.is_map(kind):
        text = f"map<{_describe(kind.key_field)},{_describe(kind.item_field)}>"
    elif pt.is_list(kind):
        text = f"list<{_describe(kind.value_field)}>"
    else:
        text = str(kind)
    return f"{field.name!r}:{text}{'' if field.nullable else '!'}"
