"""What the simulator looks at inside the shipped code, for as long as a world runs.

Nothing is changed by it: each function is called as before, and the world is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import (
    DeadlineExceeded,
    Fenced,
    Overloaded,
    PenstockError,
    Unavailable,
    Unknown,
)
from penstock.log.core.tails import Deliver
from penstock.log.node import server as node_server
from penstock.log.node.journal import RecoveredJournal, recover_journal
from penstock.log.pairing import PairedConnection
from penstock.log.proxy.auditor import Auditor
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.records import Appended
from penstock.log.replication.node_core import NodeCore, Write
from penstock.log.serving.log_requests import LogRequests
from penstock.log.serving.served_log import Outcome, SequencedLog
from penstock.log.storage.disk import Disk
from simulation.kernel import Process

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

    def written(core: NodeCore, write: Write) -> None:
        world.wrote(_machine(), write.records)

    def recovered(journal: RecoveredJournal, disk: Disk) -> None:
        world.journal_recovered(_machine(), journal)

    def told(log: SequencedLog, reply: object, outcome: Outcome) -> None:
        if isinstance(outcome, Appended):
            world.acknowledged(outcome)

    def delivered(requests: LogRequests, number: int, effect: Deliver) -> None:
        world.delivered(effect)

    def aborted(connection: PairedConnection[Any], error: PenstockError) -> None:
        for words, what in _SILENCES.items():
            if words in str(error):
                world.count(what)

    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (NodeCore, "written", _before(NodeCore.written, written)),
        (node_server, "recover_journal", _after(recover_journal, recovered)),
        (SequencedLog, "_tell", _before(SequencedLog._tell, told)),
        (LogRequests, "deliver", _before(LogRequests.deliver, delivered)),
        (PairedConnection, "abort", _before(PairedConnection.abort, aborted)),
        (Auditor, "_repair", _before(Auditor._repair, lambda *_: world.count("repair begun"))),
        (
            FollowedLog,
            "start",
            _before(FollowedLog.start, lambda log: world.count("log followed")),
        ),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, function in places:
        setattr(owner, name, function)
    handler = _Errors(world)
    logger = logging.getLogger("penstock.log")
    propagates, level = logger.propagate, logging.root.manager.disable
    logger.propagate = False
    logger.addHandler(handler)
    logging.disable(logging.WARNING)  # of broken nodes there are thousands
    try:
        yield
    finally:
        logging.disable(level)
        logger.removeHandler(handler)
        logger.propagate = propagates
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def _before(function: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        tell(*arguments, **options)
        return function(*arguments, **options)

    return call


def _after(function: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """`tell` is told what came of it, too."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        outcome = function(*arguments, **options)
        tell(outcome, *arguments, **options)
        return outcome

    return call


class _Errors(logging.Handler):
    """Errors that a proxy reports of its logs: what is not foreseen is a bug."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        is_of_a_log = record.name.endswith((".proxy.server", ".proxy.logs", ".served_log"))
        if is_of_a_log and not isinstance(error, _FORESEEN):
            self._world.fail(f"{_machine()}: {record.getMessage()}", error)
