"""The storage node process: find out who it is, recover, listen, register, stop cleanly.

Owns the way up and down. Sockets and admission are in serving/, what requests do is in
requests.py, what the node does in owner.py, its place in the cluster in registration.py.
Law: the directory lock is held from before recovery until after the files are closed; nothing is
answered before the cookie is right in the metadata.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from penstock.errors import BadConfig, BadFormat, Defect, PenstockError, Unavailable
from penstock.log.meta.api import MetadataStore
from penstock.log.node.client import decode_node_info
from penstock.log.node.config import NodeConfig
from penstock.log.node.cookie import (
    Identity,
    decide_identity,
    fetch_cookie,
    read_identity,
    register_cookie,
    write_identity,
)
from penstock.log.node.journal import (
    STATE_NAME,
    Journal,
    JournalState,
    RecoveredJournal,
    recover_journal,
    write_state,
)
from penstock.log.node.metrics import NodeMetrics
from penstock.log.node.owner import NodeOwner
from penstock.log.node.registration import RETRY_SECONDS, NodeRegistration, OpenStore
from penstock.log.node.requests import CROWDED, UNFLUSHED, NodeRequests
from penstock.log.node.segment_store import FILE_CACHE_COUNT, Flushed, SegmentStore
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.node_core import NodeCore, TrimRecord
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.directory import (
    NODE_FILE,
    TOKEN_FILE,
    Address,
    DirectoryLock,
    ensure_token,
    read_root_token,
    remove_address,
    write_address,
)
from penstock.log.serving.group_commit import Apart
from penstock.log.serving.listener import Listener, Listening
from penstock.log.serving.process import memory_peak_bytes, run_until_signal
from penstock.log.serving.tls_files import tls_files
from penstock.log.storage.disk import Disk, RealDisk

logger = logging.getLogger(__name__)

#: Until the metadata can be reached for the first time.
START_SECONDS = 60.0
#: ... for the end of the last session under this name.
ALONE_SECONDS = 15.0
#: Parts of which the status says what is wrong with them.
PROBLEMS_MAX = 20


class NodeDisks:
    """The three directories of a node."""

    def __init__(self, main: Disk, journal: Disk, segments: Disk) -> None:
        self.main, self.journal, self.segments = main, journal, segments

    @classmethod
    def real(cls, data_dir: Path) -> NodeDisks:
        names = ("", "journal", "segments")
        return cls(*(RealDisk(data_dir / name) for name in names))

    @property
    def all(self) -> tuple[Disk, Disk, Disk]:
        return self.main, self.journal, self.segments

    def identities(self) -> list[Identity | None]:
        """One that cannot be read counts as none: the disk has lost something."""
        found: list[Identity | None] = []
        for disk in self.all:
            try:
                found.append(read_identity(disk))
            except BadFormat as error:
                logger.error("%s", error)
                found.append(None)
        return found


def recover_node(disks: NodeDisks) -> tuple[SegmentStore, NodeCore, RecoveredJournal]:
    """What the disks hold. Damage is in the journal's report; see `mend`."""
    recovered = recover_journal(disks.journal)
    store = SegmentStore(disks.segments)
    core = NodeCore(store)
    # After damage the lengths may be too short, and would cut off blocks that are intact.
    lengths = {} if recovered.damage else recovered.lengths
    store.restore(recovered.adds, lengths, recovered.lost)
    for record in recovered.fences:
        core.restore(record)
    for record in core.snapshot():
        if isinstance(record, TrimRecord):
            store.drop(*record)
    recovered.adds = []  # the store lets go of each when it is flushed
    return store, core, recovered


def mend(
    disks: NodeDisks, store: SegmentStore, core: NodeCore, recovered: RecoveredJournal
) -> RecoveredJournal:
    """Bring what is intact in a damaged journal into files, so that the next start finds it whole.

    The node must have a new cookie before.
    """
    for key in store.unflushed():
        try:
            store.loaded(key, store.load_index(key))
        except (PenstockError, OSError):
            continue  # the owner will set it aside, and say so
        taken = store.take_flush(key)
        if taken is not None:
            for done in store.flush_all([(key, *taken)]):
                if isinstance(done, Flushed):
                    store.flushed(done)
    left = [record for key in store.unflushed() for record in store.held(key)]
    first = recovered.state.first
    state = JournalState(first, core.snapshot(), store.lengths(), recovered.state.keys)
    start = RecoveredJournal(state, next_number=recovered.next_number)
    journal = Journal(disks.journal, start, bytes_max=2**63)
    if left:
        journal.write(*journal.encode(left, store.length))
        journal.close()
    journal.drop_below(recovered.next_number, core.snapshot(), store.lengths())
    mended = recover_journal(disks.journal)
    mended.adds = []  # the store has them
    mended.lost = recovered.lost
    return mended


class NodeServer:
    """One running node. `run` returns when it was told to stop, or raises what stopped it.

    A `listener.ListenerHost`.
    """

    def __init__(
        self,
        config: NodeConfig,
        open_store: OpenStore,
        on_ready: Callable[[NodeInfo], None] = lambda info: None,
        *,
        apart: Apart | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`apart` and `clock`: as `NodeOwner` has them."""
        config.validate()
        self.metrics = NodeMetrics()
        self.listener = Listener(self, files_max=FILE_CACHE_COUNT)
        self._apart = apart
        self._clock = clock
        self.config = config
        self._open_store = open_store
        self._on_ready = on_ready
        #: Something was asked since the last turn: the owner's own events pump it themselves.
        self.is_asked = False
        #: Connections that wait for a flush, and those that wait for blocks of others.
        self.full: dict[ServerConnection, None] = {}
        self.crowded: dict[ServerConnection, None] = {}
        self._started = time.time()
        self.identity: Identity
        self.owner: NodeOwner
        self.info: NodeInfo
        self._registration: NodeRegistration
        self._loop: asyncio.AbstractEventLoop
        self.ready = asyncio.Event()

    @property
    def descriptors_wanted(self) -> int:
        return self.listener.descriptors_wanted

    def stop(self) -> None:
        self.listener.stop()

    async def run(self) -> None:
        """In the data directory, which nobody else may have open meanwhile."""
        config = self.config
        address_file = config.data_dir / NODE_FILE
        lock = DirectoryLock(config.data_dir, "process")
        try:
            remove_address(address_file)  # a dead node's: nobody may show it the token
            if config.token_file is None:
                self.listener.token = ensure_token(config.data_dir / TOKEN_FILE)
            else:
                self.listener.token = read_root_token(config.token_file)
            await self.run_on(
                NodeDisks.real(config.data_dir),
                listening=lambda address: write_address(address_file, address),
            )
        finally:
            remove_address(address_file)
            lock.release()

    async def run_on(
        self, disks: NodeDisks, listening: Callable[[Address], None] = lambda address: None
    ) -> None:
        """On disks that are this node's alone; the listener has its token.

        `listening` is told where it listens.
        """
        self._loop = asyncio.get_running_loop()
        self.listener.begin()
        if self.config.fsync_delay_ms:
            logger.warning("for a benchmark, fsyncs are slow by %g ms", self.config.fsync_delay_ms)
        store: MetadataStore | None = None
        try:
            store = await self._first_store()
            await self._recover(store, disks)
            session, store = store, None
            await self._serve(session, listening)
        finally:
            if store is not None:
                await store.close()
        self.listener.raise_fatal("the node")

    async def _first_store(self) -> MetadataStore:
        """The metadata must be reached once: only there stands which cookie is the newest."""
        deadline = self._loop.time() + START_SECONDS
        while True:
            try:
                return await self._open_store()
            except Unavailable as error:
                if self._loop.time() > deadline or self.listener.stopped.is_set():
                    raise
                logger.warning("waiting for the metadata cause=%s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _recover(self, metadata: MetadataStore, disks: NodeDisks) -> None:
        """Decide who this node is; the metadata hears of it before anybody is answered."""
        config = self.config
        found = disks.identities()
        registered = await fetch_cookie(metadata, config.name)
        identity, cause = decide_identity(config.name, found, registered)
        await self._wait_alone(metadata, found)
        is_new = all(one is None for one in found)
        if is_new and not disks.journal.exists(STATE_NAME):
            write_state(disks.journal, 0, [])
        started = self._clock()
        store, core, recovered = await asyncio.to_thread(recover_node, disks)
        if recovered.damage:
            for problem in recovered.damage:
                logger.error("damage: %s", problem)
            if cause is None:
                identity, cause = identity.renewed(), "the journal is damaged"
        if cause is not None:
            logger.error("taking a new cookie node=%s cookie=%s: %s", *_id(identity), cause)
        if is_new or cause is not None:
            write_identity(disks.all, identity)
        if recovered.damage:
            recovered = await asyncio.to_thread(mend, disks, store, core, recovered)
        await register_cookie(metadata, identity)
        self.identity = identity
        self.owner = NodeOwner(
            disks.journal,
            store,
            core,
            recovered,
            metrics=self.metrics,
            after_event=self.listener.turn_soon,
            on_drained=self._drained,
            on_fatal=self.listener.on_fatal,
            journal_bytes=config.journal_bytes,
            fsync_delay_ms=config.fsync_delay_ms,
            apart=self._apart,
            clock=self._clock,
        )
        logger.info(
            "recovered node=%s cookie=%s journals=%d torn_bytes=%d unflushed_bytes=%d seconds=%.3f",
            *_id(identity),
            len(recovered.numbers),
            recovered.torn_bytes,
            store.memory_bytes,
            self._clock() - started,
        )

    async def _wait_alone(self, metadata: MetadataStore, found: list[Identity | None]) -> None:
        """Until nobody else is registered under our name: a cookie of ours would lock him out.

        After a crash it is our own last session, which ends by itself.
        """
        ours = {identity.cookie for identity in found if identity is not None}
        deadline = self._loop.time() + ALONE_SECONDS
        while (known := await metadata.get(f"/nodes/{self.config.name}")) is not None:
            info = decode_node_info(known.data)
            if info.cookie in ours:
                return
            if self._loop.time() > deadline:
                raise BadConfig(
                    f"node {info.name} runs at {info.host}:{info.port}: give this one another name"
                )
            logger.warning("waiting for the last session of node=%s to end", info.id)
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve(self, metadata: MetadataStore, listening: Callable[[Address], None]) -> None:
        config = self.config
        self.owner.start()
        listener, socket = self.listener, None
        registering: asyncio.Task[None] | None = None
        try:
            files = tls_files(config.tls_cert, config.tls_key, config.tls_client_ca)
            socket = await listener.listen(config.host, config.port, files)
            listening(self._announce(socket))
            self._registration = NodeRegistration(
                self.info, self.owner, self._open_store, trim_seconds=config.trim_seconds
            )
            registering = self._loop.create_task(self._registration.run(metadata))
            registering.add_done_callback(self._registration_ended)
            self._on_ready(self.info)
            self.ready.set()
            await listener.stopped.wait()
        finally:
            if socket is not None:
                socket.close()
            if registering is None:
                await metadata.close()
            else:
                registering.cancel()
                await asyncio.gather(registering, return_exceptions=True)
            await self.owner.stop(clean=listener.fatal is None)
            listener.close_connections()
            logger.info("stopped node=%s", self.info.id if socket is not None else "?")

    def _registration_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.listener.on_fatal(task.exception() or Defect("the registration ended"))

    async def wait_registered(self) -> None:
        await self.ready.wait()
        await self._registration.is_registered.wait()

    def _announce(self, socket: Listening) -> Address:
        config = self.config
        host = config.advertised_host or config.host
        port = int(socket.sockets[0].getsockname()[1])
        tls = config.tls_cert is not None
        self.info = NodeInfo(
            *_id(self.identity),
            host,
            config.advertised_port or port,
            tls,
            region=config.region,
            rack=config.rack,
            past_cookies=self.identity.past_cookies,
        )
        logger.info("listening node=%s host=%s port=%d tls=%s", self.info.id, host, port, tls)
        return Address(host, port, tls)

    # ---- listener.ListenerHost

    def meet(self, connection: ServerConnection) -> NodeRequests:
        return NodeRequests(self, connection)

    def turn(self) -> None:
        if self.is_asked:
            self.is_asked = False
            self.owner.pump()

    def after_turn(self) -> None:
        return None

    def _drained(self) -> None:
        full, self.full = self.full, {}
        for connection in full:
            connection.go_on(UNFLUSHED)

    def thinned(self) -> None:
        """Most blocks of all connections were answered."""
        crowded, self.crowded = self.crowded, {}
        for connection in crowded:
            connection.go_on(CROWDED)

    # ---- for people and tools

    def status_json(self) -> str:
        store = self.owner.store
        return json.dumps(
            {
                "name": self.identity.name,
                "cookie": self.identity.cookie,
                "past_cookies": list(self.identity.past_cookies),
                "logs": len(store.logs()),
                "parts": store.parts_count,
                "unflushed_bytes": store.memory_bytes,
                "journals": len(self.owner.journal.numbers),
                "connections": len(self.listener.connections),
                "written_records": self.metrics.written_records,
                "damaged_blocks": self.metrics.damaged_blocks,
                "problems": self.owner.problems(PROBLEMS_MAX),
                "memory_peak_bytes": memory_peak_bytes(),
                "uptime_seconds": round(time.time() - self._started, 3),
                "pid": os.getpid(),
                "config": self.config.lines(),
            }
        )

    async def full_metrics_text(self) -> str:
        return self.metrics_text()

    def metrics_text(self) -> str:
        store = self.owner.store
        return self.metrics.text(
            {
                "logs": ("Logs of which something is here.", len(store.logs())),
                "parts": ("Parts of segments.", store.parts_count),
                "unflushed_bytes": ("Bytes of blocks not in files yet.", store.memory_bytes),
                "journals": ("Files of the journal.", len(self.owner.journal.numbers)),
                "parts_aside": ("Parts whose files cannot be used.", len(store.aside)),
                "open_files": ("Segment files kept open.", store.open_files),
                "connections": ("Peers that have shown the token.", len(self.listener.connections)),
                "inflight_bytes": ("Bytes of unanswered blocks.", self.listener.inflight_bytes),
            }
        )


def _id(identity: Identity) -> tuple[str, str]:
    return identity.name, identity.cookie


def run_node(
    config: NodeConfig,
    open_store: OpenStore,
    on_ready: Callable[[NodeInfo], None] = lambda info: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT; `on_ready` is told where, once it listens."""
    uvloop.run(run_until_signal(NodeServer(config, open_store, on_ready), config.lines()))
