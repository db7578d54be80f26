"""Checkpoints of one instance of a task, written beside its loops.

A checkpoint is due at a marker (checkpoints.py). What changed since the one before is merged and
put into the store, in a thread, from payloads that the task has encoded anyway (trail.py), or from
the log where these are too many; so the task does not stop for it. While one is written, only the
newest marker is remembered at which one is due: the next goes on from what was written to there.

The state itself is frozen and written as a whole where no chain of increments leads to it: by a
successor, whose state others have made, and where what it would go on from cannot be read.

Law (R35, R37): what a checkpoint at a marker holds is what markers up to this one have committed.
It is told to the core once it is durable, and not before. Whatever fails here, the task goes on:
its changes are in the log, and the next checkpoint has them too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import BadFormat, Damaged, PenstockError, Trimmed
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.checkpoint_counts import CheckpointCounts
from penstock.runtime.commit import Commit
from penstock.runtime.host import Host
from penstock.runtime.task_core import TaskCore
from penstock.runtime.trail import BEGINNING, Trail
from penstock.state.api import Change
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.fold import merge_changes
from penstock.state.parts import Parts
from penstock.state.stores.api import Increment, Reference, StaleCut, StateStore

logger = logging.getLogger(__name__)

#: Payloads that are merged at once; what they become has each key once.
_MERGED_BYTES: Final = 16 * MIB


class Owner(Protocol):
    """What is asked of the task (task.py)."""

    @property
    def log(self) -> AsyncLog: ...

    @property
    def task(self) -> TaskId: ...

    @property
    def instance(self) -> int: ...

    @property
    def core(self) -> TaskCore: ...

    @property
    def host(self) -> Host: ...

    @property
    def checkpoint_counts(self) -> CheckpointCounts: ...

    @property
    def last_marker(self) -> Marker | None: ...

    async def write_state(self, commit: Commit, lsn: Lsn) -> CheckpointRef: ...


@dataclass(frozen=True, slots=True)
class _Due:
    """A marker at which there is to be a checkpoint."""

    commit: Commit
    lsn: Lsn


class Checkpointer:
    """Made with the instance; told of every commit once it is visible."""

    def __init__(
        self, owner: Owner, store: StateStore, fingerprint: str, on_named: Callable[[], None]
    ) -> None:
        """`on_named`: the core has something to say in its next marker."""
        self._owner = owner
        self._store = store
        self._fingerprint = fingerprint
        self._on_named = on_named
        self._trail = Trail(BEGINNING)
        self._due: _Due | None = None
        self._writing: asyncio.Task[None] | None = None

    def begin(self, last_lsn: Lsn | None) -> None:
        """The task goes on after its marker there; None: it has none."""
        self._trail = Trail(BEGINNING if last_lsn is None else last_lsn)

    def committed(self, commit: Commit, lsn: Lsn) -> None:
        """A commit is visible; its marker stands at `lsn`."""
        self._trail.add(lsn, [entry.payload for entry in commit.changes])
        if not commit.is_checkpoint:
            return
        is_writing = self.is_writing
        if is_writing and (commit.frozen is not None or self._holds_whole):
            self._owner.core.checkpoints.missed()  # a store that is slow holds one state, not many
            return
        self._due = _Due(commit, lsn)
        if not is_writing:
            self._writing = asyncio.ensure_future(self._write_all())

    @property
    def is_writing(self) -> bool:
        """Whether one is being made."""
        return self._writing is not None and not self._writing.done()

    @property
    def _holds_whole(self) -> bool:
        return self._due is not None and self._due.commit.frozen is not None

    def close(self) -> None:
        """What is on its way will not be named."""
        self._due = None
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    async def _write_all(self) -> None:
        while self._due is not None:
            due, self._due = self._due, None
            await self.write(due.commit, due.lsn)

    async def write(self, commit: Commit, lsn: Lsn) -> Reference | None:
        """Make the state at a marker durable; the next marker then names it."""
        owner, counts = self._owner, self._owner.checkpoint_counts
        began = owner.host.monotonic()
        try:
            reference = await self._make(commit, lsn)
        except Exception as error:
            # The changes are in the log: the task goes on, and tries again after the next interval.
            logger.warning("task=%s checkpoint not written cause=%r", owner.task, error)
            counts.failed(error)
            owner.core.checkpoints.missed()
            return None
        size, ms = int(reference["bytes"]), (owner.host.monotonic() - began) * 1000
        counts.wrote(owner.host.now_ms(), size, ms)
        owner.core.checkpointed(dict(reference))
        self._trail.forget(lsn)
        self._on_named()
        # What a durable marker names must stay, whatever was written since: we may be a zombie.
        named = () if owner.last_marker is None else owner.last_marker.checkpoints
        if len(named) == 2:
            try:
                await asyncio.to_thread(self._store.sweep, str(owner.task), named)
            except (PenstockError, OSError) as error:
                logger.warning("task=%s nothing is swept cause=%s", owner.task, error)
        return reference

    async def _make(self, commit: Commit, lsn: Lsn) -> Reference:
        if commit.frozen is not None:
            return await self._write_frozen(commit, commit.frozen, lsn)
        named = self._owner.core.checkpoints.named
        lost: PenstockError | None = None
        for base in named or (None,):
            try:
                return await self._put(base, lsn)
            except (Damaged, Trimmed) as error:
                logger.warning("task=%s checkpoint unusable cause=%s", self._owner.task, error)
                lost = error
        self._owner.core.checkpoints.lost()
        assert lost is not None
        raise lost

    async def _write_frozen(self, commit: Commit, frozen: Sequence[Change], lsn: Lsn) -> Reference:
        """A state that was not made by our changes alone, or that nothing can be added to."""
        owner = self._owner
        if isinstance(self._store, CheckpointStore):
            return (await owner.write_state(commit, lsn)).to_json()
        parts = owner.core.state.parts()
        whole = Increment(
            str(owner.task), None, lsn, owner.instance, self._fingerprint, parts, frozen
        )
        return await asyncio.to_thread(self._store.put, whole, None)

    async def _put(self, base: Reference | None, lsn: Lsn) -> Reference:
        base_lsn = None if base is None else int(base["marker_lsn"])
        try:
            return await self._put_from(base, base_lsn, lsn)
        except StaleCut as stale:
            # A store of rows may be ahead of what is named: every cut is a durable marker.
            if stale.cut is None and base_lsn is not None:
                raise BadFormat(f"the store has lost the checkpoint at {base_lsn}") from stale
            if stale.cut is None or stale.cut >= lsn or stale.cut == base_lsn:
                raise
            try:
                return await self._put_from(base, stale.cut, lsn)
            except Trimmed as error:
                # It was set back, to where the log does not begin any more.
                raise BadFormat(f"changes after {stale.cut} are trimmed") from error

    async def _put_from(self, base: Reference | None, base_lsn: int | None, lsn: Lsn) -> Reference:
        owner, parts = self._owner, self._owner.core.state.parts()
        is_whole = base_lsn is None
        held: list[Change] = []
        async for payloads in self._payloads(base_lsn, lsn):
            held = await asyncio.to_thread(_merge, held, payloads, parts, is_whole=is_whole)
        increment = Increment(
            str(owner.task), base_lsn, lsn, owner.instance, self._fingerprint, parts, held
        )
        return await asyncio.to_thread(self._store.put, increment, base)

    async def _payloads(self, base_lsn: int | None, lsn: Lsn) -> AsyncIterator[Sequence[bytes]]:
        """All that markers after the one and up to the other have committed."""
        after = BEGINNING if base_lsn is None else base_lsn
        held = self._trail.between(after, lsn)
        if held is not None:
            yield held
            return
        owner, fold = self._owner, ChangeFold()
        tags = (owner.task.marker_tag, owner.task.change_tag)
        start = (await owner.log.bounds()).trim_point if base_lsn is None else Lsn(base_lsn + 1)
        payloads, size = list[bytes](), 0
        is_first = base_lsn is None
        async with owner.log.tail(tags, start=start, end=Lsn(lsn + 1)) as reader:
            async for batch in reader:
                for entry in batch.entries:
                    if is_first and entry.kind is Kind.MARKER:
                        _check_first(decode_marker(entry.payload))
                        is_first = False
                    counted = [change.payload for change in fold.step(entry)]
                    payloads += counted
                    size += sum(map(len, counted))
                if size > _MERGED_BYTES:
                    yield payloads
                    payloads, size = [], 0
        yield payloads


def _check_first(marker: Marker) -> None:
    """What is made of changes alone must have all of them."""
    if marker.number != 0 and marker.has_state:
        raise Trimmed(f"the changes before marker {marker.number} of {marker.task} were trimmed")
    if marker.begins_a_task:
        raise Trimmed(f"what {marker.task} began with was left by others")


def _merge(
    held: Sequence[Change], payloads: Sequence[bytes], parts: Parts, *, is_whole: bool
) -> list[Change]:
    """What is held, and then the changes of payloads, some of them at once."""
    changes, size = list(held), 0
    for payload in payloads:
        changes += decode_changes(payload)
        size += len(payload)
        if size > _MERGED_BYTES:
            changes, size = merge_changes(changes, parts, is_whole=is_whole), 0
    return merge_changes(changes, parts, is_whole=is_whole)
