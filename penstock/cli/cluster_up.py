"""`penstock cluster up`: a whole cluster on this machine, until Ctrl-C.

Owns the directory while it runs (`lock`) and what it says of the cluster (`cluster.json`). Law: a
node that has a directory is started again, so that what is there comes back as a whole.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import click
from rich.console import Console

from penstock.cli.cluster_target import CLUSTER_FILE
from penstock.cli.target import json_option
from penstock.errors import BadConfig, Unavailable
from penstock.log.embedded import default_data_dir
from penstock.log.local_cluster import ClusterProcess, LocalCluster
from penstock.log.meta.open import DEFAULT_PORT
from penstock.log.meta.zookeeper_server import find_jars, find_java
from penstock.log.node.cookie import IDENTITY_NAME
from penstock.log.serving.directory import DirectoryLock

_LOOK_SECONDS = 0.2
Metadata = Literal["zookeeper", "directory"]


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
    "--metadata",
    type=click.Choice(["zookeeper", "directory"]),
    help="Where the metadata lies; without ZooKeeper no Java is needed.  [default: zookeeper, or "
    "what the directory has]",
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
    metadata: Metadata | None,
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
      penstock cluster up --dir ./cluster --metadata directory
    """
    home = (directory or default_data_dir() / "cluster").expanduser().absolute()
    known = _known(home)
    metadata = _metadata(home, known, metadata)
    port = port or known.get("port")
    if metadata == "zookeeper":
        _check_java()
    lock = _lock(home)
    try:
        if metadata == "zookeeper":
            if port is not None:
                _check_port(port)
            elif _is_free(DEFAULT_PORT):
                port = DEFAULT_PORT
        with (
            _sigterm_interrupts(),
            LocalCluster(home, metadata=metadata, zookeeper_port=port) as one,
        ):
            names = _node_names(home, nodes)
            started = _start(one, names, proxies, read_proxies)
            _write_known(one, home, metadata, started)
            _announce(one, home, names, proxies, read_proxies, as_json=as_json)
            try:
                _watch(started)
            except KeyboardInterrupt:
                pass  # the way to end it
            finally:
                _stop_quietly(one)
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
    except ValueError as error:
        raise BadConfig(f"{file} cannot be read: {error}") from error
    return found


def _metadata(home: Path, known: dict[str, Any], wanted: Metadata | None) -> Metadata:
    had: Metadata = known.get("metadata", "zookeeper" if wanted is None else wanted)
    if wanted is not None and wanted != had:
        raise BadConfig(f"the cluster in {home} keeps its metadata in {had}: it cannot be changed")
    return had


def _check_java() -> None:
    try:
        find_java()
        find_jars()
    except BadConfig as error:
        raise BadConfig(f"{error}; or run without ZooKeeper: --metadata directory") from None


def _check_port(port: int) -> None:
    if not _is_free(port):
        raise Unavailable(
            f"port {port} of this machine is taken: give another one with --port, or stop what "
            "has it"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock(home: Path) -> DirectoryLock:
    try:
        lock = DirectoryLock(home)
    except OSError as error:
        raise BadConfig(f"cannot use {home}: {error.strerror}") from error
    except Unavailable:
        raise Unavailable(f"a cluster runs in {home} already") from None
    try:
        for name in _existing(home):
            DirectoryLock(home / name, "process").release()
    except Unavailable as error:
        lock.release()
        raise Unavailable(f"{error}: a node of an earlier run is still there, stop it") from None
    return lock


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
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _start(
    one: LocalCluster, names: list[str], proxies: int, read_proxies: int
) -> list[ClusterProcess]:
    copies = min(len(names), 3)
    replication = {"ensemble": copies, "write-quorum": copies, "ack-quorum": copies // 2 + 1}
    console = Console(stderr=True)
    with console.status("starting the metadata", spinner="line") as shown:
        one.start_metadata()
        started = [one.add_node(name) for name in names]
        started += [one.add_proxy(f"p{number}", options=replication) for number in range(proxies)]
        started += [
            one.add_proxy(f"r{number}", {"role": "read"}, options=replication)
            for number in range(read_proxies)
        ]
        for done, process in enumerate(started):
            shown.update(f"starting {process.name} ({done} of {len(started)} run)")
            process.wait_ready()
    return started


def _write_known(
    one: LocalCluster, home: Path, metadata: Metadata, started: list[ClusterProcess]
) -> None:
    port = None if one.zookeeper is None else one.zookeeper.port
    known = {
        "address": one.address,
        "metadata": metadata,
        "port": port,
        "pids": {process.name: process.pid for process in started},
    }
    temporary = home / f"{CLUSTER_FILE}.new"
    temporary.write_text(json.dumps(known))
    os.replace(temporary, home / CLUSTER_FILE)


def _announce(
    one: LocalCluster,
    home: Path,
    names: list[str],
    proxies: int,
    read_proxies: int,
    *,
    as_json: bool,
) -> None:
    if as_json:
        # One line, so that a supervisor can wait for it.
        found = {"url": one.address, "dir": str(home), "token_file": str(one.token_file)}
        more = {"node_token_file": str(one.node_token_file), "nodes": names}
        click.echo(json.dumps(found | more | {"proxies": proxies, "read_proxies": read_proxies}))
        return
    click.echo(f"cluster in {home}: nodes {', '.join(names)}; {proxies + read_proxies} proxies")
    click.echo(f"listening on {one.address}, token in {one.token_file}")
    click.echo("\nIn another terminal:")
    click.echo(f"  export PENSTOCK_TOKEN_FILE={one.token_file}")
    click.echo(f"  penstock stream create bids 'price long' --connect {one.address}")
    click.echo(f"  penstock cluster status {home}")
    click.echo("\nCtrl-C stops it; what was appended stays in the directory.")


def _watch(started: list[ClusterProcess]) -> None:
    """Until somebody interrupts; who ends by itself is told once."""
    ended: set[str] = set()
    while True:
        time.sleep(_LOOK_SECONDS)
        for process in started:
            if not process.is_running and process.name not in ended:
                ended.add(process.name)
                click.echo(f"{process.name} has ended: {process.last_line()}", err=True)


def _stop_quietly(one: LocalCluster) -> None:
    """Everything is stopped, however impatient somebody is."""
    former = [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        with Console(stderr=True).status("stopping", spinner="line"):
            one.stop()
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), former, strict=True):
            signal.signal(number, handler)
