"""One connection of a Kafka client: frames, who it is, one request after the other.

Laws: a frame is read only once its length is within bounds and there is room for it; before a token
was shown it may be PREAUTH_FRAME_BYTES long, and nothing is asked of the log. Requests of a
connection are answered in order, one at a time, so that it holds one of them. A client that takes
nothing is cut off after SEND_SECONDS_MAX. What we do not serve is answered with Kafka's code.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from penstock.errors import BadFormat, Forbidden, Overloaded, PenstockError, Unauthorized
from penstock.gateway.config import (
    BODY_SECONDS_MAX,
    HEAD_SECONDS_MAX,
    KAFKA_FRAME_BYTES_MAX,
    KAFKA_IDLE_SECONDS,
    SEND_SECONDS_MAX,
)
from penstock.gateway.kafka.codec import Reader, read_fields, write_fields
from penstock.gateway.kafka.errors import Code, code_of
from penstock.gateway.kafka.requests import Requests
from penstock.gateway.kafka.schemas import APIS, Api
from penstock.gateway.kafka.shared import Shared
from penstock.limits import PREAUTH_FRAME_BYTES_MAX
from penstock.log.serving.directory import Address

_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE, _PRODUCE = 18, 17, 36, 0
#: Requests about groups and transactions.
_COORDINATED = frozenset((8, 9, 10, 11, 12, 13, 14, 22, 24, 25, 26, 28))
_LENGTH = struct.Struct(">i")
_MECHANISM = "PLAIN"


class _Ended(Exception):
    """The connection is to be closed, once what was written is sent."""


class KafkaConnection:
    """See the module's docstring."""

    def __init__(
        self,
        shared: Shared,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        let_in: Callable[[], bool],
    ) -> None:
        """`let_in`: its client has shown a token; whether there is room for it."""
        self._shared = shared
        self._let_in = let_in
        self._reader = reader
        self._writer = writer
        self._token: str | None = None
        self._mechanism: str | None = None
        host, port = writer.get_extra_info("sockname")[:2]
        self._requests = Requests(shared, shared.advertised or Address(host, port, False))

    async def run(self) -> None:
        """Until the client goes, or the gateway stops."""
        self._shared.metrics.connections += 1
        try:
            while True:
                await self._serve_one()
        except (_Ended, asyncio.IncompleteReadError, OSError, TimeoutError):
            pass  # nobody is there to be told, or was told
        finally:
            await self._requests.close()

    async def _serve_one(self) -> None:
        # Until a token was shown, it is a guest, whose time runs over all of it.
        async with asyncio.timeout(KAFKA_IDLE_SECONDS):
            (size,) = _LENGTH.unpack(await self._reader.readexactly(4))
        is_known = self._token is not None
        most = KAFKA_FRAME_BYTES_MAX if is_known else PREAUTH_FRAME_BYTES_MAX
        if not 8 <= size <= most:
            raise _Ended
        try:
            self._shared.budget.take(size)
        except Overloaded:
            raise _Ended from None
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX if is_known else HEAD_SECONDS_MAX):
                frame = await self._reader.readexactly(size)
            self._shared.metrics.requests += 1
            await self._answer(frame)
        finally:
            self._shared.budget.give(size)

    async def _answer(self, frame: bytes) -> None:
        reader = Reader(frame)
        key, version = reader.number("i16"), reader.number("i16")
        correlation = reader.number("i32")
        api = APIS.get(key)
        if api is None or not api.first <= version <= api.last:
            await self._answer_unsupported(api, correlation)
            return
        flexible = api.is_flexible(version)
        try:
            size = reader.number("i16")
            reader.take(max(size, 0))
            if flexible:
                reader.skip_tags()
            asked = read_fields(reader, api.request, version, flexible)
        except BadFormat as error:
            self._shared.count(error)
            await self._send_code(correlation, Code.INVALID_REQUEST)
            raise _Ended from None
        if self._token is None or key in (_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE):
            await self._greet(api, version, correlation, asked)
            return
        told = await self._handle(api, version, asked)
        if key == _PRODUCE and asked["acks"] == 0:
            return  # as it was asked: nobody waits for an answer
        await self._send(api, version, correlation, told)

    async def _handle(self, api: Api, version: int, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer; for what fails as a whole, one with its error where the answer has one."""
        assert self._token is not None
        try:
            async with self._shared.sessions.enter(self._token) as session:
                return await self._requests.handlers[api.key](session, asked, version)
        except Exception as error:
            self._shared.count(error)
            if isinstance(error, Unauthorized) and not isinstance(error, Forbidden):
                raise _Ended from None  # revoked, or over: its client must show another
            code = code_of(error)
            if code == Code.REQUEST_TIMED_OUT and api.key in _COORDINATED:
                code = Code.COORDINATOR_NOT_AVAILABLE  # what clients try again
            return failure(api, asked, code)

    # ---- before a token was shown

    async def _greet(self, api: Api, version: int, correlation: int, asked: dict[str, Any]) -> None:
        if api.key == _API_VERSIONS:
            await self._send(api, version, correlation, _versions(Code.NONE))
        elif api.key == _HANDSHAKE:
            is_plain = asked["mechanism"] == _MECHANISM
            code = Code.NONE if is_plain else Code.UNSUPPORTED_SASL_MECHANISM
            self._mechanism = _MECHANISM if is_plain else None
            await self._send(api, version, correlation, {"error": code, "mechanisms": [_MECHANISM]})
        elif api.key == _AUTHENTICATE:
            await self._authenticate(api, version, correlation, asked["auth"])
        else:
            self._shared.metrics.unauthorized += 1
            told = failure(api, asked, Code.SASL_AUTHENTICATION_FAILED)
            await self._send(api, version, correlation, told)
            raise _Ended

    async def _authenticate(self, api: Api, version: int, correlation: int, auth: bytes) -> None:
        try:
            if self._mechanism is None:
                raise Unauthorized("there was no handshake")
            token = parse_plain(auth)
            async with self._shared.sessions.enter(token):
                if not self._let_in():
                    raise Overloaded("as many clients are connected as the gateway takes")
                self._token = token
        except PenstockError as error:
            self._shared.count(error)
            if not isinstance(error, Unauthorized):
                raise _Ended from None  # it cannot be tried now: clients give up if they are told
            told = {
                "error": Code.SASL_AUTHENTICATION_FAILED,
                "message": "the password is no token of this log",
            }
            await self._send(api, version, correlation, told)
            raise _Ended from None
        await self._send(api, version, correlation, {})

    # ---- answers

    async def _answer_unsupported(self, api: Api | None, correlation: int) -> None:
        if api is not None and api.key == _API_VERSIONS:
            # Version 0, which every client can read, and which says what it may use.
            await self._send(api, 0, correlation, _versions(Code.UNSUPPORTED_VERSION))
            return
        self._shared.metrics.refused += 1
        await self._send_code(correlation, Code.UNSUPPORTED_VERSION)

    async def _send_code(self, correlation: int, code: Code) -> None:
        await self._write(struct.pack(">iih", 6, correlation, code))

    async def _send(self, api: Api, version: int, correlation: int, told: dict[str, Any]) -> None:
        flexible = api.is_flexible(version)
        out = bytearray(8)
        if flexible and api.key != _API_VERSIONS:
            out.append(0)  # no tagged fields in the header, either
        write_fields(out, api.answer, told, version, flexible)
        struct.pack_into(">ii", out, 0, len(out) - 4, correlation)
        await self._write(out)

    async def _write(self, data: bytes | bytearray) -> None:
        self._writer.write(data)
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await self._writer.drain()
        except TimeoutError:
            self._shared.metrics.slow_clients += 1
            self._writer.transport.abort()
            raise


def parse_plain(auth: bytes) -> str:
    """The password of SASL/PLAIN: who to act as, a name, a password, with zeros between."""
    parts = auth.split(b"\x00")
    if len(parts) != 3:
        raise Unauthorized("this is not of the form of SASL/PLAIN")
    try:
        return parts[2].decode("ascii")
    except UnicodeDecodeError:
        raise Unauthorized("the token is none of ours") from None


def failure(api: Api, asked: dict[str, Any], code: Code) -> dict[str, Any]:
    """An answer that says `code` wherever it has room for one.

    Of each thing that was asked for: a client that finds nothing of it gives up for good.
    """
    told: dict[str, Any] = {"error": code, "producer_id": -1, "epoch": -1}
    topics = asked.get("topics")
    if topics and "partitions" in topics[0] and isinstance(topics[0]["partitions"], list):
        told["topics"] = [
            {
                "name": topic["name"],
                "partitions": [
                    {"index": part if isinstance(part, int) else part["index"], "error": code}
                    for part in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    elif topics:
        told["topics"] = [{"name": topic["name"] or "", "error": code} for topic in topics]
    told["coordinators"] = [{"key": key, "error": code} for key in asked.get("keys", ())]
    told["resources"] = [
        {"kind": each["kind"], "name": each["name"], "error": code}
        for each in asked.get("resources", ())
    ]
    return told


def _versions(code: Code) -> dict[str, Any]:
    apis = [
        {
            "key": api.key,
            "first": api.first if api.shown_first is None else api.shown_first,
            "last": api.last,
        }
        for api in APIS.values()
    ]
    return {"error": code, "apis": apis}
