"""What an owner does when a storage node of its log is being emptied, or does not come back.

    open segment    another node takes the place in the newest ensemble (open_segment.py); what
                    lies on the node from before can be copied once the segment is closed: the log
                    is opened again, which closes it
    sealed ones     the auditor copies them; here it is only noticed where they have gone

Law: nothing is given up for it. Where no other node can take the place, all stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.ids import NodeId
from penstock.log.meta.api import MetadataStore
from penstock.log.proxy.auditor import RollCall
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.replication.manifest import LogManifest, decode_log_manifest
from penstock.log.replication.node_api import Nodes


class Evacuation:
    """For all logs of one proxy."""

    def __init__(
        self, store: Callable[[], MetadataStore], nodes: Nodes, roll_call: RollCall
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._roll_call = roll_call
        #: The nodes of all sealed segments, of the manifest that was looked at last.
        self._members: dict[str, tuple[LogManifest, frozenset[NodeId]]] = {}
        #: Which version was taken over, and what came of it: the log itself may put back its own.
        self._taken: dict[str, tuple[int, LogManifest]] = {}

    async def attend(self, log: OwnedLog) -> bool:
        """One look at a log. True: it should be opened again, to close its open segment."""
        members = (n for e in log.segment.segment.ensembles for n in e.nodes)
        self._roll_call.call(self._nodes.alive(), members)
        await self._follow_moves(log)
        return self._leave_nodes(log)

    def _leave_nodes(self, log: OwnedLog) -> bool:
        *former, newest = log.segment.segment.ensembles
        is_leaving = self._roll_call.is_leaving
        leaving = [node for node in newest.nodes if is_leaving(node)]
        for node in leaving:
            log.segment.move_off(node)
        return not leaving and any(is_leaving(n) for e in former for n in e.nodes)

    async def _follow_moves(self, log: OwnedLog) -> None:
        """Learn where the auditor has put copies, if members of sealed segments are not here."""
        alive = self._nodes.alive()
        if all(n in alive and not alive[n].draining for n in self._sealed_members(log)):
            return
        found = await self._store().get(manifest_path(log.view.log))
        known = log.manifest
        version, taken = self._taken.get(log.view.log, (-1, None))
        if found is None or (found.version == version and taken is log.view.manifest):
            return
        # A long log's manifest takes a while to read: that is for a thread.
        newer = await asyncio.to_thread(decode_log_manifest, found.data)
        moved = await asyncio.to_thread(with_moves, known, newer)
        if log.manifest is known:  # else it is out of date, and the next look is soon
            log.view.manifest = moved
            self._taken[log.view.log] = (found.version, moved)

    def _sealed_members(self, log: OwnedLog) -> frozenset[NodeId]:
        """They are counted once per manifest: a long log has many segments."""
        manifest = log.view.manifest
        known = self._members.get(log.view.log)
        if known is None or known[0] is not manifest:
            found = frozenset(
                node
                for segment in manifest.segments
                if segment.sealed
                for ensemble in segment.ensembles
                for node in ensemble.nodes
            )
            known = self._members[log.view.log] = (manifest, found)
        return known[1]


def with_moves(known: LogManifest, newer: LogManifest) -> LogManifest:
    """The manifest that we know, with the places of sealed segments as another one has them.

    Nothing else is taken over: that one may be older or newer than what we have done ourselves.
    """
    if known.log_id != newer.log_id:
        return known
    places = {segment.id: segment.ensembles for segment in newer.segments if segment.sealed}
    segments = tuple(
        replace(segment, ensembles=places.get(segment.id, segment.ensembles))
        if segment.sealed
        else segment
        for segment in known.segments
    )
    return replace(known, segments=segments)
