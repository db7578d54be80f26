"""The streams of a log: found, listed, made.

Law: of all that make a stream at the same time, one does; the others get it if their schema is
equal, and SchemaMismatch if not. Who may append to a stream makes it, with whatever bytes: those
that cannot be read hide no other stream.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import BadFormat, BadRequest, GuardFailed, NotFound, SchemaMismatch
from penstock.limits import LANES_DEFAULT
from penstock.log.client.client import AsyncLog
from penstock.stream.lanes import check_lanes
from penstock.stream.registration import (
    KEY_PREFIX,
    Registration,
    check_name,
    decode_registration,
    encode_registration,
    stream_key,
)
from penstock.stream.schema import describe_difference, normalise

logger = logging.getLogger(__name__)


async def find_stream(log: AsyncLog, name: str) -> Registration:
    """NotFound, with names that are close, if there is none."""
    check_name(name)
    found = await _find(log, name)
    if found is None:
        keys = await log.list_metadata(KEY_PREFIX)
        raise NotFound(f"no stream {name}: {_hint(name, [_name(key) for key in keys])}")
    return found


async def list_streams(log: AsyncLog) -> list[Registration]:
    """By name, without those that cannot be read, of which it is told."""
    values = await log.list_metadata(KEY_PREFIX)
    found: list[Registration] = []
    for key in sorted(values):
        try:
            found.append(decode_registration(_name(key), values[key].data))
        except BadFormat as error:
            logger.warning("a stream is left out cause=%s", error)
    return found


async def make_stream(
    log: AsyncLog,
    name: str,
    schema: pa.Schema | str,
    *,
    lanes: int | None,
    key: Sequence[str] | None,
    now_ms: int,
) -> tuple[Registration, bool]:
    """The stream, and whether it was made now. Raises SchemaMismatch, BadRequest."""
    check_name(name)
    fitting = normalise(schema)
    if isinstance(key, str):
        raise BadRequest(f"key={key!r}: give a list of columns")
    count = LANES_DEFAULT if lanes is None else lanes
    check_lanes(name, fitting, count, key or ())
    wanted = Registration(name, fitting, now_ms, lanes=count, key=tuple(key or ()))
    found = await _find(log, name)
    if found is None:
        try:
            value = encode_registration(wanted)
            await log.compare_and_set(stream_key(name), expected=None, value=value)
        except GuardFailed:
            found = await _find(log, name)  # another was faster
    if found is None:
        return wanted, True
    difference = describe_difference(found.schema, wanted.schema)
    if difference:
        raise SchemaMismatch(f"stream {name} exists with another schema: {difference}")
    if lanes is not None and lanes != found.lanes:
        raise SchemaMismatch(
            f"stream {name} exists with {found.lanes} lanes, which it keeps, not {lanes}"
        )
    if key is not None and tuple(key) != found.key:
        has = f"the key {', '.join(found.key)}" if found.key else "no key"
        raise SchemaMismatch(f"stream {name} exists with {has}, and keeps that")
    return found, False


async def _find(log: AsyncLog, name: str) -> Registration | None:
    value = await log.get(stream_key(name))
    return None if value is None else decode_registration(name, value.data)


def _name(key: str) -> str:
    return key.removeprefix(KEY_PREFIX)


def _hint(name: str, names: list[str]) -> str:
    if not names:
        return "the log has no streams yet; create_stream makes one"
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    shown = ", ".join(sorted(names)[:5])
    return f"there are {shown}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")
