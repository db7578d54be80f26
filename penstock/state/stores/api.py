"""What every store of checkpoints does: put at a cut, load eagerly, find lazily, sweep.

A task's state at a marker is the fold of all its changes up to there. A store is told of it by
increments: the merged changes of (base, cut], where cut is the LSN of a durable marker of the task
and base the cut of what they go on from (none: they make all). What `put` returns is a reference,
a JSON object that the task's next markers carry; whoever resumes gives it back to `load`.

    files      a chain of increment files and a manifest of them        checkpoint_store.py
    rows       the rows themselves by key, changed in place             one of the other stores

A store of files keeps what each reference that is still named stands for. A store of rows has one
state per task, the newest: a reference then stands for what is there now, which may be newer than
what it says. That is right too, since every cut is a durable marker: `Loaded.cut` says from where
the changes of the log are to be followed.

Laws (for every store, and after a kill at any step):
1. `put` is durable when it returns, and atomic: before that, what was there before is there.
2. `put` is refused with StaleCut unless the store's cut is the increment's base and older than its
   own cut: no change is applied twice, none is left out, and a zombie turns nothing back.
3. `load` gives changes that make the fold at `Loaded.cut`, restricted to the virtual nodes asked
   for and what is the task's, or raises Damaged or Unavailable: never other rows.
4. `find` of keys gives what `load` gives of these keys.
5. `sweep` deletes nothing that one of the kept references needs, and nothing because a listing
   lacks something (R38, R40).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import Refused
from penstock.state.api import Change
from penstock.state.parts import Parts
from penstock.state.unread import Unread

#: What a marker names: a JSON object with at least `marker_lsn` (the cut), `instance`, `bytes`, and
#: of stores of rows `store`, their scheme. Files of increments have what CheckpointRef says.
Reference: TypeAlias = Mapping[str, Any]


class StaleCut(Refused):
    """A put that does not go on from what the store has. `cut` is what it has, None: nothing."""

    def __init__(self, message: str, cut: int | None) -> None:
        super().__init__(message)
        self.cut = cut


@dataclass(frozen=True, slots=True)
class Increment:
    """The changes of (base, cut] merged: what `state/fold.py` makes of them.

    `changes` are in the order in which they are to be applied: of each part, `set`, or `delete`
    before `put`, or `evict` before `add`, each at most once, except that rows may be cut into
    several changes of one kind. No key is both deleted and put, or twice in either; added rows that
    cancel each other are gone. Rows are sorted by virtual node and then by hash of their key
    (keys.hash_columns of the key columns); rows of one key are in the order in which they came.
    """

    task: str
    #: Where it goes on from; None: from nothing, so it has neither `delete` nor `evict`.
    base_lsn: int | None
    #: The LSN of a durable marker of the task.
    marker_lsn: int
    instance: int
    #: Of the plan whose operators kept this.
    fingerprint: str
    #: All parts of the state, also those without a change.
    parts: Parts
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state, or what some virtual nodes have of it."""

    #: The marker whose state it is: that of the reference, or a later one.
    cut: int
    #: To be applied in order.
    changes: Iterable[Change]
    #: Tables whose rows were left in the files, if that was asked for.
    unread: Mapping[str, Unread] = field(default_factory=dict)


class StateStore(Protocol):
    """Of one log; blocking, and used by several threads at once, but by one at a time per task."""

    def put(self, increment: Increment, base: Reference | None) -> Reference:
        """Make the state at increment.marker_lsn durable. `base` is what it goes on from.

        Raises StaleCut, or Unavailable if it is not known to be there; then the log is read again
        from what the store has.
        """

    def load(self, reference: Reference, nodes: Collection[int] | None = None) -> Loaded:
        """All of it, or what these virtual nodes have and what is the task's.

        Raises Damaged if it is not there any more (MissingFile) or not what was put, Unavailable
        if that cannot be known.
        """

    def find(self, reference: Reference, part: str, keys: Sequence[pa.Array]) -> Loaded:
        """What the state has of these keys of a table or row set: `put` or `add`, or nothing."""

    def sweep(self, task: str, keep: Collection[Reference]) -> list[str]:
        """Delete what none of these references needs, which a committed marker names.

        Returns the names of what was deleted, sorted. If it cannot be told what is needed, nothing
        is deleted.
        """

    def close(self) -> None:
        """Let go of what is open, once what is under way is done; later calls are refused."""
