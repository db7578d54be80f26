"""What an owner does when a storage node of its log is being emptied, or does not come back.

    open segment    another node takes the place in the newest ensemble (open_segment.py); what
                    lies on the node from before can be copied once the segment is closed: the log
                    is opened again, which closes it
    sealed ones     the auditor copies them; here it is only noticed where they have gone

Law: nothing is given up for it. Where no other node can take the place, all stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.ids import NodeId
from penstock.log.meta.api import MetadataStore
from penstock.log.proxy.auditor import RollCall
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.replication.node_api import NodeInfo


def leave_nodes(log: OwnedLog, roll_call: RollCall) -> bool:
    """Move the open segment off leaving nodes; True: the rest needs the segment to be closed."""
    *former, newest = log.segment.segment.ensembles
    leaving = [node for node in newest.nodes if roll_call.is_leaving(node)]
    for node in leaving:
        log.segment.move_off(node)
    return not leaving and any(
        roll_call.is_leaving(node) for ensemble in former for node in ensemble.nodes
    )


async def follow_moves(
    store: MetadataStore, log: OwnedLog, alive: Mapping[NodeId, NodeInfo]
) -> None:
    """Learn where the auditor has put copies of sealed segments, if some members are not here."""
    if all(
        node in alive and not alive[node].draining
        for segment in log.view.manifest.segments
        if segment.sealed
        for ensemble in segment.ensembles
        for node in ensemble.nodes
    ):
        return
    found = await store.get(manifest_path(log.view.log))
    if found is not None:
        log.view.manifest = with_moves(log.manifest, decode_log_manifest(found.data))


def with_moves(known: LogManifest, newer: LogManifest) -> LogManifest:
    """The manifest that we know, with the places of sealed segments as another one has them.

    Nothing else is taken over: that one may be older or newer than what we have done ourselves.
    """
    if known.log_id != newer.log_id:
        return known
    segments = []
    for segment in known.segments:
        other = newer.find(segment.id)
        if other is not None and other.sealed and segment.sealed:
            segment = replace(segment, ensembles=other.ensembles)
        segments.append(segment)
    return replace(known, segments=tuple(segments))
