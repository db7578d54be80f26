"""Addresses of targets in other processes, as users write them. Pure.

    target://host:7075/3?token_file=FILE&tls_ca=FILE     frames
    grpc://host:7076/3?token_file=FILE&tls_ca=FILE       gRPC

The number says which of the host's targets it is; without one it is the first. Law: beyond this
machine there is TLS, or the address is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from penstock.config import is_loopback
from penstock.errors import BadConfig

FRAMES: Final = "target"
GRPC: Final = "grpc"
#: Where a host listens unless it is told otherwise.
PORTS: Final = {FRAMES: 7075, GRPC: 7076}
_OPTIONS: Final = ("token_file", "tls_ca")


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where a host of targets is. Targets with equal addresses share one connection."""

    protocol: str
    host: str
    port: int
    token_file: str | None = None
    #: Certificate authority; without one it does not speak TLS.
    tls_ca: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """One target of a host."""

    host: HostAddress
    number: int

    def __str__(self) -> str:
        return f"{self.host}/{self.number}"


def is_remote(uri: str) -> bool:
    """Whether it is the address of a target in another process."""
    return uri.partition("://")[0] in PORTS


def parse_target(uri: str) -> TargetAddress:
    """Raises BadConfig."""
    try:
        parts = urlsplit(uri)
        port = parts.port
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise BadConfig(f"{uri} is no address of a target: {error}") from None
    scheme, number = parts.scheme, parts.path.strip("/")
    if scheme not in PORTS or not parts.hostname or (number and not number.isdecimal()):
        example = f"{scheme if scheme in PORTS else FRAMES}://host:{PORTS.get(scheme, 7075)}/0"
        raise BadConfig(f"{uri} is no address of a target like {example}")
    if parts.username or parts.password:
        raise BadConfig("a token is not part of an address: give its file, ?token_file=FILE")
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise BadConfig(f"{uri}: there is no option {unknown[0]}, only {' and '.join(_OPTIONS)}")
    host = HostAddress(scheme, parts.hostname, port or PORTS[scheme], **options)
    if host.tls_ca is None and not is_loopback(host.host):
        raise BadConfig(f"{host.host} is not this machine: give ?tls_ca=FILE, rows travel openly")
    return TargetAddress(host, int(number or 0))
