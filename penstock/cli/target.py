"""Which log a command is for: `--dir` or `--connect`, said the same way everywhere."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.errors import BadConfig, NotFound
from penstock.log.directories import default_data_dir
from penstock.log.serving.directory import TOKEN_FILE, read_token

if TYPE_CHECKING:
    from penstock.log.client.blocking import BlockingLog

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """What the options said."""

    directory: Path | None
    address: str | None
    token_file: Path | None
    tls_ca: Path | None
    timeout: float

    def open(self) -> BlockingLog:
        """Connect; a directory without a log is refused."""
        # asyncio, TLS and the log's messages: what only tells of a command does without.
        from penstock.log.client.blocking import BlockingLog
        from penstock.log.embedded import endpoint

        self.check()
        found = endpoint(
            self.address or self.directory, token_file=self.token_file, tls_ca=self.tls_ca
        )
        return BlockingLog(found, timeout=self.timeout)

    def token(self) -> str:
        """What it is opened with."""
        if self.address is None and self.token_file is None:
            return read_token((self.directory or default_data_dir()) / TOKEN_FILE)
        named = self.token_file or os.environ.get("PENSTOCK_TOKEN_FILE")
        if named is None:
            raise BadConfig(f"give the token file of {self.address} as --token-file")
        return read_token(Path(named))

    def check(self) -> None:
        """Raise NotFound for a directory without a log."""
        directory = self.directory or default_data_dir()
        if self.address is None and not (directory / "log").is_dir():
            raise NotFound(
                f"there is no log in {directory}: check --dir, or make one with "
                "`penstock stream create`"
            )


def target_options(command: F) -> F:
    """Give a command the options that say which log is meant, as one argument `target`."""

    @click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        help="Data directory; its server is started if none runs.  [default: PENSTOCK_DIR, or the "
        "user's data directory]",
    )
    @click.option(
        "--connect",
        "address",
        metavar="URL",
        help="A server: penstock://host:port; or a log of a cluster: penstock://zk-host:2181/logs, "
        "…/logs/orders.",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Token to use, perhaps a narrowed one.  [default: the directory's own; of a server, "
        "PENSTOCK_TOKEN_FILE]",
    )
    @click.option(
        "--tls-ca",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Certificate authority of that server; needed beyond this machine.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the server.",
    )
    @functools.wraps(command)
    def with_target(
        *args: Any,
        directory: Path | None,
        address: str | None,
        token_file: Path | None,
        tls_ca: Path | None,
        timeout: float,
        **options: Any,
    ) -> Any:
        if directory is not None and address is not None:
            raise click.UsageError("give --dir or --connect, not both")
        if address is None and tls_ca is not None:
            raise click.UsageError("--tls-ca goes with --connect")
        target = Target(directory, address, token_file, tls_ca, timeout)
        return command(*args, target=target, **options)

    return with_target  # type: ignore[return-value]
