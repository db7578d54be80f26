"""What the log knows of the image of a changing result: all its rows as of one position. Pure.

Rows of a changing result are taken back again and again, so that its history grows for ever while
the result itself need not. An image is the sum of that history below a position. Whoever wants the
result takes the image and what counts from its position on, and the history before may be trimmed.

Owns the JSON under `image/<query>` (docs/formats.md, "Images of results"), and when the next image
is worth its cost. The rows are entries of their own, under `image_tag`: each has the image's id
before an ordinary payload of the result's stream. An image that was begun and not finished leaves
entries of an id that no key names.

Law: decode(encode(x)) equals x; anything else raises BadFormat. Law (I15): who reads the result
needs no entry below `position`, but for what markers above it name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from penstock.errors import BadFormat, Damaged
from penstock.log.records import Entry, Kind

FORMAT: Final = 1
ID_BYTES: Final = 16
#: The log has grown by so many entries since the last image, and by so many for each entry of it.
GROWN_MIN: Final = 10_000
GROWN_TIMES: Final = 256
#: The same while nothing is added to the result: then the next reader need not wait.
QUIET_MIN: Final = 64
QUIET_TIMES: Final = 16


@dataclass(frozen=True, slots=True)
class Image:
    """The rows of one version of a query's result that counted below `position`."""

    version: int
    position: int
    #: Of the entries that hold it: id, where they stand, and how many they are.
    id: str = ""
    first_lsn: int = 0
    end_lsn: int = 0
    entries: int = 0
    #: Different rows.
    rows: int = 0


def image_key(query: str) -> str:
    """Metadata: the newest image of the query's result."""
    return f"image/{query}"


def image_tag(query: str, version: int) -> str:
    return f"R/{query}.{version}/0"


def encode_image(image: Image) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(image)}).encode()


def decode_image(query: str, data: bytes) -> Image:
    try:
        values: Any = json.loads(data)
        if values.pop("format") != FORMAT:
            raise BadFormat(f"the image of query {query} is of a newer program: use that one")
        image = Image(**values)
        numbers = [getattr(image, one.name) for one in fields(Image) if one.name != "id"]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a field has another type")
        if len(bytes.fromhex(image.id)) != (ID_BYTES if image.entries else 0):
            raise ValueError("no id")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"the image of query {query} has bytes that cannot be read") from error
    return image


def is_due(image: Image, tail: int, *, is_quiet: bool) -> bool:
    """Whether the next image saves its readers more than it costs; something was added since."""
    grown = tail - image.position
    if is_quiet and grown >= max(QUIET_MIN, QUIET_TIMES * image.entries):
        return True
    return grown >= max(GROWN_MIN, GROWN_TIMES * image.entries)


def seal_payload(id: str, payload: bytes) -> bytes:
    """The payload of an image's entry."""
    return bytes.fromhex(id) + payload


def payloads_of(image: Image, entries: Iterable[Entry]) -> list[memoryview]:
    """The payloads of rows, of what stands under the tag where the image does."""
    id = bytes.fromhex(image.id)
    found = [
        memoryview(entry.payload)[ID_BYTES:]
        for entry in entries
        if entry.kind is Kind.CHANGE and bytes(entry.payload[:ID_BYTES]) == id
    ]
    if len(found) != image.entries:
        raise Damaged(f"an image of a result has {len(found)} entries, expected {image.entries}")
    return found
