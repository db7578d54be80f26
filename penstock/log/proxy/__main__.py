"""`python -m penstock.log.proxy`: one proxy of a replicated log."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.limits import MIB
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.open import open_metadata, read_auth
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.server import run_proxy
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.log_lines import log_to_stderr
from penstock.log.serving.process import exit_code


def make_parser() -> argparse.ArgumentParser:
    """The options, also those of `penstock cluster proxy`."""
    parser = argparse.ArgumentParser(prog="python -m penstock.log.proxy", description=__doc__)
    parser.add_argument("--metadata", required=True, help="address of the cluster's metadata")
    parser.add_argument("--token-file", type=Path, required=True, help="what clients prove")
    parser.add_argument(
        "--node-token-file", type=Path, required=True, help="what is proved to nodes"
    )
    parser.add_argument("--metadata-auth-file", type=Path, help="file with user:password")
    parser.add_argument(
        "--host", default="127.0.0.1", help="to listen on; beyond this machine only with TLS"
    )
    parser.add_argument("--advertised-host", default="", help="where clients reach it")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--tls-cert", type=Path, help="certificate (PEM)")
    parser.add_argument("--tls-key", type=Path, help="its key (PEM)")
    parser.add_argument("--tls-client-ca", type=Path, help="who vouches for clients (PEM)")
    parser.add_argument("--tls-ca", type=Path, help="who vouches for the nodes")
    parser.add_argument("--region", default="default", help="where it stands")
    parser.add_argument("--rack", default="default", help="where it stands in its region")
    parser.add_argument(
        "--role", choices=("write", "read"), default="write", help="read: own no logs"
    )
    parser.add_argument("--ensemble", type=int, default=3, help="nodes of a segment")
    parser.add_argument("--write-quorum", type=int, default=3, help="copies of a block")
    parser.add_argument("--ack-quorum", type=int, default=2, help="fsyncs before an answer")
    parser.add_argument("--min-regions", type=int, default=1, help="regions of every ack quorum")
    parser.add_argument("--segment-bytes", type=int, default=64 * MIB, help="a segment's size")
    parser.add_argument("--segment-seconds", type=float, default=3600.0, help="... or age")
    parser.add_argument(
        "--ttl-seconds", type=float, default=0.0, help="older entries are trimmed; 0 keeps all"
    )
    parser.add_argument("--cold-uri", help="copy sealed segments there: any pyarrow.fs URI")
    parser.add_argument(
        "--session-seconds", type=float, default=2.0, help="others take its logs after so long"
    )
    parser.add_argument("--region-delay-ms", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--ready-file", type=Path, help="written when the proxy listens")
    return parser


def run(options: dict[str, Any], announce: Callable[[ProxyInfo], None] = lambda info: None) -> None:
    """Serve until SIGTERM or SIGINT; `options` are those of the parser."""
    log_to_stderr()
    auth_file: Path | None = options.pop("metadata_auth_file")
    ready_file: Path | None = options.pop("ready_file")
    rule = Replication(
        **{
            name: options.pop(name)
            for name in (
                "ensemble",
                "write_quorum",
                "ack_quorum",
                "min_regions",
                "segment_bytes",
                "segment_seconds",
            )
        }
    )
    config = ProxyConfig(replication=rule, **options)

    async def open_store() -> MetadataStore:
        auth = None if auth_file is None else read_auth(auth_file)
        return await open_metadata(
            config.metadata, auth=auth, session_seconds=config.session_seconds
        )

    def on_ready(info: ProxyInfo) -> None:
        if ready_file is not None:
            temporary = ready_file.with_suffix(".new")
            temporary.write_text(json.dumps(asdict(info)))
            os.replace(temporary, ready_file)
        announce(info)

    run_proxy(config, open_store, on_ready)


def main() -> int:
    return exit_code(lambda: run(vars(make_parser().parse_args())))


if __name__ == "__main__":
    sys.exit(main())
