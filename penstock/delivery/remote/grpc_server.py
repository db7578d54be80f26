"""A host of targets, over gRPC: any Python `Target` objects; the reference for other languages.

Owns the calls of players (delivery.proto). A target's work is served_target.py's. Laws: who has not
proved the token reaches no target; a call whose target is behind is not read on, and no other call
waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
import pyarrow as pa
import uvloop

from penstock.delivery.api import Target
from penstock.delivery.messages import Ack, At, Failure, FromTarget
from penstock.delivery.remote.grpc_messages import (
    MESSAGE_BYTES_MAX,
    METHOD,
    FromPlayer,
    decode_hello,
    encode_refused,
    parse,
    pings,
)
from penstock.delivery.remote.grpc_messages import FromTarget as Said
from penstock.delivery.remote.host_config import HostConfig
from penstock.delivery.remote.row_parts import BATCH_BYTES_MAX
from penstock.delivery.remote.served_target import ApplyRows, Close, Open, ServedTarget
from penstock.delivery.remote.shard_format import decode_opening
from penstock.errors import (
    BadFormat,
    BadRequest,
    NotFound,
    PenstockError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from penstock.ids import Lsn
from penstock.limits import CONNECTIONS_MAX, MIB, POSITION_MAX, PREAUTH_SECONDS_MAX
from penstock.log.group_format import Buffer
from penstock.log.serving.directory import Address, ensure_token
from penstock.log.serving.process import run_until_signal
from penstock.wire.proof import NONCE_BYTES, Nonces, is_proof, prove_client, prove_server
from penstock.wire.target_messages import OpenTarget, TargetHello

logger = logging.getLogger(__name__)

#: Of one call, batches that wait for the target; beyond it the call is not read on.
CALL_BYTES_MAX: Final = 64 * MIB
STOP_SECONDS: Final = 10.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", CONNECTIONS_MAX),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    *pings(),
    ("grpc.so_reuseport", 0),
)


class GrpcTargetServer:
    """See the module's docstring. A `process.Server`."""

    descriptors_wanted = CONNECTIONS_MAX

    def __init__(
        self,
        config: HostConfig,
        targets: Sequence[Target],
        on_ready: Callable[[Address], None] = lambda address: None,
    ) -> None:
        config.validate()
        self._config = config
        self._on_ready = on_ready
        self.targets = [ServedTarget(number, target) for number, target in enumerate(targets)]
        self.ready = asyncio.Event()
        self.address: Address
        self.token = ""
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """Until `stop`; then targets finish what they are at work on."""
        config = self._config
        server = grpc.aio.server(options=OPTIONS)
        try:
            self.token = ensure_token(config.token_file)
            # Bytes in and out: what cannot be read is our affair, and no traceback.
            handler = grpc.stream_stream_rpc_method_handler(self._deliver)
            service, method = METHOD.strip("/").split("/")
            handlers = grpc.method_handlers_generic_handler(service, {method: handler})
            server.add_generic_rpc_handlers((handlers,))
            port = self._listen(server)
            await server.start()
            self.address = Address(config.host, port, tls=config.tls_cert is not None)
            logger.info("serving targets=%d host=%s port=%d", len(self.targets), config.host, port)
            self.ready.set()
            self._on_ready(self.address)
            await self._stopped.wait()
        finally:
            for target in self.targets:
                target.shut_down()
            for number, target in enumerate(self.targets):
                if not await asyncio.to_thread(target.join, STOP_SECONDS):
                    logger.warning("target=%d is still at work: nobody waits for it", number)
            await server.stop(grace=None)

    async def _deliver(self, requests: AsyncIterator[bytes], context: Any) -> None:
        call = _Call(self, requests, context)
        try:
            await call.run()
        except Unauthorized as error:
            logger.warning("closing a call peer=%s cause=unauthorized", context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except PenstockError as error:
            logger.warning("closing a call peer=%s cause=%s", context.peer(), error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            call.end()

    def _listen(self, server: Any) -> int:
        config = self._config
        host = f"[{config.host}]" if ":" in config.host else config.host
        place = f"{host}:{config.port}"
        try:
            if config.tls_cert is None or config.tls_key is None:
                port = server.add_insecure_port(place)
            else:
                pair = (config.tls_key.read_bytes(), config.tls_cert.read_bytes())
                port = server.add_secure_port(place, grpc.ssl_server_credentials([pair]))
        except (RuntimeError, OSError) as error:
            raise Unavailable(
                f"cannot listen on {config.host} port {config.port}: {error}"
            ) from None
        return int(port)


class _Call:
    """One player's connection to one target. A `served_target.Asker`."""

    def __init__(
        self, server: GrpcTargetServer, requests: AsyncIterator[bytes], context: Any
    ) -> None:
        self._server = server
        self._requests = requests
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.is_gone = False
        self._target: ServedTarget | None = None
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        #: None: it was the last word.
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(self) -> None:
        """Until the player ends it, or the target has failed."""
        async with asyncio.timeout(PREAUTH_SECONDS_MAX):
            try:
                opening = await self._meet()
            except TimeoutError:
                raise Unauthorized("no token in time") from None
        count = len(self._server.targets)
        if opening.target >= count:
            problem = f"this host has no target {opening.target}, only 0 to {count - 1}"
            await self._context.write(encode_refused(NotFound(problem)))
            return
        shard, schema = decode_opening(opening)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._target = self._server.targets[opening.target]
        self._target.put(Open(self, opening.connection, opening.term, shard, empty))
        reading = self._loop.create_task(self._read())
        writing = self._loop.create_task(self._write())
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    def end(self) -> None:
        self.is_gone = True
        if self._target is not None:
            self._target.put(Close(self))

    async def _meet(self) -> OpenTarget:
        meet = await self._next("meet")
        nonces = Nonces(meet.nonce, secrets.token_bytes(NONCE_BYTES))
        token = self._server.token
        challenge = {"nonce": nonces.server, "proof": prove_server(token, nonces)}
        await self._context.write(Said(challenge=challenge).SerializeToString())
        opening = await self._next("open")
        wanted = prove_client(token, nonces, TargetHello.KIND, opening.hello)
        if not is_proof(opening.proof, wanted):
            raise Unauthorized("the token is missing or wrong")
        return decode_hello(opening.hello)

    async def _next(self, name: str) -> Any:
        async for data in self._requests:
            message = parse(FromPlayer, data)
            if not message.HasField(name):
                raise BadRequest(f"a call begins with meet and open: this is no {name}")
            return getattr(message, name)
        raise BadRequest(f"the call has ended before its {name}")

    async def _read(self) -> None:
        parts: list[Buffer] = []
        size = 0
        begun: tuple[int, int] | None = None
        async for data in self._requests:
            message = parse(FromPlayer, data)
            if not message.HasField("batch"):
                raise BadRequest("an open call takes batches only")
            batch = message.batch
            place = (batch.after, batch.upto)
            if not batch.after < batch.upto <= POSITION_MAX or begun not in (None, place):
                raise BadFormat(f"a batch from LSN {batch.after} to {batch.upto}")
            if batch.rows:
                parts.append(batch.rows)
                size += len(batch.rows)
            if size > BATCH_BYTES_MAX:
                raise TooLarge(f"a batch of more than {BATCH_BYTES_MAX} bytes")
            begun = place
            if not batch.continues:
                await self._put(ApplyRows(self, 1, Lsn(place[0]), Lsn(place[1]), parts, size))
                parts, size, begun = [], 0, None

    async def _put(self, job: ApplyRows) -> None:
        assert self._target is not None
        self._held_bytes += job.size
        self._target.put(job)
        if self._held_bytes > CALL_BYTES_MAX:
            self._room.clear()
        await self._room.wait()

    async def _write(self) -> None:
        while (answer := await self._answers.get()) is not None:
            await self._context.write(answer)

    # ---- served_target.Asker

    def answer(self, answer: FromTarget | None, size: int) -> None:
        if not self.is_gone:
            try:
                self._loop.call_soon_threadsafe(self._take, answer, size)
            except RuntimeError:
                pass  # the loop has ended before this target: nobody waits for its answers

    def _take(self, answer: FromTarget | None, size: int) -> None:
        self._held_bytes -= size
        if self._held_bytes <= CALL_BYTES_MAX // 2:
            self._room.set()
        match answer:
            case At():
                self._answers.put_nowait(Said(at={"position": answer.position}).SerializeToString())
            case Ack():
                said = Said(ack={"position": answer.position})
                self._answers.put_nowait(said.SerializeToString())
            case Failure():
                self._answers.put_nowait(encode_refused(answer.error))
                self._answers.put_nowait(None)


def run_grpc_server(
    config: HostConfig,
    targets: Sequence[Target],
    on_ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    uvloop.run(run_until_signal(GrpcTargetServer(config, targets, on_ready), config.lines()))
