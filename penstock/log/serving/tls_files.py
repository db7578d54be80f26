"""How a server speaks TLS: its certificate files, read again when they were replaced.

Owns the context of new handshakes. Connections that stand keep theirs. Law: files that cannot be
used, such as a certificate whose key was not replaced yet, change nothing: the last that could are
used, and operators are told.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadConfig

logger = logging.getLogger(__name__)

#: How often the files are looked at, at most.
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, only clients with a certificate of that authority get in."""

    cert: Path
    key: Path | None
    client_ca: Path | None = None

    def load(self) -> ssl.SSLContext:
        """Raises BadConfig."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            where = f"{self.cert}" + ("" if self.client_ca is None else f" or {self.client_ca}")
            raise BadConfig(f"cannot load certificate {where}: {error}") from None
        return context

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Another one, once a file was replaced or changed."""
        return tuple(map(_state, (self.cert, self.key, self.client_ca)))


def tls_files(
    cert: Path | None, key: Path | None, client_ca: Path | None = None
) -> TlsFiles | None:
    """None: without a certificate there is no TLS."""
    return None if cert is None else TlsFiles(cert, key, client_ca)


class ServerTls:
    """See the module's docstring. `clock`: seconds."""

    def __init__(self, files: TlsFiles, clock: Callable[[], float]) -> None:
        """Raises BadConfig."""
        self._files = files
        self._clock = clock
        self._state = files.state()
        self._context = files.load()
        self._looked_at = clock()

    def context(self) -> ssl.SSLContext:
        """For the next handshake."""
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            state = self._files.state()
            if state != self._state:
                self._state = state
                self._load_again()
        return self._context

    def _load_again(self) -> None:
        try:
            self._context = self._files.load()
            logger.info("read the certificate again cert=%s", self._files.cert)
        except BadConfig as error:
            logger.error("keeping the last certificate cause=%s", error)


def _state(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
