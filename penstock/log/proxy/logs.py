"""The logs that are open on one proxy: owned, followed for readers, or being opened.

A client names a log in its Hello; a proxy that may own logs and finds no owner makes itself the
owner, else it says who is (DistributedLog III-C). Who may is decided in claims.py; this shell does
what it says. Law: what a log's fencing or a lost session ends is let go at once, and its clients
must look for the owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, assert_never

from penstock.errors import (
    AlreadyExists,
    BadRequest,
    Fenced,
    Forbidden,
    NotFound,
    NotOwner,
    PenstockError,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.claims import (
    Claiming,
    ClaimRefused,
    Claims,
    Create,
    Delete,
    Done,
    Held,
    Read,
    Returning,
    decode_owner,
    owner_path,
)
from penstock.log.proxy.evacuation import Evacuation
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.proxy.housekeeping import Housekeeper
from penstock.log.proxy.log_view import LogView
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.open_log import LogOpener
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.proxy.session import MetadataSession
from penstock.log.replication.manifest import LogManifest, check_log_name, decode_log_manifest
from penstock.log.serving.log_service import LogService, Opened
from penstock.log.serving.openmetrics import Gauges
from penstock.log.serving.served_log import PROGRESS_MS, ServedLog
from penstock.log.serving.task_set import TaskSet
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: How long a log is followed after its last reader has gone.
FOLLOW_SECONDS = 30.0
#: A log that could not be opened is tried again by its next client, not before.
OPEN_SECONDS = 60.0
#: How often the logs of this proxy are looked after.
HOUSE_SECONDS = 1.0


class _Followed(NamedTuple):
    """A followed log, and what ends the watch of its manifest."""

    log: FollowedLog
    unwatch: Callable[[], None]


class ProxyLogs:
    """See the module's docstring. All methods are for the event loop."""

    def __init__(
        self,
        service: LogService,
        session: MetadataSession,
        tasks: TaskSet,
        claims: Claims,
        *,
        may_own: bool,
        opener: LogOpener,
        source: BlockSource,
        housekeeper: Housekeeper,
        evacuation: Evacuation,
    ) -> None:
        self._service = service
        self._session = session
        self._tasks = tasks
        self._claims = claims
        self._may_own = may_own
        self.opener = opener
        self._source = source
        self._housekeeper = housekeeper
        self._evacuation = evacuation
        self._loop = asyncio.get_running_loop()
        self.owned: dict[str, OwnedLog] = {}
        #: Logs that are being looked after just now.
        self._kept: set[str] = set()
        self._opening: dict[str, asyncio.Task[OwnedLog]] = {}
        self._followed: dict[str, _Followed] = {}
        self._idle_since: dict[str, float] = {}

    def start(self) -> None:
        self._tasks.spawn(self._tick())
        self._tasks.spawn(self._keep_house())

    async def stop(self, *, clean: bool) -> None:
        """Let all logs go."""
        self._tasks.cancel_nowait()  # before any of them can begin to open another log
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self._tasks.cancel()
        for name in list(self.owned):
            await self._let_go(name, clean=clean)
        for name in list(self._followed):
            await self._unfollow(name)

    def session_lost(self) -> None:
        """Others may take our logs from now on: they are let go, and clients look for the owner."""
        for name in self._claims.session_lost():
            self._drop(name, Unavailable("the session with the metadata was lost"))
        for name in list(self._followed):
            self._tasks.spawn(self._unfollow(name))

    def open_logs(self) -> list[ServedLog]:
        """Owned or followed, now."""
        return [*self.owned.values(), *(each.log for each in self._followed.values())]

    # ---- opening

    def open(self, hello: m.Hello, opened: Opened, *, may_make: bool) -> None:
        """Find or open the log that a client names; `opened` is called once, now or later."""
        try:
            name = check_log_name(hello.log)
        except BadRequest as error:
            opened(error)
            return
        owned = self.owned.get(name)
        if owned is not None:
            opened(owned)
        else:
            self._tasks.spawn(self._open(name, hello.reads, opened, may_make=may_make))

    async def _open(self, name: str, reads: bool, opened: Opened, *, may_make: bool) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                if not may_make and await self._session.store.get(manifest_path(name)) is None:
                    raise Forbidden(f"not allowed: there is no log {name}, and it may not make one")
                if reads:
                    outcome: ServedLog | PenstockError = await self._follow(name)
                elif not self._may_own:
                    raise NotOwner(await self._owner_address(name))
                else:
                    outcome = await self.own(name)
        except (Fenced, Unknown) as error:
            # Of this proxy and the metadata, not of the client: for it, the next attempt may do.
            outcome = Unavailable(f"log {name} could not be opened: {error}")
        except PenstockError as error:
            outcome = error
        except TimeoutError:
            outcome = Unavailable(f"log {name} could not be opened in {OPEN_SECONDS:g} s")
        if isinstance(outcome, ServedLog) and not self._is_open(name, outcome):
            outcome = Unavailable(f"log {name} was let go again")
        opened(outcome)

    def _is_open(self, name: str, log: ServedLog) -> bool:
        followed = self._followed.get(name)
        return log is self.owned.get(name) or (followed is not None and log is followed.log)

    async def own(self, name: str) -> OwnedLog:
        """The log, with this proxy as its owner; NotOwner if another is."""
        owned = self.owned.get(name)
        if owned is not None:
            return owned
        task = self._opening.get(name)
        if task is None:
            task = self._begin_opening(name, self._become_owner(name))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # The proxy stops, and with it the opening: nobody has asked who waits for it to end.
            raise Unavailable(f"log {name} is not opened: this proxy stops") from None

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
        claiming = self._claims.claim(name)
        await self._perform(claiming)
        started = self._loop.time()
        around = self._service.surroundings(
            lambda: self.owned.get(name), lambda error: self._drop(name, error)
        )
        try:
            owned = await self.opener.open(name, around)
        except BaseException:
            await self._give_back(self._claims.give_back(claiming))
            raise
        if not self._claims.opened(claiming):
            await owned.stop(clean=False)
            raise Unavailable("the session with the metadata was lost")
        self.owned[name] = owned
        logger.info(
            "owner of log=%s epoch=%d tail=%d after_seconds=%.3f",
            name,
            owned.manifest.epoch,
            owned.durable_lsn,
            self._loop.time() - started,
        )
        return owned

    async def _perform(self, change: Claiming | Returning) -> None:
        """Do what claims.py says, in one session. Raises NotOwner if another owns the log."""
        store, step = self._session.store, change.begin()
        while True:
            match step:
                case Create():
                    try:
                        await store.create(step.path, step.data, ephemeral=True)
                        step = change.created()
                    except (AlreadyExists, Unknown):
                        step = change.taken()
                case Read():
                    node = await store.get(step.path)
                    standing = None if node is None else (decode_owner(node.data), node.version)
                    step = change.read(standing)
                case Delete():
                    try:
                        await store.delete(step.path, step.version)
                    except (NotFound, VersionConflict, Unknown):
                        pass
                    step = change.deleted()
                case ClaimRefused():
                    raise NotOwner(step.address)
                case Held() | Done():
                    return
                case _:
                    assert_never(step)

    async def _give_back(self, returning: Returning) -> None:
        try:
            await self._perform(returning)
        except PenstockError as error:
            logger.debug("cannot give a log back cause=%s", error)

    async def _owner_address(self, name: str) -> str:
        node = await self._session.store.get(owner_path(name))
        return "" if node is None else decode_owner(node.data).address

    def _drop(self, name: str, error: BaseException) -> None:
        """The log has another owner now, or may have: its clients must look for it."""
        if not isinstance(error, PenstockError):
            self._service.listener.on_fatal(error)
        elif isinstance(error, Fenced | Unavailable):
            logger.warning("letting a log go log=%s cause=%s", name, error)
        else:
            logger.error("a log failed log=%s cause=%r", name, error, exc_info=error)
        if name in self.owned:
            self._tasks.spawn(self._let_go(name, clean=False))

    async def _let_go(self, name: str, *, clean: bool) -> None:
        owned = self.owned.pop(name, None)
        if owned is None:
            return
        returning = self._claims.let_go(name)
        await owned.stop(clean=clean)
        self._service.close_connections_to(owned)
        await self._give_back(returning)

    # ---- followed logs

    async def _follow(self, name: str) -> ServedLog:
        owned = self.owned.get(name)
        if owned is not None:
            return owned
        followed = self._followed.get(name)
        if followed is not None:
            return followed.log

        async def load() -> LogManifest:
            node = await self._session.store.get(manifest_path(name))
            if node is None:
                raise NotFound(f"there is no log {name}")
            return decode_log_manifest(node.data)

        try:
            manifest = await load()
        except NotFound:
            # Its first client comes to read. If we may own logs, we make it.
            if self._may_own:
                return await self.own(name)
            raise Unavailable(f"log {name} does not exist yet") from None
        if name in self._followed:
            return self._followed[name].log
        changed = asyncio.Event()
        # Of the session that is open now: the one before may have ended while we loaded.
        unwatch = self._session.store.watch(manifest_path(name), changed.set)
        changed.set()
        around = self._service.surroundings(
            lambda: self._followed[name].log if name in self._followed else None,
            self._service.listener.on_fatal,
        )
        view = LogView(name, self._source, manifest, self._housekeeper.cold)
        log = FollowedLog(around, view, load=load, changed=changed)
        self._followed[name] = _Followed(log, unwatch)
        log.start()
        return log

    async def _unfollow(self, name: str) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.unwatch()
            await followed.log.stop()
            self._service.close_connections_to(followed.log)

    # ---- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_MS / 1000)
            for log in self._service.logs_read():
                log.tick()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSE_SECONDS)
            for name, owned in list(self.owned.items()):
                # Each for itself: one whose nodes are away must not hold up the others.
                if name not in self._kept:
                    self._kept.add(name)
                    self._tasks.spawn(self._keep(name, owned))
            await self._unfollow_idle()

    async def _keep(self, name: str, owned: OwnedLog) -> None:
        try:
            if self.owned.get(name) is owned and not owned.fenced:
                await self._housekeeper.keep(owned)
            if self.owned.get(name) is owned and not owned.fenced:
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
        used = self._service.logs_used()
        for name, followed in list(self._followed.items()):
            if followed.log in used:
                self._idle_since.pop(name, None)
            elif now - self._idle_since.setdefault(name, now) > FOLLOW_SECONDS:
                del self._idle_since[name]
                await self._unfollow(name)

    # ---- for people and tools

    def status(self) -> dict[str, object]:
        return {
            "owned": {name: _owned_status(log) for name, log in self.owned.items()},
            "followed": {
                name: {"tail": log.durable_lsn, "subscriptions": log.tails.count}
                for name, (log, _) in self._followed.items()
            },
        }

    def gauges(self) -> Gauges:
        followed = [log for log, _ in self._followed.values()]
        tails = [log.tails for log in (*self.owned.values(), *followed)]
        lacking = sum(log.lacking_blocks for log in self.owned.values())
        return {
            "logs_owned": ("Logs that this proxy owns.", len(self.owned)),
            "open_lacking_blocks": ("Blocks of open segments that lack a copy.", lacking),
            "logs_followed": ("Logs that are followed for readers.", len(self._followed)),
            "subscriptions": ("Readers.", sum(tail.count for tail in tails)),
            "subscriptions_behind": ("Readers below the tail.", sum(tail.behind for tail in tails)),
        }


def _owned_status(log: OwnedLog) -> dict[str, Any]:
    return {
        "epoch": log.manifest.epoch,
        "tail": log.durable_lsn,
        "trim_point": log.trim_point,
        "segments": len(log.manifest.segments),
        "subscriptions": log.tails.count,
        "lost_nodes": sorted(log.segment.core.lost_nodes),
        "stalled": log.stalled,
        "lacking_blocks": log.lacking_blocks,
        "is_audited": log.is_audited,
    }


def _is_cancelled() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
