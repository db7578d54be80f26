"""`python -m penstock.log.node`: one storage node of a replicated log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.limits import MIB
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import open_metadata, read_auth
from penstock.log.node.config import NodeConfig
from penstock.log.node.server import run_node
from penstock.log.replication.node_api import NodeInfo
from penstock.log.serving.log_lines import log_to_stderr
from penstock.log.serving.process import exit_code


def make_parser() -> argparse.ArgumentParser:
    """The options, also those of `penstock cluster node`."""
    parser = argparse.ArgumentParser(prog="python -m penstock.log.node", description=__doc__)
    parser.add_argument("--name", required=True, help="unique in the cluster, the same for ever")
    parser.add_argument("--data-dir", type=Path, required=True, help="made if it is not there")
    parser.add_argument("--metadata", required=True, help="address of the cluster's metadata")
    parser.add_argument(
        "--host", default="127.0.0.1", help="to listen on; beyond this machine only with TLS"
    )
    parser.add_argument("--advertised-host", default="", help="where proxies reach it")
    parser.add_argument("--advertised-port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--tls-cert", type=Path, help="certificate (PEM)")
    parser.add_argument("--tls-key", type=Path, help="its key (PEM)")
    parser.add_argument("--tls-client-ca", type=Path, help="who vouches for proxies (PEM)")
    parser.add_argument("--token-file", type=Path, help="what proxies prove")
    parser.add_argument("--region", default="default", help="where it stands")
    parser.add_argument("--rack", default="default", help="where it stands in its region")
    parser.add_argument(
        "--journal-bytes", type=int, default=64 * MIB, help="size of one journal; four may be kept"
    )
    parser.add_argument(
        "--trim-seconds", type=float, default=5.0, help="how often it looks for trimmed segments"
    )
    parser.add_argument("--fsync-delay-ms", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--metadata-auth-file", type=Path, help="file with user:password")
    return parser


def run(options: dict[str, Any], on_ready: Callable[[NodeInfo], None] = lambda info: None) -> None:
    """Serve until SIGTERM or SIGINT; `options` are those of the parser."""
    log_to_stderr()
    auth_file: Path | None = options.pop("metadata_auth_file")
    config = NodeConfig(**options)

    async def open_store() -> MetadataStore:
        auth = None if auth_file is None else read_auth(auth_file)
        return await open_metadata(config.metadata, auth=auth)

    run_node(config, open_store, on_ready)


def main() -> int:
    return exit_code(lambda: run(vars(make_parser().parse_args())))


if __name__ == "__main__":
    sys.exit(main())
