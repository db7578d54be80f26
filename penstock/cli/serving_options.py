"""What every command says that serves a log to others: which log, where to listen, with what."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.cli.target import Target
from penstock.errors import Refused
from penstock.log.serving.log_lines import log_to_stderr

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)
_LEVELS = click.Choice(["debug", "info", "warning", "error"])


@dataclass(frozen=True, slots=True)
class Serving:
    """What the options said."""

    directory: Path | None
    address: str | None
    tls_ca: Path | None
    listen: str
    tls_cert: Path | None
    tls_key: Path | None
    timeout: float
    log_level: str

    def begin(self) -> dict[str, Any]:
        """Check them, log to standard error; the settings that all servers have."""
        if self.directory is not None and self.address is not None:
            raise click.UsageError("give --dir or --connect, not both")
        if self.address is None:
            if self.tls_ca is not None:
                raise click.UsageError("--tls-ca goes with --connect")
            Target(self.directory, None, None, None, self.timeout).check()
        host, port = parse_listen(self.listen)
        log_to_stderr(self.log_level)
        directory = None if self.directory is None else str(self.directory.absolute())
        return {
            "target": self.address or directory,
            "tls_ca": self.tls_ca,
            "host": host,
            "port": port,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "timeout_seconds": self.timeout,
        }


def serving_options(*, port: int, timeout: float, starts: bool) -> Callable[[F], F]:
    """Give a command these options, as one argument `serving`. `starts`: whether it starts the
    server of a directory."""
    started = "its server is started if none runs" if starts else "its server is not started"
    options = (
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            help=f"Data directory; {started}.  [default: PENSTOCK_DIR, or the user's data "
            "directory]",
        ),
        click.option(
            "--connect",
            "address",
            metavar="URL",
            help="A server: penstock://host:port; or a log of a cluster: "
            "penstock://zk-host:2181/logs, …/logs/orders.",
        ),
        click.option(
            "--tls-ca",
            type=_FILE,
            help="Certificate authority of that server; needed beyond this machine.",
        ),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            default=f"127.0.0.1:{port}",
            show_default=True,
            help="Where to listen; beyond this machine only with TLS. Port 0 takes a free one.",
        ),
        click.option("--tls-cert", type=_FILE, help="Certificate (PEM); with it, HTTPS is spoken."),
        click.option("--tls-key", type=_FILE, help="Its key (PEM)."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0.1),
            default=timeout,
            show_default=True,
            help="Seconds to wait for the log.",
        ),
        click.option("--log-level", type=_LEVELS, default="info", show_default=True),
    )

    def give(command: F) -> F:
        @functools.wraps(command)
        def with_serving(**given: Any) -> Any:
            names = Serving.__dataclass_fields__
            serving = Serving(**{name: given.pop(name) for name in names})
            return command(serving=serving, **given)

        for option in reversed(options):
            with_serving = option(with_serving)
        return with_serving  # type: ignore[return-value]

    return give


def load(*names: str) -> list[Any]:
    """Modules by their names: nobody else needs what they bring. Raises Refused."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise Refused(f"{error}: pip install 'penstock[gateway]'") from None


def parse_listen(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port`, or a port of this machine."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise click.UsageError(f"--listen {text}: give host:port, like 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
