"""The settings of a proxy: one frozen dataclass, checked as a whole before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.config import listening_problems, setting_lines
from penstock.errors import BadConfig, BadRequest
from penstock.limits import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_MS_MAX
from penstock.log.proxy.open_log import Replication
from penstock.log.replication.quorum import check_quorums


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """How one proxy runs."""

    #: The cluster's metadata, e.g. `penstock://zk-host:2181/logs`.
    metadata: str
    #: What clients prove. Everybody who has it may append and read.
    token_file: Path
    #: What is proved to nodes. Clients do not have it.
    node_token_file: Path
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free port; the metadata says which.
    port: int = 0
    #: Where clients reach it, if not at `host`.
    advertised_host: str = ""
    #: PEM files. With them the proxy speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: With it, only clients with a certificate of this authority get in.
    tls_client_ca: Path | None = None
    #: Who vouches for nodes that speak TLS.
    tls_ca: Path | None = None
    region: str = "default"
    rack: str = "default"
    #: A write proxy owns logs and serves readers; a read proxy only follows what others own.
    role: Literal["write", "read"] = "write"
    replication: Replication = field(default_factory=Replication)
    #: Entries older than this are trimmed, whole segments at a time; 0 keeps everything.
    ttl_seconds: float = 0.0
    #: Sealed segments are copied there (any pyarrow.fs URI), if set.
    cold_uri: str | None = field(default=None, repr=False)
    #: A dead proxy's logs can be taken by others after this long.
    session_seconds: float = 2.0
    #: For tests only: seconds that a message to or from another region takes.
    region_delay_ms: float = 0.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        rule = self.replication
        problems = listening_problems(
            self.host, (self.port,), self.tls_cert, self.tls_key, self.tls_client_ca
        )
        if self.tls_ca is not None and not self.tls_ca.is_file():
            problems.append(f"{self.tls_ca} does not exist")
        try:
            check_quorums(
                size=rule.ensemble, write_quorum=rule.write_quorum, ack_quorum=rule.ack_quorum
            )
        except BadRequest as error:
            problems.append(str(error))
        if not 1 <= rule.min_regions <= rule.ack_quorum:
            problems.append(f"min_regions {rule.min_regions} is not in 1..{rule.ack_quorum}")
        if not SEGMENT_BYTES_MIN <= rule.segment_bytes <= SEGMENT_BYTES_MAX:
            problems.append(f"segment_bytes is not in {SEGMENT_BYTES_MIN}..{SEGMENT_BYTES_MAX}")
        if not 0 < rule.segment_seconds * 1000 <= SEGMENT_MS_MAX:
            problems.append(f"segment_seconds is not in 0..{SEGMENT_MS_MAX // 1000}")
        if self.ttl_seconds < 0 or self.session_seconds <= 0 or self.region_delay_ms < 0:
            problems.append("ttl_seconds, session_seconds and region_delay_ms are not negative")
        if problems:
            raise BadConfig("; ".join(problems))

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return setting_lines(self)
