"""A log server as a process of its own, to be killed, paused, starved and started again.

Owns the process and what can be seen of it from outside: its files, ports, memory and output.
Knows nothing of the log. Law: a server counts as ready only when the address in its directory
belongs to a process that holds the lock, so a dead one is never taken for a live one.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from penstock.errors import Unavailable
from penstock.log.client.client import Resolve
from penstock.log.embedded import directory_endpoint
from penstock.log.serving import launch
from penstock.log.serving.directory import Address, is_locked, read_address

#: Much more than a start takes, imports included; a busy machine takes several times as long.
START_SECONDS = 30.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.002
#: State of a listening socket in /proc/net/tcp.
_LISTEN = "0A"


class ServerProcess:
    """`python -m penstock.log.server` for one data directory; leaving `with` kills it."""

    def __init__(self, data_dir: Path, *, segment_bytes: int | None = None) -> None:
        self.data_dir = data_dir
        self._options: list[str] = []
        if segment_bytes is not None:
            self._options = ["--segment-bytes", str(segment_bytes)]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    # ---- life

    def command(self) -> tuple[str, list[str]]:
        """The module that is run, and its options."""
        return "penstock.log.server", ["--data-dir", str(self.data_dir)]

    def launch(self, extra: Sequence[str] = ()) -> None:
        """Start the process without waiting for it."""
        assert self._process is None, "it runs already"
        module, options = self.command()
        all_options = [*options, *self._options, *extra]
        self._process = launch.start_module(module, all_options, self.output_path)
        self.starts += 1

    def wait_ready(self) -> Address:
        """Until it listens; raises Unavailable if it ends before."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            address = read_address(self.data_dir)
            if address is not None:
                return address
            code = self._running().poll()
            if code is not None:
                raise Unavailable(f"the server ended with code {code}: {self.output()[-500:]}")
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"the server was not ready within {START_SECONDS:g} s")

    def start(self) -> Address:
        self.launch()
        return self.wait_ready()

    def wait_recovering(self) -> None:
        """Until it holds the directory, which it does before it reads anything."""
        deadline = time.monotonic() + START_SECONDS
        while not is_locked(self.data_dir) and time.monotonic() < deadline:
            if self._running().poll() is not None:
                return
            time.sleep(_POLL_SECONDS)

    @property
    def is_ready(self) -> bool:
        return read_address(self.data_dir) is not None

    def kill(self) -> None:
        """SIGKILL: what the process had not handed to the kernel is lost."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code that follows."""
        self._running().terminate()
        return self.wait()

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        code = self._running().wait(STOP_SECONDS)
        self._process = None
        return code

    def restart(self) -> Address:
        """Kill it and start it again."""
        self.kill()
        return self.start()

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it hears nothing and does nothing, and nobody is told."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it does not run"
        return self._process

    def __enter__(self) -> ServerProcess:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    # ---- seen from outside

    @property
    def pid(self) -> int:
        return self._running().pid

    def endpoint(self) -> Resolve:
        """For clients that follow this server over restarts, and never start one themselves."""
        return directory_endpoint(self.data_dir, start=False)

    @property
    def output_path(self) -> Path:
        return self.data_dir / "server.log"

    def output(self) -> str:
        """All that its processes have logged so far."""
        return self.output_path.read_text()

    def memory_bytes(self) -> int:
        """Resident memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise Unavailable(f"process {self.pid} shows no memory")

    def descriptor_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def next_descriptor(self) -> int:
        """The number of the next descriptor: as a limit, it lets nothing more be opened.

        The kernel hands out the lowest free number, and limits numbers, not their count. What
        background work opens for a moment is waited for.
        """
        lowest = []
        for _ in range(30):
            used = {int(name) for name in os.listdir(f"/proc/{self.pid}/fd")}
            lowest.append(next(n for n in itertools.count() if n not in used))
            time.sleep(0.01)
        return min(lowest)

    def limit_file_bytes(self, size: int) -> None:
        """From now on the kernel refuses to let a file grow beyond `size`, as a full disk does."""
        self._limit(resource.RLIMIT_FSIZE, size)

    def limit_descriptors(self, count: int) -> None:
        """From now on no descriptor of this number or a larger one is opened."""
        self._limit(resource.RLIMIT_NOFILE, count)

    def _limit(self, what: int, soft: int) -> None:
        _, hard = resource.prlimit(self.pid, what)
        resource.prlimit(self.pid, what, (soft, hard))

    def command_line(self) -> bytes:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes()

    def environment(self) -> bytes:
        return Path(f"/proc/{self.pid}/environ").read_bytes()

    def listening(self) -> list[tuple[str, int]]:
        return listening_addresses(self.pid)


def free_port() -> int:
    """One that nobody has at this moment; nor will somebody's outgoing connection get it before it
    is used, or while a server is down: the kernel gives those higher ones."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # another one


def listening_addresses(pid: int) -> list[tuple[str, int]]:
    """Every TCP address that a process listens on: host as the kernel's hex, and port."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.append((host, int(port, 16)))
    return found


@contextmanager
def silent_sockets(server: ServerProcess, count: int) -> Iterator[list[socket.socket]]:
    """Sockets that are opened at once and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 512)), hard))
    address = read_address(server.data_dir)
    assert address is not None
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection((address.host, address.port), 20))
        yield sockets
    finally:
        for one in sockets:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
