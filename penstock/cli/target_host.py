"""`penstock target serve`: targets in a process of their own, beside their data."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from penstock.cli.output import echo, json_option, show_json_line
from penstock.delivery.remote.address import PORTS, HostAddress
from penstock.log.serving.log_lines import log_to_stderr

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def target() -> None:
    """Targets of deliveries, in processes of their own."""


@target.command()
@click.option(
    "--to",
    "uris",
    metavar="URI",
    multiple=True,
    required=True,
    help="A target, like sqlite:///path.db; several get the numbers 0, 1, …",
)
@click.option(
    "--token-file",
    type=_FILE,
    required=True,
    help="What players must prove to know; made if it is not there.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; beyond this machine only with TLS.",
)
@click.option(
    "--port",
    type=int,
    help=f"0 takes a free one.  [default: {PORTS['target']}, or {PORTS['grpc']} with --grpc]",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM); with it the host speaks TLS only.")
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option("--grpc", is_flag=True, help="Speak gRPC (delivery.proto) instead of frames.")
@json_option
def serve(
    uris: tuple[str, ...],
    token_file: Path,
    host: str,
    port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    grpc: bool,
    as_json: bool,
) -> None:
    """Serve targets to players elsewhere until SIGTERM or Ctrl-C.

    Prints where players find them on standard output, then logs to standard error. A player needs
    the token: `?token_file=FILE` in the address, or PENSTOCK_TOKEN_FILE.

    \b
    Examples:
      penstock target serve --to sqlite:///a.db --to sqlite:///b.db --token-file target-token
      penstock target serve --to postgresql://me@localhost/shop --token-file target-token \\
        --host 0.0.0.0 --tls-cert host.pem --tls-key host.key
    """
    from penstock.delivery.remote.serve import serve_targets  # Arrow, which a help does without

    log_to_stderr()
    # By its name: it brings the drivers of databases, and nobody else needs them.
    open_target = importlib.import_module("penstock.delivery.targets").open_target

    def announce(address: HostAddress) -> None:
        found = [f"{address}/{number}" for number in range(len(uris))]
        if as_json:
            show_json_line({"targets": found, "token_file": str(token_file.absolute())})
        else:
            echo(f"listening on {' '.join(found)}, token in {token_file}")

    serve_targets(
        [open_target(uri) for uri in uris],
        token_file=token_file,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        grpc=grpc,
        on_ready=announce,
    )
