"""A whole cluster on one machine, as processes: ZooKeeper, storage nodes, proxies.

    directory/
      token, node-token     what clients prove to proxies, and proxies to nodes
      metadata-auth         user:password of ZooKeeper: without it, nobody changes anything there
      zookeeper/            its server's files
      n0/, n1/, …           the nodes' data
      *.out                 what each process said

For trying out, benchmarks and tests. Law: every process that was started here is ended by `stop`,
and no other.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from penstock.errors import Unavailable
from penstock.log.directories import make_directory
from penstock.log.meta.open import read_auth
from penstock.log.meta.zookeeper import protect_namespace
from penstock.log.meta.zookeeper_server import ZooKeeperServer
from penstock.log.serving import launch
from penstock.log.serving.directory import ensure_token, make_secret

START_SECONDS = 30.0
STOP_SECONDS = 15.0
NAMESPACE = "logs"
AUTH_FILE = "metadata-auth"


class ClusterProcess:
    """One node or proxy; it may be ended and started again any number of times."""

    def __init__(
        self, name: str, module: str, options: Sequence[str], ready: Path, output: Path
    ) -> None:
        self.name = name
        self._module = module
        self._options = list(options)
        #: Appears when the process listens; removed before every start.
        self._ready = ready
        self.output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def launch(self, extra: Sequence[str] = ()) -> None:
        """Start it without waiting."""
        assert not self.is_running, f"{self.name} runs already"
        self._ready.unlink(missing_ok=True)
        # In a thread: a signal that interrupts us inside Popen would lose the child it has made.
        done = threading.Event()
        thread = threading.Thread(target=self._start_process, args=(extra, done), daemon=True)
        try:
            thread.start()
            thread.join()
        except BaseException:
            done.wait(5.0)  # not `join`: interrupted in `start`, it may not know that it runs
            raise

    def _start_process(self, extra: Sequence[str], done: threading.Event) -> None:
        try:
            self._open_process(extra)
        finally:
            done.set()

    def _open_process(self, extra: Sequence[str]) -> None:
        flags = [*self._options, *extra]
        self._process = launch.start_module(self._module, flags, self.output)

    def wait_ready(self) -> None:
        """Until it listens; raises Unavailable with its last words."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if not self.is_running or time.monotonic() > deadline:
                raise Unavailable(f"{self.name} did not start: {self.last_line()}")
            time.sleep(0.01)

    def start(self, extra: Sequence[str] = ()) -> None:
        self.launch(extra)
        self.wait_ready()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help. Idempotent."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # one that is paused hears nothing
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def last_line(self) -> str:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        return lines[-1] if lines else "it said nothing"


class LocalCluster:
    """See the module's docstring. Its methods block; leaving `with` stops everything."""

    def __init__(self, directory: Path, *, zookeeper_port: int | None = None) -> None:
        make_directory(directory)
        self.directory = directory.absolute()
        self.token_file = self.directory / "token"
        self.node_token_file = self.directory / "node-token"
        ensure_token(self.token_file)
        ensure_token(self.node_token_file)
        self.metadata_auth_file = self.directory / AUTH_FILE
        make_secret(self.metadata_auth_file, f"penstock:{secrets.token_hex(32)}")
        self.zookeeper = ZooKeeperServer(self.directory / "zookeeper", port=zookeeper_port)
        self.nodes: dict[str, ClusterProcess] = {}
        self.proxies: dict[str, ClusterProcess] = {}

    @property
    def address(self) -> str:
        """What `penstock.connect` is given, for the log `main`."""
        return f"penstock://{self.zookeeper.hosts}/{NAMESPACE}"

    def address_of(self, log: str) -> str:
        return f"{self.address}/{log}"

    def start(
        self,
        nodes: int = 3,
        proxies: int = 2,
        *,
        read_proxies: int = 0,
        proxy_options: Mapping[str, object] | None = None,
    ) -> None:
        """Start everything and wait until it listens; after a failure nothing is left running."""
        try:
            self.start_metadata()
            started = [self.add_node(f"n{number}") for number in range(nodes)]
            for number in range(proxies):
                started.append(self.add_proxy(f"p{number}", options=proxy_options))
            for number in range(read_proxies):
                started.append(
                    self.add_proxy(f"r{number}", {"role": "read"}, options=proxy_options)
                )
            for process in started:
                process.wait_ready()
        except BaseException:
            self.stop()
            raise

    def start_metadata(self) -> None:
        """Start ZooKeeper; also what an earlier version left there gets the password now."""
        if not self.zookeeper.is_running:
            auth = read_auth(self.metadata_auth_file)
            self.zookeeper.start()
            protect_namespace(self.zookeeper.hosts, f"/{NAMESPACE}", auth)

    def add_node(self, name: str, settings: Mapping[str, object] | None = None) -> ClusterProcess:
        """Launch one more node; `settings` are options of `python -m penstock.log.node`."""
        data_dir = self.directory / name
        options = {
            "name": name,
            "data-dir": data_dir,
            "metadata": self.address,
            "metadata-auth-file": self.metadata_auth_file,
            "token-file": self.node_token_file,
            **(settings or {}),
        }
        process = ClusterProcess(
            name,
            "penstock.log.node",
            _flags(options),
            data_dir / "node.json",
            self.directory / f"{name}.out",
        )
        self.nodes[name] = process
        process.launch()
        return process

    def add_proxy(
        self,
        name: str,
        settings: Mapping[str, object] | None = None,
        *,
        options: Mapping[str, object] | None = None,
    ) -> ClusterProcess:
        """Launch one more proxy."""
        ready = self.directory / f"{name}.json"
        flags = {
            "metadata": self.address,
            "metadata-auth-file": self.metadata_auth_file,
            "token-file": self.token_file,
            "node-token-file": self.node_token_file,
            "ready-file": ready,
            **(options or {}),
            **(settings or {}),
        }
        process = ClusterProcess(
            name, "penstock.log.proxy", _flags(flags), ready, self.directory / f"{name}.out"
        )
        self.proxies[name] = process
        process.launch()
        return process

    def stop(self) -> None:
        """Proxies first, then nodes, then the metadata. Idempotent."""
        for process in [*self.proxies.values(), *self.nodes.values()]:
            process.stop()
        self.zookeeper.stop()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _flags(options: Mapping[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]
