"""Which tokens were revoked, for a process that reads a log and does not order it. Pure.

Who orders a log has its metadata. Who follows it sees the snapshot with which a segment begins, and
everything after it: of both, this keeps the keys `revoked/<id>`. Law: before a snapshot was seen
nobody knows, and no narrowed token is good.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import BadFormat
from penstock.log.core.owners import REVOKED_PREFIX
from penstock.log.core.state import decode_snapshot
from penstock.log.group_format import Body, decode_sets
from penstock.log.records import Kind


class Revocations:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._ids: dict[str, None] | None = None
        self._pieces: list[memoryview] = []

    def is_revoked(self, id: str) -> bool | None:
        """None: that is not known yet."""
        return None if self._ids is None else id in self._ids

    def forget(self) -> None:
        """Something was passed over: wait for the next snapshot."""
        self._ids = None
        self._pieces = []

    def take_snapshot(self, piece: memoryview, part: int, parts: int, *, log_mark: int) -> None:
        """A piece of a snapshot, in order. One that is not needed, or not whole, is passed over."""
        if self._ids is not None or part != len(self._pieces):
            self._pieces = []
            if self._ids is not None or part:
                return
        self._pieces.append(piece)
        if part == parts - 1:
            pieces, self._pieces = self._pieces, []
            self._learn(decode_snapshot(b"".join(pieces), log_mark=log_mark).metadata)

    def _learn(self, keys: Iterable[str]) -> None:
        found = (key for key in keys if key.startswith(REVOKED_PREFIX))
        self._ids = {key.removeprefix(REVOKED_PREFIX): None for key in found}

    def take_group(self, body: Body) -> None:
        if self._ids is None or not any(tag.startswith(_TAG) for tag in body.tags):
            return
        for index, row in enumerate(body.rows):
            if row[0] != Kind.META:
                continue
            try:
                changes = decode_sets(body.payload(index))
            except BadFormat:
                continue  # no server orders such an entry
            for change in changes:
                if change.key.startswith(REVOKED_PREFIX):
                    id = change.key.removeprefix(REVOKED_PREFIX)
                    if change.value is None:
                        self._ids.pop(id, None)
                    else:
                        self._ids[id] = None


_TAG = f"m/{REVOKED_PREFIX}"
