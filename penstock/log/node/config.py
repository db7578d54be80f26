"""The settings of a storage node: one frozen dataclass, checked as a whole before it starts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from penstock.config import listening_problems
from penstock.errors import BadConfig
from penstock.limits import BLOCK_BYTES_MAX, MIB
from penstock.log.node.cookie import NODE_NAME


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How one storage node runs."""

    #: Unique in the cluster and the same for ever; a disk remembers whose it is.
    name: str
    #: Where everything lies, see serving/directory.py. Made with mode 0700.
    data_dir: Path
    #: The cluster's metadata, e.g. `penstock://zk-host:2181/logs`; see meta/open.py.
    metadata: str = ""
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free port; the metadata says which.
    port: int = 0
    #: Where proxies reach it, if not at `host`.
    advertised_host: str = ""
    #: For tests only: the port to go with it, of a network that fails on request; 0: `port`.
    advertised_port: int = 0
    #: PEM files. With them the node speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: With it, only proxies with a certificate of this authority get in.
    tls_client_ca: Path | None = None
    #: Where it stands; placement spreads blocks over regions and racks.
    region: str = "default"
    rack: str = "default"
    #: The secret shared with the proxies; without it the data directory's own, made on first use.
    token_file: Path | None = None
    #: Blocks are flushed to segment files when a journal has this size; a start reads up to four.
    journal_bytes: int = 64 * MIB
    #: How often the manifests of its logs are read for segments that were given up.
    trim_seconds: float = 5.0
    #: For benchmarks only: every fsync takes so much longer.
    fsync_delay_ms: float = 0.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = []
        if not NODE_NAME.fullmatch(self.name):
            problems.append(
                f"{self.name!r} is not the name of a node: lower-case letters, digits, . - and _"
            )
        ports = (self.port, self.advertised_port)
        problems += listening_problems(
            self.host, ports, self.tls_cert, self.tls_key, self.tls_client_ca
        )
        if not self.region or not self.rack:
            problems.append("region and rack have names")
        if not BLOCK_BYTES_MAX <= self.journal_bytes <= 1024 * MIB:
            problems.append(f"journal_bytes {self.journal_bytes} is not in 6 MiB..1 GiB")
        if self.trim_seconds <= 0 or self.fsync_delay_ms < 0:
            problems.append("trim_seconds is above 0, fsync_delay_ms not below it")
        if problems:
            raise BadConfig("; ".join(problems))

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return [f"{field.name}={getattr(self, field.name)}" for field in fields(self)]
