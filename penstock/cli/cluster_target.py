"""Which cluster a command is for: an address, or the directory of `penstock cluster up`.

    DIR/cluster.json    {"address": "penstock://127.0.0.1:2181/logs", …}, written by `up`
    DIR/token, DIR/node-token

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.errors import BadConfig, NotFound, Unavailable
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import ClusterAddress, open_metadata, parse_cluster_address, read_auth
from penstock.log.node.client import NetworkNodes
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.serving.directory import read_token

F = TypeVar("F", bound=Callable[..., Any])
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

    async def names(self, path: str) -> list[str]:
        """What stands below a path; empty if nobody was ever there."""
        try:
            return await self.store.children(path)
        except NotFound:
            return []

    async def json_below(self, path: str) -> dict[str, Any]:
        found = {}
        for name in await self.names(path):
            value = await self.store.get(f"{path}/{name}")
            if value is not None:
                found[name] = json.loads(value.data)
        return found

    async def manifests(self, only: str | None = None) -> dict[str, LogManifest]:
        found = {}
        for name in await self.names("/logs") if only is None else [only]:
            value = await self.store.get(f"/logs/{name}")
            if value is not None:
                found[name] = decode_log_manifest(value.data)
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
        if address.is_directory and not Path(address.namespace).is_dir():
            raise NotFound(f"there is no cluster in {address.namespace}")
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
            tls = ssl.create_default_context(cafile=str(self.tls_ca))
            tls.hostname_checks_common_name = False  # names are in the SAN, or nowhere
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
    return ClusterTarget(
        address,
        token_file or _from_environment("PENSTOCK_TOKEN_FILE"),
        node_token_file or _from_environment("PENSTOCK_NODE_TOKEN_FILE"),
        auth_file,
        tls_ca,
        timeout,
    )


def cluster_options(command: F) -> F:
    """Give a command ADDRESS and what is needed to reach it, as one argument `target`."""

    @click.argument("address")
    @click.option(
        "--token-file", type=_FILE, help="What clients show.  [default: PENSTOCK_TOKEN_FILE]"
    )
    @click.option(
        "--node-token-file",
        type=_FILE,
        help="What nodes are shown.  [default: PENSTOCK_NODE_TOKEN_FILE]",
    )
    @click.option("--metadata-auth-file", "auth_file", type=_FILE, help="File with user:password.")
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
