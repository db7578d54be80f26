"""What the protocols here have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from penstock.errors import BadRequest
from penstock.runtime.commit_protocol import CommitProtocol
from penstock.runtime.spec import Settings

T = TypeVar("T")


async def all_of(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """All results, in order; the first error once all are done. On any event loop."""
    results: list[T] = []
    error: Exception | None = None
    for awaitable in awaitables:
        try:
            results.append(await awaitable)
        except Exception as failure:
            error = error or failure
    if error is not None:
        raise error
    return results


def refuse_dead_letters(protocol: CommitProtocol, settings: Settings) -> None:
    if settings.dead_letter is not None:
        raise BadRequest(
            f"dead_letter with the protocol {protocol.name}: a task that finds a bad row goes back "
            "to its own last commit, which only markers and transactions have"
        )
