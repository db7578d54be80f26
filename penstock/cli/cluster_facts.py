"""What is known of a cluster: its metadata, and what nodes and proxies say of themselves.

Owns the words of `penstock cluster status`. Law: whoever does not answer is told as such, and
everything else is shown all the same; what nobody said is None, never a guess.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.cli.cluster_target import Cluster, decode_place
from penstock.config import is_loopback
from penstock.errors import PenstockError, Unavailable
from penstock.ids import NodeId
from penstock.log.client.connection import ask_metrics, open_connection
from penstock.log.node.client import decode_node_info
from penstock.log.replication.manifest import LogManifest, Segment
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.placement import machine_of
from penstock.log.replication.routing import ProxyInfo
from penstock.wire import messages as m

_METRIC = re.compile(r"^penstock_([a-z_]+) ([0-9.]+)$", re.MULTILINE)
Facts = dict[str, Any]


async def find_facts(cluster: Cluster) -> Facts:
    """Everything that `status` shows."""
    manifests = await cluster.manifests()
    registered = await find_nodes(cluster)
    owners = await cluster.read_below("/owners", decode_place)
    places = await cluster.read_below("/proxies", decode_place)
    # What a newer proxy says besides is not for us.
    proxies = [ProxyInfo.of(place) for place in places.values()]
    auditor = await cluster.auditor() or {}
    nodes, said = await asyncio.gather(
        _ask_nodes(cluster, registered), _ask_proxies(cluster, proxies, owners)
    )
    audit: Facts | None = auditor.get("audit")
    known = {
        "address": str(cluster.address).rpartition("/")[0],
        "auditor": auditor.get("id"),
        "audit": audit,
        "nodes": _nodes(registered, nodes, manifests),
        "proxies": [_proxy(proxy, said[proxy.id], owners) for proxy in proxies],
        "logs": [
            _log(name, manifest, owners.get(name), said, audit, registered)
            for name, manifest in manifests.items()
        ],
    }
    known["problems"] = [*cluster.unread.values(), *_problems(known)]
    return known


async def find_nodes(cluster: Cluster) -> dict[NodeId, NodeInfo]:
    """The nodes that are registered now."""
    draining = set(await cluster.names("/draining"))
    found = {}
    for info in (await cluster.read_below("/nodes", decode_node_info)).values():
        found[info.id] = replace(info, draining=info.draining or info.name in draining)
    return found


# ---- asking


async def _ask_nodes(
    cluster: Cluster, registered: Mapping[NodeId, NodeInfo]
) -> dict[NodeId, Facts]:
    async def ask(node: NodeId) -> Facts:
        if cluster.nodes is None:
            return {"state": "not asked"}
        client = cluster.nodes.client(node)
        if client is None:
            return {"state": "gone"}
        try:
            async with asyncio.timeout(cluster.timeout):
                return {"state": "up", **await client.status()}
        except (PenstockError, TimeoutError) as error:
            return {"state": "silent", "problem": str(error) or "no answer"}

    answers = await asyncio.gather(*map(ask, registered))
    return dict(zip(registered, answers, strict=True))


async def _ask_proxies(
    cluster: Cluster, proxies: Iterable[ProxyInfo], owners: Mapping[str, Facts]
) -> dict[str, Facts]:
    async def ask(proxy: ProxyInfo) -> Facts:
        if cluster.token is None:
            return {"state": "not asked"}
        try:
            async with asyncio.timeout(cluster.timeout):
                found: Facts = {"state": "up", **await _metrics(cluster, proxy)}
                # Only an owner is asked more: to say hello for a log would open it.
                owned = [log for log, owner in owners.items() if owner["id"] == proxy.id]
                return found | (await _status(cluster, proxy, owned[0]) if owned else {})
        except (PenstockError, OSError, TimeoutError) as error:
            return {"state": "silent", "problem": str(error) or "no answer"}

    wanted = list(proxies)
    answers = await asyncio.gather(*map(ask, wanted))
    return {proxy.id: answer for proxy, answer in zip(wanted, answers, strict=True)}


def _check_way(cluster: Cluster, proxy: ProxyInfo) -> None:
    if proxy.tls and cluster.tls is None:
        raise Unavailable("it speaks TLS: give --tls-ca")
    if not proxy.tls and not is_loopback(proxy.host):
        raise Unavailable("it does not speak TLS: the token must not travel openly")


async def _metrics(cluster: Cluster, proxy: ProxyInfo) -> dict[str, int]:
    _check_way(cluster, proxy)
    text = await ask_metrics(
        proxy.host,
        proxy.port,
        token=cluster.token or "",
        tls=cluster.tls if proxy.tls else None,
        timeout=cluster.timeout,
    )
    return {name: int(float(value)) for name, value in _METRIC.findall(text)}


async def _status(cluster: Cluster, proxy: ProxyInfo, log: str) -> Facts:
    connection, _ = await open_connection(
        proxy.host,
        proxy.port,
        token=cluster.token or "",
        name="penstock cluster status",
        session=secrets.token_hex(8),
        tls=cluster.tls if proxy.tls else None,
        timeout=cluster.timeout,
        on_delivery=lambda message, body: None,
        log=log,
        reads=True,
    )
    try:
        message, _ = await connection.ask(2, m.GetStatus())
        if not isinstance(message, m.Status):
            raise Unavailable("it answered something else")
        found: Facts = json.loads(message.json)
        return found
    finally:
        connection.close()


# ---- in words


def _nodes(
    registered: Mapping[NodeId, NodeInfo],
    said: Mapping[NodeId, Facts],
    manifests: Mapping[str, LogManifest],
) -> list[Facts]:
    segments, size = _shares(manifests)
    machines = {info.name for info in registered.values()}
    found = []
    for node in sorted({*registered, *segments}):
        info, answer = registered.get(node), said.get(node, {})
        state = answer.get("state", "missing")
        if info is None and machine_of(node) in machines:
            state = "replaced by a new disk"
        found.append(
            {
                "id": node,
                "name": machine_of(node),
                "state": "draining" if info and info.draining and state == "up" else state,
                "draining": bool(info and info.draining),
                "region": info and info.region,
                "rack": info and info.rack,
                "address": info and f"{info.host}:{info.port}",
                "tls": info and info.tls,
                "segments": segments[node],
                "bytes": size[node],
                "unflushed_bytes": answer.get("unflushed_bytes"),
                "damaged_blocks": answer.get("damaged_blocks"),
                "problems": answer.get("problems", []),
                "connections": answer.get("connections"),
                "uptime_seconds": answer.get("uptime_seconds"),
                "problem": answer.get("problem"),
            }
        )
    return found


def _shares(manifests: Mapping[str, LogManifest]) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """Segments of each node, and about how many bytes of records; open segments have no size."""
    segments: Counter[NodeId] = Counter()
    size: Counter[NodeId] = Counter()
    for manifest in manifests.values():
        for segment in manifest.segments:
            members: Counter[NodeId] = Counter()
            for blocks, nodes in _stretches(segment):
                share = segment.bytes * blocks * segment.write_quorum // len(nodes)
                for node in nodes:
                    members[node] += share // max(segment.blocks, 1)
            for node, count in members.items():
                segments[node] += 1
                size[node] += count
    return segments, size


def _stretches(segment: Segment) -> list[tuple[int, tuple[NodeId, ...]]]:
    """How many blocks each ensemble has."""
    starts = [int(ensemble.first_block) for ensemble in segment.ensembles]
    ends = [*starts[1:], max(segment.blocks, starts[-1])]
    return [
        (max(end - start, 0), ensemble.nodes)
        for start, end, ensemble in zip(starts, ends, segment.ensembles, strict=True)
    ]


def _proxy(proxy: ProxyInfo, answer: Facts, owners: Mapping[str, Facts]) -> Facts:
    return {
        "id": proxy.id,
        "address": proxy.address,
        "tls": proxy.tls,
        "role": proxy.role,
        "region": proxy.region,
        "rack": proxy.rack,
        "state": answer["state"],
        "owns": sorted(log for log, owner in owners.items() if owner["id"] == proxy.id),
        "logs_followed": answer.get("logs_followed"),
        "connections": answer.get("connections"),
        "readers": answer.get("subscriptions"),
        "readers_behind": answer.get("subscriptions_behind"),
        "replication": answer.get("replication"),
        "problem": answer.get("problem"),
    }


def _log(
    name: str,
    manifest: LogManifest,
    owner: Facts | None,
    said: Mapping[str, Facts],
    audit: Facts | None,
    registered: Mapping[NodeId, NodeInfo],
) -> Facts:
    answer: Facts = said.get(owner["id"], {}).get("owned", {}).get(name, {}) if owner else {}
    lacking = (audit or {}).get("under_replicated")
    newest = manifest.segments[-1] if manifest.segments else None
    members = [n for s in manifest.segments for e in s.ensembles for n in e.nodes]
    return {
        "log": name,
        "log_id": manifest.log_id.hex(),
        "owner": None if owner is None else f"{owner['host']}:{owner['port']}",
        "owner_id": None if owner is None else owner["id"],
        "epoch": manifest.epoch,
        "tail": answer.get("tail"),
        "trim_point": manifest.trim_point,
        "segments_sealed": sum(segment.sealed for segment in manifest.segments),
        "segments_open": len(manifest.open_segments),
        "bytes_sealed": sum(s.bytes for s in manifest.segments if s.sealed),
        "ensemble": len(newest.ensembles[-1].nodes) if newest else None,
        "write_quorum": newest.write_quorum if newest else None,
        "ack_quorum": newest.ack_quorum if newest else None,
        "readers": answer.get("subscriptions"),
        "lost_nodes": answer.get("lost_nodes"),
        "stalled": answer.get("stalled"),
        "missing_nodes": sorted({node for node in members if node not in registered}),
        "under_replicated_blocks": None if lacking is None else lacking.get(name, 0),
        "open_lacking_blocks": answer.get("lacking_blocks"),
        "lacking_blocks": _lacking(lacking, name, answer),
    }


def _lacking(sealed: Mapping[str, int] | None, name: str, answer: Facts) -> int | None:
    """Blocks that lack a copy, sealed or not; None if there may be some that nobody counted."""
    counted = (sealed or {}).get(name, 0) + (answer.get("lacking_blocks") or 0)
    is_all = sealed is not None and answer.get("is_audited", False)
    return counted if counted or is_all else None


def _problems(known: Facts) -> list[str]:
    problems = []
    for node in known["nodes"]:
        if node["state"] in ("missing", "replaced by a new disk"):
            problems.append(
                f"node {node['id']} is {node['state']}: {node['segments']} segments name it"
            )
        elif node["state"] == "silent":
            problems.append(f"node {node['id']} does not answer: {node['problem']}")
        if node["damaged_blocks"]:
            problems.append(
                f"node {node['id']} has found {node['damaged_blocks']} damaged blocks since its "
                "start: look at its disk"
            )
        problems += [f"node {node['id']}, {words}" for words in node["problems"]]
    for proxy in known["proxies"]:
        if proxy["state"] == "silent":
            problems.append(f"proxy {proxy['address']} does not answer: {proxy['problem']}")
    if not any(proxy["role"] == "write" for proxy in known["proxies"]):
        problems.append("no write proxy runs: nothing can be appended or repaired")
    for log in known["logs"]:
        if log["stalled"]:
            problems.append(f"log {log['log']}: appends wait: {log['stalled']}")
        if log["lacking_blocks"]:
            problems.append(f"log {log['log']}: {log['lacking_blocks']} blocks lack a copy")
    problems += [
        f"cannot be repaired now: {words}" for words in (known["audit"] or {}).get("stuck", ())
    ]
    return problems
