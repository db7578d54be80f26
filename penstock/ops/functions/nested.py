"""Structs, arrays, maps."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.registry import Datum, function
from penstock.plan.exprs import Call


@function("CreateNamedStruct", sql="struct named_struct", raises=False)
def named_struct(call: Call, *args: Datum) -> Datum:
    """Names and values alternate; the type has the names."""
    values = args[1::2]
    rows = next((len(value) for value in values if isinstance(value, pa.Array)), 1)
    arrays = [pa.repeat(v, rows) if isinstance(v, pa.Scalar) else v for v in values]
    fields = [call.type.field(i) for i in range(call.type.num_fields)]
    built = pa.StructArray.from_arrays(arrays, fields=fields)
    return built if any(isinstance(v, pa.Array) for v in values) else built[0]


@function("GetStructField", raises=False)
def get_field(call: Call, value: Datum) -> Datum:
    return pc.struct_field(value, [call.option("ordinal")])
