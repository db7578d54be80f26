"""What the log knows of a query: its plan, where it reads and writes, which version lives. Pure.

Owns the JSON under `query/<name>` (docs/formats.md, "Query definitions"). A version is a life: a
query that is started again under its name goes on with the same version if its plan is the same.
Law: decode(encode(r)) equals r; anything else raises BadFormat.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from penstock.errors import BadFormat

logger = logging.getLogger(__name__)

FORMAT: Final = 1
#: Of queries with another protocol than markers: programs from before would go on with markers.
FORMAT_PROTOCOL: Final = 2
#: Of queries whose tasks share sources: programs from before would tell time and order otherwise.
FORMAT_SHARED: Final = 3
#: Of queries that were rescaled: programs from before would run the tasks that they had before.
FORMAT_RESCALED: Final = 4
_FORMATS: Final = (FORMAT, FORMAT_PROTOCOL, FORMAT_SHARED, FORMAT_RESCALED)


@dataclass(frozen=True, slots=True)
class RegisteredQuery:
    """One version of a query."""

    name: str
    #: Stays the same over all versions and runs, like Spark's query id.
    id: str
    version: int
    #: `explain` of the plan: for people, for the fingerprint, and for the difference to another.
    plan: str
    mode: str
    to: str
    #: Where each source stream was begun.
    starts: dict[str, int]
    #: Tasks per stage when it was registered; once it was rescaled, its layout counts (layout.py).
    tasks: list[int]
    created_ms: int
    #: Where checkpoints go; None: nowhere.
    checkpoints: str | None = None
    #: How it commits: what one protocol left behind, another cannot go on from.
    protocol: str = "marker"
    #: Whether its tasks share sources by lanes, and tell time and order together. One that was
    #: registered before there was such a thing goes on as it was.
    shares_sources: bool = False
    is_rescaled: bool = False
    #: Where results of earlier versions are, if elsewhere.
    former_to: list[str] = field(default_factory=list)
    #: The columns by which rows of the result replace each other; none: the plan does not tell.
    result_key: list[str] = field(default_factory=list)
    #: Digests of static tables whose rows the state depends on (static_tables.py).
    fixed_tables: dict[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        text = json.dumps([self.plan, self.mode, self.to])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_query(query: RegisteredQuery) -> bytes:
    format = FORMAT if query.protocol == "marker" else FORMAT_PROTOCOL
    format = FORMAT_SHARED if query.shares_sources else format
    format = FORMAT_RESCALED if query.is_rescaled else format
    return json.dumps({"format": format, **asdict(query)}).encode()


def decode_query(name: str, data: bytes) -> RegisteredQuery:
    try:
        values: Any = json.loads(data)
        if values.pop("format") not in _FORMATS:
            raise BadFormat(f"query {name} was registered by a newer program: use that one")
        names = {field.name for field in fields(RegisteredQuery)}
        query = RegisteredQuery(**{key: value for key, value in values.items() if key in names})
        if query.name != name or not _is_typed(query):
            raise ValueError("a field has another type")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"query {name} is registered with bytes that cannot be read") from error
    return query


def result_of(name: str, data: bytes) -> str | None:
    """The stream that the query writes, also if the rest of it is of a newer program.

    None if that cannot be read: what nobody can read writes nowhere that is known.
    """
    try:
        values: Any = json.loads(data)
        to = values["to"]
    except (ValueError, KeyError, TypeError, RecursionError):
        logger.warning("query=%s is registered with bytes that cannot be read", name)
        return None
    return to if isinstance(to, str) else None


def _is_typed(query: RegisteredQuery) -> bool:
    texts = [query.id, query.plan, query.mode, query.to, query.protocol, *query.starts]
    texts += [*query.former_to, *query.result_key]
    texts += [*query.fixed_tables, *query.fixed_tables.values()]
    if query.checkpoints is not None:
        texts.append(query.checkpoints)
    counts = (query.version, query.created_ms, *query.starts.values(), *query.tasks)
    flags: tuple[object, ...] = (query.shares_sources, query.is_rescaled)
    typed = all(type(text) is str for text in texts) and all(type(one) is bool for one in flags)
    return typed and all(type(count) is int and count >= 0 for count in counts)


def describe_change(old: RegisteredQuery, new: RegisteredQuery) -> str | None:
    """What of the plan differs, as a diff for people; None if the new one can go on."""
    lines = []
    for label, was, now in (
        ("mode", old.mode, new.mode),
        ("result stream", old.to, new.to),
        ("commit protocol", old.protocol, new.protocol),
    ):
        if was != now:
            lines.append(f"{label}: was {was}, is {now}")
    if old.protocol == new.protocol != "marker" and old.checkpoints != new.checkpoints:
        # Only markers promise that a state without its checkpoints can be built again.
        lines.append(f"checkpoints: were in {old.checkpoints}")
    for table, now in new.fixed_tables.items():
        if old.fixed_tables.get(table, now) != now:
            lines.append(
                f"static table {table}: its rows are others than when the query began, and rows "
                "that were joined with those are to be taken back"
            )
    if old.plan != new.plan:
        lines += difflib.unified_diff(
            old.plan.splitlines(), new.plan.splitlines(), "the plan so far", "this plan",
            lineterm="", n=2,
        )  # fmt: skip
    return "\n".join(lines) if lines else None
