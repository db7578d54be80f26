"""`penstock cluster node` and `proxy`: one process of a cluster in the foreground.

Owns nothing but the way from a parser of options, which `python -m penstock.log.node` and
`… .proxy` have, to a command: both have the same options, and only one place says which.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from penstock.cli.output import error_text
from penstock.cli.target import json_option
from penstock.errors import Unavailable
from penstock.log.node.__main__ import make_parser as make_node_parser
from penstock.log.node.__main__ import run as run_node
from penstock.log.proxy.__main__ import make_parser as make_proxy_parser
from penstock.log.proxy.__main__ import run as run_proxy
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.process import EXIT_FATAL

F = TypeVar("F", bound=Callable[..., Any])


def parser_options(parser: argparse.ArgumentParser) -> Callable[[F], F]:
    """All options of a parser, but `--help`, as those of a command."""

    def decorate(command: F) -> F:
        for action in reversed(parser._actions):
            if isinstance(action, argparse._HelpAction):
                continue
            command = _option(action)(command)
        return command

    return decorate


def _option(action: argparse.Action) -> Callable[[F], F]:
    hidden = action.help == argparse.SUPPRESS
    help = "" if hidden or not action.help else f"{action.help[0].upper()}{action.help[1:]}."
    kind: Any = str if action.type is None else action.type
    if action.choices is not None:
        kind = click.Choice(list(action.choices))
    elif kind not in (str, int, float):
        kind = click.Path(path_type=kind)
    # With a default of None, click would take a required option as given.
    default = {} if action.default is None else {"default": action.default}
    return click.option(
        *action.option_strings,
        action.dest,
        type=kind,
        required=action.required,
        **default,
        show_default=action.default not in (None, ""),
        hidden=hidden,
        help=help,
    )


@click.command()
@parser_options(make_node_parser())
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
        click.echo(json.dumps(found) if as_json else text)

    _serve(lambda: run_node(options, announce), as_json=as_json)


@click.command()
@parser_options(make_proxy_parser())
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
        click.echo(json.dumps(asdict(info)) if as_json else text)

    _serve(lambda: run_proxy(options, announce), as_json=as_json)


def _serve(run: Callable[[], None], *, as_json: bool) -> None:
    try:
        run()
    except Unavailable as error:
        if error.__cause__ is None:
            raise
        # A write failed. What was acknowledged is whole, but this process must not go on.
        click.echo(error_text(error, as_json=as_json), err=True)
        click.get_current_context().exit(EXIT_FATAL)
