"""A request's body: read within bounds, then decoded by its content type.

Law: nothing of a body is read before its caller has shown a token that the log takes, and no more
of it is held than config.py allows, of all bodies together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt
from starlette.requests import Request

from penstock.errors import BadFormat, BadRequest, BadRow, Overloaded, TooLarge
from penstock.gateway.config import (
    BODIES_BYTES_MAX,
    BODY_SECONDS_MAX,
    CELLS_MAX,
    ELEMENT_CELLS_MAX,
    ROWS_MAX,
)
from penstock.gateway.problems import refuse
from penstock.gateway.replies import ARROW, NDJSON
from penstock.stream.batches import count_arrays, read_foreign
from penstock.stream.json_columns import array_to_batches, lines_to_batches, number_lines
from penstock.stream.rows import to_batches

JSON: Final = "application/json"


class Budget:
    """Bytes that may be held, of all requests together."""

    def __init__(self, most: int = BODIES_BYTES_MAX) -> None:
        self.left = most

    def take(self, size: int) -> None:
        if size > self.left:
            raise Overloaded("the gateway holds as many bodies as it may")
        self.left -= size

    def give(self, size: int) -> None:
        self.left += size


@asynccontextmanager
async def read_body(request: Request, budget: Budget, bytes_max: int) -> AsyncIterator[bytes]:
    """The body, while somebody works with it. Raises TooLarge before any of it is read, if its
    length says so."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise refuse(
            415,
            "unsupported-encoding",
            f"Content-Encoding {encoding[:40]!r}",
            "Send the body as it is, without Content-Encoding.",
        )
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(f"Content-Length {length[:40]!r} is no length")
    if len(length) > 15 or int(length) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    held = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                budget.take(len(part))
                held += len(part)
                if held > bytes_max:
                    raise _too_large(bytes_max)
                parts.append(part)
        yield b"".join(parts)
    except TimeoutError:
        raise refuse(
            408,
            "slow-body",
            f"the body did not come within {BODY_SECONDS_MAX:g} s",
            "Send it faster, or fewer rows in a request.",
            {"Connection": "close"},
        ) from None
    finally:
        budget.give(held)


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the body is over {bytes_max} bytes")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decoder_of(kind: str) -> Callable[[bytes, pa.Schema], list[pa.RecordBatch]]:
    """What makes rows of a body of this type."""
    decode = _DECODERS.get(kind)
    if decode is None:
        known = ", ".join(_DECODERS)
        raise refuse(
            415,
            "unsupported-media-type",
            f"Content-Type {kind[:80]!r}" if kind else "there is no Content-Type",
            f"Send rows as one of {known}.",
            {"Accept-Post": known},
        )
    return decode


def decode_json_array(body: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    _check_elements(body, schema)
    return array_to_batches(body, schema, rows_max=rows_max(schema))


def decode_ndjson(body: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    _check_elements(body, schema)
    lines = number_lines(body)
    if len(lines) > rows_max(schema):
        raise TooLarge(f"over {rows_max(schema)} rows at once")
    return lines_to_batches(lines, schema)


def decode_arrow(body: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    try:
        batches = read_foreign(body, rows_max=rows_max(schema))
    except BadFormat as error:
        raise BadRow(str(error)) from None
    return to_batches(batches, schema) if batches else []


def rows_max(schema: pa.Schema) -> int:
    """Of a request: few bytes may say many rows, and a row has a cell in each column and field."""
    return min(ROWS_MAX, max(1, CELLS_MAX // sum(map(count_arrays, schema.types))))


def _check_elements(body: bytes, schema: pa.Schema) -> None:
    """An element of a list may be two bytes, too, and has a cell in each of its fields. Counted in
    the text, which has no fewer objects and nulls: no decoder need be trusted with it."""
    cells = max(map(_widest_element, schema.types)) * (body.count(b"{") + body.count(b"null"))
    if cells > ELEMENT_CELLS_MAX:
        raise TooLarge(f"lists of up to {cells} fields in all, limit {ELEMENT_CELLS_MAX}")


def _widest_element(arrow_type: pa.DataType) -> int:
    """Arrays that an element of a list in this type is made of; 0: there are no lists."""
    nested = [arrow_type.field(place).type for place in range(arrow_type.num_fields)]
    is_list = pt.is_list(arrow_type) or pt.is_map(arrow_type)
    widths = map(count_arrays if is_list else _widest_element, nested)
    return max(widths, default=0)


_DECODERS: Final[dict[str, Callable[[bytes, pa.Schema], list[pa.RecordBatch]]]] = {
    JSON: decode_json_array,
    NDJSON: decode_ndjson,
    ARROW: decode_arrow,
}


def parse_object(body: bytes) -> dict[str, Any]:
    """A body that is one JSON object, for requests that are no rows."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value
