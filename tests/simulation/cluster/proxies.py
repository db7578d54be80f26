"""Proxies in the simulation: what proxy/server.py does around its logs, without sockets.

Owns the lives of a proxy: its session with the metadata, which log it owns or follows, and its
clients. The logs themselves are the real ones (LogOpener, OwnedLog, FollowedLog). Law: whatever
ends a log other than a newer owner or an unreachable cluster is a bug, and fails the world.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Fenced,
    NotFound,
    NotOwner,
    Overloaded,
    PenstockError,
    Trimmed,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.ids import Lsn
from penstock.log.core.tails import FOREVER, Deliver
from penstock.log.group_format import decode_body
from penstock.log.meta.memory import MemorySession
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.proxy.housekeeping import Housekeeper
from penstock.log.proxy.log_view import LogView
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.open_log import LogOpener
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.records import Appended, Flush, Guard
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.serving.log_metrics import LogMetrics
from penstock.log.serving.served_log import ServedLog, Surroundings
from simulation.cluster.network import Connection, SimNodes
from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

LOG = "main"
TICK_SECONDS = 0.05
#: How long a client waits at most for a log to be opened.
OPEN_SECONDS = 20.0
RETRY_SECONDS = 0.2

#: What may end a log without being a bug.
_FORESEEN = (Fenced, Unavailable, DeadlineExceeded, Overloaded, Unknown)

Reply = Callable[[Any], None]


class Peer:
    """One client's connection, as the proxy sees it."""

    def __init__(self, client: str, connection: Connection) -> None:
        self.client = client
        self.connection = connection
        self.log: ServedLog | None = None
        #: By number: the client's function that takes deliveries and errors.
        self.readers: dict[int, Callable[[Deliver | PenstockError], None]] = {}
        #: The client has come again: what arrives late on this connection is not heard.
        self.silenced = False

    def tell(self, reply: Reply, outcome: Any) -> None:
        self.connection.send(False, lambda: reply(outcome))


class SimProxy:
    """One proxy with its lives; `process` is None while it is down."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self._lives = 0
        self.id = ""
        self.session: MemorySession | None = None
        self.owned: OwnedLog | None = None
        self._opening: asyncio.Task[OwnedLog] | None = None
        self.followed: FollowedLog | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._peers: dict[str, Peer] = {}
        self._due: dict[ServedLog, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.nodes: SimNodes
        self._source: BlockSource
        self._opener: LogOpener
        self._housekeeper: Housekeeper

    # ---- lives

    def start(self) -> None:
        if self.process is not None:
            return
        self._lives += 1
        self.id = f"{self.name}-{self._lives}"
        self.process = self.world.scheduler.process(self.id)
        self.session = self.owned = self.followed = self._opening = None
        self._peers, self._due, self._tasks = {}, {}, set()
        self.process.call_soon(self._begin)

    def _begin(self) -> None:
        world = self.world
        assert self.process is not None
        self.nodes = SimNodes(world, self.name, self.process)
        swarm = world.swarm
        self._source = BlockSource(
            self.nodes,
            region=world.regions[0],
            cache_bytes=swarm.cache_bytes,
            seed=world.random.getrandbits(30),
        )
        self._opener = LogOpener(
            lambda: self._store,
            self.nodes,
            self._source,
            swarm.replication,
            proxy=self.id,
            new_id=lambda: world.random.randbytes(16),
        )
        self._housekeeper = Housekeeper(self.nodes, ttl_seconds=0.0, cold_uri=None)
        self._spawn(self._keep_session())
        self._spawn(self._tick())
        if swarm.housekeeping_seconds:
            self._spawn(self._keep_house())

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        if self.session is not None:
            # Its session goes on until the metadata store misses it.
            self.world.expire_later(self.session, self.world.swarm.session_seconds)
        self.world.server_died(self.name)
        self.owned = self.followed = self.session = None

    @property
    def _store(self) -> MemorySession:
        if self.session is None:
            raise Unavailable("there is no session with the metadata now")
        return self.session

    async def _keep_session(self) -> None:
        while True:
            session = self.world.open_session(self)
            gone = asyncio.Event()
            session.on_session_lost(gone.set)
            self.session = session
            await gone.wait()
            self.session = None
            self.world.count("session lost")
            self._session_lost()
            await session.close()
            await asyncio.sleep(RETRY_SECONDS)
            while self.name in self.world.metadata_cuts:
                await asyncio.sleep(RETRY_SECONDS)

    def _session_lost(self) -> None:
        if self.owned is not None:
            self._drop(self.owned, Unavailable("the session with the metadata was lost"))
        if self.followed is not None:
            self._spawn(self._unfollow())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.fail(f"{self.id}: a task failed: {error!r}", error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for log in (self.owned, self.followed):
                if log is not None:
                    log.tick()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self.world.swarm.housekeeping_seconds)
            owned = self.owned
            if owned is not None and not owned.fenced:
                await self._housekeeper.keep(owned)

    # ---- which log

    def hello(self, peer: Peer, reads: bool, reply: Reply) -> None:
        older = self._peers.get(peer.client)
        if older is not None:
            older.silenced = True
        self._peers[peer.client] = peer
        peer.connection.server_ended = lambda: self._dismiss(peer)
        self._spawn(self._open(peer, reads, reply))

    async def _open(self, peer: Peer, reads: bool, reply: Reply) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                peer.log = await (self._follow() if reads else self._own())
        except PenstockError as error:
            self._foreseen(error)
            peer.tell(reply, error)
        except TimeoutError:
            peer.tell(reply, Unavailable("the log could not be opened in time"))
        else:
            peer.tell(reply, None)

    def _foreseen(self, error: BaseException) -> None:
        if not isinstance(error, _FORESEEN):
            self.world.fail(f"{self.id}: {error!r}", error)

    async def _own(self) -> OwnedLog:
        if self.owned is not None:
            return self.owned
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._become_owner())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[OwnedLog]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # whoever waited was told

    async def _become_owner(self) -> OwnedLog:
        store = self._store
        await self._claim(store)
        try:
            owned = await self.open_log()
        except BaseException:
            await self._release()
            raise
        if self.session is not store:
            await owned.stop(clean=False)
            raise Unavailable("the session with the metadata was lost")
        if self.owned is not None:  # we were our own rival
            self._spawn(self._let_go(self.owned))
        self.owned = owned
        self.world.note(f"{self.id} owns the log at epoch {owned.manifest.epoch}")
        self.world.count("log opened")
        return owned

    async def open_log(self) -> OwnedLog:
        """Take the log, whoever may have it."""
        box: list[OwnedLog] = []
        around = self._surroundings(
            lambda: box[0] if box else None,
            lambda error: self._drop(box[0] if box else None, error),
        )
        box.append(await self._opener.open(LOG, around))
        return box[0]

    async def rival(self) -> None:
        """Take the log without asking whose it is, as only a confused proxy would."""
        try:
            owned = await self.open_log()
        except PenstockError as error:
            self._foreseen(error)
            return
        self.world.count("rival opened")
        if self.owned is not None or not self.world.is_broken:
            await owned.stop(clean=False)
        else:
            self.owned = owned

    async def _claim(self, store: MemorySession) -> None:
        data = json.dumps({"id": self.id, "name": self.name}).encode()
        while True:
            try:
                await store.create(f"/owners/{LOG}", data, ephemeral=True)
                return
            except (AlreadyExists, Unknown):
                pass
            found = await store.get(f"/owners/{LOG}")
            if found is None:
                continue
            owner = json.loads(found.data)
            if owner["id"] != self.id:
                raise NotOwner(owner["name"])
            if self.owned is None:
                try:
                    await store.delete(f"/owners/{LOG}", found.version)
                except (NotFound, VersionConflict, Unknown):
                    pass

    async def _release(self) -> None:
        try:
            found = await self._store.get(f"/owners/{LOG}")
            if found is not None and json.loads(found.data)["id"] == self.id:
                await self._store.delete(f"/owners/{LOG}", found.version)
        except PenstockError:
            pass  # it goes with the session

    def _drop(self, owned: OwnedLog | None, error: BaseException) -> None:
        self._foreseen(error)
        if owned is not None:
            self._spawn(self._let_go(owned))

    async def _let_go(self, owned: OwnedLog) -> None:
        is_ours = self.owned is owned
        if is_ours:
            self.owned = None
        await owned.stop(clean=False)
        self._close_peers_of(owned)
        if is_ours:
            await self._release()

    async def stop_clean(self) -> None:
        """As an operator stops it: what is in flight is finished first."""
        owned, self.owned = self.owned, None
        if owned is not None:
            await owned.stop(clean=True)
            self._close_peers_of(owned)
            await self._release()

    def _close_peers_of(self, log: ServedLog) -> None:
        for peer in list(self._peers.values()):
            if peer.log is log:
                peer.connection.break_off()

    def _dismiss(self, peer: Peer) -> None:
        if self._peers.get(peer.client) is peer:
            del self._peers[peer.client]
        if peer.log is not None:
            for number in peer.readers:
                peer.log.tails.unsubscribe((peer, number))

    # ---- followed logs

    async def _follow(self) -> ServedLog:
        if self.owned is not None:
            return self.owned
        if self.followed is not None:
            return self.followed

        async def load() -> LogManifest:
            found = await self._store.get(manifest_path(LOG))
            if found is None:
                raise Unavailable("the log does not exist yet")
            return decode_log_manifest(found.data)

        manifest = await load()
        if (other := self._followed_now()) is not None:
            return other
        changed = asyncio.Event()
        self._unwatch = self._store.watch(manifest_path(LOG), changed.set)
        changed.set()
        box: list[FollowedLog] = []
        around = self._surroundings(lambda: box[0] if box else None, self._foreseen)
        view = LogView(LOG, self._source, manifest)
        box.append(FollowedLog(around, view, load=load, changed=changed))
        self.followed = box[0]
        self.followed.start()
        self.world.count("log followed")
        return self.followed

    def _followed_now(self) -> FollowedLog | None:
        """Somebody else may have begun while we waited."""
        return self.followed

    async def _unfollow(self) -> None:
        followed, self.followed = self.followed, None
        if followed is not None:
            self._unwatch()
            await followed.stop()
            self._close_peers_of(followed)

    # ---- turns

    def _surroundings(
        self,
        log: Callable[[], ServedLog | None],
        on_fatal: Callable[[BaseException], None],
    ) -> Surroundings:
        return Surroundings(
            LogMetrics(),
            self._deliver,
            self._fail_subscription,
            lambda: self._after_event(log()),
            on_fatal,
            lambda: self.world.wall_ms(self.name),
        )

    def _after_event(self, log: ServedLog | None) -> None:
        if log is None:
            return
        if not self._due:
            asyncio.get_running_loop().call_soon(self._turn)
        self._due[log] = None

    def _turn(self) -> None:
        due, self._due = self._due, {}
        for log in due:
            log.pump()

    def _deliver(self, effect: Deliver) -> None:
        peer, number = cast(tuple[Peer, int], effect.id)
        deliver = peer.readers.get(number)
        if deliver is not None:
            whole = Deliver(number, (b"".join(effect.records),), effect.looked_up_to, effect.done)
            self.world.delivered(whole)
            peer.tell(deliver, whole)

    def _fail_subscription(self, id: Any, error: PenstockError) -> None:
        peer, number = id
        deliver = peer.readers.pop(number, None)
        if deliver is not None:
            peer.tell(deliver, error)

    # ---- requests of clients

    def append(
        self, peer: Peer, body: bytes, guards: tuple[Guard, ...], flush: Flush, reply: Reply
    ) -> None:
        log = self._log_of(peer)
        if log is None:
            return

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Appended):
                self.world.acknowledged(outcome)
            peer.tell(reply, outcome)

        log.append(answered, decode_body(body), guards, flush)
        self._after_event(log)

    def subscribe(
        self,
        peer: Peer,
        number: int,
        tags: frozenset[str] | None,
        start: int,
        credit: int,
        reply: Reply,
    ) -> None:
        log = self._log_of(peer)
        if log is None:
            return
        if start < log.trim_point:
            peer.tell(reply, Trimmed(f"lsn {start} is below the trim point {log.trim_point}"))
            return
        peer.readers[number] = reply
        id = (peer, number)
        log.perform(log.tails.subscribe(id, tags, start=Lsn(start), end=FOREVER, credit=credit))
        self._after_event(log)

    def credit(self, peer: Peer, number: int, size: int) -> None:
        log = self._log_of(peer)
        if log is not None:
            log.perform(log.tails.credit((peer, number), size))
            self._after_event(log)

    def ask(
        self, peer: Peer, question: Callable[[ServedLog], Awaitable[Any]], reply: Reply
    ) -> None:
        log = self._log_of(peer)
        if log is not None:
            self._spawn(self._answer(peer, log, question, reply))

    async def _answer(
        self,
        peer: Peer,
        log: ServedLog,
        question: Callable[[ServedLog], Awaitable[Any]],
        reply: Reply,
    ) -> None:
        try:
            peer.tell(reply, await question(log))
        except PenstockError as error:
            peer.tell(reply, error)
        self._after_event(log)

    def _log_of(self, peer: Peer) -> ServedLog | None:
        """The peer's log; None if nobody listens to this connection any more."""
        return None if peer.silenced else peer.log
