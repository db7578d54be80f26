"""The proxy process: listen, open a session with the metadata, serve, stop.

Owns the way up and down, its place in the cluster's metadata, and what is told to people. Which
logs are open here is logs.py's business. Law: nothing is served before there is a session, and when
it is lost all logs are let go.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import uvloop

from penstock.errors import (
    AlreadyExists,
    NotFound,
    Unavailable,
)
from penstock.log.meta.api import MetadataStore
from penstock.log.node.client import NetworkNodes
from penstock.log.proxy.auditor import Auditor, RollCall
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.claims import Claims, Owner
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.evacuation import Evacuation
from penstock.log.proxy.housekeeping import Housekeeper
from penstock.log.proxy.logs import ProxyLogs
from penstock.log.proxy.open_log import LogOpener
from penstock.log.proxy.session import MetadataSession
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.directory import read_root_token, read_token
from penstock.log.serving.log_service import LogService, Opened
from penstock.log.serving.openmetrics import Gauges
from penstock.log.serving.process import memory_peak_bytes, run_until_signal
from penstock.log.serving.served_log import SequencedLog, ServedLog, wall_ms
from penstock.log.serving.task_set import TaskSet
from penstock.log.serving.tls_files import tls_files
from penstock.wire import messages as m

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyWork:
    """What a proxy does, once it has a session with the metadata."""

    logs: ProxyLogs
    source: BlockSource
    auditor: Auditor
    nodes: NetworkNodes


class ProxyServer:
    """One running proxy. `run` returns when it was told to stop. A `log_service.LogHost`."""

    def __init__(
        self,
        config: ProxyConfig,
        open_store: Callable[[], Awaitable[MetadataStore]],
        on_ready: Callable[[ProxyInfo], None] = lambda info: None,
        *,
        id: str | None = None,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`id`: unlike that of any other proxy, and of any former life of this one."""
        config.validate()
        self.service = LogService(self, wall_ms)
        self.listener = self.service.listener
        self.config = config
        self._open_store = open_store
        self._on_ready = on_ready
        self._id = id or f"{os.getpid()}-{secrets.token_hex(6)}"
        self._started = time.time()
        self._nodes: NetworkNodes | None = None
        #: None while the proxy starts: nothing can be asked of it yet.
        self._work: ProxyWork | None = None
        self.info: ProxyInfo
        self._session: MetadataSession
        self._tasks: TaskSet

    @property
    def work(self) -> ProxyWork:
        """For who was welcomed, which nobody is before there is any."""
        assert self._work is not None
        return self._work

    @property
    def descriptors_wanted(self) -> int:
        return self.listener.descriptors_wanted

    def stop(self) -> None:
        self.listener.stop()

    async def run(self) -> None:
        config = self.config
        self.listener.begin()
        self._tasks = TaskSet(self._task_failed)
        self.listener.token = read_root_token(config.token_file)
        files = tls_files(config.tls_cert, config.tls_key, config.tls_client_ca)
        socket = await self.listener.listen(config.host, config.port, files)
        port = socket.sockets[0].getsockname()[1]
        self.info = ProxyInfo(
            self._id,
            config.advertised_host or config.host,
            port,
            config.tls_cert is not None,
            config.region,
            config.rack,
            config.role,
        )
        self._session = MetadataSession(
            self._open_store, opened=self._registered, lost=self._session_lost
        )
        try:
            await self._start()
            await self.listener.stopped.wait()
        finally:
            socket.close()
            await self._end()
        self.listener.raise_fatal("the proxy")

    async def _start(self) -> None:
        config = self.config
        await self._session.start()
        nodes = self._nodes = NetworkNodes(
            self._session.store,
            token=read_token(config.node_token_file),
            tls=_node_tls(config),
            delay=self._node_delay if config.region_delay_ms else None,
        )
        await nodes.start()
        seed = int.from_bytes(secrets.token_bytes(4), "little")
        source = BlockSource(nodes, region=config.region, rack=config.rack, seed=seed)
        housekeeper = Housekeeper(nodes, ttl_seconds=config.ttl_seconds, cold_uri=config.cold_uri)
        opener = LogOpener(
            lambda: self._session.store,
            nodes,
            source,
            config.replication,
            proxy=self._id,
            new_id=lambda: uuid.uuid4().bytes,
            cold=housekeeper.cold,
        )
        roll_call = RollCall(asyncio.get_running_loop().time)
        logs = ProxyLogs(
            self.service,
            self._session,
            self._tasks,
            Claims(Owner(self._id, self.info.host, self.info.port, self.info.tls)),
            may_own=config.role == "write",
            opener=opener,
            source=source,
            housekeeper=housekeeper,
            evacuation=Evacuation(lambda: self._session.store, nodes, roll_call),
        )
        auditor = Auditor(
            lambda: self._session.store,
            nodes,
            roll_call,
            proxy=self._id,
            min_regions=config.replication.min_regions,
            seed=seed,
            adopt=logs.own,
        )
        if config.role == "write":  # it opens logs that nobody owns
            self._tasks.spawn(auditor.run())
        logs.start()
        self._work = ProxyWork(logs, source, auditor, nodes)
        await self._register(self._session.store)
        logger.info("serving host=%s port=%d role=%s", self.info.host, self.info.port, config.role)
        self._on_ready(self.info)

    def _node_delay(self, info: NodeInfo) -> float:
        """Simulated distance between regions, in seconds."""
        return self.config.region_delay_ms / 1000 if info.region != self.config.region else 0.0

    async def _end(self) -> None:
        if self._work is not None:
            await self._work.logs.stop(clean=self.listener.fatal is None)
        await self._tasks.cancel()
        self.listener.close_connections()
        if self._nodes is not None:
            await self._nodes.close()
        await self._session.close()
        logger.info("stopped")

    def _task_failed(self, error: BaseException) -> None:
        logger.critical("a task failed, the proxy stops", exc_info=error)
        self.listener.on_fatal(error)

    # ---- the session

    async def _registered(self, store: MetadataStore) -> None:
        """A session was opened: say where we are, unless it is too early to be found."""
        if self._nodes is not None:
            self._nodes.use(store)
        if self._work is not None:
            await self._register(store)

    async def _register(self, store: MetadataStore) -> None:
        data = json.dumps(asdict(self.info)).encode()
        try:
            await store.create(f"/proxies/{self._id}", data, ephemeral=True)
        except AlreadyExists:
            # Of our own last session, which has not ended yet.
            try:
                await store.delete(f"/proxies/{self._id}")
            except NotFound:
                pass
            await store.create(f"/proxies/{self._id}", data, ephemeral=True)

    def _session_lost(self) -> None:
        if self._work is not None:
            self._work.logs.session_lost()

    # ---- log_service.LogHost

    def open_log(self, hello: m.Hello, opened: Opened, *, may_make: bool) -> None:
        if self._work is None:
            opened(Unavailable("the proxy is starting"))
        else:
            self._work.logs.open(hello, opened, may_make=may_make)

    def log_name(self, hello: m.Hello) -> str:
        return hello.log

    def open_logs(self) -> list[ServedLog]:
        return [] if self._work is None else self._work.logs.open_logs()

    def sequenced_logs(self) -> list[tuple[str | None, SequencedLog]]:
        owned = {} if self._work is None else self._work.logs.owned
        return [(name, log) for name, log in sorted(owned.items())]

    # ---- for people and tools

    def status_json(self, log: ServedLog | None) -> str:
        """Of the whole proxy and, beside it, of the log that the connection is about."""
        work = self.work
        return json.dumps(
            {
                **({} if log is None else log.status()),
                "proxy": asdict(self.info),
                "pid": os.getpid(),
                "memory_peak_bytes": memory_peak_bytes(),
                "uptime_seconds": round(time.time() - self._started, 3),
                "connections": len(self.listener.connections),
                "clients": self.service.clients(),
                **work.logs.status(),
                "fetched_bytes": work.source.fetched_bytes,
                "replication": asdict(self.config.replication),
                "audit": work.auditor.report.as_json() if work.auditor.is_auditor else None,
                "config": self.config.lines(),
            }
        )

    def metrics_text(self) -> str:
        connections, work = len(self.listener.connections), self._work
        gauges: Gauges = {
            "connections": ("Clients that have shown the token.", connections),
            "inflight_bytes": ("Bytes of unanswered appends.", self.listener.inflight_bytes),
        }
        if work is not None:
            source, auditor = work.source, work.auditor
            gauges |= {
                **work.logs.gauges(),
                "fetched_bytes": ("Bytes read from nodes.", source.fetched_bytes),
                "speculative_reads": ("Reads that asked one more node.", source.speculated),
                "nodes_alive": ("Registered storage nodes.", len(work.nodes.alive())),
                **auditor.report.gauges(is_auditor=auditor.is_auditor),
            }
        return self.service.metrics.text(gauges)


def _node_tls(config: ProxyConfig) -> ssl.SSLContext | None:
    if config.tls_ca is None:
        return None
    context = ssl.create_default_context(cafile=str(config.tls_ca))
    if config.tls_cert is not None:  # for nodes that ask for one
        context.load_cert_chain(config.tls_cert, config.tls_key)
    context.hostname_checks_common_name = False  # names are in the SAN, or nowhere
    return context


def run_proxy(
    config: ProxyConfig,
    open_store: Callable[[], Awaitable[MetadataStore]],
    on_ready: Callable[[ProxyInfo], None] = lambda info: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    uvloop.run(run_until_signal(ProxyServer(config, open_store, on_ready), config.lines()))
