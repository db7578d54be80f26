"""The settings of a log server: one frozen dataclass, checked as a whole before anything starts.

Few on purpose: a setting is here only if we cannot choose for the user. Limits that everybody must
agree on are in limits.py. Law: settings are shown without the secrets that an address may carry.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from penstock.errors import BadConfig
from penstock.limits import MIB, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_MS_MAX

#: Options in the address of a store that are no secrets; whatever else there is, is not shown.
_SHOWN_OPTIONS: Final = frozenset(
    (
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "anonymous",
        "application_name",
        "connect_timeout",
        "credential_kind",
        "dbname",
        "enable_tls",
        "endpoint_override",
        "force_virtual_addressing",
        "host",
        "options",
        "port",
        "region",
        "replication",
        "scheme",
        "sslmode",
    )
)
_HIDDEN: Final = "***"


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
    #: PEM. With it, only clients with a certificate of this authority get in, to prove their token.
    tls_client_ca: Path | None = None
    #: A segment is sealed at this size; opening a log reads at most one of them.
    segment_bytes: int = 64 * MIB
    #: ... or at this age.
    segment_seconds: float = 3600.0
    #: Entries older than this are trimmed, whole segments at a time; 0 keeps everything.
    ttl_seconds: float = 0.0
    #: Sealed segments are copied there (any pyarrow.fs URI), if set.
    cold_uri: str | None = field(default=None, repr=False)
    #: Local bytes of sealed segments to keep once they have a cold copy.
    local_bytes_max: int = 1024 * MIB
    #: Stop when nobody has been connected for this long; 0 runs for ever. The embedded mode sets
    #: it.
    idle_exit_seconds: float = 0.0

    def validate(self) -> None:
        """Raise BadConfig with every problem at once."""
        problems = listening_problems(
            self.host, (self.port,), self.tls_cert, self.tls_key, self.tls_client_ca
        )
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
        return setting_lines(self)


def setting_lines(settings: Any) -> list[str]:
    """All fields of a dataclass of settings, one `name=value` each, without secrets."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    if values.get("cold_uri"):
        values["cold_uri"] = masked_uri(values["cold_uri"])
    return [f"{name}={value}" for name, value in values.items()]


def masked_uri(uri: str) -> str:
    """The address of a store, for people: without user, password, and options that may be secret.

    Rather too much is hidden than too little: a password may hold any letter, escaped or not.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":  # a path
        return uri
    before, at, rest = rest.rpartition("@")
    if at and ("?" in before or "#" in before):
        return f"{scheme}://{_HIDDEN}"
    place, mark, options = rest.partition("?")
    place, fragment, _ = place.partition("#")
    shown = f"{scheme}://{_HIDDEN + at if at else ''}{place}{fragment and fragment + _HIDDEN}"
    return shown + mark + "&".join(map(_masked_option, options.split("&")))


def hide_secrets(text: str, uri: str) -> str:
    """A text about a store, such as the words of an error, without the secrets of its address."""
    text = text.replace(uri, masked_uri(uri))
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _masked_option(option: str) -> str:
    name, equals, value = option.partition("=")
    is_shown = name in _SHOWN_OPTIONS and "@" not in unquote(value)
    return option if is_shown or not equals else f"{name}={_HIDDEN}"


def _secrets(uri: str) -> set[str]:
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        return set()
    before, _, rest = rest.rpartition("@")
    user, _, password = before.partition(":")
    options = rest.partition("?")[2].split("&")
    values = [option.partition("=")[2] for option in options if option != _masked_option(option)]
    found = (before, user, password, *values)
    # What is shorter hides nothing, and would tear words apart.
    return {form for text in found for form in (text, unquote(text)) if len(form) > 2}


def listening_problems(
    host: str,
    ports: Iterable[int],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None = None,
) -> list[str]:
    """What is wrong with where a server listens, and with how it would prove who it is."""
    problems = [f"port {port} is not in 0..65535" for port in ports if not 0 <= port <= 65535]
    if (tls_cert is None) != (tls_key is None):
        problems.append("tls_cert and tls_key go together")
    if tls_client_ca is not None and tls_cert is None:
        problems.append("tls_client_ca goes with tls_cert and tls_key")
    for path in (tls_cert, tls_key, tls_client_ca):
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
