"""Which proxy to ask for a log, and who is remembered as its owner.

Consistent hashing puts every proxy at many points of a ring, and a log at one: its candidates are
the proxies from there on. All clients find the same order, in every process, so that after a
failure they turn to the same next one and ownership does not hop (DistributedLog III-C). A proxy
that comes or goes moves only its own share of the logs.

Law: a cached owner that failed is not served again until an answer that was asked for after that
failure names it. Routing is a hint: whoever is asked wrongly says who the owner is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

Role = Literal["write", "read"]

#: With so many points each, the shares of proxies differ by some ten percent.
POINTS_PER_PROXY = 160


@dataclass(frozen=True, slots=True)
class ProxyInfo:
    """What a proxy says of itself in the metadata, at /proxies/<id>."""

    id: str
    host: str
    port: int
    tls: bool = False
    region: str = "default"
    rack: str = "default"
    role: Role = "write"

    @classmethod
    def of(cls, said: dict[str, Any]) -> ProxyInfo:
        """From what stands in the metadata; what a newer version says beyond is left away."""
        return cls(**{name: said[name] for name in cls.__slots__ if name in said})

    @property
    def address(self) -> str:
        """Its name on the ring: a new life at the same address gets the same logs."""
        return f"{self.host}:{self.port}"


def point(text: str) -> int:
    """A place on the ring, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Ring:
    """Names at many points of a circle."""

    def __init__(self, names: Iterable[str], points: int = POINTS_PER_PROXY) -> None:
        self._names = sorted(set(names))
        placed = sorted((point(f"{name}#{n}"), name) for name in self._names for n in range(points))
        self._points = [place for place, _ in placed]
        self._owners = [name for _, name in placed]

    def order(self, key: str) -> tuple[str, ...]:
        """All names, from the key's place on; the first is where the key belongs."""
        at = bisect_left(self._points, point(key))
        # A dict keeps the first place of each name.
        found: dict[str, None] = {}
        for step in range(len(self._owners)):
            found[self._owners[(at + step) % len(self._owners)]] = None
            if len(found) == len(self._names):
                break
        return tuple(found)


@lru_cache(maxsize=16)
def _ring(names: tuple[str, ...]) -> Ring:
    return Ring(names)


def candidates(
    log: str, proxies: Iterable[ProxyInfo], region: str, role: Role
) -> tuple[ProxyInfo, ...]:
    """The proxies to ask for a log, best first.

    To write: all write proxies in the order of the ring, the same for clients of all regions, or
    they would call different proxies to the same log. To read: read proxies of the client's own
    region, then those elsewhere, then write proxies, of which the owner can serve it.
    """
    by_address: dict[str, ProxyInfo] = {}
    for proxy in sorted(proxies, key=lambda proxy: proxy.id):
        if role == "read" or proxy.role == "write":
            by_address[proxy.address] = proxy
    order = [by_address[name] for name in _ring(tuple(sorted(by_address))).order(log)]
    if role == "write":
        return tuple(order)
    # Sorting is stable: equals stay in the order of the ring.
    return tuple(sorted(order, key=lambda proxy: (proxy.role != "read", proxy.region != region)))


#: Stands for every log; no log has this name.
_ALL_LOGS = ""


class Owners:
    """The owners of logs, as far as answers told; bounded, for one client.

    Take a `ticket` before a request is sent and give it back with what its answer taught: an answer
    that was under way when its owner failed must not bring the owner back.
    """

    def __init__(self, logs_max: int = 10_000) -> None:
        self._logs_max = logs_max
        self._tickets = 0
        #: Owner of each log, and the ticket of the request that told.
        self._owners: dict[str, tuple[str, int]] = {}
        #: The ticket from which on an answer may name that owner of that log again.
        self._failed: dict[tuple[str, str], int] = {}
        #: The same for all that is not in `_failed` any more.
        self._forgotten = 0

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def owner(self, log: str) -> str | None:
        found = self._owners.get(log)
        return None if found is None else found[0]

    def learn(self, log: str, owner: str, ticket: int) -> bool:
        """An answer named the owner; False if something newer speaks against it."""
        known = self._owners.get(log)
        if known is not None and ticket < known[1]:
            return False
        if any(
            ticket < self._failed.get((which, owner), self._forgotten) for which in (log, _ALL_LOGS)
        ):
            return False
        # At the end again: the first one is the oldest.
        self._owners.pop(log, None)
        self._owners[log] = (owner, ticket)
        if len(self._owners) > self._logs_max:
            del self._owners[next(iter(self._owners))]
        return True

    def failed(self, log: str, owner: str) -> None:
        """A request to it failed, or it said that it is not the owner."""
        known = self._owners.get(log)
        if known is not None and known[0] == owner:
            del self._owners[log]
        self._not_before_now(log, owner)

    def lost(self, owner: str) -> None:
        """The connection to a proxy broke: it owns nothing until it is named again."""
        for log in [log for log, (found, _) in self._owners.items() if found == owner]:
            del self._owners[log]
        self._not_before_now(_ALL_LOGS, owner)

    def _not_before_now(self, log: str, owner: str) -> None:
        self._failed.pop((log, owner), None)
        self._failed[log, owner] = self._tickets + 1
        if len(self._failed) > self._logs_max:
            oldest = next(iter(self._failed))
            self._forgotten = max(self._forgotten, self._failed.pop(oldest))
