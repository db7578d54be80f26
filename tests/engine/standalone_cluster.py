"""A standalone Spark cluster of PySpark's own package, whose machines come and go.

Every machine is a worker of Spark's with one core, a folder of its own, and whatever it started; it
ends as a whole, by the process group that it was given.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from harness.server_process import free_port

START_SECONDS = 120.0


class StandaloneCluster:
    """A master, and machines by number; leaving `with` ends them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port, self._page = free_port(), free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> StandaloneCluster:
        ports = ["--port", str(self._port), "--webui-port", str(self._page)]
        self._launch("master", ["org.apache.spark.deploy.master.Master", *ports])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for name in list(self._running):
            self.kill(name)

    def add(self, number: int) -> None:
        """A machine joins; returns when the master knows it."""
        before = self._alive()
        folder = self._directory / f"machine-{number}"
        options = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder)]
        command = ["org.apache.spark.deploy.worker.Worker", *options, self.master]
        self._launch(f"machine-{number}", command)
        deadline = time.monotonic() + START_SECONDS
        while self._alive() <= before:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def lose(self, number: int) -> None:
        """At once, with its executors, and all that they run."""
        self.kill(f"machine-{number}")

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def said(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return "\n".join(f"-- {path.name}\n{path.read_text()[-2000:]}" for path in logs)

    def _alive(self) -> int:
        """Machines, as the master says."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=2) as page:
                workers = json.load(page)["workers"]
        except OSError:
            return 0
        return sum(worker["state"] == "ALIVE" for worker in workers)

    def _launch(self, name: str, arguments: list[str]) -> None:
        import pyspark

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        with open(self._directory / f"{name}.log", "wb") as output:
            self._running[name] = subprocess.Popen(
                [str(home / "bin" / "spark-class"), arguments[0], "--host", "127.0.0.1",
                 *arguments[1:]],
                stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)},
            )  # fmt: skip
