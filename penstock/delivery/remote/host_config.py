"""The settings of a host of targets, whichever its protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.config import listening_problems, setting_lines
from penstock.errors import BadConfig


@dataclass(frozen=True, slots=True)
class HostConfig:
    """How one host of targets runs."""

    #: What players prove to know; made if it is not there, for nobody else to read.
    token_file: Path
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: int = 0
    #: PEM files. With them the host speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = listening_problems(self.host, (self.port,), self.tls_cert, self.tls_key)
        if problems:
            raise BadConfig("; ".join(problems))

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return setting_lines(self)
