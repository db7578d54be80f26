"""`penstock gateway`: serve a log over HTTP, and to Kafka's clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import click

from penstock.cli.output import echo, json_option, show_json_line
from penstock.cli.target import Target
from penstock.errors import Refused
from penstock.limits import GROUP_BYTES_MAX
from penstock.log.serving.directory import Address
from penstock.log.serving.log_lines import log_to_stderr

_FILE = click.Path(path_type=Path, dir_okay=False)
_LEVELS = click.Choice(["debug", "info", "warning", "error"])


@click.command()
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
    "--tls-ca", type=_FILE, help="Certificate authority of that server; needed beyond this machine."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="Where to listen; beyond this machine only with TLS. Port 0 takes a free one.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM); with it the gateway speaks HTTPS.")
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option(
    "--kafka-listen",
    metavar="HOST:PORT",
    help="Serve Kafka's clients, too: where to listen for them.",
)
@click.option(
    "--kafka-advertise",
    metavar="HOST:PORT",
    help="Where Kafka's clients are told to come to.  [default: where they came to]",
)
@click.option(
    "--body-bytes-max",
    type=int,
    default=GROUP_BYTES_MAX,
    show_default=True,
    help="Largest body of a request.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the log.",
)
@click.option("--log-level", type=_LEVELS, default="info", show_default=True)
@json_option
def gateway(
    directory: Path | None,
    address: str | None,
    tls_ca: Path | None,
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    kafka_listen: str | None,
    kafka_advertise: str | None,
    body_bytes_max: int,
    timeout: float,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve a log over HTTP, and to Kafka's clients: for any language.

    Until SIGTERM or Ctrl-C. Prints where it listens on standard output, then logs to standard
    error. It has no token of its own: each request brings one, `Authorization: Bearer TOKEN`, and
    the log decides. /docs says what there is. Any number of gateways may serve the same log.

    \b
    Examples:
      penstock gateway --dir /var/lib/penstock
      penstock gateway --connect penstock://localhost:7070 --listen 127.0.0.1:8081
      penstock gateway --listen 0.0.0.0:443 --tls-cert gateway.pem --tls-key gateway.key
      penstock gateway --kafka-listen 127.0.0.1:9092
      curl -H "Authorization: Bearer $(cat /var/lib/penstock/token)" localhost:8080/v1/streams
    """
    if directory is not None and address is not None:
        raise click.UsageError("give --dir or --connect, not both")
    if address is None:
        if tls_ca is not None:
            raise click.UsageError("--tls-ca goes with --connect")
        Target(directory, None, None, None, timeout).check()
    host, port = parse_listen(listen)
    log_to_stderr(log_level)
    try:
        # By their names: nobody else needs what they bring.
        config = importlib.import_module("penstock.gateway.config")
        server = importlib.import_module("penstock.gateway.server")
    except ImportError as error:
        raise Refused(f"{error}: pip install 'penstock[gateway]'") from None

    announce, announce_kafka = _announcers(as_json)
    kafka_host, kafka_port = parse_listen(kafka_listen) if kafka_listen else ("127.0.0.1", None)
    settings = config.GatewayConfig(
        target=address or (None if directory is None else str(directory.absolute())),
        tls_ca=tls_ca,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        kafka_host=kafka_host,
        kafka_port=kafka_port,
        kafka_advertise=kafka_advertise,
        body_bytes_max=body_bytes_max,
        timeout_seconds=timeout,
    )
    server.run_gateway(settings, announce, announce_kafka)


def _announcers(as_json: bool) -> tuple[Callable[[Address], None], Callable[[Address], None]]:
    """What says where it listens: over HTTP, and for Kafka's clients."""

    def announce(found: Address) -> None:
        scheme = "https" if found.tls else "http"
        url = f"{scheme}://{_shown(found)}"
        if as_json:
            show_json_line({"url": url})
        else:
            echo(f"listening on {url}")

    def announce_kafka(found: Address) -> None:
        security = "SASL_SSL" if found.tls else "SASL_PLAINTEXT"
        if as_json:
            show_json_line({"kafka": _shown(found), "security": security})
        else:
            echo(f"listening for Kafka's clients on {_shown(found)} ({security}, PLAIN)")

    return announce, announce_kafka


def _shown(found: Address) -> str:
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"{host}:{found.port}"


def parse_listen(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port`, or a port of this machine."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise click.UsageError(f"--listen {text}: give host:port, like 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
