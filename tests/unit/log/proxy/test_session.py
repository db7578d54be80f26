"""The session with the metadata: what rested on one that ended is given up, however it ended."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Unavailable
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.proxy import session as session_module
from penstock.log.proxy.session import MetadataSession


class Sessions:
    """A session that is kept, and what its user was told."""

    def __init__(self) -> None:
        tree = MemoryMetadata()
        self.stores: list[MemorySession] = []
        self.lost = 0
        #: Which session is refused by its user, and which one expires, as soon as it is open.
        self.refused = 0
        self.expired = 0

        async def open_store() -> MetadataStore:
            self.stores.append(tree.session())
            return self.stores[-1]

        self.kept = MetadataSession(open_store, opened=self._opened, lost=self._lost)

    async def _opened(self, store: MetadataStore) -> None:
        if len(self.stores) == self.refused:
            raise Unavailable("no place for this proxy")
        if len(self.stores) == self.expired:
            self.stores[-1].expire()

    def _lost(self) -> None:
        self.lost += 1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RETRY_SECONDS", 0.001)


@pytest.mark.parametrize("ends", ["refused", "expired"])
async def test_a_session_that_was_open_for_a_moment_is_told_to_be_lost_like_any_other(
    ends: str,
) -> None:
    """Whoever used it meanwhile may hold an ephemeral node that is gone with it."""
    sessions = Sessions()
    setattr(sessions, ends, 2)
    await sessions.kept.start()
    sessions.stores[0].expire()
    async with asyncio.timeout(60):
        while len(sessions.stores) < 3:
            await asyncio.sleep(0.001)

    assert sessions.lost == 2
    assert sessions.kept.store is sessions.stores[2]
    assert [store.is_ended for store in sessions.stores] == [True, True, False]
    await sessions.kept.close()
