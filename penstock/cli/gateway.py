"""`penstock gateway`: serve a log over HTTP, and to Kafka's clients."""

from __future__ import annotations

from collections.abc import Callable

import click

from penstock.cli.output import echo, json_option, show_json_line
from penstock.cli.serving_options import (
    Serving,
    load,
    parse_listen,
    serving_options,
)
from penstock.limits import GROUP_BYTES_MAX
from penstock.log.serving.directory import Address, host_and_port, url_of


@click.command()
@serving_options(port=8080, timeout=10.0, starts=True)
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
@json_option
def gateway(
    serving: Serving,
    kafka_listen: str | None,
    kafka_advertise: str | None,
    body_bytes_max: int,
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
    settings = serving.begin()
    config, server = load("penstock.gateway.config", "penstock.gateway.server")

    announce, announce_kafka = _announcers(as_json)
    kafka_host, kafka_port = parse_listen(kafka_listen) if kafka_listen else ("127.0.0.1", None)
    chosen = config.GatewayConfig(
        **settings,
        kafka_host=kafka_host,
        kafka_port=kafka_port,
        kafka_advertise=kafka_advertise,
        body_bytes_max=body_bytes_max,
    )
    server.run_gateway(chosen, announce, announce_kafka)


def _announcers(as_json: bool) -> tuple[Callable[[Address], None], Callable[[Address], None]]:
    """What says where it listens: over HTTP, and for Kafka's clients."""

    def announce(found: Address) -> None:
        if as_json:
            show_json_line({"url": url_of(found)})
        else:
            echo(f"listening on {url_of(found)}")

    def announce_kafka(found: Address) -> None:
        security = "SASL_SSL" if found.tls else "SASL_PLAINTEXT"
        if as_json:
            show_json_line({"kafka": host_and_port(found), "security": security})
        else:
            echo(f"listening for Kafka's clients on {host_and_port(found)} ({security}, PLAIN)")

    return announce, announce_kafka
