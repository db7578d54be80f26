"""The settings of a log server: one frozen dataclass, checked as a whole before anything starts.

Few on purpose: a setting is here only if we cannot choose for the user. Limits that everybody must
agree on are in limits.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from penstock.errors import BadConfig
from penstock.limits import MIB, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_MS_MAX


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How one log server runs."""

    #: Where the log lives: `log/` with the files, `token`, `lock`, `server.json`. Made with mode
    #: 0700.
    data_dir: Path
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free port; `server.json` says which.
    port: int = 7070
    #: PEM files. With them the server speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: A segment is sealed at this size; opening a log reads at most one of them.
    segment_bytes: int = 64 * MIB
    #: ... or at this age.
    segment_seconds: float = 3600.0
    #: Entries older than this are trimmed, whole segments at a time; 0 keeps everything.
    ttl_seconds: float = 0.0
    #: Sealed segments are copied there (any pyarrow.fs URI), if set.
    cold_uri: str | None = None
    #: Local bytes of sealed segments to keep once they have a cold copy.
    local_bytes_max: int = 1024 * MIB
    #: Stop when nobody has been connected for this long; 0 runs for ever. The embedded mode sets
    #: it.
    idle_exit_seconds: float = 0.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = listening_problems(self.host, (self.port,), self.tls_cert, self.tls_key)
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            problems.append(
                f"segment_bytes {self.segment_bytes} is not in "
                f"{SEGMENT_BYTES_MIN}..{SEGMENT_BYTES_MAX}"
            )
        if not 0 < self.segment_seconds * 1000 <= SEGMENT_MS_MAX:
            problems.append(f"segment_seconds is not in 0..{SEGMENT_MS_MAX // 1000}")
        if self.ttl_seconds < 0 or self.idle_exit_seconds < 0 or self.local_bytes_max < 0:
            problems.append("ttl_seconds, idle_exit_seconds and local_bytes_max are not negative")
        if problems:
            raise BadConfig("; ".join(problems))

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return [f"{field.name}={getattr(self, field.name)}" for field in fields(self)]


def listening_problems(
    host: str, ports: Iterable[int], tls_cert: Path | None, tls_key: Path | None
) -> list[str]:
    """What is wrong with where a server listens, and with how it would prove who it is."""
    problems = [f"port {port} is not in 0..65535" for port in ports if not 0 <= port <= 65535]
    if (tls_cert is None) != (tls_key is None):
        problems.append("tls_cert and tls_key go together")
    for path in (tls_cert, tls_key):
        if path is not None and not path.is_file():
            problems.append(f"{path} does not exist")
    if tls_cert is None and not is_loopback(host):
        problems.append(
            f"listening on {host} needs TLS: give tls_cert and tls_key, or use 127.0.0.1"
        )
    return problems


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
