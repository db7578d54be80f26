"""What a task of the next layout begins with, made ready while its predecessors still run.

Who will have which virtual nodes is known before anybody ends (succession.py). So whoever is to run
a successor follows all of its predecessors (standby.py), and what they commit goes straight into
the state that the successor begins with: of the successor's virtual nodes, and for each predecessor
of those that it has, so that what one of them evicts strikes no other's rows. When the layout
changes nothing is left to be put together, however large the state is. Of single values, what each
has left is kept, and the successor's follow from all of them at the end (inheritance.py).

Law (I11, R33): a successor begins at copies only if each of its predecessors, as its first marker
names them, was followed up to its last marker. Else it builds its state from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry
from penstock.protocol.markers import Origin, decode_marker
from penstock.protocol.names import TaskId, parse_task
from penstock.runtime.inheritance import Left, Predecessor, decided
from penstock.runtime.standby import StateCopy
from penstock.runtime.task_core import TaskCore
from penstock.state.api import Change
from penstock.state.stores.api import StateStore


class Bequest(Predecessor):
    """A predecessor that runs: what the heir needs of its state goes into the heir's."""

    def __init__(self, heir: TaskCore, origin: Origin) -> None:
        super().__init__(heir.spec, origin, heir.spec.owned(heir.task))
        self._heir = heir
        self.left = Left(origin.stages)

    def restored(self, changes: Sequence[Change], size: int) -> None:
        taken = [self.left.take(change, self._heir.stages) for change in changes]
        kept = [change for change in taken if change is not None]
        self._heir.state.apply(kept, self._nodes)
        # It is in no checkpoint of the heir's yet.
        self._heir.restored((), sum(change.rows.nbytes for change in kept))


class SuccessorCopy:
    """The core of a task that has not begun, and copies of what its predecessors have."""

    def __init__(
        self,
        log: AsyncLog,
        core: TaskCore,
        store: StateStore | None,
        origins: Sequence[Origin],
    ) -> None:
        """`origins`: its predecessors, wherever they stand by now."""
        self.core = core
        self._origins = {_who(origin) for origin in origins}
        self._bequests = [Bequest(core, origin) for origin in origins]
        ancestors, turn = dict[str, Predecessor](), asyncio.Lock()
        self.parts = [StateCopy(log, one, store, ancestors, turn) for one in self._bequests]

    def goals(self, last: Entry) -> dict[TaskId, Lsn] | None:
        marker = decode_marker(last.payload)
        if not marker.begins_a_task:
            return None  # it has run since, and its own changes are not here
        if {_who(origin) for origin in marker.origins} != self._origins:
            return None  # these are copies for another layout
        return {parse_task(origin.task): origin.lsn for origin in marker.origins}

    def finish(self, last: Entry) -> None:
        origins = decode_marker(last.payload).origins
        kept = {parse_task(one.task) for one in origins if one.needs_from is not None}
        left = [one.left for one in self._bequests if one.task in kept]
        self.core.restored([*decided(self.core.state, self.core.stages, left)], 0)


def _who(origin: Origin) -> tuple[str, tuple[int, ...], frozenset[int]]:
    return origin.task, origin.stages, origin.nodes
