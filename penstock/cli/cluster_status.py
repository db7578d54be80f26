"""`penstock cluster status`: how a cluster is, as a page of text or JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.cli.cluster_facts import Facts, find_facts
from penstock.cli.cluster_target import ClusterTarget, cluster_options
from penstock.cli.output import (
    bytes_text,
    echo,
    field_lines,
    json_option,
    show_json,
    show_json_line,
    table_lines,
)
from penstock.plain_text import plain

_WATCH_SECONDS = 2.0


@click.command()
@click.option("--watch", is_flag=True, help="Again every two seconds, until Ctrl-C.")
@cluster_options
@json_option
def status(watch: bool, target: ClusterTarget, as_json: bool) -> None:
    """How a cluster is: nodes, proxies, logs, and what is wrong.

    ADDRESS is penstock://zk-host:2181/logs, or the directory of `penstock cluster up`. Nodes and
    proxies are asked only if their tokens are given; who does not answer is shown as such. Sizes
    are of records in sealed segments.

    \b
    Examples:
      penstock cluster status ./cluster
      penstock cluster status penstock://zk1:2181/logs --node-token-file node-token --watch
      penstock cluster status ./cluster --json | jq .problems
    """
    try:
        asyncio.run(_show(target, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _show(target: ClusterTarget, *, watch: bool, as_json: bool) -> None:
    async with target.open() as opened:
        if not watch:
            found = await find_facts(opened)
            if as_json:
                show_json(found)
            else:
                echo("\n".join(page(found)))
            return
        console = Console(highlight=False)
        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    live.update(Text("\n".join(page(await find_facts(opened)))), refresh=True)
                    await asyncio.sleep(_WATCH_SECONDS)
        while True:
            found = await find_facts(opened)
            if as_json:
                show_json_line(found)
            else:
                echo("\n".join(page(found)))
            await asyncio.sleep(_WATCH_SECONDS)


def page(found: Facts) -> list[str]:
    """The text of a status."""
    lines = field_lines(
        [
            ("cluster", found["address"]),
            ("nodes", _counts(found["nodes"])),
            ("proxies", _counts(found["proxies"])),
            ("auditor", found["auditor"]),
            ("repairs", _repairs(found["audit"])),
        ]
    )
    lines += ["", *_node_table(found["nodes"]), "", *_proxy_table(found["proxies"])]
    lines += ["", *_log_table(found["logs"])]
    if found["problems"]:
        lines += ["", *(f"! {plain(problem)}" for problem in found["problems"])]
    return lines


def _counts(things: list[Facts]) -> str:
    states: dict[str, int] = {}
    for thing in things:
        states[thing["state"]] = states.get(thing["state"], 0) + 1
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


def _repairs(audit: dict[str, Any] | None) -> str | None:
    if audit is None:
        return None
    return (
        f"{audit['repairs']} done, {audit['waiting']} waiting, {audit['stuck_count']} stuck, "
        f"{bytes_text(audit['copied_bytes'])} copied"
    )


def _node_table(nodes: list[Facts]) -> list[str]:
    return table_lines(
        ["node", "state", "region", "rack", "address", "segments", "size", "damaged"],
        [
            (
                node["id"],
                node["state"],
                node["region"],
                node["rack"],
                node["address"],
                node["segments"],
                bytes_text(node["bytes"]),
                node["damaged_blocks"],
            )
            for node in nodes
        ],
    )


def _proxy_table(proxies: list[Facts]) -> list[str]:
    return table_lines(
        ["proxy", "state", "role", "region", "address", "owns", "connections", "readers", "behind"],
        [
            (
                proxy["id"],
                proxy["state"],
                proxy["role"],
                proxy["region"],
                proxy["address"],
                len(proxy["owns"]),
                proxy["connections"],
                proxy["readers"],
                proxy["readers_behind"],
            )
            for proxy in proxies
        ],
    )


def _log_table(logs: list[Facts]) -> list[str]:
    columns = ["log", "owner", "epoch", "trim point", "tail", "sealed", "open", "size"]
    return table_lines(
        [*columns, "copies", "acks", "lacking"],
        [
            (
                log["log"],
                log["owner"],
                log["epoch"],
                log["trim_point"],
                log["tail"],
                log["segments_sealed"],
                log["segments_open"],
                bytes_text(log["bytes_sealed"]),
                log["write_quorum"],
                log["ack_quorum"],
                log["lacking_blocks"],
            )
            for log in logs
        ],
    )
