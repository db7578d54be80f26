"""PostgreSQL for tests: the machine's own server, in a directory of its own, on loopback.

Law: nothing but the tests can reach it, and nothing of it is left. PostgreSQL refuses to run as
root, so root runs it as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

#: Where Debian and Ubuntu have the programs that are not on the path.
_DEBIAN = "/usr/lib/postgresql/*/bin"
_PASSWORD = "sesame with % and @"
_SETTINGS = (
    # Tests end processes, not machines: what the kernel has is kept.
    "fsync=off",
    "full_page_writes=off",
    "max_connections=50",
    "log_min_messages=fatal",
    "shared_buffers=16MB",
)


@dataclass(frozen=True)
class PostgresServer:
    """One server, and a database `tests`."""

    directory: Path
    port: int
    #: Of its user penstock, over TCP.
    password: str = field(default=_PASSWORD, init=False)
    #: Runs one of PostgreSQL's programs on it.
    control: Callable[..., None] = field(repr=False)

    def uri(self, schema: str = "public", *, user: str = "penstock") -> str:
        """Over the socket in its directory, where everybody is believed."""
        options = quote(f"-csearch_path={schema}")
        place = quote(str(self.directory), safe="")
        return f"postgresql://{user}@/tests?host={place}&port={self.port}&options={options}"

    def tcp_uri(self, password: str = _PASSWORD, *, database: str = "tests") -> str:
        """Over TCP, where a password is asked for."""
        escaped = quote(password, safe="")
        return f"postgresql://penstock:{escaped}@127.0.0.1:{self.port}/{database}"

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def restart(self) -> None:
        """As after a crash: nothing is said to anybody, and the next start recovers."""
        self.control("pg_ctl", "-w", "-t", 120, "-m", "immediate", "restart")

    def backends(self) -> list[int]:
        """Processes that serve our targets."""
        rows = self.run("SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'")
        return [pid for (pid,) in rows]


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """Skips the test if there is no PostgreSQL; in CI it fails. `settings`: NAME=VALUE."""
    programs = _programs()
    directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    user = _owner(directory)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = directory / "data"

    def run(program: str, *arguments: object) -> None:
        command = [programs / program, "-D", data, *arguments]
        # To a file: the server keeps it, and who waits for the end of a pipe would wait for it.
        with (directory / "output").open("ab") as output:
            done = subprocess.run(
                list(map(str, command)), stdout=output, stderr=output, cwd=directory, **user
            )
        assert done.returncode == 0, (directory / "output").read_text()

    try:
        run("initdb", "-U", "penstock", "-E", "UTF8", "--locale=C", "--no-sync")
        options = " ".join(f"-c {setting}" for setting in (*_SETTINGS, *settings))
        options += f" -p {port} -h 127.0.0.1 -k {directory}"
        (data / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        run("pg_ctl", "-w", "-t", 120, "-o", options, "start")
        try:
            server = PostgresServer(directory, port, run)
            with psycopg.connect(server.uri().replace("/tests?", "/postgres?")) as connection:
                connection.autocommit = True
                connection.execute("CREATE DATABASE tests")
                connection.execute(f"ALTER USER penstock PASSWORD '{_PASSWORD}'")
            yield server
        finally:
            run("pg_ctl", "-w", "-t", 120, "-m", "fast", "stop")
    finally:
        shutil.rmtree(directory)


def _programs() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    places = sorted(glob(_DEBIAN), key=lambda place: int(place.split("/")[-2]))
    if places:
        return Path(places[-1])
    reason = "PostgreSQL is missing: run bin/ensure postgresql"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _owner(directory: Path) -> dict[str, Any]:
    """Who runs the server: we, or nobody."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
