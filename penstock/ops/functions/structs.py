"""Structs: making them, and reading their fields."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import on_arrays
from penstock.ops.functions.lists import Lists, lists_of, retype
from penstock.ops.functions.registry import (
    Argument,
    Compiled,
    Datum,
    function,
    special_form,
)
from penstock.plan.exprs import Call


@function("CreateNamedStruct", sql="struct named_struct", raises=False)
@on_arrays
def named_struct(call: Call, *args: pa.Array) -> pa.Array:
    """Names and values alternate; the type has the names."""
    return struct_of(list(args[1::2]), call.type)


@special_form("GetStructField", sql=".")
def get_field(call: Call, args: list[Argument]) -> Compiled:
    """A field of a struct; null if the struct is."""
    (struct,) = args
    ordinal = call.option("ordinal")
    options = pc.StructFieldOptions([ordinal])

    def field(batch: pa.RecordBatch) -> Datum:
        value = struct.evaluate(batch)
        if isinstance(value, pa.StructArray) and not value.null_count:
            return value.field(ordinal)  # a tenth of what the kernel takes
        return pc.struct_field(value, options=options)

    return field


@function("GetArrayStructFields", raises=False)
@on_arrays
def get_fields(call: Call, value: pa.Array) -> pa.Array:
    """One field of every struct in an array."""
    lists = lists_of(value)
    field = pc.struct_field(lists.elements, [call.option("ordinal")])
    return Lists(lists.offsets, field, lists.valid).array(call.type)


def struct_of(values: list[pa.Array], type: pa.DataType) -> pa.Array:
    """Structs without nulls, of these fields."""
    names = [type.field(i).name for i in range(type.num_fields)]
    return retype(pa.StructArray.from_arrays(values, names), type)
