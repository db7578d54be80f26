"""A storage node's identity: its name, and the cookie of this life of its disk.

One identity file lies in the data directory and in each directory below it, as in BookKeeper, so
that a part of the disk which was swapped or wiped is noticed. Law (R05): a node answers under a
cookie only while it knows everything that it ever acknowledged under it, or what of it was lost:
blocks of damaged records, or of a damaged or missing file, are unknown. A disk that is empty, or
has lost something of the journal and does not know what, takes a new cookie, that is, becomes
another node; its former cookies are kept, and under those it shows what it has and denies nothing.
A disk of another node, or an older one of this node, is refused.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import AlreadyExists, BadConfig, BadFormat, VersionConflict
from penstock.log.meta.api import MetadataStore
from penstock.log.storage.disk import Disk, read_whole, replace_file

IDENTITY_NAME = "identity.json"
NODE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
#: Former cookies that are remembered; older ones are no longer answered.
PAST_COOKIES_MAX = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a data directory belongs to."""

    name: str
    cookie: str
    past_cookies: tuple[str, ...] = ()

    def renewed(self) -> Identity:
        """The same node, after it lost something."""
        past = (self.cookie, *self.past_cookies)[:PAST_COOKIES_MAX]
        return Identity(self.name, new_cookie(), past)


def new_cookie() -> str:
    return secrets.token_hex(8)


def read_identity(disk: Disk) -> Identity | None:
    """None: there is none. Raises BadFormat."""
    if not disk.exists(IDENTITY_NAME):
        return None
    try:
        found: dict[str, Any] = json.loads(read_whole(disk, IDENTITY_NAME))
        return Identity(str(found["name"]), str(found["cookie"]), tuple(found["past_cookies"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"{IDENTITY_NAME} cannot be read: {error}") from error


def write_identity(disks: Sequence[Disk], identity: Identity) -> None:
    data = json.dumps(
        {
            "name": identity.name,
            "cookie": identity.cookie,
            "past_cookies": list(identity.past_cookies),
        }
    ).encode()
    for disk in disks:
        replace_file(disk, IDENTITY_NAME, data)


def decide_identity(
    name: str, found: Sequence[Identity | None], registered: str | None
) -> tuple[Identity, str | None]:
    """Who this node is, and why it is not who it was; or BadConfig: the disk is not its own.

    `found`: the identity files of all its directories, the main one first. `registered`: the
    cookie that the cluster's metadata has for this name.
    """
    known = [identity for identity in found if identity is not None]
    for identity in known:
        if identity.name != name:
            raise BadConfig(
                f"the data directory belongs to node {identity.name!r}, this is {name!r}: "
                "give its own directory, or an empty one"
            )
    if not known:
        if registered is None:
            return Identity(name, new_cookie()), None
        return Identity(name, new_cookie(), (registered,)), "the disk is empty"
    cookies = {identity.cookie for identity in known}
    past_cookies = {cookie for identity in known for cookie in identity.past_cookies}
    if registered is not None and registered not in cookies | past_cookies:
        raise BadConfig(
            f"node {name!r} was last seen with cookie {registered}, this disk has "
            f"{known[0].cookie}: it is an old disk of the node; give the newest, or an empty one"
        )
    if len(known) < len(found) or len(cookies) > 1:
        ordered = [cookie for identity in known for cookie in _cookies(identity)]
        past = tuple(dict.fromkeys(ordered))[:PAST_COOKIES_MAX]
        return Identity(name, new_cookie(), past), "a directory of the disk is empty or another's"
    return known[0], None


def _cookies(identity: Identity) -> tuple[str, ...]:
    return (identity.cookie, *identity.past_cookies)


async def fetch_cookie(store: MetadataStore, name: str) -> str | None:
    found = await store.get(f"/cookies/{name}")
    return None if found is None else found.data.decode(errors="replace")


async def register_cookie(store: MetadataStore, identity: Identity) -> None:
    """Write /cookies/<name>. Raises VersionConflict if a rival of the same name writes too."""
    path, data = f"/cookies/{identity.name}", identity.cookie.encode()
    found = await store.get(path)
    if found is None:
        try:
            await store.create(path, data)
        except AlreadyExists as error:
            raise VersionConflict(f"another node {identity.name!r} starts") from error
    elif found.data != data:
        await store.set(path, data, found.version)
