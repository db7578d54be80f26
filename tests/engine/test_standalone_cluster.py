"""A query on a standalone cluster whose machines come and go: nothing but the log is shared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from harness.java import brief_java
from harness.server_process import ServerProcess
from standalone_cluster import StandaloneCluster

DRIVER = Path(__file__).with_name("standalone_driver.py")


def hear(output: IO[str], cluster: StandaloneCluster) -> str:
    line = output.readline().strip()
    assert line, cluster.said()
    return line


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_query_goes_to_a_machine_that_joined_later_and_survives_the_loss_of_one(
    tmp_path: Path,
) -> None:
    """Two machines, three, one of the first is lost, and it is scaled in to what is left."""
    with ServerProcess(tmp_path / "log") as server, StandaloneCluster(tmp_path) as cluster:
        address = server.wait_ready()
        cluster.add(0)
        cluster.add(1)
        target = f"penstock://{address.host}:{address.port}"
        arguments = [cluster.master, target, tmp_path / "log" / "token", brief_java()]
        driver = subprocess.Popen(
            [sys.executable, DRIVER, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
        assert driver.stdin is not None and driver.stdout is not None
        try:
            assert hear(driver.stdout, cluster) == "ready"

            def tell(line: str) -> str:
                assert driver.stdin is not None and driver.stdout is not None
                driver.stdin.write(f"{line}\n")
                driver.stdin.flush()
                return hear(driver.stdout, cluster)

            cluster.add(2)
            assert tell("grow 3") == "grow 3 tasks [3, 3]"
            cluster.lose(0)
            assert tell("lose 2") == "lose 2 tasks [3, 3]", "three tasks, in two workers"
            assert tell("grow 2") == "grow 2 tasks [2, 2]"
            assert tell("end").startswith("equal ")
            assert driver.wait(60) == 0
        finally:
            driver.kill()
            driver.communicate()  # closes what it was told by
