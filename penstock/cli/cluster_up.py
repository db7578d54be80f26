"""`penstock cluster up`: a whole cluster on this machine, until Ctrl-C.

Owns the directory while it runs (`lock`) and what it says of the cluster (`cluster.json`). Law: a
node that has a directory is started again, so that what is there comes back as a whole; nothing is
started while a process of an earlier run lives.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from penstock.cli.cluster_target import CLUSTER_FILE
from penstock.cli.output import echo, json_option, show_json_line
from penstock.errors import BadConfig, Unavailable
from penstock.log.directories import default_data_dir
from penstock.log.local_cluster import ClusterProcess, LocalCluster
from penstock.log.meta.open import DEFAULT_PORT
from penstock.log.meta.zookeeper_server import find_jars, find_java
from penstock.log.node.cookie import IDENTITY_NAME
from penstock.log.serving.directory import DirectoryLock

_LOOK_SECONDS = 0.2
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ZOOKEEPER = "zookeeper"


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Storage nodes; those that have a directory are started in any case.",
)
@click.option("--proxies", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--read-proxies", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where everything lies; made if it is not there.  [default: cluster in PENSTOCK_DIR, or "
    "in the user's data directory]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Of ZooKeeper.  [default: the one it had last, or 2181, or a free one]",
)
@json_option
def up(
    nodes: int,
    proxies: int,
    read_proxies: int,
    directory: Path | None,
    port: int | None,
    as_json: bool,
) -> None:
    """Run a cluster on this machine until Ctrl-C: ZooKeeper, storage nodes, proxies.

    For trying out and for tests: one machine is one disk. The same directory again brings back
    everything that was appended. With fewer than three nodes fewer copies are made.

    \b
    Examples:
      penstock cluster up
      penstock cluster up --nodes 5 --proxies 2 --read-proxies 1 --dir ./cluster
    """
    home = (directory or default_data_dir() / "cluster").expanduser().absolute()
    known = _known(home)
    port = port or known.get("port")
    find_java()
    find_jars()
    lock = _lock(home, known)
    try:
        if port is not None:
            _check_port(home, port)
        elif _is_free(DEFAULT_PORT):
            port = DEFAULT_PORT
        with _one_signal_interrupts():
            cluster = LocalCluster(home, zookeeper_port=port)
            try:
                names = _node_names(home, nodes)
                _start(cluster, names, proxies, read_proxies, lambda: _write_known(cluster, home))
                _announce(cluster, home, names, proxies, read_proxies, as_json=as_json)
                try:
                    _watch(cluster)
                except KeyboardInterrupt:
                    pass  # the way to end it
            finally:
                try:
                    _stop_quietly(cluster)
                except KeyboardInterrupt:
                    _stop_quietly(cluster)  # the first signal came only now; there is no second
    finally:
        lock.release()


# ---- before anything starts


def _known(home: Path) -> dict[str, Any]:
    """What the last `up` said of this directory."""
    file = home / CLUSTER_FILE
    if not file.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(found, dict) or not isinstance(found.get("pids", {}), dict):
            raise ValueError("it is not of this kind")
    except ValueError as error:
        raise BadConfig(f"{file} cannot be read: {error}") from error
    return found


def _check_port(home: Path, port: int) -> None:
    if _is_free(port):
        return
    # Two servers on the same files would destroy them: another port only where there are none.
    advice = "give another one with --port, or stop what has it"
    if (home / "zookeeper" / "data").exists():
        advice = "stop what has it; it may be the ZooKeeper of an earlier run"
    raise Unavailable(f"port {port} of this machine is taken: {advice}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock(home: Path, known: dict[str, Any]) -> DirectoryLock:
    try:
        lock = DirectoryLock(home)
    except OSError as error:
        raise BadConfig(f"cannot use {home}: {error.strerror}") from error
    except Unavailable:
        raise Unavailable(f"a cluster runs in {home} already") from None
    try:
        _check_nothing_lives(home, known)
        for name in _existing(home):
            DirectoryLock(home / name, "process").release()
    except BaseException:
        lock.release()
        raise
    return lock


def _check_nothing_lives(home: Path, known: dict[str, Any]) -> None:
    living = living_processes(home, known)
    if living:
        names = ", ".join(f"{name} (pid {pid})" for name, pid in living.items())
        pids = " ".join(str(pid) for pid in living.values())
        raise Unavailable(
            f"processes of an earlier run in {home} still live: {names}; end them with: kill {pids}"
        )


def living_processes(home: Path, known: dict[str, Any]) -> dict[str, int]:
    """Those of an earlier run that were not ended: who ran them was killed."""
    # All of them have the directory in their command, as it was spelled then.
    place = str(known.get("dir", home))
    found = {}
    for name, pid in known.get("pids", {}).items():
        command = _command(pid)
        if command is not None and (not command or f"{place}/" in command):
            found[name] = pid
    if ZOOKEEPER not in found:
        # Its pid is written once it serves, and it may have been left before.
        for entry in Path("/proc").glob("[0-9]*"):
            command = _command(int(entry.name)) or ""
            if "QuorumPeerMain" in command and f"{place}/zookeeper/zoo.cfg" in command:
                found[ZOOKEEPER] = int(entry.name)
    return found


def _command(pid: int) -> str | None:
    """What runs as `pid`: None if nothing does, empty if this system does not say."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return None  # somebody else's
    if not Path("/proc/self/cmdline").exists():
        return ""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return text or None  # one that has ended and was not waited for has none


def _existing(home: Path) -> list[str]:
    return sorted(path.parent.name for path in home.glob(f"*/{IDENTITY_NAME}"))


def _node_names(home: Path, wanted: int) -> list[str]:
    """Those that have a directory, and new ones up to the number wanted."""
    names = _existing(home)
    number = 0
    while len(names) < wanted:
        if f"n{number}" not in names:
            names.append(f"n{number}")
        number += 1
    return names


# ---- start, run, stop


@contextmanager
def _one_signal_interrupts() -> Iterator[None]:
    """The first signal interrupts; later ones do nothing, so that everything is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in former:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    # What is ignored stays so: `nohup` means it.
    former = {n: h for n in _ENDS if (h := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in former:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _start(
    cluster: LocalCluster,
    names: list[str],
    proxies: int,
    read_proxies: int,
    write_known: Callable[[], None],
) -> None:
    """`write_known` is called after every process, so that none is left that nobody knows of."""
    copies = min(len(names), 3)
    replication = {"ensemble": copies, "write-quorum": copies, "ack-quorum": copies // 2 + 1}
    console = Console(stderr=True)
    with console.status("starting the metadata", spinner="line") as shown:
        cluster.start_metadata()
        write_known()
        for name in names:
            cluster.add_node(name)
            write_known()
        for number in range(proxies):
            cluster.add_proxy(f"p{number}", options=replication)
            write_known()
        for number in range(read_proxies):
            cluster.add_proxy(f"r{number}", {"role": "read"}, options=replication)
            write_known()
        started = _processes(cluster)
        for done, process in enumerate(started):
            shown.update(f"starting {process.name} ({done} of {len(started)} run)")
            process.wait_ready()


def _processes(cluster: LocalCluster) -> list[ClusterProcess]:
    return [*cluster.nodes.values(), *cluster.proxies.values()]


def _write_known(cluster: LocalCluster, home: Path) -> None:
    pids = {process.name: process.pid for process in _processes(cluster)}
    pids[ZOOKEEPER] = cluster.zookeeper.pid
    known = {
        "address": cluster.address,
        "dir": str(home),
        "port": cluster.zookeeper.port,
        "pids": pids,
    }
    temporary = home / f"{CLUSTER_FILE}.new"
    temporary.write_text(json.dumps(known))
    os.replace(temporary, home / CLUSTER_FILE)


def _announce(
    cluster: LocalCluster,
    home: Path,
    names: list[str],
    proxies: int,
    read_proxies: int,
    *,
    as_json: bool,
) -> None:
    if as_json:
        found = {"url": cluster.address, "dir": str(home), "token_file": str(cluster.token_file)}
        found["node_token_file"] = str(cluster.node_token_file)
        found["metadata_auth_file"] = str(cluster.metadata_auth_file)
        more = {"nodes": names, "proxies": proxies, "read_proxies": read_proxies}
        show_json_line(found | more)
        return
    echo(f"cluster in {home}: nodes {', '.join(names)}; {proxies + read_proxies} proxies")
    echo(f"listening on {cluster.address}, token in {cluster.token_file}")
    echo("\nIn another terminal:")
    echo(f"  export PENSTOCK_TOKEN_FILE={cluster.token_file}")
    echo(f"  penstock stream create bids 'price long' --connect {cluster.address}")
    echo(f"  penstock cluster status {home}")
    echo("\nCtrl-C stops it; what was appended stays in the directory.")


def _watch(cluster: LocalCluster) -> None:
    """Until somebody interrupts; who ends by itself is told once."""
    ended: set[str] = set()
    while True:
        time.sleep(_LOOK_SECONDS)
        for process in _processes(cluster):
            if not process.is_running and process.name not in ended:
                ended.add(process.name)
                _tell_end(process.name, process._process, process.last_line(), process.output)
        server = cluster.zookeeper
        if not server.is_running and ZOOKEEPER not in ended:
            ended.add(ZOOKEEPER)
            _tell_end(ZOOKEEPER, server._process, server.last_line(), server.log_path)


def _tell_end(
    name: str, process: subprocess.Popen[bytes] | None, last_line: str, output: Path
) -> None:
    code = None if process is None else process.returncode
    echo(f"{name} has ended {end_text(code)}: {last_line} (all that it said: {output})", err=True)


def end_text(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "for an unknown reason"
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def _stop_quietly(cluster: LocalCluster) -> None:
    """Everything is stopped, however impatient somebody is."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)  # until `_one_signal_interrupts` ends
    with Console(stderr=True).status("stopping", spinner="line"):
        cluster.stop()
