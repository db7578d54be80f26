"""Claims on logs: how a proxy makes itself the owner of a log, and how it gives a log back.

    Claiming:   Create ──created──► Held               Returning:   Read ─ not this claim ─► Done
                ▲ ▲  │ taken                                         │ this claim
                │ │  ▼                                               ▼
        nobody's│ └─ Read ── another's ──► ClaimRefused            Delete ─► Done
                │    │ our own
                └── Delete

Owns what `/owners/<log>` says, and which of its values is ours. Knows no store: each step returns
what is to be done next, and is told what came of it. Laws: a log that another proxy owns is not
fought for, its address is told; every claim has a number of its own, so that one which is given
back late is never taken for the next one. A claim keeps proxies from fighting, nothing more: what
an owner may write is decided by fencing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.errors import BadFormat


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a log, where it is reached, and which of its claims this is."""

    id: str
    host: str
    port: int
    tls: bool
    claim: int = 0

    def encode(self) -> bytes:
        fields = {"id": self.id, "claim": self.claim, "host": self.host, "port": self.port}
        return json.dumps(fields | {"tls": self.tls}).encode()

    @property
    def address(self) -> str:
        """As a client is told it."""
        return f"{self.host}:{self.port}" + (" tls" if self.tls else "")


def decode_owner(data: bytes) -> Owner:
    """Raises BadFormat."""
    try:
        fields = json.loads(data)
        return Owner(
            fields["id"],
            fields["host"],
            fields["port"],
            bool(fields.get("tls")),
            fields.get("claim", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFormat(f"the owner of a log cannot be read: {error}") from error


def owner_path(log: str) -> str:
    return f"/owners/{log}"


# ---- what is to be done next


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node, ephemeral; then `created`, or `taken` if it exists or nobody knows."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Read the node; then `read`."""

    path: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete that version of the node; then `deleted`, whatever came of it."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Held:
    """The log is claimed: open it."""


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Somebody else owns the log."""

    address: str


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do."""


Step = Create | Read | Delete | Held | ClaimRefused | Done
#: The node as it was read, with its version; None: there is none.
Standing = tuple[Owner, int] | None


class Claiming:
    """One attempt to own a log."""

    def __init__(self, log: str, owner: Owner, session: int) -> None:
        self.log = log
        self.owner = owner
        #: Counts the proxy's sessions with the metadata: under which one it began.
        self.session = session
        self._path = owner_path(log)

    def begin(self) -> Step:
        return Create(self._path, self.owner.encode())

    def created(self) -> Step:
        return Held()

    def taken(self) -> Step:
        return Read(self._path)

    def read(self, standing: Standing) -> Step:
        if standing is None:
            return self.begin()  # it has just ended
        owner, version = standing
        if owner.id != self.owner.id:
            return ClaimRefused(owner.address)
        # Of our last session, or a create whose answer was lost: this one's must be new.
        return Delete(self._path, version)

    def deleted(self) -> Step:
        return self.begin()


class Returning:
    """One claim on its way back."""

    def __init__(self, log: str, owner: Owner) -> None:
        self._owner = owner
        self._path = owner_path(log)

    def begin(self) -> Step:
        return Read(self._path)

    def created(self) -> Step:
        raise AssertionError("nothing is created when a claim is given back")

    def taken(self) -> Step:
        raise AssertionError("nothing is created when a claim is given back")

    def read(self, standing: Standing) -> Step:
        if standing is None or standing[0] != self._owner:
            return Done()
        return Delete(self._path, standing[1])

    def deleted(self) -> Step:
        return Done()


class Claims:
    """The claims of one proxy."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._count = 0
        self._session = 0
        #: Logs that are owned, with the claim that each rests on.
        self._held: dict[str, Claiming] = {}

    def claim(self, log: str) -> Claiming:
        """A new attempt."""
        self._count += 1
        owner = self._owner
        mine = Owner(owner.id, owner.host, owner.port, owner.tls, self._count)
        return Claiming(log, mine, self._session)

    def opened(self, claiming: Claiming) -> bool:
        """The log is open; False: too late, the session that it was claimed under has ended."""
        if claiming.session != self._session:
            return False
        self._held[claiming.log] = claiming
        return True

    def session_lost(self) -> list[str]:
        """Others may take our logs from now on; returns those that must be let go."""
        self._session += 1
        return list(self._held)

    def let_go(self, log: str) -> Returning:
        """The log is not written to any more."""
        claiming = self._held.pop(log)
        return self.give_back(claiming)

    def give_back(self, claiming: Claiming) -> Returning:
        """A log that was claimed is not opened after all."""
        return Returning(claiming.log, claiming.owner)

    def check(self) -> None:
        """What is held is claimed once, by us."""
        numbers = [claiming.owner.claim for claiming in self._held.values()]
        assert len(set(numbers)) == len(numbers) and all(0 < n <= self._count for n in numbers)
        assert all(log == claiming.log for log, claiming in self._held.items())
        assert all(claiming.owner.id == self._owner.id for claiming in self._held.values())
