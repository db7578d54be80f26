"""A ZooKeeper server as a process of our own on loopback, from the jars that PySpark brings.

For `penstock cluster up` and for tests: one server, no quorum. Whoever runs their own ZooKeeper
needs none of this. Owns the process, its configuration and its data directory:

    directory/         mode 0700
      zoo.cfg, log4j2.properties     written at every start
      data/            snapshots and transaction logs; ZooKeeper syncs them before it answers
      zookeeper.log    what it says

Law: it listens on 127.0.0.1 only, and is ready when it says that it serves this directory, not when
somebody listens.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from penstock.errors import BadConfig, Unavailable
from penstock.log.directories import make_directory

HOST = "127.0.0.1"
#: Two of them are the shortest session, and a dead session is found with this accuracy.
TICK_MS = 250
#: By default no session could be longer than twenty ticks.
SESSION_MS_MAX = 60_000
START_SECONDS = 60.0
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.02
_MEMORY_MIB = 128
#: A free port may be taken by another before the server listens on it.
_PORT_TRIES = 3
#: What a server without a quorum loads. The whole of Spark's jars would work, and start slower.
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
    "netty-*",
    "commons-io",
    "audience-annotations",
)
#: Where Debian's package puts them.
_SYSTEM_JARS = Path("/usr/share/java")
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m %throwable{short.message}%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class ZooKeeperServer:
    """One server process for one directory; leaving `with` stops it. Its methods block."""

    #: It does little: to start soon and to stay small is worth more than to be fast.
    java_options: ClassVar[tuple[str, ...]] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    def __init__(self, directory: Path, *, port: int | None = None, tick_ms: int = TICK_MS) -> None:
        """Without a port, one that is free is taken at the first start and kept."""
        self.directory = directory.absolute()
        self.port = port or 0
        self._may_choose = port is None
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """As in an address: host and port."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ---- life

    def start(self) -> None:
        """Start it and wait until it serves; raises Unavailable with the last line of its log."""
        assert self._process is None, "it runs already"
        for tries_left in reversed(range(_PORT_TRIES)):
            if not self.port:
                self.port = _free_port()
            self._launch()
            try:
                self._wait_ready()
                return
            except BaseException as error:
                self.kill()
                taken = isinstance(error, Unavailable) and "already in use" in str(error)
                if not (taken and self._may_choose and tries_left):
                    raise
                self.port = 0

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL: what it had answered is in its files. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def __enter__(self) -> ZooKeeperServer:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- parts of a start

    def _launch(self) -> None:
        command = [
            find_java(),
            f"-Xmx{_MEMORY_MIB}m",
            *self.java_options,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            ":".join(map(str, find_jars())),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]
        data = self.directory / "data"
        make_directory(data)
        self.directory.chmod(0o700)
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        (self.directory / "zoo.cfg").write_text("\n".join(self._config(data)) + "\n")
        with open(self.log_path, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # An interrupt at the terminal is for us: we stop it after what relies on it.
                start_new_session=True,
            )

    def _config(self, data: Path) -> list[str]:
        return [
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={HOST}",
            f"tickTime={self._tick_ms}",
            f"maxSessionTimeout={SESSION_MS_MAX}",
            "maxClientCnxns=1000",
            "admin.enableServer=false",
            # The one that `_is_serving` asks; others tell more than anybody needs to know.
            "4lw.commands.whitelist=conf",
            # KiB taken ahead for a transaction log; its default of 64 MiB suits no laptop.
            "preAllocSize=4096",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        process = self._running()
        while time.monotonic() < deadline:
            code = process.poll()
            if code is not None:
                raise Unavailable(f"ZooKeeper ended with code {code}: {self.last_line()}")
            if self._is_serving():
                return
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"ZooKeeper was not ready in {START_SECONDS:g} s: {self.last_line()}")

    def _is_serving(self) -> bool:
        """It serves, and it is ours: another may have the port, which ours is about to notice."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"conf")
                answer = b""
                while more := connection.recv(4096):
                    answer += more
        except OSError:
            return False
        return f"dataDir={self.directory / 'data'}/".encode() in answer

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it does not run"
        return self._process

    @property
    def log_path(self) -> Path:
        return self.directory / "zookeeper.log"

    def last_line(self) -> str:
        """The end of what it said, for messages."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip() and "Exiting JVM" not in line]
        return (told or ["it said nothing"])[-1]


def find_java() -> str:
    """JAVA_HOME's or the PATH's."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home}" if home else "the PATH"
        raise BadConfig(f"a ZooKeeper of our own needs Java, and {where} has none: install Java 17")
    return found


def find_jars(places: Sequence[Path] | None = None) -> list[Path]:
    """ZooKeeper and what it needs, from the first place that has it."""
    looked = jar_places() if places is None else places
    for place in looked:
        found = [jar for name in _JARS for jar in _newest(place, name)]
        if any(jar.name.startswith("zookeeper") for jar in found):
            return found
    raise BadConfig(
        f"no ZooKeeper in {' or '.join(map(str, looked)) or 'PySpark'}: install pyspark, "
        "or name a ZooKeeper that runs already"
    )


def jar_places() -> list[Path]:
    """PySpark's jars, found without importing it, then the system's."""
    spec = importlib.util.find_spec("pyspark")
    inside = [] if spec is None else list(spec.submodule_search_locations or ())
    return [*(Path(place) / "jars" for place in inside), _SYSTEM_JARS]


def _newest(place: Path, name: str) -> list[Path]:
    """`name.jar` or `name-<version>.jar`; every one that a `*` matches."""
    if name.endswith("*"):
        return sorted(place.glob(f"{name}.jar"))
    found = [*place.glob(f"{name}.jar"), *place.glob(f"{name}-[0-9]*.jar")]
    return sorted(found)[-1:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
