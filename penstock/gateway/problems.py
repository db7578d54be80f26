"""What an error is over HTTP: a status, and a body that says cause and remedy (RFC 9457). Pure.

Law: every class of penstock/errors.py has a status, that of its nearest parent if it has none of
its own. What a client may send again as it is has a Retry-After.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock import errors as e
from penstock.plain_text import plain

MEDIA_TYPE: Final = "application/problem+json"
#: Characters of a cause; names and values in it come from the request.
DETAIL_CHARS_MAX: Final = 2_000
RETRY_AFTER: Final = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class Problem:
    """The answer to a request that could not be served."""

    status: int
    #: Of the kind: `bad-row`. Programs tell problems apart by it.
    kind: str
    detail: str
    remedy: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        detail = plain(self.detail)
        if len(detail) > DETAIL_CHARS_MAX:
            detail = detail[: DETAIL_CHARS_MAX - 1] + "…"
        value = {
            "type": f"urn:penstock:problem:{self.kind}",
            "title": self.kind.replace("-", " "),
            "status": self.status,
            "detail": detail,
            "remedy": self.remedy,
        }
        return json.dumps(value, ensure_ascii=False).encode()


class HttpRefused(e.Refused):
    """A request that HTTP itself has a status for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def refuse(
    status: int, kind: str, detail: str, remedy: str, headers: Mapping[str, str] | None = None
) -> HttpRefused:
    return HttpRefused(Problem(status, kind, detail, remedy, headers or {}))


@dataclass(frozen=True, slots=True)
class _Class:
    status: int
    remedy: str
    headers: Mapping[str, str] = field(default_factory=dict)


_AGAIN: Final = "Send the same request again after the time in Retry-After."
#: By class; the nearest parent counts.
_CLASSES: Final[Mapping[type[Exception], _Class]] = {
    e.Unauthorized: _Class(
        401,
        "Send a token of this log: Authorization: Bearer TOKEN.",
        {"WWW-Authenticate": 'Bearer realm="penstock"'},
    ),
    e.Forbidden: _Class(403, "Use a token that allows it, or ask for one."),
    e.NotFound: _Class(404, "GET /v1/streams lists the streams; POST /v1/streams makes one."),
    e.SchemaMismatch: _Class(409, "Use the stream as it is, or make one with another name."),
    e.SeqGap: _Class(
        409,
        "Send what lies between first. GET /v1/streams/{name}/producers/{producer} says the next "
        "seq.",
    ),
    e.SeqMismatch: _Class(
        409,
        "This seq was used for an append of another size. Send the very body of the first attempt, "
        "or go on at the next seq: GET /v1/streams/{name}/producers/{producer}.",
    ),
    e.GuardFailed: _Class(409, "Somebody else changed it first. Look, then decide again."),
    e.AlreadyExists: _Class(409, "Look at what is there, then decide again."),
    e.VersionConflict: _Class(409, "Somebody else changed it first. Look, then decide again."),
    e.Trimmed: _Class(410, "These entries are gone for good. Read on from earliest."),
    e.TooLarge: _Class(413, "Send fewer rows in a request."),
    e.BadRow: _Class(422, "Correct the row. Nothing of this request was appended."),
    e.BadRequest: _Class(400, "Correct the request: /docs says what it takes."),
    e.Refused: _Class(400, "Correct the request: /docs says what it takes."),
    e.Overloaded: _Class(503, _AGAIN, RETRY_AFTER),
    e.Retryable: _Class(503, _AGAIN, RETRY_AFTER),
    e.Fenced: _Class(
        503,
        "Another client appends as this producer. Send the same request again, with the same key.",
        RETRY_AFTER,
    ),
    e.Unknown: _Class(
        504,
        "It may be appended or not. With an Idempotency-Key, send the same request again: it will "
        "not double. Without one, look at the stream first.",
        RETRY_AFTER,
    ),
    e.Damaged: _Class(500, "What is stored cannot be read. Tell the log's operator."),
}
_DEFECT: Final = Problem(
    500,
    "defect",
    "a defect of the gateway; its log says where",
    "Tell the gateway's operator. If it was an append, it may be there or not.",
)


def problem_of(error: BaseException) -> Problem:
    """What to answer."""
    if isinstance(error, HttpRefused):
        return error.problem
    for parent in type(error).__mro__:
        known = _CLASSES.get(parent)
        if known is not None:
            kind = _kind(type(error))
            return Problem(known.status, kind, str(error), known.remedy, known.headers)
    return _DEFECT


def _kind(error: type) -> str:
    """`BadRow` is `bad-row`."""
    return re.sub(r"(?<=.)(?=[A-Z])", "-", error.__name__).lower()
