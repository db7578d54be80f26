"""What a part of a state says of itself, so that its changes can be merged without its operator.

A part is a value, a table or a row set (api.py). Its logged changes hold rows only; to tell which
of them are about one key, and which virtual node has it, one must know which columns are the key
and which place it.

Law: `decode_parts(encode_parts(p)) == p`; other JSON raises BadFormat.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadFormat

VALUE: Final = "value"
TABLE: Final = "table"
ROW_SET: Final = "row_set"
#: By kind of part, the kinds of changes that it has, in the order in which they are applied.
CHANGES_OF: Final = {VALUE: ("set",), TABLE: ("delete", "put"), ROW_SET: ("evict", "add")}


@dataclass(frozen=True, slots=True)
class Part:
    """Positions are those of columns in `rows`; of a table, keys come first."""

    kind: str
    #: Of what is put or added; of a row set without the weight, which is one more column at the
    #: end. A deletion has the key columns alone.
    rows: pa.Schema
    keys: tuple[int, ...]
    #: The columns that place a row; of a table they are key columns.
    partition: tuple[int, ...]
    #: Of a row set whose rows can be evicted: the column of their event time.
    event_time: int | None = None


Parts = Mapping[str, Part]


def encode_parts(parts: Parts) -> list[dict[str, Any]]:
    """As JSON."""
    return [
        {
            "name": name,
            "kind": part.kind,
            "rows": base64.b64encode(part.rows.serialize()).decode(),
            "keys": list(part.keys),
            "partition": list(part.partition),
            "event_time": part.event_time,
        }
        for name, part in parts.items()
    ]


def decode_parts(values: Sequence[Mapping[str, Any]]) -> dict[str, Part]:
    """The inverse of encode_parts."""
    try:
        return {str(value["name"]): _decode(value) for value in values}
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise BadFormat(f"not the parts of a state: {error}") from error


def _decode(value: Mapping[str, Any]) -> Part:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["rows"], validate=True)))
    keys, partition = (tuple(map(int, value[name])) for name in ("keys", "partition"))
    time = value["event_time"]
    columns = range(len(schema))
    if value["kind"] not in CHANGES_OF or not {*partition, *keys} <= {*columns}:
        raise ValueError(f"a part of kind {value['kind']} with keys {keys} placed by {partition}")
    if time is not None and int(time) not in columns:
        raise ValueError(f"event time in column {time} of {len(schema)}")
    return Part(value["kind"], schema, keys, partition, None if time is None else int(time))
