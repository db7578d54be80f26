"""`penstock cluster decommission`: empty a storage node, so that it can be taken away.

Owns `/draining/<name>`. The work is done by others: owners move their open segments off the node,
the auditor copies the sealed ones. Law: nothing is begun that would leave a block with fewer copies
than an ack quorum, or a place that nobody can take; nor while a manifest cannot be read. The node
is empty when no manifest names it, and some seconds later still none does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.cluster_facts import find_facts, find_nodes
from penstock.cli.cluster_target import Cluster, ClusterTarget, cluster_options
from penstock.cli.output import echo, exit_code, json_option, show_json
from penstock.errors import AlreadyExists, NotFound, Refused, Unknown
from penstock.ids import NodeId
from penstock.log.replication.manifest import LogManifest
from penstock.log.replication.placement import machine_of, would_lose_quorum
from penstock.plain_text import plain

_LOOK_SECONDS = 0.5
#: A proxy that has not seen the mark yet may name the node once more.
_SURE_SECONDS = 2.0
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
        checked = await check(cluster, name)
        if dry_run:
            _show_check(name, checked, as_json)
            return
        if checked.reasons:
            more = len(checked.reasons) - _REASONS_MAX
            words = "; ".join(checked.reasons[:_REASONS_MAX])
            words += f"; and {more} more" if more > 0 else ""
            raise Refused(f"{name} cannot be taken away: {words}")
        try:
            await cluster.store.create(f"/draining/{name}", b"")
        except AlreadyExists:
            pass  # it was begun before
        if not as_json:
            _show_problems(checked)
        if waits:
            await _wait(cluster, name, checked.segments)
            words = f"{name} is empty: no log needs it. Stop it; its disk can be erased."
        else:
            words = f"{name} is being emptied: {checked.segments} segments name it"
        found = {"draining": True, "segments": 0 if waits else checked.segments}
        _tell({"node": name, **found, **checked.rule_facts()}, words, as_json)


@dataclass(frozen=True, slots=True)
class Check:
    """What was found before anything is done."""

    #: What speaks against it.
    reasons: list[str]
    #: How many segments name the node.
    segments: int
    #: None if no proxy said: then it was checked as if it were 1.
    min_regions: int | None
    #: What could not be found out.
    problems: list[str] = field(default_factory=list)

    def rule_facts(self) -> dict[str, Any]:
        return {"min_regions": self.min_regions, "problems": self.problems}


def _tell(found: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        show_json(found)
    else:
        echo(words)


async def _cancel(cluster: Cluster, name: str) -> None:
    try:
        await cluster.store.delete(f"/draining/{name}")
    except NotFound:
        raise NotFound(f"node {name} is not being emptied") from None


async def check(cluster: Cluster, name: str) -> Check:
    """Raises NotFound if nobody has heard of the node."""
    alive = await find_nodes(cluster)
    manifests = await cluster.manifests()
    lives = {node for node in (*alive, *_members(manifests)) if machine_of(node) == name}
    unread = cluster.unread_manifests
    if not lives and not unread:
        names = ", ".join(sorted(info.name for info in alive.values()))
        raise NotFound(f"there is no node {name}, only: {names or 'none'}")
    min_regions = await _min_regions(cluster)
    problems = []
    if min_regions is None:
        why = "no owner of a log has answered"
        if cluster.token is None:
            why = "without --token-file no proxy was asked"
        problems.append(
            f"the region rule (--min-regions) is not known, it was checked as if it were 1: {why}"
        )
    reasons = [
        reason
        for node in sorted(lives)
        for reason in would_lose_quorum(manifests, node, alive, min_regions=min_regions or 1)
    ]
    reasons = [*unread, *dict.fromkeys(reasons)]
    return Check(reasons, _segments(manifests, name), min_regions, problems)


async def _min_regions(cluster: Cluster) -> int | None:
    """The strictest rule of the proxies that answer; None if none does."""
    if cluster.token is None:
        return None
    rules = [proxy["replication"] for proxy in (await find_facts(cluster))["proxies"]]
    return max((rule["min_regions"] for rule in rules if rule), default=None)


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


def _show_check(name: str, checked: Check, as_json: bool) -> None:
    reasons = checked.reasons
    if as_json:
        found = {"ok": not reasons, "segments": checked.segments, "reasons": reasons}
        show_json({"node": name, **found, **checked.rule_facts()})
    elif reasons:
        echo(f"{name} cannot be taken away:")
        for reason in reasons:
            echo(f"  {reason}")
    else:
        echo(f"{name} can be taken away: {checked.segments} segments would be copied")
    if not as_json:
        _show_problems(checked)
    if reasons:
        click.get_current_context().exit(exit_code(Refused()))


def _show_problems(checked: Check) -> None:
    for problem in checked.problems:
        echo(f"! {problem}")


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
            now = asyncio.get_running_loop().time
            empty_since: float | None = None
            told: list[str] = []
            while True:
                left = _segments(await cluster.manifests(), name)
                progress.update(bar, completed=max(segments - left, 0))
                if left or cluster.unread_manifests:
                    empty_since = None
                elif empty_since is None:
                    empty_since = now()
                elif now() - empty_since >= _SURE_SECONDS:
                    return
                holds = await _holds(cluster) if empty_since is None else []
                for words in holds:
                    if words not in told:
                        progress.console.print(f"! {plain(words)}", markup=False, soft_wrap=True)
                told = holds
                if await cluster.store.get(f"/draining/{name}") is None:
                    raise Unknown(f"somebody else has cancelled it: {left} segments name {name}")
                await asyncio.sleep(_LOOK_SECONDS)
    except asyncio.CancelledError:
        echo(
            f"penstock: {name} is still being emptied: run this again to wait for it, or with "
            "--cancel to let it be used again",
            err=True,
        )
        raise


async def _holds(cluster: Cluster) -> list[str]:
    """What keeps the segments where they are."""
    found = cluster.unread_manifests
    auditor = await cluster.auditor()
    if auditor is None:
        return [*found, "there is no auditor now: sealed segments wait until a write proxy is it"]
    stuck = (auditor.get("audit") or {}).get("stuck", ())
    return [*found, *(f"cannot be repaired now: {words}" for words in stuck)]
