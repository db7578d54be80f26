"""Three nodes and a proxy in one process of their own, with metadata in memory: for what is to be
watched from outside. Ends with its standard input.

    python -m harness.cluster_process DIRECTORY     says {"port": …, "token": …}
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from harness.in_process_cluster import in_process_cluster


async def main(directory: Path) -> None:
    async with in_process_cluster(directory) as cluster:
        async with await cluster.connect():
            pass  # so that the log is there
        ((proxy, _),) = cluster.proxies
        token = (directory / "token").read_text()
        print(json.dumps({"port": proxy.info.port, "token": token}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
