"""`penstock cluster decommission`: empty a storage node, so that it can be taken away.

Owns `/draining/<name>`. The work is done by others: owners move their open segments off the node,
the auditor copies the sealed ones. Law: nothing is begun that would leave a block with fewer copies
than an ack quorum, or a place that nobody can take; the node is empty when no manifest names it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.cluster_facts import find_facts, find_nodes
from penstock.cli.cluster_target import Cluster, ClusterTarget, cluster_options
from penstock.cli.output import exit_code, show_json
from penstock.cli.target import json_option
from penstock.errors import AlreadyExists, NotFound, Refused, Unknown
from penstock.ids import NodeId
from penstock.log.replication.manifest import LogManifest
from penstock.log.replication.placement import machine_of, would_lose_quorum

_LOOK_SECONDS = 0.5
#: Reasons in an error; --dry-run tells all.
_REASONS_MAX = 5


@click.command()
@cluster_options
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Only check, and say everything that speaks against.")
@click.option("--cancel", is_flag=True, help="Let the node be used again.")
@click.option("--no-wait", is_flag=True, help="Begin, and do not wait until the node is empty.")
@json_option
def decommission(
    node: str,
    dry_run: bool,
    cancel: bool,
    no_wait: bool,
    target: ClusterTarget,
    as_json: bool,
) -> None:
    """Empty storage NODE of the cluster at ADDRESS, and say when it can be stopped for good.

    First it is checked whether without the node some block would have fewer copies than an ack
    quorum, or no other node could take its place: then nothing is done, and the exit code is 3.
    The node stays marked, so that nothing new is placed on it, until --cancel. Ctrl-C only ends
    the waiting.

    \b
    Examples:
      penstock cluster decommission ./cluster n3 --dry-run
      penstock cluster decommission penstock://zk1:2181/logs n3
      penstock cluster decommission ./cluster n3 --cancel
    """
    if cancel and (dry_run or no_wait):
        raise click.UsageError("--cancel stands alone")
    asyncio.run(_run(target, node, dry_run, cancel, not no_wait, as_json))


async def _run(
    target: ClusterTarget, name: str, dry_run: bool, cancel: bool, waits: bool, as_json: bool
) -> None:
    async with target.open() as cluster:
        if cancel:
            await _cancel(cluster, name)
            _tell({"node": name, "draining": False}, f"{name} is used again", as_json)
            return
        reasons, segments = await check(cluster, name)
        if dry_run:
            _show_check(name, reasons, segments, as_json)
            return
        if reasons:
            more = len(reasons) - _REASONS_MAX
            words = "; ".join(reasons[:_REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")
            raise Refused(f"{name} cannot be taken away: {words}")
        try:
            await cluster.store.create(f"/draining/{name}", b"")
        except AlreadyExists:
            pass  # it was begun before
        if not waits:
            words = f"{name} is being emptied: {segments} segments name it"
            _tell({"node": name, "draining": True, "segments": segments}, words, as_json)
            return
        await _wait(cluster, name, segments)
        words = f"{name} is empty: no log needs it. Stop it; its disk can be erased."
        _tell({"node": name, "draining": True, "segments": 0}, words, as_json)


def _tell(found: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        show_json(found)
    else:
        click.echo(words)


async def _cancel(cluster: Cluster, name: str) -> None:
    try:
        await cluster.store.delete(f"/draining/{name}")
    except NotFound:
        raise NotFound(f"node {name} is not being emptied") from None


async def check(cluster: Cluster, name: str) -> tuple[list[str], int]:
    """What speaks against it, and how many segments name the node."""
    alive = await find_nodes(cluster)
    manifests = await cluster.manifests()
    lives = {node for node in (*alive, *_members(manifests)) if machine_of(node) == name}
    if not lives:
        names = ", ".join(sorted(info.name for info in alive.values()))
        raise NotFound(f"there is no node {name}, only: {names or 'none'}")
    min_regions = await _min_regions(cluster)
    reasons = [
        reason
        for node in sorted(lives)
        for reason in would_lose_quorum(manifests, node, alive, min_regions=min_regions)
    ]
    return list(dict.fromkeys(reasons)), _segments(manifests, name)


async def _min_regions(cluster: Cluster) -> int:
    """The strictest rule of the proxies that answer."""
    if cluster.token is None:
        return 1
    rules = [proxy["replication"] for proxy in (await find_facts(cluster))["proxies"]]
    return max((rule["min_regions"] for rule in rules if rule), default=1)


def _members(manifests: dict[str, LogManifest]) -> list[NodeId]:
    return [
        node
        for manifest in manifests.values()
        for segment in manifest.segments
        for ensemble in segment.ensembles
        for node in ensemble.nodes
    ]


def _segments(manifests: dict[str, LogManifest], name: str) -> int:
    """How many segments name the node, in any of its lives."""
    return sum(
        any(machine_of(node) == name for ensemble in segment.ensembles for node in ensemble.nodes)
        for manifest in manifests.values()
        for segment in manifest.segments
    )


def _show_check(name: str, reasons: list[str], segments: int, as_json: bool) -> None:
    if as_json:
        show_json({"node": name, "ok": not reasons, "segments": segments, "reasons": reasons})
    elif reasons:
        click.echo(f"{name} cannot be taken away:")
        for reason in reasons:
            click.echo(f"  {reason}")
    else:
        click.echo(f"{name} can be taken away: {segments} segments would be copied")
    if reasons:
        click.get_current_context().exit(exit_code(Refused()))


async def _wait(cluster: Cluster, name: str, segments: int) -> None:
    console = Console(stderr=True)
    columns = (
        TextColumn("moving segments"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("move", total=segments)
            while True:
                left = _segments(await cluster.manifests(), name)
                progress.update(bar, completed=max(segments - left, 0))
                if not left:
                    return
                if await cluster.store.get(f"/draining/{name}") is None:
                    raise Unknown(f"somebody else has cancelled it: {left} segments name {name}")
                await asyncio.sleep(_LOOK_SECONDS)
    except asyncio.CancelledError:
        click.echo(
            f"penstock: {name} is still being emptied: run this again to wait for it, or with "
            "--cancel to let it be used again",
            err=True,
        )
        raise
