"""`python -m penstock.log.server`: what `penstock.connect` starts for a data directory."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.config import ServerConfig
from penstock.limits import MIB
from penstock.log.server.server import run_server
from penstock.log.serving.log_lines import log_to_stderr
from penstock.log.serving.process import exit_code


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.log.server", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--idle-exit-seconds", type=float, default=0.0)
    parser.add_argument("--segment-bytes", type=int, default=64 * MIB)
    options = parser.parse_args()
    log_to_stderr()
    config = ServerConfig(
        options.data_dir,
        port=options.port,
        idle_exit_seconds=options.idle_exit_seconds,
        segment_bytes=options.segment_bytes,
    )
    return exit_code(lambda: run_server(config))


if __name__ == "__main__":
    sys.exit(main())
