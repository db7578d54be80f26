"""No commit protocol: what guarantees cost is measured by it.

A task appends its data and does not look back; a failure loses input or takes it in again. A marker
is written only to tell the next stage the time, or because somebody waits for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.ids import Lsn
from penstock.log.client.packing import pack
from penstock.log.records import Appended, NewEntry
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import CommitProtocol, Committer, CommittingTask
from penstock.runtime.spec import Settings
from penstock_bench.protocols.shared import refuse_dead_letters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unsafe(CommitProtocol):
    name: ClassVar[str] = "unsafe"
    shares_sources: ClassVar[bool] = False
    logs_changes: ClassVar[bool] = False

    def check(self, settings: Settings) -> None:
        refuse_dead_letters(self, settings)
        logger.warning("a query runs without guarantees: nothing survives a failure")

    def committer(self, task: CommittingTask) -> Committer:
        return UnsafeCommitter(task)


class UnsafeCommitter(Committer):
    def __init__(self, task: CommittingTask) -> None:
        self._task = task

    async def commit(self, commit: Commit) -> None:
        groups = groups_of(commit)
        for number, group in enumerate(groups, 1):
            future: Any = self._task.appender.append_nowait(group)
            if number == len(groups):
                future.add_done_callback(lambda done: self._appended(commit, done))

    def _appended(self, commit: Commit, done: Any) -> None:
        if not done.cancelled() and done.exception() is None:
            appended: Appended = done.result()
            self._task.visible(commit, Lsn(appended.first_lsn + appended.count - 1))


def groups_of(commit: Commit) -> list[list[NewEntry]]:
    """What is appended, in order. The task's own tag is only on a marker that was asked for."""
    markers = []
    if commit.is_asked:
        markers = [commit.marker_entry()]
    elif commit.tells_time:
        markers = [commit.marker_entry(tags=commit.tags[1:])]
    return list(pack([*commit.data, *markers]))
