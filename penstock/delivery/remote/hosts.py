"""From targets as users give them to the hosts that a player speaks to.

Owns what is refused before anything is started: addresses, tokens, certificates. Targets of this
process share one host, with a thread for each; those of one address elsewhere share one, with one
connection.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.delivery.api import Shard, Target
from penstock.delivery.host import TargetHost
from penstock.delivery.local_host import LocalHost
from penstock.delivery.remote.address import GRPC, HostAddress, TargetAddress
from penstock.delivery.remote.frames_host import FramesHost
from penstock.errors import BadRequest, Refused
from penstock.log.embedded import client_tls, token_of


class _MakeHost(Protocol):
    def __call__(
        self,
        address: HostAddress,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        shards: Mapping[int, Shard],
        schema: pa.Schema,
    ) -> TargetHost: ...


@dataclass(frozen=True, slots=True)
class _Reach:
    """All that it takes to connect to a host."""

    make: _MakeHost
    token: str
    tls: ssl.SSLContext | None


class Hosts:
    """The hosts of some targets, which will be the shards of a delivery, in this order."""

    def __init__(self, targets: Sequence[Target | TargetAddress]) -> None:
        """Raises BadConfig for a token or certificate that cannot be used, and Refused."""
        self._targets = targets
        self._reaches: dict[HostAddress, _Reach] = {}
        addresses = [target for target in targets if isinstance(target, TargetAddress)]
        for address in addresses:
            if addresses.count(address) > 1:
                raise BadRequest(f"{address} is given twice: a target is one shard")
            if address.host not in self._reaches:
                self._reaches[address.host] = _reach(address.host)

    def make(self, shards: Sequence[Shard], schema: pa.Schema) -> list[TargetHost]:
        """The host of each shard; `schema` is the stream's, `_weight` included."""
        local: list[tuple[Target, Shard]] = []
        elsewhere: dict[HostAddress, dict[int, Shard]] = {}
        for target, shard in zip(self._targets, shards, strict=True):
            if isinstance(target, TargetAddress):
                elsewhere.setdefault(target.host, {})[target.number] = shard
            else:
                local.append((target, shard))
        hosts: dict[HostAddress | None, TargetHost] = {}
        if local:
            objects, their_shards = zip(*local, strict=True)
            hosts[None] = LocalHost(objects, their_shards, schema)
        for address, numbered in elsewhere.items():
            reach = self._reaches[address]
            hosts[address] = reach.make(
                address, token=reach.token, tls=reach.tls, shards=numbered, schema=schema
            )
        return [hosts[_address_of(target)] for target in self._targets]


def _address_of(target: Target | TargetAddress) -> HostAddress | None:
    return target.host if isinstance(target, TargetAddress) else None


def _reach(address: HostAddress) -> _Reach:
    token_file = None if address.token_file is None else Path(address.token_file)
    tls_ca = None if address.tls_ca is None else Path(address.tls_ca)
    make = _grpc_host() if address.protocol == GRPC else FramesHost
    return _Reach(make, token_of(str(address), token_file), client_tls(tls_ca))


def _grpc_host() -> _MakeHost:
    # Otherwise gRPC tells on standard error of every host that stops.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from penstock.delivery.remote.grpc_host import GrpcHost
    except ImportError as error:
        raise Refused(f"{error}: pip install 'penstock[grpc]'") from None
    return GrpcHost
