"""`serve_targets`: targets of this process, for players elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.delivery.api import Target
from penstock.delivery.remote.address import FRAMES, GRPC, PORTS, HostAddress
from penstock.delivery.remote.frames_server import run_target_server
from penstock.delivery.remote.host_config import HostConfig
from penstock.errors import BadConfig, Refused
from penstock.log.serving.directory import Address


def serve_targets(
    targets: Sequence[Target],
    *,
    token_file: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    grpc: bool = False,
    on_ready: Callable[[HostAddress], None] = lambda address: None,
) -> None:
    """Serve some targets until SIGTERM or Ctrl-C; each on a thread of its own.

    A player reaches them as `target://host:port/0`, `…/1` and so on (`grpc://…` over gRPC): give
    these as `to=` of `penstock.deliver`.

    Args:
        targets: Objects with the methods of `penstock.delivery.api.Target`.
        token_file: What players must prove to know; made if it is not there.
        host: Address to listen on; beyond this machine only with TLS.
        port: 0 takes a free one; by default 7075, or 7076 for gRPC.
        tls_cert: Certificate (PEM); with it the host speaks TLS only.
        tls_key: Its key (PEM).
        grpc: Speak gRPC (delivery.proto) instead of frames.
        on_ready: Told once, where it listens.

    Raises:
        BadConfig: A setting cannot be used.
        Unavailable: It cannot listen there.
    """
    if not targets:
        raise BadConfig("give at least one target")
    protocol = GRPC if grpc else FRAMES
    config = HostConfig(
        token_file=Path(token_file),
        host=host,
        port=PORTS[protocol] if port is None else port,
        tls_cert=None if tls_cert is None else Path(tls_cert),
        tls_key=None if tls_key is None else Path(tls_key),
    )

    def announce(address: Address) -> None:
        on_ready(HostAddress(protocol, address.host, address.port))

    if not grpc:
        run_target_server(config, targets, announce)
        return
    # Otherwise gRPC tells on standard error of every host that stops.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from penstock.delivery.remote.grpc_server import run_grpc_server
    except ImportError as error:
        raise Refused(f"{error}: pip install 'penstock[grpc]'") from None
    run_grpc_server(config, targets, announce)
