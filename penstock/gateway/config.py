"""The settings of a gateway, and the numbers that bound what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.config import listening_problems, setting_lines
from penstock.errors import BadConfig
from penstock.limits import CREDIT_BYTES_DEFAULT, GROUP_BYTES_MAX, KIB, MIB

#: A request line with its headers.
HEAD_BYTES_MAX: Final = 16 * KIB
#: From the connection, or the first byte of a later request, to the last header.
HEAD_SECONDS_MAX: Final = 5.0
#: Between two requests on one connection.
IDLE_SECONDS_MAX: Final = 30.0
#: From the first to the last byte of a body.
BODY_SECONDS_MAX: Final = 30.0
#: How long a client may take no byte of an answer. It can go on where it was: positions are in it.
SEND_SECONDS_MAX: Final = 30.0
#: How long a stop waits for requests that are under way.
DRAIN_SECONDS: Final = 10.0
#: Bodies that are held at once, read or not yet appended.
BODIES_BYTES_MAX: Final = 64 * MIB
#: Rows of a request: a row of JSON may be two bytes, and a column of each is not.
ROWS_MAX: Final = 65_536
#: Cells of a request, for streams of very many columns, or fields in them.
CELLS_MAX: Final = 4_000_000
#: The same for elements of lists, of which there may be more than rows.
ELEMENT_CELLS_MAX: Final = 4 * CELLS_MAX
CONNECTIONS_MAX: Final = 1024
#: Requests that are under way, of all callers and of one token.
REQUESTS_MAX: Final = 512
SESSION_REQUESTS_MAX: Final = 256
#: Answers that are sent piece by piece; each may hold what its reader has of credit.
READERS_MAX: Final = 128
assert READERS_MAX * CREDIT_BYTES_DEFAULT <= 512 * MIB
#: Tokens with an open connection to the log; how long one stays without a request.
SESSIONS_MAX: Final = 256
SESSION_IDLE_SECONDS: Final = 300.0
#: Tokens that are being tried at once: trying costs the log a connection.
OPENINGS_MAX: Final = 16
#: Open producers of a session.
PRODUCERS_MAX: Final = 1024
#: A body that is larger is decoded beside the loop.
INLINE_BYTES_MAX: Final = 32 * KIB
#: Rows that are written as text on the loop itself.
INLINE_ROWS_MAX: Final = 256
#: Of Kafka's clients: connections, a request, and how long one may say nothing.
KAFKA_CONNECTIONS_MAX: Final = 1024
KAFKA_FRAME_BYTES_MAX: Final = 2 * GROUP_BYTES_MAX
KAFKA_IDLE_SECONDS: Final = 600.0
#: Partitions that Kafka's clients follow, and what is held of one.
FOLLOWED_MAX: Final = 1024
FOLLOWED_BYTES: Final = 256 * KIB
#: A quiet tail says so this often.
HEARTBEAT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """How one gateway runs."""

    #: The log: a data directory, an address, or None for the user's own.
    target: str | None = None
    #: Certificate authority of the log's server, if it is beyond this machine.
    tls_ca: Path | None = None
    #: Address to listen on. Anything but loopback needs TLS and is refused without it.
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: int = 8080
    #: PEM files. With them the gateway speaks TLS only.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: The listener for Kafka's clients, with the same certificate; None: there is none.
    kafka_host: str = "127.0.0.1"
    kafka_port: int | None = None
    #: `host:port` that Kafka's clients are told to come to; None: where they came to.
    kafka_advertise: str | None = None
    #: Largest body of a request. One request is one group of the log.
    body_bytes_max: int = GROUP_BYTES_MAX
    #: How long a request may wait for the log.
    timeout_seconds: float = 10.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = listening_problems(self.host, (self.port,), self.tls_cert, self.tls_key)
        if self.kafka_port is not None:
            given = self.kafka_host, (self.kafka_port,), self.tls_cert, self.tls_key
            problems += [each for each in listening_problems(*given) if each not in problems]
        if self.kafka_advertise is not None and not self.advertised:
            problems.append(f"kafka_advertise {self.kafka_advertise}: give host:port")
        if not KIB <= self.body_bytes_max <= BODIES_BYTES_MAX:
            problems.append(f"body_bytes_max {self.body_bytes_max} is not in 1024..64 MiB")
        if not 0.1 <= self.timeout_seconds <= 600:
            problems.append(f"timeout_seconds {self.timeout_seconds} is not in 0.1..600")
        if problems:
            raise BadConfig("; ".join(problems))

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Where Kafka's clients are told to come to."""
        host, _, port = (self.kafka_advertise or "").rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
        return (host.removeprefix("[").removesuffix("]"), int(port)) if host and is_port else None

    def lines(self) -> list[str]:
        """The effective settings, one `name=value` each; printed at start."""
        return setting_lines(self)
