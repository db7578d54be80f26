"""`penstock cluster proxy`: one proxy in the foreground."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from penstock.cli.cluster_process import parser_options, serve
from penstock.cli.output import echo, json_option, show_json_line
from penstock.log.proxy.__main__ import make_parser, run
from penstock.log.replication.routing import ProxyInfo


@click.command()
@parser_options(make_parser())
@json_option
def proxy(as_json: bool, **options: Any) -> None:
    """Run one proxy until SIGTERM or Ctrl-C.

    Prints where it listens on standard output, then logs to standard error. Write proxies own logs
    and repair; read proxies only serve readers. How new segments are placed (--ensemble,
    --write-quorum, --ack-quorum, --min-regions) should be the same on all write proxies.

    \b
    Examples:
      penstock cluster proxy --metadata penstock://zk:2181/logs --token-file token \\
        --node-token-file node-token
      penstock cluster proxy --metadata penstock://zk:2181/logs --token-file token \\
        --node-token-file node-token --role read --region west
    """

    def announce(info: ProxyInfo) -> None:
        text = f"proxy {info.id} listens on {info.host}:{info.port}"
        show_json_line(asdict(info)) if as_json else echo(text)

    serve(lambda: run(options, announce), as_json=as_json)
