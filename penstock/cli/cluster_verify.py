"""`penstock cluster verify`: read every copy of every block of sealed segments.

Owns what counts as wrong: a block that its node does not show, that does not match its checksums or
its place, or that is not the same on all of its nodes. A node notes what it finds damaged while it
is asked, so that the auditor mends it from the other copies.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.cluster_target import Cluster, ClusterTarget, cluster_options
from penstock.cli.output import EXIT_DAMAGED, bytes_text, echo, exit_code, json_option, show_json
from penstock.errors import BadFormat, Damaged, NotFound, PenstockError, Unavailable
from penstock.ids import NodeId
from penstock.limits import MIB
from penstock.log.proxy.block_source import Block, split_blocks
from penstock.log.replication.manifest import LogManifest, Segment, SegmentKey
from penstock.log.replication.node_api import Found, NodeClient
from penstock.log.replication.quorum import replicas

Problem = Literal["damaged", "missing", "unreachable"]


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """Blocks [first, end) of a part of a segment on one node."""

    problem: Problem
    node: NodeId
    log: str
    segment: int
    part: str
    first: int
    end: int
    cause: str

    def __str__(self) -> str:
        last = self.end - 1
        blocks = f"block={self.first}" if last == self.first else f"blocks={self.first}..{last}"
        return (
            f"{self.problem} node={self.node} log={self.log} segment={self.segment} "
            f"part={self.part} {blocks} {self.cause}"
        )


@dataclass(slots=True)
class ReplicaReport:
    segments: int = 0
    copies: int = 0
    bytes: int = 0
    findings: list[ReplicaFinding] = field(default_factory=list)
    #: Manifests that cannot be read: nobody knows where the blocks of these logs are.
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings and not self.problems

    @property
    def damaged(self) -> bool:
        return bool(self.problems) or any(
            finding.problem != "unreachable" for finding in self.findings
        )


@click.command()
@cluster_options
@click.argument("log", required=False)
@json_option
def verify(log: str | None, target: ClusterTarget, as_json: bool) -> None:
    """Read every block of every sealed segment from every node that should have it.

    Of all logs of the cluster at ADDRESS, or of LOG only. Exit code 8 if a copy is damaged or
    missing, or a manifest cannot be read; else 5 if a node could not be asked. Segments that are
    being written are not read.

    \b
    Examples:
      penstock cluster verify ./cluster
      penstock cluster verify penstock://zk1:2181/logs orders --node-token-file node-token --json
    """
    report = asyncio.run(_verify(target, log))
    if as_json:
        show_json(
            {
                "ok": report.ok,
                "segments": report.segments,
                "copies": report.copies,
                "bytes": report.bytes,
                "findings": [asdict(finding) for finding in report.findings],
                "problems": report.problems,
            }
        )
    else:
        for finding in report.findings:
            echo(str(finding))
        for problem in report.problems:
            echo(f"! {problem}")
        verdict = "no damage"
        if not report.ok:
            verdict = "damage found" if report.damaged else "some nodes could not be asked"
        echo(
            f"{verdict}: {report.segments} segments, {report.copies} copies of blocks, "
            f"{bytes_text(report.bytes)}"
        )
    if not report.ok:
        code = EXIT_DAMAGED if report.damaged else exit_code(Unavailable())
        click.get_current_context().exit(code)


async def _verify(target: ClusterTarget, only: str | None) -> ReplicaReport:
    report = ReplicaReport()
    async with target.open(needs_nodes=True) as cluster:
        manifests = await cluster.manifests(only)
        report.problems += cluster.unread_manifests
        if only is not None and not manifests and not report.problems:
            raise NotFound(f"there is no log {only}")
        work = [
            (log, manifest, segment)
            for log, manifest in manifests.items()
            for segment in manifest.segments
            if segment.sealed
        ]
        console = Console(stderr=True)
        columns = (TextColumn("verifying"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("verify", total=len(work))
            for log, manifest, segment in work:
                await _verify_segment(cluster, log, manifest, segment, report)
                progress.advance(bar)
    return report


async def _verify_segment(
    cluster: Cluster, log: str, manifest: LogManifest, segment: Segment, report: ReplicaReport
) -> None:
    report.segments += 1
    known = len(report.findings)
    for part, end in ((0, segment.blocks), (1, segment.index_blocks)):
        key = SegmentKey(log, segment.id, part)
        #: Of each block, its checksums on the node that showed it first.
        marks: dict[int, tuple[tuple[int, ...], NodeId]] = {}
        for node, ranges in owed(segment, part, end).items():
            reading = _Reading(key, node, manifest, segment, end, report, marks)
            client = cluster.nodes.client(node) if cluster.nodes is not None else None
            for first, stop in ranges:
                if client is None:
                    reading.note("unreachable", first, stop, "the node is not registered")
                else:
                    await reading.read(client, first, stop)
    if len(report.findings) > known:
        # Segments are trimmed and moved all the time: only what is still owed is lacking.
        newer = (await cluster.manifests(log)).get(log)
        if newer is not None or f"/logs/{log}" not in cluster.unread:
            found = report.findings[known:]
            report.findings[known:] = still_owed(found, manifest, newer)


def still_owed(
    findings: list[ReplicaFinding], before: LogManifest, now: LogManifest | None
) -> list[ReplicaFinding]:
    """What is left of the findings of one segment, now that its manifest was read again."""
    if now is None or now.log_id != before.log_id:
        return []
    segments = {int(segment.id): segment for segment in now.segments}
    left = []
    for finding in findings:
        segment = segments.get(finding.segment)
        if segment is None:
            continue
        part = int(finding.part == "index")
        end = segment.index_blocks if part else segment.blocks
        for first, stop in owed(segment, part, end).get(finding.node, []):
            first, stop = max(first, finding.first), min(stop, finding.end)
            if first < stop:
                left.append(replace(finding, first=first, end=stop))
    return left


def owed(segment: Segment, part: int, end: int) -> dict[NodeId, list[tuple[int, int]]]:
    """The blocks that each node should have, as ranges."""
    found: dict[NodeId, list[tuple[int, int]]] = {}
    for block in range(end):
        for node in replicas(segment, block, part):
            ranges = found.setdefault(node, [])
            if ranges and ranges[-1][1] == block:
                ranges[-1] = (ranges[-1][0], block + 1)
            else:
                ranges.append((block, block + 1))
    return found


@dataclass(slots=True)
class _Reading:
    """One node's copies of one part of a segment."""

    key: SegmentKey
    node: NodeId
    manifest: LogManifest
    segment: Segment
    end: int
    report: ReplicaReport
    marks: dict[int, tuple[tuple[int, ...], NodeId]]

    async def read(self, client: NodeClient, first: int, stop: int) -> None:
        at = first
        while at < stop:
            try:
                blocks = await self._blocks(client, at)
            except Damaged as error:
                self.note("damaged", at, at + 1, str(error))
                at += 1
                continue
            except NotFound as error:
                self.note("missing", at, at + 1, str(error))
                at += 1
                continue
            except PenstockError as error:
                self.note("unreachable", at, stop, str(error))
                return
            for block in blocks[: stop - at]:
                self._compare(block)
            at += len(blocks)

    async def _blocks(self, client: NodeClient, first: int) -> list[Block]:
        answer = await client.read(
            self.key, first, durable_block=self.end, bytes_max=1 * MIB, wait_ms=0
        )
        if answer.found is Found.UNKNOWN:
            raise BadFormat("the node cannot read it any more")
        if answer.found is not Found.HERE:
            raise NotFound("the node does not have it")
        return split_blocks(answer.data, self.key, self.manifest.log_mark, self.segment, first)

    def _compare(self, block: Block) -> None:
        """The same bytes on every node: all of the header, and the checksum of the body."""
        self.report.copies += 1
        self.report.bytes += block.header.block_bytes
        number = int(block.header.block)
        mark = tuple(map(int, block.header))
        known, other = self.marks.setdefault(number, (mark, self.node))
        if mark != known:
            self.note("damaged", number, number + 1, f"it is not the same as on {other}")
        elif block.header.epoch != self.segment.epoch:
            self.note("damaged", number, number + 1, f"it is of epoch {block.header.epoch}")

    def note(self, problem: Problem, first: int, end: int, cause: str) -> None:
        findings = self.report.findings
        part = "index" if self.key.part else "data"
        place = (problem, self.node, self.key.log, self.key.segment, part)
        if findings:
            last = findings[-1]
            before = (last.problem, last.node, last.log, last.segment, last.part)
            if before == place and last.end == first and last.cause == cause:
                findings[-1] = ReplicaFinding(*place, last.first, end, cause)
                return
        findings.append(ReplicaFinding(*place, first, end, cause))
