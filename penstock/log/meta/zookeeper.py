"""The metadata in ZooKeeper, over kazoo: the only file that knows it.

Owns one kazoo client and its threads. They hand everything to the event loop and wait for nothing
there; the loop never waits for them. The namespace is a path of ZooKeeper, made on first use.

Laws: a change that was sent and not answered raises `Unknown`; one that was never sent raises
`Unavailable`. A watch is armed before `changed` is called, so what is read after the call is the
newest or will be followed by another call. A session ends once: kazoo would go on with a new one,
in which none of our ephemeral nodes exist, so it is stopped instead. An ephemeral node that exists
is never ours by itself: an earlier session of this process may have left it, until it expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import (  # type: ignore[import-untyped]
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import (  # type: ignore[import-untyped]
    SequentialThreadingHandler,
)
from kazoo.protocol.states import KazooState  # type: ignore[import-untyped]
from kazoo.security import (  # type: ignore[import-untyped]
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
)

from penstock.errors import (
    AlreadyExists,
    BadConfig,
    BadRequest,
    NotFound,
    PenstockError,
    Unauthorized,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.log.meta.api import Versioned
from penstock.log.meta.paths import ROOT, check_path, check_value, parents_of

logger = logging.getLogger(__name__)

#: Long enough that a busy machine keeps its sessions, short enough that a dead one is soon noticed.
#: A server allows no less than two of its ticks: 0.5 s with our own, 4 s with its default.
SESSION_SECONDS = 3.0
#: How long a connection attempt may take; kazoo would wait a whole session for one silent server.
_CONNECT_SECONDS = 1.0
#: How long `close` waits for the server to say that the session has ended.
_CLOSE_SECONDS = 1.0
#: Calls that kazoo has and has not answered, also those whose callers have given up.
_CALLS_MAX = 64
_PARENT_TRIES = 3
_PROTECT_SECONDS = 10.0
#: After these the answer is not known; kazoo says the same of what it had not sent yet.
_NO_ANSWER = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)


class ZooKeeperMetadata:
    """One session (a `MetadataStore`); made by `open`, for the event loop that opened it."""

    def __init__(
        self, hosts: str, namespace: str, *, auth: str | None, session_seconds: float
    ) -> None:
        check_path(namespace)
        self._hosts = hosts
        self._namespace = namespace
        self._session_seconds = session_seconds
        self._loop = asyncio.get_running_loop()
        self._acl = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if auth else OPEN_ACL_UNSAFE
        self._handler = _Handler()
        # Kazoo writes whole requests into its debug messages, the password among them.
        kazoo_logger = logger.getChild("kazoo")
        # It warns at every attempt to connect, also in a user's terminal: what matters we say.
        kazoo_logger.setLevel(logging.ERROR)
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_seconds,
            handler=self._handler,
            auth_data=[("digest", auth)] if auth else None,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5},
            logger=kazoo_logger,
            **tls_options(),
        )
        self._client.add_listener(self._on_state)
        #: Set while requests can be sent.
        self._connected = asyncio.Event()
        #: Set once this session cannot be used again; `_end_reason` says why.
        self._ended = asyncio.Event()
        self._end_reason = ""
        self._lost_timer: asyncio.TimerHandle | None = None
        self._lost_calls: list[Callable[[], None]] = []
        self._is_lost = False
        self._slots = asyncio.Semaphore(_CALLS_MAX)
        self._watches: dict[str, _PathWatch] = {}
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        hosts: str,
        namespace: str,
        *,
        auth: str | None = None,
        session_seconds: float = SESSION_SECONDS,
    ) -> ZooKeeperMetadata:
        """Connect and make the namespace. `auth` is `user:password`. Raises Unavailable."""
        store = cls(hosts, namespace, auth=auth, session_seconds=session_seconds)
        store._client.start_async()
        try:
            await store._make_parents(namespace + "/x")
        except BaseException:
            await store.close()
            raise
        return store

    # ---- the interface

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
        check_path(path)
        check_value(path, data)
        full = self._full(path)
        for _ in range(_PARENT_TRIES):
            try:
                return await self._create(full, data, ephemeral)
            except NotFound:
                await self._make_parents(full)
        raise Unavailable(f"{full}: somebody removes the paths above it again and again")

    async def get(self, path: str) -> Versioned | None:
        full = self._full(check_path(path, root=True))
        try:
            data, stat = await self._read(full, lambda: self._client.get_async(full))
        except NotFound:
            return None
        return Versioned(data, int(stat.version))

    async def set(self, path: str, data: bytes, version: int) -> int:
        check_path(path)
        check_value(path, data)
        full = self._full(path)
        stat = await self._change(full, lambda: self._client.set_async(full, data, version))
        return int(stat.version)

    async def delete(self, path: str, version: int | None = None) -> None:
        full = self._full(check_path(path))
        wanted = -1 if version is None else version
        await self._change(full, lambda: self._client.delete_async(full, wanted))

    async def children(self, path: str) -> list[str]:
        full = self._full(check_path(path, root=True))
        return sorted(await self._read(full, lambda: self._client.get_children_async(full)))

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        full = self._full(check_path(path, root=True))
        watch = self._watches.get(full)
        if watch is None:
            watch = self._watches[full] = _PathWatch(self, full)
        return watch.add(changed)

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        if self._is_lost:
            self._loop.call_soon(lost)
        else:
            self._lost_calls.append(lost)

    async def close(self) -> None:
        self._lost_calls.clear()  # nobody is told of an end that they asked for
        self._end("the metadata session is closed")
        stopping = self._stopping
        if stopping is not None:
            await asyncio.shield(stopping)

    # ---- calls

    async def _create(self, full: str, data: bytes, ephemeral: bool) -> int:
        def start() -> Any:
            return self._client.create_async(
                full, data, acl=self._acl, ephemeral=ephemeral, include_data=True
            )

        _, stat = await self._change(full, start)
        return int(stat.version)

    async def _make_parents(self, full: str) -> None:
        """Persistent, empty, and everybody's: whoever comes first makes them."""
        for parent in parents_of(full):
            # A refused create is a write for ZooKeeper; most of the time this read is enough.
            if await self._exists(parent):
                continue
            try:
                await self._create(parent, b"", False)
            except AlreadyExists:
                pass
            except Unknown as error:
                # The call that needs it has not been made, which is all that its caller asks.
                raise Unavailable(str(error)) from error

    async def _exists(self, full: str) -> bool:
        return bool(await self._read(full, lambda: self._client.exists_async(full)))

    async def _read(self, full: str, start: Callable[[], Any]) -> Any:
        """A call that changes nothing: repeated while there is time. Raises Unavailable."""
        try:
            async with asyncio.timeout(self._session_seconds):
                while True:
                    await self._take_slot()
                    # A server of a quorum may be behind: what is read is as new as the moment of
                    # the call. Both travel together, in order.
                    synced = self._submit(lambda: self._client.sync_async(full))
                    answer = self._submit(start, self._slots.release)
                    try:
                        await synced
                        return await answer
                    except _NO_ANSWER:
                        continue  # the connection broke
        except TimeoutError as error:
            raise self._no_answer() from error
        except KazooException as error:
            raise _refusal(error, full) from error

    async def _change(self, full: str, start: Callable[[], Any]) -> Any:
        """A call that is made at most once."""
        try:
            async with asyncio.timeout(self._session_seconds):
                await self._take_slot()
        except TimeoutError as error:
            raise self._no_answer() from error
        try:
            async with asyncio.timeout(self._session_seconds):
                done = await self._submit(start, self._slots.release)
        except (TimeoutError, *_NO_ANSWER) as error:
            raise Unknown(f"{full}: ZooKeeper did not answer, the change may be made") from error
        except KazooException as error:
            raise _refusal(error, full) from error
        if self._is_lost:
            # Kazoo may have made it in a next session already, which is about to be closed.
            raise Unknown(f"{full}: {self._end_reason}")
        return done

    async def _take_slot(self) -> None:
        """Until a request may be sent. After it, sending is the next step, with no wait between."""
        while True:
            await self._until_connected()
            await self._slots.acquire()
            if self._connected.is_set() and not self._ended.is_set():
                return
            self._slots.release()

    def _submit(
        self, start: Callable[[], Any], answered: Callable[[], None] | None = None
    ) -> asyncio.Future[Any]:
        """Hand a request to kazoo; its answer comes back to the loop, also if nobody waits."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        is_answered = False

        def settle(result: Any) -> None:
            nonlocal is_answered
            if answered is not None and not is_answered:
                answered()
            is_answered = True  # kazoo may say twice that it is closed
            if answer.done():
                return  # its caller has gone
            if result.exception is not None:
                answer.set_exception(result.exception)
                answer.exception()  # where nobody awaits it, that is no news either
            else:
                answer.set_result(result.value)

        start().rawlink(lambda result: self._to_loop(settle, result))
        return answer

    def _to_loop(self, step: Callable[..., None], *arguments: Any) -> None:
        """From a thread of kazoo."""
        try:
            self._loop.call_soon_threadsafe(step, *arguments)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to hear it

    async def _until_connected(self) -> None:
        while not self._connected.is_set():
            self._check_alive()
            await self._connected.wait()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._ended.is_set():
            raise Unavailable(self._end_reason)

    def _no_answer(self) -> PenstockError:
        return Unavailable(
            f"no ZooKeeper answered at {self._hosts} within {self._session_seconds:g} s"
        )

    def _full(self, path: str) -> str:
        return self._namespace if path == ROOT else self._namespace + path

    # ---- the session

    def _on_state(self, state: str) -> None:
        """On kazoo's connection thread."""
        self._to_loop(self._state_changed, state)

    def _state_changed(self, state: str) -> None:
        if self._ended.is_set():
            return
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        if state == KazooState.CONNECTED:
            self._connected.set()
        elif state == KazooState.SUSPENDED:
            self._connected.clear()
            # The server counts from what it heard last, which is earlier by what kazoo needed to
            # notice: the nodes may be gone before this. Nobody may rely on them anyway.
            self._lost_timer = self._loop.call_later(self._session_seconds, self._lost)
        else:
            self._lost()

    def _lost(self) -> None:
        self._is_lost = True
        self._end("the metadata session was lost: open another one")
        logger.warning("metadata session lost hosts=%s", self._hosts)
        for lost in self._lost_calls:
            self._loop.call_soon(lost)
        self._lost_calls.clear()

    def _end(self, reason: str) -> None:
        """Refuse all further calls and stop kazoo. Idempotent."""
        if self._ended.is_set():
            return
        self._end_reason = reason
        self._ended.set()
        self._connected.set()  # whoever waits for it looks again, and finds the end
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()
        self._stopping = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        """Let kazoo say goodbye and its threads end; a server that does not answer is cut off."""
        stopped = asyncio.Event()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            finally:
                self._to_loop(stopped.set)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await stopped.wait()
        except TimeoutError:
            self._handler.cut()
            # What is left is one attempt to connect, which has a limit of its own.
            await stopped.wait()


def tls_options() -> dict[str, Any]:
    """How kazoo speaks TLS, if the environment names the authority of the ZooKeeper servers.

    In the environment, since every process of a cluster needs it, clients included, and what an
    address in the metadata says must be believed by all of them. Raises BadConfig.
    """
    ca, own = os.environ.get("PENSTOCK_METADATA_TLS_CA"), os.environ.get("PENSTOCK_TLS_CERT")
    if not ca:
        return {}
    for path in filter(None, (ca, own)):
        if not os.path.isfile(path):
            raise BadConfig(f"there is no certificate {path}")
    # One file has both, a certificate and its key.
    shown = {"certfile": own, "keyfile": own} if own else {}
    return {"use_ssl": True, "ca": ca, "verify_certs": True, "check_hostname": True, **shown}


def protect_namespace(hosts: str, namespace: str, auth: str) -> None:
    """Make the namespace, and let who has no `auth` only read it and all that is in it. Blocks.

    Raises Unauthorized if another password protects it, Unavailable.
    """
    quiet = logger.getChild("kazoo")
    quiet.setLevel(logging.ERROR)  # see above
    client = KazooClient(
        hosts=hosts,
        timeout=_PROTECT_SECONDS,
        auth_data=[("digest", auth)],
        logger=quiet,
        **tls_options(),
    )
    acl = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
    try:
        client.start(timeout=_PROTECT_SECONDS)
        client.ensure_path(namespace, acl=acl)
        waiting = [namespace]
        while waiting:
            path = waiting.pop()
            try:
                client.set_acls(path, acl)
                waiting += [f"{path}/{name}" for name in client.get_children(path)]
            except NoNodeError:
                pass  # gone since
    except NoAuthError as error:
        raise Unauthorized(f"{namespace} in ZooKeeper has another password") from error
    except (KazooException, client.handler.timeout_exception) as error:
        raise Unavailable(f"{namespace} in ZooKeeper cannot be protected: {error!r}") from error
    finally:
        client.stop()
        client.close()


class _PathWatch:
    """The watches of one path: armed at the server, and again after each event.

    1. An event, or the loss of the connection, disarms. 2. It is armed again. 3. `changed` is
    called. Whatever happened between 1 and 3 is seen by a read after 3.
    """

    def __init__(self, store: ZooKeeperMetadata, full: str) -> None:
        self._store = store
        self._full = full
        self._calls: dict[object, Callable[[], None]] = {}
        #: Of the value and existence; of the children. True from before the request on: an event
        #: may overtake its answer.
        self._value_armed = False
        self._children_armed = False
        self._arming: asyncio.Task[None] | None = None

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._calls[key] = changed
        if self._store._ended.is_set():
            return lambda: None
        self._ensure_armed()

        def end() -> None:
            self._calls.pop(key, None)

        return end

    def end(self) -> None:
        self._calls.clear()
        if self._arming is not None:
            self._arming.cancel()

    # ---- events, first on a thread of kazoo

    def _on_value(self, _: object) -> None:
        self._store._to_loop(self._disarmed, True)

    def _on_children(self, _: object) -> None:
        self._store._to_loop(self._disarmed, False)

    def _disarmed(self, is_value: bool) -> None:
        if is_value:
            self._value_armed = False
        else:
            self._children_armed = False
        self._ensure_armed()

    # ---- arming

    def _ensure_armed(self) -> None:
        if self._arming is None and self._calls and not self._store._ended.is_set():
            self._arming = self._store._loop.create_task(self._arm())

    async def _arm(self) -> None:
        try:
            while self._calls:
                try:
                    is_armed = await self._arm_once()
                except _NO_ANSWER:
                    self._value_armed = self._children_armed = False
                    await asyncio.sleep(0)
                    continue
                for key in list(self._calls):
                    self._store._loop.call_soon(self._call, key)
                if is_armed():
                    return
        except Unavailable:
            pass  # the session has ended
        except KazooException as error:
            logger.warning("metadata watch refused path=%s error=%r", self._full, error)
        finally:
            self._arming = None

    def _call(self, key: object) -> None:
        changed = self._calls.get(key)
        if changed is not None:  # it may have been ended since
            changed()

    async def _arm_once(self) -> Callable[[], bool]:
        """Returns what tells whether an event has come since."""
        store, client = self._store, self._store._client
        await store._until_connected()
        async with store._slots:
            self._value_armed = True
            exists = await store._submit(
                lambda: client.exists_async(self._full, watch=self._on_value)
            )
            if exists and not self._children_armed:
                self._children_armed = True
                try:
                    await store._submit(
                        lambda: client.get_children_async(self._full, watch=self._on_children)
                    )
                except NoNodeError:
                    self._children_armed = False  # deleted since: the first watch tells it
        return lambda: self._value_armed and (self._children_armed or not exists)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with connections that can be cut and calls that never block.

    Kazoo wakes its thread with one byte for each call. A socket pair, its own choice, holds less
    than 300 of them, and when the server stalls the event loop would wait there, for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._connection: socket.socket | None = None
        self._is_cut = False

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        options["timeout"] = min(options.get("timeout") or _CONNECT_SECONDS, _CONNECT_SECONDS)
        if self._is_cut:
            raise OSError("closing")
        self._connection = super().create_connection(*arguments, **options)
        return self._connection

    def create_socket_pair(self) -> tuple[_WakePipe, _WakePipe]:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        return _WakePipe(read_fd), _WakePipe(write_fd)

    def cut(self) -> None:
        """End the connection under kazoo, which then sees that it is to stop."""
        self._is_cut = True
        if self._connection is not None:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was not connected any more


class _WakePipe:
    """One end of a pipe, which holds 64 Ki bytes, with the few methods of a socket that kazoo uses.

    Neither end ever waits: a byte too many raises, which kazoo takes for a closed connection.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def recv(self, size: int) -> bytes:
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return b""  # no wake-up is left, which is all that kazoo wants to know

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _refusal(error: KazooException, full: str) -> PenstockError:
    """What the server said, in our words; it made no change."""
    if isinstance(error, NodeExistsError):
        return AlreadyExists(full)
    if isinstance(error, NoNodeError):
        return NotFound(full)
    if isinstance(error, BadVersionError):
        return VersionConflict(f"{full} is at another version")
    if isinstance(error, NotEmptyError):
        return BadRequest(f"{full} has paths below it")
    if isinstance(error, NoChildrenForEphemeralsError):
        return BadRequest(f"a path above {full} is ephemeral: nothing can be below it")
    if isinstance(error, NoAuthError):
        return Unauthorized(f"ZooKeeper does not let us change or read {full}")
    return Unavailable(f"{full}: ZooKeeper says {error!r}")
