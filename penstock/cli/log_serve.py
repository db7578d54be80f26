"""`penstock log serve`: run the server of a data directory."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import echo, error_text, json_option, show_json_line
from penstock.config import ServerConfig
from penstock.errors import Unavailable
from penstock.log.directories import default_data_dir
from penstock.log.server.server import run_server
from penstock.log.serving.directory import Address
from penstock.log.serving.log_lines import log_to_stderr
from penstock.log.serving.process import EXIT_FATAL

_FILE = click.Path(path_type=Path, dir_okay=False)
_DEFAULTS = {field.name: field.default for field in fields(ServerConfig)}
_LEVELS = click.Choice(["debug", "info", "warning", "error"])


@click.command()
@click.option(
    "--dir",
    "data_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the log lives; made if it is not there.  [default: PENSTOCK_DIR, or the user's "
    "data directory]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; beyond this machine only with TLS.",
)
@click.option("--port", type=int, default=7070, show_default=True, help="0 takes a free one.")
@click.option(
    "--tls-cert", type=_FILE, help="Certificate (PEM); with it the server speaks TLS only."
)
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option(
    "--tls-client-ca",
    type=_FILE,
    help="Only clients with a certificate of this authority (PEM) get in.",
)
@click.option(
    "--segment-bytes",
    type=int,
    default=_DEFAULTS["segment_bytes"],
    show_default=True,
    help="A segment is sealed at this size.",
)
@click.option(
    "--segment-seconds",
    type=float,
    default=_DEFAULTS["segment_seconds"],
    show_default=True,
    help="... or at this age.",
)
@click.option(
    "--ttl-seconds",
    type=float,
    default=0.0,
    show_default=True,
    help="Older entries are trimmed, a segment at a time; 0 keeps everything.",
)
@click.option(
    "--cold-uri", help="Copy sealed segments there: any pyarrow.fs URI (file://, s3://, gs://)."
)
@click.option(
    "--local-bytes-max",
    type=int,
    default=_DEFAULTS["local_bytes_max"],
    show_default=True,
    help="Local bytes of sealed segments to keep once they have a cold copy.",
)
@click.option(
    "--idle-exit-seconds",
    type=float,
    default=0.0,
    show_default=True,
    help="Stop after so long without a client; 0 runs for ever.",
)
@click.option("--log-level", type=_LEVELS, default="info", show_default=True)
@json_option
def serve(data_dir: Path | None, log_level: str, as_json: bool, **settings: Any) -> None:
    """Run the server of a data directory until SIGTERM or Ctrl-C.

    Prints where it listens on standard output, then logs to standard error, one
    `time level logger message key=value` per line. Clients need the file `token` of the directory.

    \b
    Examples:
      penstock log serve --dir /var/lib/penstock
      penstock log serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
    """
    directory = (data_dir or default_data_dir()).expanduser().absolute()
    config = ServerConfig(directory, **settings)
    log_to_stderr(log_level)

    def announce(address: Address) -> None:
        url = f"penstock://{_host_text(address.host)}:{address.port}"
        token_file = str(directory / "token")
        if as_json:
            show_json_line({"url": url, "dir": str(directory), "token_file": token_file})
        else:
            echo(f"listening on {url}, token in {token_file}")

    try:
        run_server(config, announce)
    except Unavailable as error:
        if error.__cause__ is None:
            raise
        # A write failed. The log is whole, but this process must not go on: start another.
        echo(error_text(error, as_json=as_json), err=True)
        click.get_current_context().exit(EXIT_FATAL)


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host
