"""The settings of the page's server, and the numbers that bound what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.config import listening_problems, setting_lines
from penstock.errors import BadConfig

#: From one update to the next.
UPDATE_SECONDS: Final = 1.0
#: How long facts may take before the page says that the log does not answer.
PATIENCE_SECONDS: Final = 0.9
#: Streams, deliveries, whose lag has to be measured, and clusters, whose nodes are asked, every so
#: many updates.
SELDOM: Final = 3
#: How far queries are behind that do not run is measured so seldom, and for so many of them: up to
#: a mebibyte of each source is read for it.
IDLE_LAGS_EVERY: Final = 10
IDLE_LAGS_MAX: Final = 20
#: Queries that are shown, the first by name: whoever may run queries may register any number.
QUERIES_MAX: Final = 500
#: How long updates go on after the last page has gone: a page that is loaded again finds them.
LINGER_SECONDS: Final = 10.0
#: How long an unused connection to the log stays: while it does, an embedded server stays, too.
SESSION_IDLE_SECONDS: Final = 20.0
#: Tokens that are looked with at once, and pages of all of them.
LIVES_MAX: Final = 16
PAGES_MAX: Final = 128
#: Threads that read facts, and what they wait for at most.
THREADS: Final = 4
#: Rows of a live tail that are sent in a second, and that are looked at for a filter.
TAIL_ROWS_MAX: Final = 40
TAIL_LOOKED_MAX: Final = 5_000
TAIL_CHARS_MAX: Final = 2_000
FILTER_CHARS_MAX: Final = 200
#: Of a query's name, as it stands in the log.
NAME_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class UiConfig:
    """How one page is served."""

    #: The log: a data directory, an address, or None for the user's own.
    target: str | None = None
    #: Certificate authority of the log's server, if it is beyond this machine.
    tls_ca: Path | None = None
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: int = 8090
    #: PEM files. With them the page speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: How long a request may wait for the log.
    timeout_seconds: float = 5.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = listening_problems(self.host, (self.port,), self.tls_cert, self.tls_key)
        if not 0.1 <= self.timeout_seconds <= 600:
            problems.append(f"timeout_seconds {self.timeout_seconds} is not in 0.1..600")
        if problems:
            raise BadConfig("; ".join(problems))

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return setting_lines(self)
