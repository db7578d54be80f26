"""Find or start the server of a data directory, and build endpoints from what users write.

Owns `resolve` functions for clients. A directory's server is a process of its own, shared by every
program that connects; it stops by itself soon after its last client has gone. Of programs that want
to start it at the same moment one does, and the others wait for it; should two do, its lock keeps
them apart: one server wins, both programs find it. A server that died is recognised by its free
lock and started again, so clients of a directory survive its crash.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import stat
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from penstock.config import is_loopback
from penstock.errors import BadConfig, Unavailable
from penstock.log.client.client import Endpoint, Resolve
from penstock.log.directories import default_data_dir, make_directory
from penstock.log.serving import launch
from penstock.log.serving.directory import (
    TOKEN_FILE,
    Address,
    ensure_token,
    read_address,
    read_token,
    try_flock,
)

#: How long an embedded server waits for a next client before it stops.
IDLE_EXIT_SECONDS = 5.0
START_SECONDS = 20.0
#: How long a program waits for another that starts the server, before it starts one itself.
TURN_SECONDS = 10.0


def directory_endpoint(
    data_dir: Path, *, start: bool = True, token_file: Path | None = None, token: str | None = None
) -> Resolve:
    """Clients of a directory: its live server, started if there is none and `start` is given.

    They show the directory's token, unless they have one of their own.
    """
    if token is None and token_file is not None:
        token = read_token(token_file)

    async def resolve() -> Endpoint:
        try:
            address = read_address(data_dir)
            if address is None and start:
                address = await asyncio.to_thread(_start_server, data_dir)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise BadConfig(
                f"{data_dir} cannot be used as a data directory: {error}. Name another one, or see "
                "who owns it"
            ) from error
        except OSError as error:  # no descriptors, no space: it may pass
            raise Unavailable(f"no server could be started for {data_dir}: {error}") from error
        if address is None:
            raise Unavailable(f"no server runs for {data_dir}: start one with `penstock log serve`")
        if address.tls:
            raise BadConfig(
                f"the server of {data_dir} speaks TLS: "
                f"connect with penstock://{address.host}:{address.port} and tls_ca"
            )
        return Endpoint(address.host, address.port, token or read_token(data_dir / TOKEN_FILE))

    return resolve


def address_endpoint(
    url: str, *, token_file: Path | None, tls_ca: Path | None, token: str | None = None
) -> Resolve:
    """Clients of `penstock://host:port`, or of a cluster, whose address has a path.

    Beyond loopback the token travels under TLS only.
    """
    if url.removeprefix("penstock://").strip("/").count("/"):
        return _cluster_endpoint(url, token_file=token_file, tls_ca=tls_ca, token=token)
    parts = urlsplit(url)
    if parts.scheme != "penstock" or not parts.hostname or parts.path not in ("", "/"):
        raise BadConfig(f"{url} is not an address like penstock://host:7070")
    if parts.username or parts.password:
        raise BadConfig("a token is not part of the address: give its file as token_file")
    host, port = parts.hostname, parts.port or 7070
    if tls_ca is None and not is_loopback(host):
        raise BadConfig(
            f"{host} is not this machine: give tls_ca, the token must not travel openly"
        )
    shown, tls = token or token_of(url, token_file), client_tls(tls_ca)

    async def resolve() -> Endpoint:
        return Endpoint(host, port, shown, tls)

    return resolve


def _cluster_endpoint(
    url: str, *, token_file: Path | None, tls_ca: Path | None, token: str | None
) -> Resolve:
    from penstock.log.client.cluster import cluster_route  # kazoo, which few clients need
    from penstock.log.meta.open import parse_cluster_address

    address = parse_cluster_address(url)
    shown = token or token_of(url, token_file)
    return cluster_route(address, token=shown, tls=client_tls(tls_ca))


def token_of(url: str, token_file: Path | None) -> str:
    """Out of this file, or the one that the environment names."""
    named = token_file or os.environ.get("PENSTOCK_TOKEN_FILE")
    if named is None:
        raise BadConfig(f"give the token file of {url} as token_file or in PENSTOCK_TOKEN_FILE")
    return read_token(Path(named))


def client_tls(tls_ca: Path | None) -> ssl.SSLContext | None:
    """How a client speaks TLS with who has a certificate of this authority; None: it does not.

    Its own certificate, for servers that want one, is in the file that PENSTOCK_TLS_CERT names.
    """
    if tls_ca is None:
        return None
    tls = ssl.create_default_context(cafile=str(tls_ca))
    own = os.environ.get("PENSTOCK_TLS_CERT")
    if own:
        _show_certificate(tls, Path(own))
    tls.hostname_checks_common_name = False  # names are in the SAN, or nowhere
    return tls


def _show_certificate(tls: ssl.SSLContext, path: Path) -> None:
    """To servers that ask for one: a file with a certificate and its key."""
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadConfig(f"others may read the key in {path}: chmod 600 {path}")
        tls.load_cert_chain(path)
    except OSError as error:
        raise BadConfig(f"PENSTOCK_TLS_CERT {path} cannot be used: {error}") from None


def endpoint(
    target: str | os.PathLike[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    start: bool = True,
    token: str | None = None,
) -> Resolve:
    """What `penstock.connect` accepts: nothing, a directory, a server's address, a cluster's.

    `token`: instead of a file, for who was handed one.
    """
    file = Path(token_file) if token_file else None
    if isinstance(target, str) and "://" in target:
        ca = Path(tls_ca) if tls_ca else None
        return address_endpoint(target, token_file=file, tls_ca=ca, token=token)
    data_dir = (default_data_dir() if target is None else Path(target)).expanduser().absolute()
    return directory_endpoint(data_dir, start=start, token_file=file, token=token)


def find_token(target: str, token_file: str | None) -> str:
    """What a client shows that was given these."""
    if token_file is not None:
        return read_token(Path(token_file))
    if "://" in target:
        return token_of(target, None)
    return read_token(Path(target) / TOKEN_FILE)


def _start_server(data_dir: Path) -> Address:
    """Start a server process for the directory, or let a rival do it; wait until one listens.

    All clients of a server that dies come here at once, and a server has much to load: one starts
    it, and the others wait for a part of the time that they have.
    """
    make_directory(data_dir)
    ensure_token(data_dir / TOKEN_FILE)
    log_path = data_dir / "server.log"
    deadline = time.monotonic() + TURN_SECONDS
    with open(log_path, "ab") as turn:  # the kernel ends it with the process
        while not try_flock(turn.fileno(), fcntl.LOCK_EX) and time.monotonic() < deadline:
            address = read_address(data_dir)
            if address is not None:
                return address
            time.sleep(0.01)
        return read_address(data_dir) or _launch_server(data_dir, log_path)


def _launch_server(data_dir: Path, log_path: Path) -> Address:
    """Wait until it, or a rival's, listens."""
    # It is shared by others: neither our terminal nor our directory is its own.
    options = ["--data-dir", str(data_dir), "--idle-exit-seconds", str(IDLE_EXIT_SECONDS)]
    process = launch.start_module("penstock.log.server", options, log_path, cwd="/")
    # It lives on without us; if it ends before us, it must not stay behind as a zombie.
    threading.Thread(target=process.wait, name="penstock-reaper", daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        address = read_address(data_dir)
        if address is not None:
            return address
        if process.poll() is not None and read_address(data_dir) is None:
            break
        time.sleep(0.01)
    raise Unavailable(
        f"the server of {data_dir} did not start ({_last_line(log_path)}): see {log_path}"
    )


def _last_line(path: Path) -> str:
    """What the server said last; the reason, if it could not start."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
