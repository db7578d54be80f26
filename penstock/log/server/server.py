"""The log server process: open the log, listen, serve, stop cleanly.

Owns the way up and down, and what is told to people. Sockets, admission and clients' requests are
in serving/, what the log does is in owner.py.
Law: the directory lock is held from before recovery until after the files are closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import uvloop

from penstock.config import ServerConfig
from penstock.errors import BadRequest
from penstock.log.core.sequencer import SegmentLimits, Sequencer
from penstock.log.server.owner import LogOwner
from penstock.log.serving.directory import (
    SERVER_FILE,
    TOKEN_FILE,
    Address,
    DirectoryLock,
    ensure_token,
    remove_address,
    remove_own_address,
    write_address,
)
from penstock.log.serving.group_commit import Apart
from penstock.log.serving.listener import Listening
from penstock.log.serving.log_service import LogService, Opened
from penstock.log.serving.process import memory_peak_bytes, run_until_signal
from penstock.log.serving.served_log import SequencedLog, ServedLog, wall_ms
from penstock.log.serving.tls_files import tls_files
from penstock.log.storage.disk import Disk, RealDisk
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.recover import create_log, recover
from penstock.wire import messages as m

if TYPE_CHECKING:
    from penstock.log.storage.cold import ColdStore

logger = logging.getLogger(__name__)


def open_storage(
    disk: Disk,
    config: ServerConfig,
    *,
    cold: ColdStore | None = None,
    wall_ms: Callable[[], int] = wall_ms,
) -> tuple[LogStorage, Sequencer]:
    """Create or recover the log under `disk`."""
    store = FileManifestStore(disk)
    if store.read() is None:
        create_log(disk, store, log_id=uuid.uuid4().bytes, now_ms=wall_ms())
    recovered = recover(disk, store)
    storage = LogStorage(disk, store, recovered, cold=cold, now_ms=wall_ms)
    limits = SegmentLimits(config.segment_bytes, int(config.segment_seconds * 1000))
    sequencer = Sequencer(
        recovered.state,
        limits=limits,
        segment_bytes=limits.bytes if storage.is_outdated else storage.open_bytes,
        segment_ms=storage.open_ms,
    )
    return storage, sequencer


def _open_cold(uri: str | None) -> ColdStore | None:
    if uri is None:
        return None
    from penstock.log.storage.cold import FileSystemColdStore  # pyarrow: half of the start-up time

    return FileSystemColdStore(uri)


class LogServer:
    """One running server. `run` returns when it was told to stop, or raises what stopped it.

    A `log_service.LogHost`, whose clients all want the same log.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_ready: Callable[[Address], None] = lambda address: None,
        *,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        config.validate()
        self.service = LogService(self, wall_ms)
        self.listener = self.service.listener
        self.config = config
        self._on_ready = on_ready
        self._started = time.time()
        self._idle_since = time.monotonic()
        self.owner: LogOwner
        self.address: Address
        self.ready = asyncio.Event()

    @property
    def descriptors_wanted(self) -> int:
        return self.listener.descriptors_wanted

    def stop(self) -> None:
        self.listener.stop()

    async def run(self) -> None:
        """In the data directory, which nobody else may have open meanwhile."""
        config = self.config
        address_file = config.data_dir / SERVER_FILE
        lock = DirectoryLock(config.data_dir)
        try:
            remove_address(address_file)  # a dead server's: nobody may show it the token
            self.listener.token = ensure_token(config.data_dir / TOKEN_FILE)
            await self.run_on(
                RealDisk(config.data_dir / "log"),
                cold=_open_cold(config.cold_uri),
                listening=lambda address, log_id: write_address(
                    address_file, address, log_id=log_id
                ),
            )
        finally:
            remove_own_address(address_file)
            lock.release()

    async def run_on(
        self,
        disk: Disk,
        *,
        cold: ColdStore | None = None,
        listening: Callable[[Address, str], None] = lambda address, log_id: None,
        apart: Apart | None = None,
        pool: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """On a disk that is this server's alone; the listener has its token.

        `listening` is told where it listens, and which log it is. `apart`, `pool` and `clock` are
        for the owner.
        """
        self.listener.begin()
        storage, sequencer = open_storage(
            disk, self.config, cold=cold, wall_ms=self.service.wall_ms
        )
        self.owner = LogOwner(
            storage,
            sequencer,
            self.service.surroundings(lambda: self.owner, self.listener.on_fatal),
            ttl_seconds=self.config.ttl_seconds,
            local_bytes_max=None if cold is None else self.config.local_bytes_max,
            apart=apart,
            pool=pool,
            clock=clock,
        )
        await self._serve(listening)
        self.listener.raise_fatal("the log")

    async def _serve(self, listening: Callable[[Address, str], None]) -> None:
        config = self.config
        self.owner.start()
        listener, socket = self.listener, None
        try:
            files = tls_files(config.tls_cert, config.tls_key, config.tls_client_ca)
            socket = await listener.listen(config.host, config.port, files)
            self._announce(socket, listening)
            await self._wait()
        finally:
            if socket is not None:
                socket.close()
            await self.owner.stop(clean=listener.fatal is None)
            listener.close_connections()
            logger.info("stopped tail=%d", self.owner.sequencer.durable_lsn)

    def _announce(self, socket: Listening, listening: Callable[[Address, str], None]) -> None:
        config, manifest = self.config, self.owner.storage.manifest
        port = socket.sockets[0].getsockname()[1]
        self.address = Address(config.host, port, tls=config.tls_cert is not None)
        log_id = manifest.log_id.hex()
        listening(self.address, log_id)
        logger.info(
            "serving host=%s port=%d log=%s epoch=%d trim_point=%d tail=%d segments=%d",
            config.host,
            port,
            log_id,
            manifest.epoch,
            manifest.trim_point,
            self.owner.sequencer.durable_lsn,
            len(manifest.segments),
        )
        self.ready.set()
        self._on_ready(self.address)

    async def _wait(self) -> None:
        """Until told to stop, or, if so configured, until nobody has been here for a while."""
        idle, stopped = self.config.idle_exit_seconds, self.listener.stopped
        while not stopped.is_set():
            if self.listener.connections:
                self._idle_since = time.monotonic()
            if idle and time.monotonic() - self._idle_since > idle:
                logger.info("nobody is connected, stopping idle_seconds=%g", idle)
                return
            try:
                await asyncio.wait_for(stopped.wait(), min(idle / 4, 1.0) if idle else None)
            except TimeoutError:
                continue

    def open_log(self, hello: m.Hello, opened: Opened, *, may_make: bool) -> None:
        if hello.log:
            opened(BadRequest(f"this server has one log and it has no name: not {hello.log!r}"))
        else:
            opened(self.owner)

    def log_name(self, hello: m.Hello) -> str:
        return self.owner.storage.manifest.log_id.hex()

    def open_logs(self) -> list[ServedLog]:
        return [self.owner]

    def sequenced_logs(self) -> list[tuple[str | None, SequencedLog]]:
        return [(None, self.owner)]

    # ---- for people and tools

    def status_json(self, log: ServedLog | None) -> str:
        return json.dumps(
            {
                **self.owner.status(),
                "connections": len(self.listener.connections),
                "clients": self.service.clients(),
                "appended_entries": self.service.metrics.appended_entries,
                "memory_peak_bytes": memory_peak_bytes(),
                "uptime_seconds": round(time.time() - self._started, 3),
                "pid": os.getpid(),
                "data_dir": str(self.config.data_dir),
                "config": self.config.lines(),
            }
        )

    def metrics_text(self) -> str:
        owner, manifest = self.owner, self.owner.storage.manifest
        return self.service.metrics.text(
            {
                "tail_position": ("First unwritten LSN.", owner.sequencer.durable_lsn),
                "trim_position": ("First readable LSN.", manifest.trim_point),
                "segments": ("Segments, the open one included.", len(manifest.segments)),
                "segment_bytes": (
                    "Bytes of all segments.",
                    sum(info.bytes for info in manifest.segments) + owner.storage.open_bytes,
                ),
                "connections": (
                    "Clients that have shown the token.",
                    len(self.listener.connections),
                ),
                "subscriptions": ("Readers.", owner.tails.count),
                "subscriptions_behind": ("Readers below the tail.", owner.tails.behind),
                "inflight_bytes": ("Bytes of unanswered appends.", self.listener.inflight_bytes),
                "producers": ("Producers in the table.", len(owner.sequencer.state.producers)),
            }
        )


def run_server(
    config: ServerConfig, on_ready: Callable[[Address], None] = lambda address: None
) -> None:
    """Serve in this process until SIGTERM or SIGINT; `on_ready` is told where, once it listens."""
    uvloop.run(run_until_signal(LogServer(config, on_ready), config.lines()))
