"""Queries where people type: a live card in a notebook, a link to the page in a terminal.

Law: nothing here delays a query or fails with it; a card that cannot be kept up to date stays as it
was.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.plain_text import plain

if TYPE_CHECKING:
    from penstock.spark.query import StreamingQuery

logger = logging.getLogger(__name__)

UPDATE_SECONDS: Final = 1.0
#: An old cell is looked at no more; `query` in a new one shows it again.
LIVE_SECONDS: Final = 3600.0


def show_card(query: StreamingQuery) -> None:
    """Called by IPython to display a query."""
    # It is there, since it has called us; nobody else needs it.
    from IPython import get_ipython
    from IPython.display import HTML, display

    bundle = {"text/html": query._repr_html_(), "text/plain": repr(query)}
    if not hasattr(get_ipython(), "kernel"):
        display(bundle, raw=True)  # a terminal, in which nothing can be replaced
        return
    handle: Any = display(bundle, raw=True, display_id=True)
    if handle is None or not query.isActive:
        return
    threading.Thread(
        target=_keep_up, args=(query, handle, HTML), name=f"penstock-card-{query.name}", daemon=True
    ).start()


def _keep_up(query: StreamingQuery, handle: Any, html: Any) -> None:
    left = LIVE_SECONDS
    try:
        while left > 0 and not _has_ended(query):
            handle.update(html(query._repr_html_()))
            left -= UPDATE_SECONDS
        handle.update(html(query._repr_html_()))
    except Exception as error:
        logger.info("the card of query=%s stays as it is cause=%r", query.name, error)


def _has_ended(query: StreamingQuery) -> bool:
    try:
        return bool(query.awaitTermination(UPDATE_SECONDS))
    except PenstockError:
        return True  # the card says why


def tell_page(query: StreamingQuery) -> None:
    """Say where the page shows it, to who started it by hand, if one is served."""
    url = query.ui
    if url is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        print(plain(f"query {query.name}: {url}"), file=sys.stderr)
