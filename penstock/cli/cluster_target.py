"""Which cluster a command is for: an address, or the directory of `penstock cluster up`.

    DIR/cluster.json    {"address": "penstock://127.0.0.1:2181/logs", …}, written by `up`
    DIR/token, DIR/node-token, DIR/metadata-auth

Owns the connection to its metadata and, if there is a token for them, to its nodes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.errors import BadConfig, BadFormat, NotFound, Unavailable
from penstock.log.embedded import client_tls
from penstock.log.local_cluster import AUTH_FILE
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import ClusterAddress, open_metadata, parse_cluster_address, read_auth
from penstock.log.node.client import NetworkNodes
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.serving.directory import read_token

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
CLUSTER_FILE = "cluster.json"
_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open cluster. `token` and `nodes` are None if nobody gave the token for them."""

    address: ClusterAddress
    store: MetadataStore
    token: str | None
    nodes: NetworkNodes | None
    tls: ssl.SSLContext | None
    timeout: float
    #: By path, what is wrong with a value that could not be read the last time.
    unread: dict[str, str] = field(default_factory=dict)

    async def names(self, path: str) -> list[str]:
        """What stands below a path; empty if nobody was ever there."""
        try:
            return await self.store.children(path)
        except NotFound:
            return []

    async def read(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """A value; None if there is none, or, noted in `unread`, if it cannot be read."""
        self.unread.pop(path, None)
        value = await self.store.get(path)
        if value is None:
            return None
        try:
            return decode(value.data)
        except (BadFormat, ValueError) as error:
            self.unread[path] = f"{path} in the metadata cannot be read: {error}"
            return None

    async def read_below(self, path: str, decode: Callable[[bytes], T]) -> dict[str, T]:
        """All values below a path that can be read."""
        for known in [each for each in self.unread if each.startswith(f"{path}/")]:
            del self.unread[known]  # it may be gone now
        found = {name: await self.read(f"{path}/{name}", decode) for name in await self.names(path)}
        return {name: value for name, value in found.items() if value is not None}

    async def manifests(self, only: str | None = None) -> dict[str, LogManifest]:
        """All that can be read; those that cannot are in `unread`."""
        if only is None:
            return await self.read_below("/logs", decode_log_manifest)
        manifest = await self.read(f"/logs/{only}", decode_log_manifest)
        return {} if manifest is None else {only: manifest}

    @property
    def unread_manifests(self) -> list[str]:
        return [words for path, words in self.unread.items() if path.startswith("/logs/")]

    async def auditor(self) -> dict[str, Any] | None:
        """What the auditor says of itself: {"id", "audit"}."""
        return await self.read("/auditor", _decode_object)


def decode_place(data: bytes) -> dict[str, Any]:
    """Who owns a log, or a proxy: {"id", "host", "port", …}. Raises BadFormat or ValueError."""
    found = _decode_object(data)
    lacking = {"id", "host", "port"} - set(found)
    if lacking:
        raise BadFormat(f"it does not say {', '.join(sorted(lacking))}")
    return found


def _decode_object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise BadFormat("it is not a JSON object")
    return found


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """What the argument and the options said."""

    address: str
    token_file: Path | None
    node_token_file: Path | None
    auth_file: Path | None
    tls_ca: Path | None
    timeout: float

    @asynccontextmanager
    async def open(self, *, needs_nodes: bool = False) -> AsyncIterator[Cluster]:
        """A session with the metadata, and all nodes there are; closed at the end."""
        address = parse_cluster_address(self.address)
        node_token = None if self.node_token_file is None else read_token(self.node_token_file)
        if needs_nodes and node_token is None:
            raise BadConfig(
                "give the token of the storage nodes: --node-token-file, or "
                "PENSTOCK_NODE_TOKEN_FILE"
            )
        token = None if self.token_file is None else read_token(self.token_file)
        auth = None if self.auth_file is None else read_auth(self.auth_file)
        tls = None
        if self.tls_ca is not None:
            try:
                tls = client_tls(self.tls_ca)
            except OSError as error:  # also what is wrong inside
                why = error.strerror or error
                raise BadConfig(f"cannot use {self.tls_ca} of --tls-ca: {why}") from error
        try:
            async with asyncio.timeout(self.timeout):
                store = await open_metadata(address, auth=auth)
        except TimeoutError as error:
            raise Unavailable(f"the metadata of {address} does not answer") from error
        nodes = None
        try:
            if node_token is not None:
                nodes = NetworkNodes(store, token=node_token, tls=tls)
                await nodes.start()
            yield Cluster(address, store, token, nodes, tls, self.timeout)
        finally:
            if nodes is not None:
                await nodes.close()
            await store.close()


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return None if not value else Path(value)


def resolve_target(
    address: str,
    *,
    token_file: Path | None,
    node_token_file: Path | None,
    auth_file: Path | None,
    tls_ca: Path | None,
    timeout: float,
) -> ClusterTarget:
    """Options first, then the directory of `up`, then the environment."""
    if "://" not in address:
        directory = Path(address).expanduser().absolute()
        file = directory / CLUSTER_FILE
        if not file.is_file():
            raise NotFound(
                f"{directory} is not the directory of a cluster: make one with `penstock cluster "
                "up --dir`, or give an address like penstock://zk-host:2181/logs"
            )
        address = json.loads(file.read_text())["address"]
        token_file = token_file or directory / "token"
        node_token_file = node_token_file or directory / "node-token"
        if auth_file is None and (directory / AUTH_FILE).exists():
            auth_file = directory / AUTH_FILE
    return ClusterTarget(
        address,
        token_file or _from_environment("PENSTOCK_TOKEN_FILE"),
        node_token_file or _from_environment("PENSTOCK_NODE_TOKEN_FILE"),
        auth_file or _from_environment("PENSTOCK_METADATA_AUTH_FILE"),
        tls_ca,
        timeout,
    )


def cluster_options(command: F) -> F:
    """Give a command ADDRESS and what is needed to reach it, as one argument `target`."""

    @click.argument("address")
    @click.option(
        "--token-file", type=_FILE, help="What clients prove.  [default: PENSTOCK_TOKEN_FILE]"
    )
    @click.option(
        "--node-token-file",
        type=_FILE,
        help="What is proved to nodes.  [default: PENSTOCK_NODE_TOKEN_FILE]",
    )
    @click.option(
        "--metadata-auth-file",
        "auth_file",
        type=_FILE,
        help="File with ZooKeeper's user:password.  [default: PENSTOCK_METADATA_AUTH_FILE]",
    )
    @click.option("--tls-ca", type=_FILE, help="Who vouches for nodes and proxies.")
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the metadata, and for each node and proxy.",
    )
    @functools.wraps(command)
    def with_target(
        *args: Any,
        address: str,
        token_file: Path | None,
        node_token_file: Path | None,
        auth_file: Path | None,
        tls_ca: Path | None,
        timeout: float,
        **options: Any,
    ) -> Any:
        target = resolve_target(
            address,
            token_file=token_file,
            node_token_file=node_token_file,
            auth_file=auth_file,
            tls_ca=tls_ca,
            timeout=timeout,
        )
        return command(*args, target=target, **options)

    return with_target  # type: ignore[return-value]
