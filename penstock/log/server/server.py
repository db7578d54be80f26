"""The log server process: open the log, listen, serve, stop cleanly.

Owns the listening socket, the admission of connections, and the way up and down. What connections
do is in connection.py, what the log does in owner.py.
Law: the directory lock is held from before recovery until after the files are closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import uvloop

from penstock.config import ServerConfig
from penstock.errors import BadConfig, Defect, PenstockError, Unavailable
from penstock.limits import CONNECTIONS_MAX, PREAUTH_CONNECTIONS_MAX, PREAUTH_SECONDS_MAX
from penstock.log.core.sequencer import SegmentLimits, Sequencer
from penstock.log.core.sessions import Sessions
from penstock.log.core.tails import Deliver, SubscriptionId
from penstock.log.server.connection import ServerConnection
from penstock.log.server.data_dir import (
    Address,
    DirectoryLock,
    ensure_token,
    remove_address,
    remove_own_address,
    write_address,
)
from penstock.log.server.metrics import ServerMetrics
from penstock.log.server.owner import LogOwner, wall_ms
from penstock.log.storage.disk import Disk, RealDisk
from penstock.log.storage.log_storage import FILE_CACHE_COUNT, LogStorage
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.recover import create_log, recover

if TYPE_CHECKING:
    from penstock.log.storage.cold import ColdStore

logger = logging.getLogger(__name__)

#: Descriptors kept for the log's own files: those cached for readers, and some to work with.
RESERVED_DESCRIPTORS = FILE_CACHE_COUNT + 64

#: Exit code after a failed write, so that a supervisor can tell it from a crash.
EXIT_FATAL = 70


def open_storage(disk: Disk, config: ServerConfig) -> tuple[LogStorage, Sequencer]:
    """Create or recover the log under `disk`."""
    store = FileManifestStore(disk)
    if store.read() is None:
        create_log(disk, store, log_id=uuid.uuid4().bytes, now_ms=wall_ms())
    recovered = recover(disk, store)
    storage = LogStorage(disk, store, recovered, cold=_open_cold(config.cold_uri), now_ms=wall_ms)
    limits = SegmentLimits(config.segment_bytes, int(config.segment_seconds * 1000))
    sequencer = Sequencer(
        recovered.state,
        limits=limits,
        segment_bytes=storage.open_bytes,
        segment_ms=storage.open_ms,
    )
    return storage, sequencer


def _open_cold(uri: str | None) -> ColdStore | None:
    if uri is None:
        return None
    from penstock.log.storage.cold import FileSystemColdStore  # pyarrow: half of the start-up time

    return FileSystemColdStore(uri)


class LogServer:
    """One running server. `run` returns when it was told to stop, or raises what stopped it."""

    def __init__(
        self, config: ServerConfig, on_ready: Callable[[Address], None] = lambda address: None
    ) -> None:
        config.validate()
        self.config = config
        self._on_ready = on_ready
        self.metrics = ServerMetrics()
        self.inflight_bytes = 0
        #: Connections with output that `after_event` must send.
        self.dirty: set[ServerConnection] = set()
        self._connections: set[ServerConnection] = set()
        self._waiting: set[ServerConnection] = set()
        self._sessions: Sessions[ServerConnection] = Sessions()
        self._started = time.time()
        self._idle_since = time.monotonic()
        self._fatal: BaseException | None = None
        self.token = ""
        self.owner: LogOwner
        self.address: Address
        self._turn_due = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.ready: asyncio.Event

    async def run(self) -> None:
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.ready = asyncio.Event()
        self._loop.set_exception_handler(self._on_loop_error)
        lock = DirectoryLock(config.data_dir)
        try:
            remove_address(config.data_dir)  # a dead server's: nobody may show it the token
            self.token = ensure_token(config.data_dir)
            storage, sequencer = open_storage(RealDisk(config.data_dir / "log"), config)
            self.owner = LogOwner(
                storage,
                sequencer,
                metrics=self.metrics,
                deliver=self._deliver,
                fail_subscription=self._fail_subscription,
                after_event=self.after_event,
                on_fatal=self.on_fatal,
                ttl_seconds=config.ttl_seconds,
                local_bytes_max=config.local_bytes_max if config.cold_uri else None,
            )
            await self._serve()
        finally:
            remove_own_address(config.data_dir)
            lock.release()
        if self._fatal is not None:
            raise Unavailable(f"the log stopped: {self._fatal!r}") from self._fatal

    async def _serve(self) -> None:
        self.owner.start()
        listener: asyncio.Server | None = None
        try:
            listener = await self._listen()
            self._announce(listener)
            await self._wait()
        finally:
            if listener is not None:
                listener.close()
            await self.owner.stop(clean=self._fatal is None)
            for connection in list(self._connections):
                connection.flush()
                connection.close()
            logger.info("stopped tail=%d", self.owner.sequencer.durable_lsn)

    async def _listen(self) -> asyncio.Server:
        config, tls = self.config, self._tls()
        # Handshakes come before connection.py's deadline and have the same one.
        deadline = PREAUTH_SECONDS_MAX if tls is not None else None
        try:
            return await self._loop.create_server(
                lambda: ServerConnection(self),
                config.host,
                config.port,
                ssl=tls,
                ssl_handshake_timeout=deadline,
                ssl_shutdown_timeout=deadline,
                backlog=1024,
            )
        except OSError as error:
            # No cause: nothing is wrong with the log (see `penstock log serve`).
            reason = error.strerror or error
            raise Unavailable(
                f"cannot listen on {config.host} port {config.port}: {reason}"
            ) from None

    def _announce(self, listener: asyncio.Server) -> None:
        config, manifest = self.config, self.owner.storage.manifest
        port = listener.sockets[0].getsockname()[1]
        self.address = Address(config.host, port, tls=config.tls_cert is not None)
        write_address(config.data_dir, self.address, manifest.log_id)
        logger.info(
            "serving host=%s port=%d log=%s epoch=%d trim_point=%d tail=%d segments=%d",
            config.host,
            port,
            manifest.log_id.hex(),
            manifest.epoch,
            manifest.trim_point,
            self.owner.sequencer.durable_lsn,
            len(manifest.segments),
        )
        self.ready.set()
        self._on_ready(self.address)

    async def _wait(self) -> None:
        """Until told to stop, or, if so configured, until nobody has been here for a while."""
        idle = self.config.idle_exit_seconds
        while not self._stop.is_set():
            if self._connections:
                self._idle_since = time.monotonic()
            if idle and time.monotonic() - self._idle_since > idle:
                logger.info("nobody is connected, stopping idle_seconds=%g", idle)
                return
            try:
                await asyncio.wait_for(self._stop.wait(), min(idle / 4, 1.0) if idle else None)
            except TimeoutError:
                continue

    def stop(self) -> None:
        self._stop.set()

    def _tls(self) -> ssl.SSLContext | None:
        if self.config.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.config.tls_cert, self.config.tls_key)
        except OSError as error:
            raise BadConfig(f"cannot load certificate {self.config.tls_cert}: {error}") from None
        return context

    def on_fatal(self, error: BaseException) -> None:
        self._fatal = error
        self._stop.set()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed: log it; if it was a defect, nothing in memory can be trusted now."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Defect | AssertionError):
            self.on_fatal(error)

    # ---- connections

    def admit(self, connection: ServerConnection) -> bool:
        """Whether a new connection may stay; those without a token are few and short-lived."""
        waiting, connected = len(self._waiting), len(self._connections)
        descriptors, _ = descriptor_limits()
        if (
            waiting >= PREAUTH_CONNECTIONS_MAX
            or connected >= CONNECTIONS_MAX
            # A log that cannot open its next segment must stop: it comes first.
            or waiting + connected >= descriptors - RESERVED_DESCRIPTORS
        ):
            return False
        self._waiting.add(connection)
        return True

    def authenticated(self, connection: ServerConnection) -> None:
        self._waiting.discard(connection)
        self._connections.add(connection)
        older = self._sessions.open(connection.session, connection)
        if older is not None:
            older.silence()

    def dismiss(self, connection: ServerConnection) -> None:
        self._sessions.close(connection.session, connection)
        self._waiting.discard(connection)
        self._connections.discard(connection)
        self.dirty.discard(connection)
        for number in connection.subscriptions:
            self.owner.tails.unsubscribe((connection, number))

    def after_event(self) -> None:
        """Write, answer and send, once everything that arrived together was handled."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.owner.pump()
        while self.dirty:
            self.dirty.pop().flush()
        self.owner.storage.index_written()

    def _deliver(self, effect: Deliver) -> None:
        connection, number = cast(tuple[ServerConnection, int], effect.id)
        connection.deliver(number, effect)

    def _fail_subscription(self, id: SubscriptionId, error: PenstockError) -> None:
        connection, number = cast(tuple[ServerConnection, int], id)
        connection.fail_subscription(number, error)

    # ---- for people and tools

    def status_json(self) -> str:
        owner, manifest = self.owner, self.owner.storage.manifest
        state = owner.sequencer.state
        segments = [
            {
                "id": info.id,
                "base_lsn": info.base_lsn,
                "end_lsn": info.end_lsn if info.sealed else owner.sequencer.durable_lsn,
                "bytes": info.bytes if info.sealed else owner.storage.open_bytes,
                "sealed": info.sealed,
                "cold": info.cold,
                "local": info.local,
            }
            for info in manifest.segments
        ]
        return json.dumps(
            {
                "log_id": manifest.log_id.hex(),
                "epoch": manifest.epoch,
                "trim_point": manifest.trim_point,
                "tail": owner.sequencer.durable_lsn,
                "time_ms": state.time_ms,
                "segments": segments,
                "bytes": sum(int(segment["bytes"]) for segment in segments),
                "metadata_keys": len(state.metadata),
                "producers": len(state.producers),
                "connections": len(self._connections),
                "subscriptions": owner.tails.count,
                "subscriptions_behind": owner.tails.behind,
                "appended_entries": self.metrics.appended_entries,
                "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "uptime_seconds": round(time.time() - self._started, 3),
                "pid": os.getpid(),
                "data_dir": str(self.config.data_dir),
                "config": self.config.lines(),
            }
        )

    def metrics_text(self) -> str:
        owner, manifest = self.owner, self.owner.storage.manifest
        return self.metrics.text(
            {
                "tail_position": ("First unwritten LSN.", owner.sequencer.durable_lsn),
                "trim_position": ("First readable LSN.", manifest.trim_point),
                "segments": ("Segments, the open one included.", len(manifest.segments)),
                "segment_bytes": (
                    "Bytes of all segments.",
                    sum(info.bytes for info in manifest.segments) + owner.storage.open_bytes,
                ),
                "connections": ("Clients that have shown the token.", len(self._connections)),
                "subscriptions": ("Readers.", owner.tails.count),
                "subscriptions_behind": ("Readers below the tail.", owner.tails.behind),
                "inflight_bytes": ("Bytes of unanswered appends.", self.inflight_bytes),
                "producers": ("Producers in the table.", len(owner.sequencer.state.producers)),
            }
        )


def descriptor_limits() -> tuple[int, int]:
    """Descriptors that this process may have open, and may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return (sys.maxsize if soft == endless else soft, sys.maxsize if hard == endless else hard)


def run_server(
    config: ServerConfig, on_ready: Callable[[Address], None] = lambda address: None
) -> None:
    """Serve in this process until SIGTERM or SIGINT; `on_ready` is told where, once it listens."""

    wanted = CONNECTIONS_MAX + PREAUTH_CONNECTIONS_MAX + RESERVED_DESCRIPTORS
    granted, most = descriptor_limits()
    if granted < wanted:  # many systems grant 1024 until one asks
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), hard))

    async def main() -> None:
        server = LogServer(config, on_ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        for line in config.lines():
            logger.info("config %s", line)
        await server.run()

    uvloop.run(main())
