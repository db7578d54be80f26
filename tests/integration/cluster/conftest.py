"""The replicated log under fire: its tests share the workload of the log on one machine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

from harness.async_tests import async_fixture
from harness.in_process_cluster import InProcessCluster, in_process_cluster

# fault_workload.py: writers and readers do not care how many machines there are.
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))


@async_fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with in_process_cluster(tmp_path) as cluster:
        yield cluster
