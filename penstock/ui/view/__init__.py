"""What the page shows, made of facts. Pure: tested without a browser, a server or a log.

page.py      all of it, and what is remembered between two updates
health.py    what is wrong now, in words, and what to do
queries.py   queries: a line each, or one in full
graph.py     a query as a graph: ranks, rows, colours
streams.py   streams with their readers; deliveries
log.py       the log, and the cluster that keeps it
history.py   points of charts, rates of counters
exposed.py   metrics of a server, read from their text
figures.py   figures: a text, its value, where it stands in the facts
facts.py     facts read without trust
"""

from __future__ import annotations

from penstock.ui.view.page import LOG, Book

__all__ = ["LOG", "Book"]
