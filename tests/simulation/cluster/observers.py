"""What the simulator looks at inside the shipped code, for as long as a world runs.

Each function is called as before, and the world is told; but a node may refuse blocks as one of an
older version would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import (
    DeadlineExceeded,
    Fenced,
    Overloaded,
    PenstockError,
    Unavailable,
    Unknown,
)
from penstock.log.client.appender_core import AppenderCore
from penstock.log.core.tails import Deliver
from penstock.log.node import server as node_server
from penstock.log.node.journal import RecoveredJournal
from penstock.log.node.requests import NodeRequests
from penstock.log.node.server import NodeServer
from penstock.log.pairing import PairedConnection
from penstock.log.proxy.auditor import Auditor
from penstock.log.proxy.claims import Claims
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.records import Appended
from penstock.log.replication.node_core import NodeCore, NodeWrite
from penstock.log.serving.log_requests import LogRequests
from penstock.log.serving.served_log import Outcome, SequencedLog
from penstock.log.storage.disk import Disk
from penstock.wire.frames import Frame
from simulation.kernel import Process
from simulation.kernel.shipped import Tap, asked, causes_of, overheard, tapped, told

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

#: What may end a log without being a bug.
_FORESEEN = (Fenced, Unavailable, DeadlineExceeded, Overloaded, Unknown)
#: How peers that say nothing any more are left: words of the error, and what it counts as.
_SILENCES = {
    "the node has said nothing": "silent node given up",
    "the server has not answered": "silent proxy left",
}


def _machine() -> str:
    """Where we are."""
    return cast(Process, asyncio.get_running_loop()).machine


@contextmanager
def observed(world: ClusterWorld) -> Iterator[None]:
    """Tell the world of what becomes durable, is answered and delivered, and of errors in logs."""

    def written(core: NodeCore, write: NodeWrite) -> None:
        world.wrote(_machine(), write.records)

    def recovered(journal: RecoveredJournal, disk: Disk) -> None:
        world.journal_recovered(_machine(), journal)

    def answered(log: SequencedLog, reply: object, outcome: Outcome) -> None:
        if isinstance(outcome, Appended):
            world.acknowledged(outcome)

    def delivered(requests: LogRequests, number: int, effect: Deliver) -> None:
        world.delivered(effect)

    def aborted(connection: PairedConnection[Any], error: PenstockError) -> None:
        for words, what in _SILENCES.items():
            if words in str(error):
                world.count(what)

    def asked_for_room(has_room: bool, *_: object) -> None:
        if not has_room:
            world.count("block waited for room")

    taps: list[tuple[Any, str, Tap]] = [
        (NodeCore, "written", asked(written)),
        (NodeRequests, "_add", _refusals(world)),
        (NodeServer, "thinned", asked(lambda node: world.count("crowded node read on"))),
        (PairedConnection, "_has_room", told(asked_for_room)),
        (node_server, "recover_journal", told(recovered)),
        (SequencedLog, "_tell", asked(answered)),
        (LogRequests, "deliver", asked(delivered)),
        (PairedConnection, "abort", asked(aborted)),
        (AppenderCore, "take_sends", told(lambda _, core: core.check())),
        (Claims, "opened", told(lambda _, claims, *values: claims.check())),
        (Auditor, "_repair", asked(lambda *_: world.count("repair begun"))),
        (FollowedLog, "start", asked(lambda log: world.count("log followed"))),
    ]
    with tapped(taps), overheard(world.scheduler, _is_foreseen):
        yield


def _refusals(world: ClusterWorld) -> Tap:
    """A node of an older version refuses a block when it holds too many; one at least it takes."""
    limit = world.swarm.refuse_bytes

    def tap(add: Callable[..., None]) -> Callable[..., None]:
        def tapped(requests: NodeRequests, frame: Frame) -> None:
            if limit and requests._listener.inflight_bytes > limit:
                world.count("node refused a block")
                error = Overloaded("too many bytes of unanswered blocks")
                requests._connection.fail(frame.request, error)
            else:
                add(requests, frame)

        return tapped

    return tap


def _is_foreseen(record: logging.LogRecord) -> bool:
    """Of what is said of logs, all that faults explain; of nodes and their disks, anything."""
    is_of_a_log = record.name.endswith((".proxy.server", ".proxy.logs", ".served_log"))
    return not is_of_a_log or any(isinstance(cause, _FORESEEN) for cause in causes_of(record))
