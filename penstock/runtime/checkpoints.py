"""Which checkpoints the markers of a task name, and when the next one is due. Pure.

Law (R37): a marker names checkpoints that are durable, the newest first, two at most. Until there
are two of its own, a task that has predecessors names those: they have what it began with.
"""

from __future__ import annotations

from penstock.protocol.markers import Marker, Origin
from penstock.runtime.spec import Settings

#: Bytes of changes since the last checkpoint before the next is worth its while: they are replayed
#: at about 8 MB/s, so this many cost a restart less than its other steps.
CHECKPOINT_BYTES_MIN = 256 * 1024
#: So many are worth it at any time: a restart replays them in some seconds.
CHECKPOINT_BYTES_MAX = 64 * 1024 * 1024


class Checkpoints:
    """Of one task."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.named: tuple[dict[str, object], ...] = ()
        self.origins: tuple[Origin, ...] = ()
        self._change_bytes = self._due_ms = 0
        self._passed: int | None = None
        #: Whether what is named was found to be unusable.
        self._is_lost = False

    def begin(self, marker: Marker | None, now_ms: int) -> None:
        self._due_ms = now_ms + self._settings.checkpoint_interval_ms
        if marker is not None:
            self.named, self.origins = marker.checkpoints, marker.origins

    def changed(self, size: int) -> None:
        """So many bytes of changes are in no checkpoint."""
        self._change_bytes += size

    def is_due(self, now_ms: int) -> bool:
        """Whether there is to be one now; if so, the next time is later."""
        settings = self._settings
        if settings.checkpoints is None or not settings.protocol.logs_changes:
            return False
        if self._change_bytes < CHECKPOINT_BYTES_MIN:
            return False
        if now_ms < self._due_ms and self._change_bytes < CHECKPOINT_BYTES_MAX:
            return False
        self._due_ms = now_ms + settings.checkpoint_interval_ms
        self._change_bytes = 0
        return True

    def add(self, reference: dict[str, object]) -> bool:
        """One is durable; False: it took longer to write than the one after it."""
        newest, lsn = self.newest_lsn, reference["marker_lsn"]
        assert isinstance(lsn, int)
        if newest is not None and lsn <= newest:
            return False
        self.named = (reference, *self.named[:1])
        if len(self.named) == 2:
            self.origins = ()
        self._is_lost = False
        return True

    @property
    def needs_whole(self) -> bool:
        """Whether the next one must have the whole state, and not only what changed.

        The state of a successor is not made by its own changes alone.
        """
        return self._is_lost or (not self.named and bool(self.origins))

    def lost(self) -> None:
        """None of those that are named can be gone on from."""
        self._is_lost = True

    def missed(self) -> None:
        """One was not made durable: after the next interval one is due anyway."""
        self._change_bytes += CHECKPOINT_BYTES_MIN

    def passed(self, marker: Marker) -> None:
        """A marker of the task, which runs elsewhere.

        What is in the newest checkpoint that it names, no later restart has to replay.
        """
        newest = int(marker.checkpoints[0]["marker_lsn"]) if marker.checkpoints else None
        if newest != self._passed:
            self._passed = newest
            self._change_bytes = 0

    @property
    def newest_lsn(self) -> int | None:
        """The marker of the newest one."""
        if not self.named:
            return None
        lsn = self.named[0]["marker_lsn"]
        assert isinstance(lsn, int)
        return lsn
