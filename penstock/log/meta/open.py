"""From what users write to a metadata store: addresses of clusters, and files with passwords.

    penstock://zk1:2181,zk2:2181/logs          ZooKeeper, namespace /logs, log main
    penstock://zk1:2181/logs/orders            the same, log orders

Law: an address is understood whole or refused with a remedy; nothing is guessed but port 2181.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadConfig, BadRequest
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.paths import is_part
from penstock.log.meta.zookeeper import SESSION_SECONDS, ZooKeeperMetadata
from penstock.log.replication.manifest import check_log_name

DEFAULT_LOG = "main"
DEFAULT_PORT = 2181
_CLUSTER = "penstock://"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster keeps its metadata, and which of its logs is meant."""

    #: `host:port` of each ZooKeeper server.
    hosts: tuple[str, ...]
    #: A path of ZooKeeper, like `/logs`.
    namespace: str
    log: str = DEFAULT_LOG

    def __str__(self) -> str:
        return f"{_CLUSTER}{','.join(self.hosts)}{self.namespace}/{self.log}"


def parse_cluster_address(address: str) -> ClusterAddress:
    """Pure. Raises BadConfig."""
    if not address.startswith(_CLUSTER):
        raise BadConfig(f"{address} is not the address of a cluster, like {_CLUSTER}host:2181/logs")
    hosts, _, path = address.removeprefix(_CLUSTER).partition("/")
    if "@" in hosts:
        raise BadConfig("a password is not part of the address: give its file as the auth file")
    if "?" in address or "#" in address:
        raise BadConfig(f"{address}: the address of a cluster has no ? and no #")
    parts = path.removesuffix("/").split("/")
    if parts == [""]:
        raise BadConfig(f"{address} names no namespace: {_CLUSTER}{hosts or 'host:2181'}/logs")
    if len(parts) > 2:
        raise BadConfig(f"{address} has too many parts: {_CLUSTER}{hosts}/<namespace>/<log>")
    if not is_part(parts[0]) or parts[0] == "zookeeper":  # that one is ZooKeeper's own
        raise BadConfig(f"{address}: {parts[0]!r} cannot be a namespace")
    log = _log_name(address, parts[1] if len(parts) == 2 else DEFAULT_LOG)
    return ClusterAddress(tuple(_parse_hosts(address, hosts)), f"/{parts[0]}", log)


def _parse_hosts(address: str, hosts: str) -> list[str]:
    places = []
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise BadConfig(f"{address}: {host!r} is not a host like zk1:{DEFAULT_PORT}")
        places.append(f"{match[1]}:{port}")
    return places


def _log_name(address: str, name: str) -> str:
    try:
        return check_log_name(name)
    except BadRequest as error:
        raise BadConfig(f"{address}: {error}") from error


def read_auth(path: Path) -> str:
    """`user:password` for ZooKeeper, from a file that nobody else may read. Raises BadConfig."""
    try:
        mode = path.stat().st_mode
        auth = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the auth file {path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadConfig(f"others may read the auth file {path}: chmod 600 {path}")
    user, _, password = auth.partition(":")
    if not user or not password or "\n" in auth:
        raise BadConfig(f"the auth file {path} does not hold one line user:password")
    return auth


async def open_metadata(
    address: str | ClusterAddress,
    *,
    auth: str | None = None,
    session_seconds: float = SESSION_SECONDS,
) -> MetadataStore:
    """A new session; the log in the address is not looked at. Raises BadConfig, Unavailable."""
    if isinstance(address, str):
        address = parse_cluster_address(address)
    return await ZooKeeperMetadata.open(
        ",".join(address.hosts), address.namespace, auth=auth, session_seconds=session_seconds
    )
