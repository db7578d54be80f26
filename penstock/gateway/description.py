"""What the gateway answers to, as OpenAPI, and the page that is made of it. Pure."""

from __future__ import annotations

import html
from typing import Any, Final

from penstock import __version__


def _body(kind: str, schema: dict[str, Any], example: object) -> dict[str, Any]:
    return {kind: {"schema": schema, "example": example}}


def _parameter(name: str, place: str, said: str, kind: str = "string") -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": said,
        "schema": {"type": kind},
    }


def _problems(*statuses: int) -> dict[str, Any]:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _operation(
    summary: str,
    said: str,
    done: dict[str, Any],
    problems: tuple[int, ...],
    parameters: tuple[dict[str, Any], ...] = (),
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "description": said,
        "parameters": list(parameters),
        "responses": {**done, **_problems(401, *problems, 503)},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


_NAME: Final = _parameter("name", "path", "The stream.")
_POSITIONS: Final = "earliest, latest, an LSN, or a time like 2026-11-15T08:00:00Z"
_ROW: Final = {"type": "object", "additionalProperties": True}
_STREAM: Final = {
    "name": "bids",
    "created": "2026-11-15T08:00:00.000Z",
    "ddl": "auction BIGINT, price BIGINT",
    "lanes": 16,
    "key": [],
}
_APPENDED: Final = {
    "stream": "bids",
    "rows": 2,
    "first_lsn": 17,
    "last_lsn": 17,
    "duplicate": False,
    "next": "loader:1",
}
_OBJECT: Final = {"type": "object"}
_ROWS_KINDS: Final = {
    **_body(
        "application/json",
        {"type": "array", "items": _ROW},
        [{"auction": 1, "price": 250}],
    ),
    **_body("application/x-ndjson", {"type": "string"}, '{"auction": 1, "price": 250}\n'),
    "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
}


def _done(said: str, example: object, status: int = 200) -> dict[str, Any]:
    content = _body("application/json", _OBJECT, example)
    return {str(status): {"description": said, "content": content}}


_PROBLEMS: Final = {
    400: "The request makes no sense.",
    401: "The token is missing, or the log does not take it.",
    403: "The token does not allow it.",
    404: "There is no such stream.",
    406: "No format that the client accepts.",
    408: "The body came too slowly.",
    409: "It does not fit what is there: another schema, a gap in the seqs.",
    410: "The position was trimmed away.",
    413: "Too many bytes or rows.",
    415: "A Content-Type that is none of ours.",
    422: "A row does not fit the schema; row and column are named. Nothing was appended.",
    429: "Too many requests with this token are under way.",
    503: "The log or the gateway is busy or gone. Send the same request again.",
    504: "Unknown: it may be appended or not. Send it again with the same Idempotency-Key.",
}
_PROBLEM: Final = {
    "type": "urn:penstock:problem:bad-row",
    "title": "bad row",
    "status": 422,
    "detail": "row 1, column price: expected bigint, got str 'x'",
    "remedy": "Correct the row. Nothing of this request was appended.",
}

OPENAPI: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Penstock gateway",
        "version": __version__,
        "description": "Streams of typed rows on one shared log, over HTTP.",
    },
    "security": [{"token": []}],
    "paths": {
        "/v1/streams": {
            "get": _operation(
                "List streams",
                "All streams, by name.",
                _done("The streams.", {"streams": [_STREAM]}),
                (),
            ),
            "post": _operation(
                "Create a stream",
                "With a schema as Spark's DDL. One that exists with the same schema is left as it "
                "is (200).",
                {
                    **_done("It was made.", _STREAM, 201),
                    **_done("It was there.", _STREAM),
                },
                (400, 409),
                body=_body(
                    "application/json",
                    _OBJECT,
                    {"name": "bids", "ddl": "auction long, price long", "key": ["auction"]},
                ),
            ),
        },
        "/v1/streams/{name}": {
            "get": _operation(
                "Describe a stream",
                "Its columns, lanes and newest entry.",
                _done("The stream.", _STREAM),
                (404,),
                (_NAME,),
            )
        },
        "/v1/streams/{name}/rows": {
            "post": _operation(
                "Append rows",
                "All rows of a request, or none; durable and visible when it is answered. With an "
                "Idempotency-Key a request may be sent any number of times, through any gateway, "
                "and is appended once. Without one, a request that is sent again may double.",
                _done("They are there.", _APPENDED),
                (400, 404, 408, 409, 413, 415, 422, 429, 504),
                (
                    _NAME,
                    _parameter(
                        "Idempotency-Key",
                        "header",
                        "PRODUCER:SEQ. The first is PRODUCER:0; the answer says the next.",
                    ),
                ),
                _ROWS_KINDS,
            ),
            "get": _operation(
                "Read rows",
                "The committed rows of a range that are there now, in log order.",
                {"200": {"description": "The rows.", "content": _ROWS_KINDS}},
                (400, 404, 406, 410),
                (
                    _NAME,
                    _parameter("from", "query", f"{_POSITIONS}. By default earliest."),
                    _parameter("to", "query", f"{_POSITIONS}; not included. By default latest."),
                    _parameter("limit", "query", "At most so many rows.", "integer"),
                    _parameter("format", "query", "ndjson, csv or arrow; or by Accept."),
                    _parameter("envelope", "query", "true: NDJSON says where each row stands."),
                ),
            ),
        },
        "/v1/streams/{name}/tail": {
            "get": _operation(
                "Follow a stream",
                "Server-sent events, one for each entry, with a line of JSON for each row. The id "
                "is the position after it: a client that sends it back as Last-Event-ID misses "
                "nothing and gets nothing twice.",
                {
                    "200": {
                        "description": "Events, until somebody goes.",
                        "content": _body(
                            "text/event-stream",
                            {"type": "string"},
                            'id: 18\nevent: rows\ndata: {"auction":1,"price":250}\n\n',
                        ),
                    }
                },
                (400, 404, 410),
                (
                    _NAME,
                    _parameter("from", "query", f"{_POSITIONS}. By default latest."),
                    _parameter("Last-Event-ID", "header", "Goes before `from`."),
                ),
            )
        },
        "/v1/streams/{name}/producers/{producer}": {
            "get": _operation(
                "Ask for a producer's next seq",
                "For a program that starts again and does not know how far it came.",
                _done("It.", {"producer": "loader", "next_seq": 1, "next": "loader:1"}),
                (404,),
                (_NAME, _parameter("producer", "path", "Its name in Idempotency-Key.")),
            )
        },
        "/metrics": {
            "get": _operation(
                "Metrics",
                "What this gateway counts, as OpenMetrics.",
                {"200": {"description": "Text."}},
                (),
            )
        },
        "/healthz": {
            "get": {
                "summary": "Health",
                "description": "Whether requests are taken; no token is needed.",
                "security": [],
                "responses": {
                    "200": {"description": "They are."},
                    "503": {"description": "It is stopping."},
                },
            }
        },
    },
    "components": {
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        "responses": {
            str(status): {
                "description": said,
                "content": _body("application/problem+json", _OBJECT, _PROBLEM),
            }
            for status, said in _PROBLEMS.items()
        },
    },
}

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "code,th{font-family:ui-monospace,monospace}h2{margin-top:2.5rem;font-size:1.1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.15rem 1rem .15rem 0;"
    "vertical-align:top;font-weight:normal}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8bf}}"
)


def _rows(pairs: list[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(said)}</td></tr>" for name, said in pairs
    )
    return f"<table>{cells}</table>" if pairs else ""


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = [(one["name"], one["description"]) for one in operation.get("parameters", ())]
    kinds = [(kind, "body") for kind in operation.get("requestBody", {}).get("content", ())]
    answers = [
        (status, one.get("description") or _PROBLEMS[int(status)])
        for status, one in operation["responses"].items()
    ]
    return (
        f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
        f"<p><b>{html.escape(operation['summary'])}.</b> "
        f"{html.escape(operation['description'])}</p>"
        f"{_rows(parameters + kinds)}<p>Answers</p>{_rows(answers)}"
    )


def _page() -> bytes:
    info = OPENAPI["info"]
    sections = "".join(
        _section(path, method, operation)
        for path, methods in OPENAPI["paths"].items()
        for method, operation in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{info['title']}</title><style>{_STYLE}</style><h1>{info['title']}</h1>"
        f"<p>{html.escape(info['description'])} Send the log's token with each request: "
        "<code>Authorization: Bearer TOKEN</code>. The same as "
        f'<a href="/openapi.json">/openapi.json</a>.</p>{sections}</html>'
    ).encode()


DOCS_PAGE: Final = _page()
