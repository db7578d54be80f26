"""The options of `format("penstock")`: what a user may say, checked before anything is done.

Owns their names, defaults and meanings; docs/spark.md has them as one table. Law: an unknown
option, or a value that is not allowed, is refused with the option's name and what is allowed.
Spark hands options over in any case and as text, and its own ones among them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.connector.items import Division
from penstock.errors import BadRequest
from penstock.limits import MIB
from penstock.log.directories import default_data_dir
from penstock.stream.metadata import METADATA
from penstock.stream.positions import EARLIEST, LATEST, Position, parse_position
from penstock.stream.registration import check_name

SIZE: Final = "size"
VIRTUAL_NODE: Final = "virtualNode"
LANE: Final = "lane"
_DIVISIONS: Final = {SIZE: None, VIRTUAL_NODE: Division.NODE, LANE: Division.LANE}

BYTES_PER_TRIGGER: Final = 128 * MIB

_WHERE: Final = ("log", "tokenFile", "tlsCa")
_READ: Final = ("stream", "streams", "metadata", "startingPosition", "partitions", "partitionBy")
STREAM_READ: Final = (
    *_WHERE,
    *_READ,
    *("maxRowsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss"),
)
BATCH_READ: Final = (*_WHERE, *_READ, "endingPosition", "pushFilters")
WRITE: Final = (*_WHERE, "stream", "keyBy")
STREAM_WRITE: Final = (*WRITE, "takeOver")
#: Spark's own, which reach us among ours.
_OF_SPARK: Final = ("checkpointlocation", "path", "queryname", "outputmode")


@dataclass(frozen=True, slots=True)
class Where:
    """A log, for a process on any machine: names of files, never a secret."""

    log: str
    token_file: str | None = None
    tls_ca: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a streaming or a batch reader was told."""

    where: Where
    #: One or more, of one schema.
    streams: tuple[str, ...]
    metadata: tuple[str, ...]
    start: Position
    #: Of a batch.
    end: Position
    #: None: by size.
    partitions: int | None
    #: None: by size.
    division: Division | None
    #: Of a trigger; None: no limit.
    rows_max: int | None
    bytes_max: int | None
    fail_on_data_loss: bool
    push_filters: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a sink was told."""

    where: Where
    stream: str
    #: Columns by whose values rows go to virtual nodes; none: rows are not keyed.
    key_by: tuple[str, ...]
    #: Whether a query may go on from another checkpoint directory than the one it began in.
    take_over: bool
    #: Where the query's checkpoint is, as far as Spark tells.
    checkpoint: str | None


def read_options(options: Mapping[str, str], allowed: tuple[str, ...]) -> ReadOptions:
    """Of a reader; `allowed` is STREAM_READ or BATCH_READ. Raises BadRequest."""
    said = _known(options, allowed)
    by = _one_of(said, "partitionBy", tuple(_DIVISIONS), SIZE)
    return ReadOptions(
        where=_where(said),
        streams=_streams(said),
        metadata=_metadata(said),
        start=_position(said, "startingPosition", EARLIEST),
        end=_position(said, "endingPosition", LATEST),
        partitions=_count(said, "partitions"),
        division=_DIVISIONS[by],
        rows_max=_count(said, "maxRowsPerTrigger"),
        bytes_max=_limit(said, "maxBytesPerTrigger", BYTES_PER_TRIGGER),
        fail_on_data_loss=_flag(said, "failOnDataLoss", True),
        push_filters=_flag(said, "pushFilters", False),
    )


def write_options(options: Mapping[str, str], allowed: tuple[str, ...]) -> WriteOptions:
    """Of a sink; `allowed` is WRITE or STREAM_WRITE. Raises BadRequest."""
    said = _known(options, allowed)
    stream = said.get("stream", "").strip()
    if not stream:
        raise BadRequest('option stream is missing: the stream to write, .option("stream", "bids")')
    check_name(stream)
    lower = {key.lower(): value for key, value in options.items()}
    return WriteOptions(
        where=_where(said),
        stream=stream,
        key_by=_list(said, "keyBy"),
        take_over=_flag(said, "takeOver", False),
        checkpoint=checkpoint_place(lower.get("checkpointlocation")),
    )


def checkpoint_place(path: str | None) -> str | None:
    """One text for one directory, however it is written."""
    if path is None:
        return None
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    # A relative path stays what it is: each driver may have another working directory.
    return os.path.normpath(path) if path.startswith("/") else path.rstrip("/")


def _known(options: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    names = {name.lower(): name for name in allowed}
    said: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is not None:
            said[name] = value
        elif key.lower() not in _OF_SPARK:
            raise BadRequest(f"option {key} is not known here: allowed are {', '.join(allowed)}")
    return said


def _where(said: Mapping[str, str]) -> Where:
    return where(said.get("log"), said.get("tokenFile"), said.get("tlsCa"))


def where(log: str | None, token_file: str | None, tls_ca: str | None) -> Where:
    """The same place for every process: tasks have another working directory, and environment."""
    if log is None:
        log = str(default_data_dir())
    if "://" in log:
        token_file = token_file or os.environ.get("PENSTOCK_TOKEN_FILE")
    return Where(
        _absolute(log), *(_absolute(path) if path else None for path in (token_file, tls_ca))
    )


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def _streams(said: Mapping[str, str]) -> tuple[str, ...]:
    if ("stream" in said) == ("streams" in said):
        raise BadRequest(
            "give one of the options stream (one) and streams (several, with commas between them)"
        )
    names = (said["stream"].strip(),) if "stream" in said else _list(said, "streams")
    if not names or len(set(names)) != len(names):
        raise BadRequest(f"option streams is {said['streams']!r}: names, each once, with commas")
    for name in names:
        check_name(name)
    return names


def _metadata(said: Mapping[str, str]) -> tuple[str, ...]:
    wanted = _list(said, "metadata")
    if not set(wanted) <= set(METADATA):
        raise BadRequest(f"option metadata is {said['metadata']!r}: any of {', '.join(METADATA)}")
    return tuple(name for name in METADATA if name in wanted)


def _list(said: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = said.get(name, "")
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _one_of(said: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = said.get(name, default)
    for word in allowed:
        if word.lower() == value.lower():
            return word
    raise BadRequest(f"option {name} is {value!r}: allowed are {', '.join(allowed)}")


def _flag(said: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(said, name, ("true", "false"), "true" if default else "false") == "true"


def _position(said: Mapping[str, str], name: str, default: str) -> Position:
    try:
        return parse_position(said.get(name, default))
    except BadRequest as error:
        raise BadRequest(f"option {name}: {error}") from None


def _count(said: Mapping[str, str], name: str) -> int | None:
    if name not in said:
        return None
    value = said[name].strip()
    if not value.isascii() or not value.isdigit() or int(value) == 0:
        raise BadRequest(f"option {name} is {value!r}: a whole number, 1 or more")
    return int(value)


def _limit(said: Mapping[str, str], name: str, default: int) -> int | None:
    """Like `_count`, with a default; 0 takes the limit away."""
    if said.get(name, "").strip() == "0":
        return None
    return _count(said, name) or default
