"""Find the proxy of a log: candidates by consistent hashing, redirects, and who failed.

Owns a client's view of the cluster: the list of proxies, read from the metadata in short sessions
and kept until something fails, and the owner that the last answer named. Law: routing is a hint
(DistributedLog III-C): a wrong guess costs a redirect, never an error or a lost append.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Awaitable, Callable

from penstock.config import is_loopback
from penstock.errors import BadConfig, NotFound, NotOwner, PenstockError, Unavailable
from penstock.log.client.client import Endpoint
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import ClusterAddress, open_metadata
from penstock.log.replication.routing import Owners, ProxyInfo, Role, candidates

logger = logging.getLogger(__name__)

#: The list of proxies is not read more often than this, however much fails.
REFRESH_SECONDS = 0.1
DEFAULT_REGION = "default"
#: See `Endpoint.pulse_seconds`. The owner of a log that is silent for so long has lost its session.
PULSE_SECONDS = 1.0
#: The next owner comes when the session of the last one ends, of which clients are not told.
BACKOFF_SECONDS_MAX = 0.1
#: For so long, a proxy that could not be reached is not tried again while there is another.
UNREACHABLE_SECONDS = 1.0


class ProxyList:
    """The proxies of a cluster, shared by the routes of one client."""

    def __init__(self, open_store: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._open_store = open_store
        self._proxies: tuple[ProxyInfo, ...] = ()
        self._stale = True
        self._read_at = -REFRESH_SECONDS
        self._lock: asyncio.Lock | None = None

    def invalidate(self) -> None:
        self._stale = True

    async def get(self) -> tuple[ProxyInfo, ...]:
        """Raises Unavailable if there are none, or nobody can say."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            loop = asyncio.get_running_loop()
            if self._stale and loop.time() - self._read_at >= REFRESH_SECONDS:
                try:
                    self._proxies = await self._read()
                    self._stale = False
                except Unavailable:
                    # Who can be reached may be known all the same.
                    if not self._proxies:
                        raise
                self._read_at = loop.time()
        if not self._proxies:
            self._stale = True
            raise Unavailable("no proxy of the cluster is running")
        return self._proxies

    async def _read(self) -> tuple[ProxyInfo, ...]:
        store = await self._open_store()
        try:
            names = await store.children("/proxies")
            values = [await store.get(f"/proxies/{name}") for name in names]
        except NotFound:
            return ()
        finally:
            await store.close()
        return tuple(ProxyInfo.of(json.loads(value.data)) for value in values if value is not None)


class ClusterRoute:
    """What an `AsyncLog` asks where to connect; `reads` is the route of its readers."""

    def __init__(
        self,
        address: ClusterAddress,
        proxies: ProxyList,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        region: str,
        is_reading: bool = False,
    ) -> None:
        self._address = address
        self._proxies = proxies
        self._token = token
        self._tls = tls
        self._region = region
        self._is_reading = is_reading
        self._owners = Owners()
        #: How many candidates failed since the last welcome.
        self._failures = 0
        #: Proxies that could not be reached, and when that was.
        self._unreachable: dict[str, float] = {}
        self.reads: ClusterRoute | None = None
        if not is_reading:
            self.reads = ClusterRoute(
                address, proxies, token=token, tls=tls, region=region, is_reading=True
            )

    async def __call__(self) -> Endpoint:
        log = self._address.log
        owner = None if self._is_reading else self._owners.owner(log)
        if owner is None:
            role: Role = "read" if self._is_reading else "write"
            found = candidates(log, await self._proxies.get(), self._region, role)
            if not found:
                self._proxies.invalidate()
                raise Unavailable(f"no proxy of the cluster can {role}")
            names = [_name(proxy.host, proxy.port, proxy.tls) for proxy in found]
            reachable = [name for name in names if not self._is_unreachable(name)]
            owner = (reachable or names)[self._failures % len(reachable or names)]
        return self._endpoint(owner, self._owners.ticket())

    def _endpoint(self, owner: str, ticket: int) -> Endpoint:
        place, _, tls = owner.partition(" ")
        host, _, port = place.rpartition(":")
        if not tls and not is_loopback(host):
            raise BadConfig(f"proxy {place} does not speak TLS: the token must not travel openly")
        if tls and self._tls is None:
            raise BadConfig(f"proxy {place} speaks TLS: give tls_ca")
        log = self._address.log

        def failed(error: PenstockError) -> None:
            self._owners.failed(log, owner)
            if isinstance(error, NotOwner):
                # A dead owner is named until its session ends: who named it may be the next one.
                if str(error) and not self._is_unreachable(str(error)):
                    self._owners.learn(log, str(error), self._owners.ticket())
                    return
            else:
                self._unreachable[owner] = asyncio.get_running_loop().time()
            self._failures += 1
            self._proxies.invalidate()

        def welcomed() -> None:
            self._failures = 0
            self._unreachable.clear()
            self._owners.learn(log, owner, ticket)

        return Endpoint(
            host,
            int(port),
            self._token,
            self._tls if tls else None,
            log=log,
            reads=self._is_reading,
            failed=failed,
            welcomed=welcomed,
            pulse_seconds=PULSE_SECONDS,
            backoff_seconds_max=BACKOFF_SECONDS_MAX,
        )

    def _is_unreachable(self, name: str) -> bool:
        failed_at = self._unreachable.get(name)
        return (
            failed_at is not None
            and asyncio.get_running_loop().time() < failed_at + UNREACHABLE_SECONDS
        )


def _name(host: str, port: int, tls: bool) -> str:
    return f"{host}:{port}" + (" tls" if tls else "")


def cluster_route(
    address: ClusterAddress, *, token: str, tls: ssl.SSLContext | None, region: str | None = None
) -> ClusterRoute:
    """The route of a client in `region` (or PENSTOCK_REGION)."""

    async def open_store() -> MetadataStore:
        return await open_metadata(address)

    return ClusterRoute(
        address,
        ProxyList(open_store),
        token=token,
        tls=tls,
        region=region or os.environ.get("PENSTOCK_REGION", DEFAULT_REGION),
    )
