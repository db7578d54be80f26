"""Why a run of a query could not begin, or ended, or refuses something, in words for its user."""

from __future__ import annotations

import logging

from penstock.errors import BadRequest, Fenced, GuardFailed, PenstockError, QueryFailed
from penstock.plain_text import plain
from penstock.runtime.spec import Settings

logger = logging.getLogger(__name__)

#: No query has more workers.
WORKERS_MAX = 1000


def explain(query: str, error: Exception) -> PenstockError:
    """Why a run could not begin, or not go on, for its driver."""
    if isinstance(error, Fenced | GuardFailed):
        who = "by this or another driver, and runs there now"
        told = plain(f"query {query} was started again, {who} ({error})")
        why = QueryFailed(told)
        why.__cause__ = error
        return why
    if isinstance(error, PenstockError):
        return error
    logger.error("query=%s coordinator failed", query, exc_info=error)
    return QueryFailed(plain(f"the coordinator failed: {error!r}"))


def check_wanted(workers: int, replicas: int) -> None:
    """Raise BadRequest unless a query can run with so many workers, or none."""
    if workers != 0 and not replicas < workers <= WORKERS_MAX:
        raise BadRequest(
            f"workers={workers} with replicas={replicas}: {replicas + 1} to {WORKERS_MAX} "
            "allowed, or 0 to suspend it"
        )


def why_not_now(query: str, *, is_suspended: bool) -> str:
    """Why its virtual nodes cannot move at this moment."""
    if is_suspended:
        return f"query {query} is suspended: bring it back first, with a rescale to 1 or more"
    return f"query {query} starts, ends, or changes its tasks now: ask again later"


def advise(message: str, traceback: str, settings: Settings) -> str:
    """What its user can do about it."""
    if "No module named" in message and traceback:
        return (
            "A module of yours must be known to the workers: ship it with sparkContext.addPyFile "
            "before the query starts, or install it for their Python."
        )
    if traceback and settings.dead_letter is None:
        return (
            "Rows that fail by themselves can be set aside, with cause and origin, while the query "
            'goes on: start it with dead_letter="name of a stream".'
        )
    return ""
