"""Three nodes and a proxy in one process of their own, with metadata in memory: for what is to be
watched from outside. Ends with its standard input.

    python -m harness.cluster_process DIRECTORY     says {"port": …, "token": …}

What they keep in memory of the log is little, so that they soon have as much of it as they may.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from harness.in_process_cluster import InProcessCluster
from penstock.limits import BLOCK_BYTES_MAX
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.open_log import Replication

#: The least that a node's journal may have.
_KEPT_BYTES = BLOCK_BYTES_MAX


async def main(directory: Path) -> None:
    defaults = BlockSource.__init__.__kwdefaults__
    assert defaults is not None
    defaults["cache_bytes"] = _KEPT_BYTES
    cluster = InProcessCluster(directory, Replication())
    try:
        for name in ("n0", "n1", "n2"):
            await cluster.start_node(name, journal_bytes=_KEPT_BYTES)
        proxy = await cluster.start_proxy()
        async with await cluster.connect():
            pass  # so that the log is there
        token = (directory / "token").read_text()
        print(json.dumps({"port": proxy.info.port, "token": token}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await cluster.stop()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
