"""Targets on a host elsewhere, over gRPC (delivery.proto): one call for each shard.

Owns the calls, which share one channel. Laws: see host.py. gRPC itself notices a host that is gone
without a word, by pings. It is there for targets in other languages: for those in Python, frames
take a fraction of the time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa

from penstock.delivery.api import Shard
from penstock.delivery.host import Tell
from penstock.delivery.messages import Ack, Apply, At, Bye, Failure, Hello, ToTarget
from penstock.delivery.remote.address import HostAddress
from penstock.delivery.remote.grpc_messages import (
    MESSAGE_BYTES_MAX,
    METHOD,
    FromPlayer,
    encode_hello,
    error_of,
    parse,
    pings,
)
from penstock.delivery.remote.grpc_messages import FromTarget as Said
from penstock.delivery.remote.row_parts import encode_batch_of
from penstock.errors import BadRequest, PenstockError, Unauthorized, Unavailable
from penstock.ids import Lsn
from penstock.plain_text import plain_line
from penstock.wire.proof import NONCE_BYTES, Nonces, is_proof, prove_client, prove_server
from penstock.wire.target_messages import TargetHello

logger = logging.getLogger(__name__)

#: Until the other side has proved the token.
CONNECT_SECONDS: Final = 5.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    *pings(),
    ("grpc.http2.max_pings_without_data", 0),
    # The player waits between attempts by itself.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Two deliveries to one host have nothing to do with each other.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
#: What asks somebody to change something; all else may pass.
_FINAL: Final = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthorized,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.UNIMPLEMENTED: BadRequest,
}


class GrpcHost:
    """A `TargetHost` of some shards of one delivery."""

    #: As of frames_host.py.
    window = 4

    def __init__(
        self,
        address: HostAddress,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        shards: Mapping[int, Shard],
        schema: pa.Schema,
    ) -> None:
        """`shards` by the number of their target there; the stream's schema, `_weight` included."""
        self.address = address
        self.token = token
        self._authority = None if address.tls_ca is None else Path(address.tls_ca).read_bytes()
        self._shards = {shard.index: (number, shard) for number, shard in shards.items()}
        self._schema = schema
        self._calls: dict[int, _Call] = {}
        self._channel: Any = None
        self.tell: Tell

    # ---- host.TargetHost

    def start(self, tell: Tell) -> None:
        self.tell = tell
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        place = f"{host}:{self.address.port}"
        if self._authority is None:
            self._channel = grpc.aio.insecure_channel(place, options=OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(self._authority)
            self._channel = grpc.aio.secure_channel(place, credentials, options=OPTIONS)

    def send(self, messages: Sequence[ToTarget]) -> None:
        for message in messages:
            call = self._calls.get(message.shard)
            match message:
                case Hello():
                    number, shard = self._shards[message.shard]
                    hello = encode_hello(shard, self._schema, target=number, term=message.term)
                    method = self._channel.stream_stream(METHOD)
                    self._calls[message.shard] = _Call(self, method(), message, hello)
                case Apply() if call is not None and call.connection == message.connection:
                    call.apply(message)
                case Bye() if call is not None and call.connection == message.connection:
                    call.end()

    async def close(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end()
        await asyncio.gather(*(call.ended() for call in calls.values()))
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


class _Call:
    """One connection to one target."""

    def __init__(self, host: GrpcHost, call: Any, hello: Hello, encoded: bytes) -> None:
        self._host = host
        self._call = call
        self.shard, self.connection = hello.shard, hello.connection
        #: None: the end.
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run(encoded))

    def apply(self, message: Apply) -> None:
        try:
            parts = encode_batch_of(message)
        except PenstockError as error:
            asyncio.get_running_loop().call_soon(self._fail, error)
            self.end()
            return
        for part in parts:
            batch = {
                "after": message.after,
                "upto": message.upto,
                "rows": bytes(part),
                "continues": part is not parts[-1],
            }
            self._out.put_nowait(FromPlayer(batch=batch).SerializeToString())

    def end(self) -> None:
        """What was said is still sent, if that is possible at once; nothing more is heard."""
        self._task.cancel()

    async def ended(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, hello: bytes) -> None:
        writing: asyncio.Task[None] | None = None
        try:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._meet(hello)
            except TimeoutError:
                raise Unavailable("it does not answer") from None
            writing = asyncio.get_running_loop().create_task(self._write())
            while True:
                self._hear(await self._read())
        except grpc.aio.AioRpcError as error:
            self._fail(self._error_of(error))
        except PenstockError as error:
            self._fail(error)
        finally:
            if writing is not None:
                writing.cancel()
            self._call.cancel()

    async def _meet(self, hello: bytes) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        await self._call.write(FromPlayer(meet={"nonce": nonce}).SerializeToString())
        answer = await self._read()
        if not answer.HasField("challenge"):
            raise Unavailable("it is no host of targets")
        nonces = Nonces(nonce, answer.challenge.nonce)
        token = self._host.token
        if not is_proof(answer.challenge.proof, prove_server(token, nonces)):
            raise Unauthorized(
                f"the host of targets at {self._host.address} does not have this token: the token "
                "is wrong, or it is a false host"
            )
        proof = prove_client(token, nonces, TargetHello.KIND, hello)
        said = FromPlayer(open={"hello": hello, "proof": proof})
        await self._call.write(said.SerializeToString())

    async def _read(self) -> Any:
        data = await self._call.read()
        if data is grpc.aio.EOF:
            code = await self._call.code()
            if code is grpc.StatusCode.OK:
                raise Unavailable(f"the host of targets at {self._host.address} has ended the call")
            raise self._status_error(code, await self._call.details())
        return parse(Said, data)

    async def _write(self) -> None:
        try:
            while (data := await self._out.get()) is not None:
                await self._call.write(data)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            pass  # who reads is told why

    def _hear(self, message: Any) -> None:
        place = self.shard, self.connection
        match message.WhichOneof("message"):
            case "at":
                self._host.tell(At(*place, Lsn(message.at.position)))
            case "ack":
                self._host.tell(Ack(*place, Lsn(message.ack.position)))
            case "refused":
                raise error_of(message.refused)
            case name:
                raise Unavailable(f"a target says {name} in the middle of a call")

    def _error_of(self, error: grpc.aio.AioRpcError) -> PenstockError:
        return self._status_error(error.code(), error.details())

    def _status_error(self, code: grpc.StatusCode, details: str | None) -> PenstockError:
        words = plain_line(details or code.name)
        if code in _FINAL:
            return _FINAL[code](words)
        return Unavailable(f"the host of targets at {self._host.address}: {words}")

    def _fail(self, error: PenstockError) -> None:
        self._host.tell(Failure(self.shard, self.connection, error))
