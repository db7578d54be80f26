"""What a query and its result are called if `penstock.start` was not told.

A name is what a query goes on by, so one that is made up must be made up again by the next start:

    only `to`     the query is called like its result (dots become _)
    only `name`   the result is called like the query
    neither       both are called after the plan: query-<hash of plan and mode>

Law: names are a function of what `start` was given and of the plan, and of nothing else. Whoever
gave no name is told what a changed plan does.
"""

from __future__ import annotations

import hashlib
import json
import logging

from penstock.errors import BadRequest
from penstock.plan.explain import explain
from penstock.plan.stages import Query
from penstock.protocol.names import check_query_name

logger = logging.getLogger(__name__)


def choose_names(query: Query, mode: str, *, name: str | None, to: str | None) -> tuple[str, str]:
    """(name of the query, stream of its result)."""
    if name is None and to is None:
        name = to = _name_of_plan(query, mode)
        logger.warning(
            "query=%s is called after its plan, since it was given no name. Started again with the "
            "same plan it goes on; with another plan it would be another query, which begins anew "
            "and writes another stream. Give name= to keep it",
            name,
        )
    elif name is None:
        assert to is not None
        name = _name_of_stream(to)
        logger.info("query=%s is called like its result stream=%s", name, to)
    elif to is None:
        to = name
        logger.info("query=%s writes its result to a stream of its name", name)
    return name, to


def _name_of_stream(to: str) -> str:
    name = to.replace(".", "_") if isinstance(to, str) else to
    try:
        check_query_name(name)
    except BadRequest as error:
        raise BadRequest(
            f"no query can be called like its result, so give name=: {error}"
        ) from None
    return name


def _name_of_plan(query: Query, mode: str) -> str:
    text = json.dumps([explain(query), mode])
    return f"query-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
