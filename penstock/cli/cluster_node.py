"""`penstock cluster node`: one storage node in the foreground."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from penstock.cli.cluster_process import parser_options, serve
from penstock.cli.output import echo, json_option, show_json_line
from penstock.log.node.__main__ import make_parser, run
from penstock.log.replication.node_api import NodeInfo


@click.command()
@parser_options(make_parser())
@json_option
def node(as_json: bool, **options: Any) -> None:
    """Run one storage node until SIGTERM or Ctrl-C.

    Prints where it listens on standard output, then logs to standard error. The name stays the
    same for ever; a data directory belongs to one name. All nodes and proxies share the token.

    \b
    Examples:
      penstock cluster node --name n0 --data-dir /data --metadata penstock://zk:2181/logs \\
        --token-file node-token
      penstock cluster node --name n1 --data-dir d --metadata penstock://zk:2181/logs \\
        --host 0.0.0.0 --advertised-host n1.example --tls-cert n1.pem --tls-key n1.key \\
        --token-file node-token --region east --rack r1
    """

    def announce(info: NodeInfo) -> None:
        found = asdict(info) | {"id": info.id}
        text = f"node {info.id} listens on {info.host}:{info.port}"
        show_json_line(found) if as_json else echo(text)

    serve(lambda: run(options, announce), as_json=as_json)
