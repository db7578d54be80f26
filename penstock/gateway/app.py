"""Which request does what.

Owns the routes, the order of checks (room, token, headers, body), and that every answer that is no
success is a problem with a cause and a remedy. The log is asked with the caller's token only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.errors import BadRequest, Overloaded, PenstockError, Trimmed
from penstock.gateway import replies
from penstock.gateway.appending import Outcome, one_group, outcome_of
from penstock.gateway.bodies import Budget, decoder_of, media_type, parse_object, read_body
from penstock.gateway.config import (
    FOLLOWED_MAX,
    HEARTBEAT_SECONDS,
    INLINE_BYTES_MAX,
    INLINE_ROWS_MAX,
    READERS_MAX,
    GatewayConfig,
)
from penstock.gateway.description import DOCS_PAGE, OPENAPI
from penstock.gateway.endpoints import Endpoints, application, json_response, static
from penstock.gateway.kafka.listener import KafkaListener
from penstock.gateway.kafka.shared import Shared
from penstock.gateway.keys import Key, parse_key
from penstock.gateway.metrics import GatewayMetrics
from penstock.gateway.problems import problem_of, refuse
from penstock.gateway.reading import LoopTail, Piece
from penstock.gateway.sessions import Session, Sessions
from penstock.gateway.streaming import PieceByPiece
from penstock.ids import Lsn
from penstock.limits import VALUE_BYTES_MAX
from penstock.log.client.client import Resolve
from penstock.log.serving.directory import Address
from penstock.log.serving.openmetrics import join_texts
from penstock.stream.ddl import COMMENT_KEY, type_to_ddl
from penstock.stream.positions import EARLIEST, LATEST, find_position, parse_position
from penstock.stream.producer import producer_name
from penstock.stream.registration import Registration, stream_tag
from penstock.stream.registry import list_streams, make_stream
from penstock.stream.times import time_text
from penstock.wire import messages as m

#: The page is whole: it loads nothing and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Gateway:
    """The application; `server.py` runs it."""

    def __init__(self, config: GatewayConfig, resolve_for: Callable[[str], Resolve]) -> None:
        self._config = config
        self.sessions = Sessions(resolve_for, timeout=config.timeout_seconds)
        self.metrics = GatewayMetrics()
        self._budget = Budget()
        #: One: however many large bodies wait, one of them is being unfolded.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="penstock-gateway")
        self._endpoints = Endpoints(self.sessions, self.metrics)
        self._readers = 0
        self._turn = 0
        self.stopping = asyncio.Event()
        self.kafka: Shared | None = None
        self.app = self._routes()

    def _routes(self) -> Starlette:
        route = self._endpoints.route
        streams, one = "/v1/streams", "/v1/streams/{name}"
        routes = [
            route(streams, GET=self._list, POST=self._create),
            route(one, GET=self._describe),
            route(f"{one}/rows", GET=self._read, POST=self._append),
            route(f"{one}/tail", GET=self._tail),
            route(one + "/producers/{producer:path}", GET=self._producer),
            route("/metrics", GET=self._metrics),
            Route("/healthz", self._health),
            static("/openapi.json", json.dumps(OPENAPI).encode(), "application/json", _POLICY),
            static("/docs", DOCS_PAGE, "text/html; charset=utf-8", _POLICY),
        ]
        return application(routes, "See /docs for what is there.")

    def listen_to_kafka(self) -> KafkaListener | None:
        """What is to listen for Kafka's clients, if anything is."""
        if self._config.kafka_port is None:
            return None
        told = self._config.advertised
        advertised = None if told is None else Address(*told, False)
        self.kafka = Shared(self.sessions, self._budget, advertised)
        return KafkaListener(self.kafka, self._config)

    def stop(self) -> None:
        """Tails end, so that their clients go on at another gateway; all else is finished."""
        self.stopping.set()

    async def close(self) -> None:
        await self.sessions.close()
        self._beside.shutdown(wait=False)

    async def _beside_if(self, large: bool, work: Callable[..., Any], *given: object) -> Any:
        """On a thread if it takes long, so that others are served meanwhile."""
        if not large:
            return work(*given)
        return await asyncio.get_running_loop().run_in_executor(self._beside, work, *given)

    # ---- streams

    async def _list(self, request: Request, session: Session) -> Response:
        found = await list_streams(session.log)
        return json_response({"streams": [summary(each) for each in found]})

    async def _create(self, request: Request, session: Session) -> Response:
        # No larger schema can be kept, and one that is takes seconds to read.
        async with read_body(request, self._budget, VALUE_BYTES_MAX) as body:
            asked = parse_object(body)
        name, ddl, lanes, key = _stream_asked(asked)
        now_ms = time.time_ns() // 1_000_000
        made, is_new = await make_stream(
            session.log, name, ddl, lanes=lanes, key=key, now_ms=now_ms
        )
        place = {"Location": f"/v1/streams/{made.name}"}
        return json_response(describe(made), 201 if is_new else 200, place)

    async def _describe(self, request: Request, session: Session) -> Response:
        found = await session.stream(request.path_params["name"])
        last = await session.log.read_last(stream_tag(found.name))
        newest = {
            "last_lsn": None if last is None else last.lsn,
            "last_time": None if last is None else time_text(last.time_ms),
        }
        return json_response({**describe(found), **newest})

    async def _producer(self, request: Request, session: Session) -> Response:
        found = await session.stream(request.path_params["name"], fresh=False)
        producer = request.path_params["producer"]
        name = producer_name(found.name, producer)
        known, _ = await session.log.call(m.GetProducer(name), m.Producer)
        return json_response(
            {
                "producer": producer,
                "next_seq": known.next_seq,
                "next": f"{producer}:{known.next_seq}",
            }
        )

    # ---- appending

    async def _append(self, request: Request, session: Session) -> Response:
        decode = decoder_of(media_type(request))
        key = _key_of(request)
        found = await session.stream(request.path_params["name"], fresh=False)
        async with read_body(request, self._budget, self._config.body_bytes_max) as body:
            self.metrics.body_bytes += len(body)
            began = time.perf_counter()
            is_large = len(body) > INLINE_BYTES_MAX
            batches = await self._beside_if(is_large, decode, body, found.schema)
            if key is not None:
                done = await session.producers.append(found, batches, key)
            else:
                done = await self._append_freely(session, found, batches)
        self.metrics.append.observe(time.perf_counter() - began)
        if done.duplicate:
            self.metrics.duplicates += 1
        else:
            self.metrics.appended_rows += done.rows
        return json_response(_appended(found.name, done))

    async def _append_freely(
        self, session: Session, found: Registration, batches: list[pa.RecordBatch]
    ) -> Outcome:
        """Without a key: together with what others append at this moment."""
        self._turn += 1
        group = one_group(found, batches, self._turn)
        if not group:
            return Outcome(0, None, None)
        return outcome_of(group, await session.log.append(group))

    # ---- reading

    async def _read(self, request: Request, session: Session) -> ASGIApp:
        self._check_readers()
        found = await session.stream(request.path_params["name"])
        query = request.query_params
        writer = replies.writer_of(
            _format_of(request), found.schema, envelope=query.get("envelope") == "true"
        )
        limit = _limit_of(query.get("limit"))
        bounds = await session.log.bounds()
        start = await _resolve(session, found, query.get("from", EARLIEST))
        end = min(await _resolve(session, found, query.get("to", LATEST)), bounds.tail)
        headers = {"Penstock-From": str(start), "Penstock-To": str(max(start, end))}
        if request.method == "HEAD":
            return Response(media_type=writer.media_type, headers=headers)
        tail = LoopTail(session.log, found, start=start, end=Lsn(max(start, end)))
        try:
            first = await tail.next() or []  # what cannot be read has a status of its own
        except BaseException:
            await tail.close()
            raise
        return PieceByPiece(
            self._rows(tail, first, writer, limit),
            media_type=writer.media_type,
            headers=headers,
            close=tail.close,
            on_slow=self._slow,
        )

    async def _rows(
        self, tail: LoopTail, first: list[Piece], writer: replies.RowWriter, limit: int | None
    ) -> AsyncIterator[bytes]:
        left = limit
        with self._reading():
            yield writer.begin()
            pieces: list[Piece] | None = first
            while pieces is not None and left != 0:
                for piece in pieces:
                    batch = piece.batch if left is None else piece.batch.slice(0, left)
                    left = None if left is None else left - batch.num_rows
                    self.metrics.read_rows += batch.num_rows
                    is_large = batch.num_rows > INLINE_ROWS_MAX
                    yield await self._beside_if(is_large, writer.rows, piece.entry, batch)
                    if left == 0:
                        break
                else:
                    pieces = await tail.next()
            yield writer.end()

    async def _tail(self, request: Request, session: Session) -> ASGIApp:
        self._check_readers()
        found = await session.stream(request.path_params["name"])
        last = request.headers.get("last-event-id")
        start = await _resolve(session, found, last or request.query_params.get("from", LATEST))
        trim_point = (await session.log.bounds()).trim_point
        if start < trim_point:
            raise Trimmed(f"position {start} lies below the trim point {trim_point}")
        # Who may not read it is told so with a status, not in the first event.
        await session.log.read_last(stream_tag(found.name))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=replies.EVENTS, headers=headers)
        tail = LoopTail(session.log, found, start=start)
        return PieceByPiece(
            self._events(tail),
            media_type=replies.EVENTS,
            headers=headers,
            close=tail.close,
            ended=self.stopping,
            on_slow=self._slow,
        )

    async def _events(self, tail: LoopTail) -> AsyncIterator[bytes]:
        with self._reading():
            yield b"retry: 1000\n" + replies.heartbeat_event(tail.position)
            while True:
                try:
                    pieces = await tail.next(HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield replies.heartbeat_event(tail.position)
                    continue
                except PenstockError as error:
                    yield replies.problem_event(problem_of(error).body())
                    return
                for piece in pieces or ():
                    self.metrics.read_rows += piece.batch.num_rows
                    is_large = piece.batch.num_rows > INLINE_ROWS_MAX
                    yield await self._beside_if(
                        is_large, replies.rows_event, piece.batch, piece.position
                    )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def _check_readers(self) -> None:
        if self._readers >= READERS_MAX:
            raise Overloaded(f"{READERS_MAX} answers are being sent piece by piece")

    def _slow(self) -> None:
        self.metrics.slow_readers += 1

    # ---- for people and tools

    async def _metrics(self, request: Request, session: Session) -> Response:
        await session.log.status()  # who may see the log's counters may see ours
        text = self.metrics.text(
            {
                "sessions": ("Tokens with a connection to the log.", len(self.sessions)),
                "requests_open": ("Requests under way.", self._endpoints.open),
                "readers": ("Answers that are sent piece by piece.", self._readers),
                "body_bytes_free": ("Bytes that bodies may still take.", self._budget.left),
            }
        )
        if self.kafka is not None:
            followed = FOLLOWED_MAX - self.kafka.room.left
            more = self.kafka.metrics.text({"followed": ("Partitions being read.", followed)})
            text = join_texts(text, more)
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return Response(text, media_type=kind)

    async def _health(self, request: Request) -> Response:
        if self.stopping.is_set():
            return json_response({"status": "stopping"}, 503)
        return json_response({"status": "ok"})


# ---- what requests say


def _key_of(request: Request) -> Key | None:
    given = request.headers.getlist("idempotency-key")
    if len(given) > 1:
        raise BadRequest("there are several Idempotency-Keys")
    return parse_key(given[0]) if given else None


def _stream_asked(asked: dict[str, Any]) -> tuple[str, str, int | None, list[str] | None]:
    unknown = sorted(asked.keys() - {"name", "ddl", "lanes", "key"})
    if unknown:
        raise BadRequest(f"unknown fields {unknown}: known are name, ddl, lanes, key")
    name, ddl = asked.get("name"), asked.get("ddl")
    if not isinstance(name, str) or not isinstance(ddl, str):
        raise BadRequest('give "name" and "ddl" as texts')
    lanes, key = asked.get("lanes"), asked.get("key")
    if lanes is not None and type(lanes) is not int:
        raise BadRequest('"lanes" is not a whole number')
    if key is not None and not (isinstance(key, list) and all(type(each) is str for each in key)):
        raise BadRequest('"key" is not a list of columns')
    return name, ddl, lanes, key


def _format_of(request: Request) -> str:
    """By `format=`, else by Accept, else NDJSON."""
    wanted = request.query_params.get("format")
    if wanted is not None:
        if wanted not in replies.FORMATS:
            known = ", ".join(replies.FORMATS)
            raise BadRequest(f"format {wanted[:40]!r} is none of {known}")
        return replies.FORMATS[wanted]
    accepted = request.headers.get("accept", "*/*").lower()
    for part in accepted.split(","):
        kind = part.partition(";")[0].strip()
        if kind in replies.FORMATS.values():
            return kind
        if kind in ("*/*", "application/*", ""):
            return replies.NDJSON
    raise refuse(
        406,
        "not-acceptable",
        f"Accept {accepted[:80]!r}",
        f"Accept one of {', '.join(replies.FORMATS.values())}.",
    )


def _limit_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest(f"limit {text[:40]!r} is no number of rows")
    return int(text)


async def _resolve(session: Session, found: Registration, text: str) -> Lsn:
    position = parse_position(text[:64])
    beginning = found.start_lsn
    lsn = await find_position(session.log, position, (found.name,), beginning=beginning)
    return Lsn(max(lsn, beginning))


# ---- what is answered


def summary(stream: Registration) -> dict[str, Any]:
    return {
        "name": stream.name,
        "created": time_text(stream.created_ms),
        "ddl": stream.ddl,
        "lanes": stream.lanes,
        "key": list(stream.key),
    }


def describe(stream: Registration) -> dict[str, Any]:
    columns = [
        {
            "name": field.name,
            "type": type_to_ddl(field.type),
            "nullable": field.nullable,
            "comment": _comment(field),
        }
        for field in stream.schema
    ]
    return {**summary(stream), "columns": columns}


def _comment(field: pa.Field) -> str | None:
    comment = (field.metadata or {}).get(COMMENT_KEY)
    return None if comment is None else comment.decode()


def _appended(name: str, done: Outcome) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "stream": name,
        "rows": done.rows,
        "first_lsn": done.first_lsn,
        "last_lsn": done.last_lsn,
        "duplicate": done.duplicate,
    }
    if done.next is not None:
        answer["next"] = str(done.next)
    return answer
