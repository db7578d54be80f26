"""The proxy process: owns logs, follows others, and serves clients of both.

Owns which logs are open here. A client names a log in its Hello; a write proxy that finds no owner
makes itself the owner, else it says who is (DistributedLog III-C). Law: `/owners/<log>` keeps
proxies from fighting for a log, nothing more: what an owner may write is decided by fencing. When
the session is lost, all logs are let go.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import secrets
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from typing import Any

import uvloop

from penstock.errors import (
    AlreadyExists,
    BadRequest,
    Fenced,
    NotFound,
    NotOwner,
    PenstockError,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.log.meta.api import MetadataStore
from penstock.log.node.client import NetworkNodes
from penstock.log.proxy.auditor import Auditor, RollCall
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.evacuation import Evacuation
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.proxy.housekeeping import Housekeeper
from penstock.log.proxy.log_view import LogView
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.open_log import LogOpener
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.proxy.session import MetadataSession
from penstock.log.replication.manifest import LogManifest, check_log_name, decode_log_manifest
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.directory import read_token
from penstock.log.serving.log_service import LogService, Opened
from penstock.log.serving.process import run_until_signal
from penstock.log.serving.served_log import PROGRESS_MS, ServedLog, wall_ms
from penstock.log.serving.task_set import TaskSet
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: How long a log is followed after its last reader has gone.
FOLLOW_SECONDS = 30.0
#: A log that could not be opened is tried again by its next client, not before.
OPEN_SECONDS = 60.0
#: How often the logs of this proxy are looked after.
HOUSE_SECONDS = 1.0


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
        self._owned: dict[str, OwnedLog] = {}
        #: Logs that are being looked after just now.
        self._kept: set[str] = set()
        #: Which claim on `/owners/<name>` each of them rests on.
        self._claims: dict[str, int] = {}
        self._claim_count = 0
        self._opening: dict[str, asyncio.Task[OwnedLog]] = {}
        self._followed: dict[str, tuple[FollowedLog, Callable[[], None]]] = {}
        self._idle_since: dict[str, float] = {}
        #: All that a client can ask for is there.
        self._is_serving = False
        self.info: ProxyInfo
        self._nodes: NetworkNodes
        self._source: BlockSource
        self._opener: LogOpener
        self._session: MetadataSession
        self._tasks: TaskSet
        self._loop: asyncio.AbstractEventLoop
        self._housekeeper: Housekeeper
        self._evacuation: Evacuation
        self._auditor: Auditor

    @property
    def descriptors_wanted(self) -> int:
        return self.listener.descriptors_wanted

    def stop(self) -> None:
        self.listener.stop()

    async def run(self) -> None:
        config = self.config
        self.listener.begin()
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(self._task_failed)
        self.listener.token = read_token(config.token_file)
        socket = await self.listener.listen(
            config.host, config.port, config.tls_cert, config.tls_key
        )
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
        self._nodes = NetworkNodes(
            self._session.store,
            token=read_token(config.node_token_file),
            tls=_node_tls(config),
            delay=self._node_delay if config.region_delay_ms else None,
        )
        await self._nodes.start()
        seed = int.from_bytes(secrets.token_bytes(4), "little")
        self._source = BlockSource(self._nodes, region=config.region, rack=config.rack, seed=seed)
        self._housekeeper = Housekeeper(
            self._nodes, ttl_seconds=config.ttl_seconds, cold_uri=config.cold_uri
        )
        self._opener = LogOpener(
            lambda: self._session.store,
            self._nodes,
            self._source,
            config.replication,
            proxy=self._id,
            new_id=lambda: uuid.uuid4().bytes,
            cold=self._housekeeper.cold,
        )
        roll_call = RollCall(self._loop.time)
        self._evacuation = Evacuation(lambda: self._session.store, self._nodes, roll_call)
        self._auditor = Auditor(
            lambda: self._session.store,
            self._nodes,
            roll_call,
            proxy=self._id,
            min_regions=config.replication.min_regions,
            seed=seed,
            adopt=self._own,
        )
        if config.role == "write":  # it opens logs that nobody owns
            self._tasks.spawn(self._auditor.run())
        self._tasks.spawn(self._tick())
        self._tasks.spawn(self._keep_house())
        self._is_serving = True
        await self._register(self._session.store)
        logger.info("serving host=%s port=%d role=%s", self.info.host, self.info.port, config.role)
        self._on_ready(self.info)

    def _node_delay(self, info: NodeInfo) -> float:
        """Simulated distance between regions, in seconds."""
        return self.config.region_delay_ms / 1000 if info.region != self.config.region else 0.0

    async def _end(self) -> None:
        self._tasks.cancel_nowait()  # before any of them can begin to open another log
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self._tasks.cancel()
        for name in list(self._owned):
            await self._let_go(name, clean=self.listener.fatal is None)
        for name in list(self._followed):
            await self._unfollow(name)
        self.listener.close_connections()
        if hasattr(self, "_nodes"):
            await self._nodes.close()
        await self._session.close()
        logger.info("stopped")

    def _task_failed(self, error: BaseException) -> None:
        logger.critical("a task failed, the proxy stops", exc_info=error)
        self.listener.on_fatal(error)

    # ---- the session

    async def _registered(self, store: MetadataStore) -> None:
        """A session was opened: say where we are, unless it is too early to be found."""
        if hasattr(self, "_nodes"):
            self._nodes.use(store)
        if self._is_serving:
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
        """Others may take our logs from now on: they are let go, and clients look for the owner."""
        for name in list(self._owned):
            self._drop(name, Unavailable("the session with the metadata was lost"))
        for name in list(self._followed):
            self._tasks.spawn(self._unfollow(name))

    # ---- which log

    def open_log(self, hello: m.Hello, opened: Opened) -> None:
        try:
            name = check_log_name(hello.log)
        except BadRequest as error:
            opened(error)
            return
        owned = self._owned.get(name)
        if not self._is_serving:
            opened(Unavailable("the proxy is starting"))
        elif owned is not None:
            opened(owned)
        else:
            self._tasks.spawn(self._open(name, hello.reads, opened))

    async def _open(self, name: str, reads: bool, opened: Opened) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                if reads:
                    found: ServedLog | PenstockError = await self._follow(name)
                elif self.config.role == "read":
                    raise NotOwner(await self._owner_address(name))
                else:
                    found = await self._own(name)
        except (Fenced, Unknown) as error:
            # Of this proxy and the metadata, not of the client: for it, the next attempt may do.
            found = Unavailable(f"log {name} could not be opened: {error}")
        except PenstockError as error:
            found = error
        except TimeoutError:
            found = Unavailable(f"log {name} could not be opened in {OPEN_SECONDS:g} s")
        followed = self._followed.get(name)
        if found not in (self._owned.get(name), followed and followed[0]):
            if not isinstance(found, PenstockError):
                found = Unavailable(f"log {name} was let go again")
        opened(found)

    async def _own(self, name: str) -> OwnedLog:
        owned = self._owned.get(name)
        if owned is not None:
            return owned
        task = self._opening.get(name)
        if task is None:
            task = self._begin_opening(name, self._become_owner(name))
        return await asyncio.shield(task)

    def _begin_opening(
        self, name: str, work: Coroutine[Any, Any, OwnedLog]
    ) -> asyncio.Task[OwnedLog]:
        task = self._loop.create_task(work)
        self._opening[name] = task
        task.add_done_callback(lambda _: self._opening.pop(name, None))
        return task

    async def _reopen(self, name: str) -> OwnedLog:
        """Let a log go and take it again: its open segment is closed, and another is placed."""
        await self._let_go(name, clean=True)
        return await self._become_owner(name)

    async def _become_owner(self, name: str) -> OwnedLog:
        store = self._session.store
        claim = await self._claim(store, name)
        started = self._loop.time()
        around = self.service.surroundings(
            lambda: self._owned.get(name), lambda error: self._drop(name, error)
        )
        try:
            owned = await self._opener.open(name, around)
        except BaseException:
            await self._release(name, claim)
            raise
        if not self._session.is_open_with(store):
            await owned.stop(clean=False)
            raise Unavailable("the session with the metadata was lost")
        self._owned[name] = owned
        self._claims[name] = claim
        logger.info(
            "owner of log=%s epoch=%d tail=%d after_seconds=%.3f",
            name,
            owned.manifest.epoch,
            owned.durable_lsn,
            self._loop.time() - started,
        )
        return owned

    async def _claim(self, store: MetadataStore, name: str) -> int:
        """Make `/owners/<name>` ours, or raise NotOwner with the owner's address.

        Each claim has a number, so that one which is given back is not taken for the next.
        """
        self._claim_count += 1
        claim = self._claim_count
        mine = {"id": self._id, "claim": claim, "host": self.info.host, "port": self.info.port}
        data = json.dumps(mine | {"tls": self.info.tls}).encode()
        while True:
            try:
                await store.create(f"/owners/{name}", data, ephemeral=True)
                return claim
            except (AlreadyExists, Unknown):
                pass
            found = await store.get(f"/owners/{name}")
            if found is None:
                continue
            owner = json.loads(found.data)
            if owner["id"] != self._id:
                raise NotOwner(_address(owner))
            if name not in self._owned:
                # Of our last session, or a create whose answer was lost: this one's must be new.
                try:
                    await store.delete(f"/owners/{name}", found.version)
                except (NotFound, VersionConflict, Unknown):
                    pass

    async def _owner_address(self, name: str) -> str:
        found = await self._session.store.get(f"/owners/{name}")
        return "" if found is None else _address(json.loads(found.data))

    async def _release(self, name: str, claim: int) -> None:
        """Give `/owners/<name>` back, if it is still that claim of ours."""
        try:
            store = self._session.store
            found = await store.get(f"/owners/{name}")
            owner = {} if found is None else json.loads(found.data)
            if found is not None and (owner["id"], owner["claim"]) == (self._id, claim):
                await store.delete(f"/owners/{name}", found.version)
        except PenstockError as error:
            logger.debug("cannot release log=%s cause=%s", name, error)

    def _drop(self, name: str, error: BaseException) -> None:
        """The log has another owner now, or may have: its clients must look for it."""
        if not isinstance(error, PenstockError):
            self.listener.on_fatal(error)
        elif isinstance(error, Fenced | Unavailable):
            logger.warning("letting a log go log=%s cause=%s", name, error)
        else:
            logger.error("a log failed log=%s cause=%r", name, error, exc_info=error)
        if name in self._owned:
            self._tasks.spawn(self._let_go(name, clean=False))

    async def _let_go(self, name: str, *, clean: bool) -> None:
        owned = self._owned.pop(name, None)
        if owned is None:
            return
        claim = self._claims.pop(name)
        await owned.stop(clean=clean)
        self.service.close_connections_to(owned)
        await self._release(name, claim)

    # ---- followed logs

    async def _follow(self, name: str) -> ServedLog:
        owned = self._owned.get(name)
        if owned is not None:
            return owned
        known = self._followed.get(name)
        if known is not None:
            return known[0]

        async def load() -> LogManifest:
            found = await self._session.store.get(manifest_path(name))
            if found is None:
                raise NotFound(f"there is no log {name}")
            return decode_log_manifest(found.data)

        try:
            manifest = await load()
        except NotFound:
            # Its first client comes to read. If we may own logs, we make it.
            if self.config.role == "write":
                return await self._own(name)
            raise Unavailable(f"log {name} does not exist yet") from None
        if name in self._followed:
            return self._followed[name][0]
        changed = asyncio.Event()
        # Of the session that is open now: the one before may have ended while we loaded.
        unwatch = self._session.store.watch(manifest_path(name), changed.set)
        changed.set()
        around = self.service.surroundings(
            lambda: self._followed[name][0] if name in self._followed else None,
            self.listener.on_fatal,
        )
        view = LogView(name, self._source, manifest, self._housekeeper.cold)
        followed = FollowedLog(around, view, load=load, changed=changed)
        self._followed[name] = (followed, unwatch)
        followed.start()
        return followed

    async def _unfollow(self, name: str) -> None:
        known = self._followed.pop(name, None)
        if known is not None:
            known[1]()
            await known[0].stop()
            self.service.close_connections_to(known[0])

    # ---- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_MS / 1000)
            for log in self.service.logs_read():
                log.tick()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSE_SECONDS)
            for name, owned in list(self._owned.items()):
                # Each for itself: one whose nodes are away must not hold up the others.
                if name not in self._kept:
                    self._kept.add(name)
                    self._tasks.spawn(self._keep(name, owned))
            await self._unfollow_idle()

    async def _keep(self, name: str, owned: OwnedLog) -> None:
        try:
            if self._owned.get(name) is owned and not owned.fenced:
                await self._housekeeper.keep(owned)
            if self._owned.get(name) is owned and not owned.fenced:
                await self._leave_nodes(name, owned)
        finally:
            self._kept.discard(name)

    async def _leave_nodes(self, name: str, owned: OwnedLog) -> None:
        """Nodes that are gone or being emptied: see evacuation.py."""
        try:
            if await self._evacuation.attend(owned) and name not in self._opening:
                logger.info("opening a log again, for nodes that leave log=%s", name)
                await asyncio.shield(self._begin_opening(name, self._reopen(name)))
        except (PenstockError, OSError) as error:
            logger.warning("cannot leave nodes, trying again log=%s cause=%r", name, error)

    async def _unfollow_idle(self) -> None:
        now = self._loop.time()
        used = self.service.logs_used()
        for name, (followed, _) in list(self._followed.items()):
            if followed in used:
                self._idle_since.pop(name, None)
            elif now - self._idle_since.setdefault(name, now) > FOLLOW_SECONDS:
                del self._idle_since[name]
                await self._unfollow(name)

    # ---- for people and tools

    def status_json(self, log: ServedLog | None) -> str:
        """Of the whole proxy and, beside it, of the log that the connection is about."""
        return json.dumps(
            {
                **({} if log is None else log.status()),
                "proxy": asdict(self.info),
                "pid": os.getpid(),
                "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "uptime_seconds": round(time.time() - self._started, 3),
                "connections": len(self.listener.connections),
                "owned": {name: _owned_status(log) for name, log in self._owned.items()},
                "followed": {
                    name: {"tail": log.durable_lsn, "subscriptions": log.tails.count}
                    for name, (log, _) in self._followed.items()
                },
                "fetched_bytes": self._source.fetched_bytes,
                "replication": asdict(self.config.replication),
                "audit": self._auditor.report.as_json() if self._auditor.is_auditor else None,
                "config": self.config.lines(),
            }
        )

    def metrics_text(self) -> str:
        logs = [*self._owned.values(), *(log for log, _ in self._followed.values())]
        return self.service.metrics.text(
            {
                "logs_owned": ("Logs that this proxy owns.", len(self._owned)),
                "logs_followed": ("Logs that are followed for readers.", len(self._followed)),
                "connections": (
                    "Clients that have shown the token.",
                    len(self.listener.connections),
                ),
                "subscriptions": ("Readers.", sum(log.tails.count for log in logs)),
                "subscriptions_behind": (
                    "Readers below the tail.",
                    sum(x.tails.behind for x in logs),
                ),
                "inflight_bytes": ("Bytes of unanswered appends.", self.listener.inflight_bytes),
                "fetched_bytes": ("Bytes read from nodes.", self._source.fetched_bytes),
                "speculative_reads": ("Reads that asked one more node.", self._source.speculated),
                "nodes_alive": ("Registered storage nodes.", len(self._nodes.alive())),
                **self._auditor.report.gauges(is_auditor=self._auditor.is_auditor),
            }
        )


def _owned_status(log: OwnedLog) -> dict[str, Any]:
    return {
        "epoch": log.manifest.epoch,
        "tail": log.durable_lsn,
        "trim_point": log.trim_point,
        "segments": len(log.manifest.segments),
        "subscriptions": log.tails.count,
        "lost_nodes": sorted(log.segment.core.lost_nodes),
    }


def _address(owner: dict[str, Any]) -> str:
    return f"{owner['host']}:{owner['port']}" + (" tls" if owner.get("tls") else "")


def _node_tls(config: ProxyConfig) -> ssl.SSLContext | None:
    if config.tls_ca is None:
        return None
    context = ssl.create_default_context(cafile=str(config.tls_ca))
    context.hostname_checks_common_name = False  # names are in the SAN, or nowhere
    return context


def run_proxy(
    config: ProxyConfig,
    open_store: Callable[[], Awaitable[MetadataStore]],
    on_ready: Callable[[ProxyInfo], None] = lambda info: None,
) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    uvloop.run(run_until_signal(ProxyServer(config, open_store, on_ready), config.lines()))
