"""Exactly-once stream processing for PySpark over one shared log.

    from datetime import UTC, datetime

    import penstock

    log = penstock.connect()
    bids = log.create_stream("bids", "auction long, price long, ts timestamp")
    bids.append([{"auction": 1, "price": 250, "ts": datetime.now(UTC)}])
    for batch in bids.tail(start="earliest"):
        ...

General layout, a package imports only what stands above it:

errors.py, ids.py, limits.py, config.py   what everything below speaks of
plain_text.py   text of others, safe to show
wire/      frames and messages between client and server
log/       the shared log: order, files, server, clients
protocol/  exactly once: markers, what counts, where to go on
stream/    typed rows over the log: schemas, append, read, tail, connect
state/     what operators keep, by key and virtual node
plan/      Spark's plan to stages
ops/       operators over Arrow batches
runtime/   tasks, workers and the coordinator: a query at work on the log
delivery/  committed rows in databases, exactly once
gateway/   the log over HTTP, for programs in any language
ui/        the page: everything that runs on a log, live, in a browser
connector/ format("penstock"): Spark's own engine on the log
spark/     where PySpark meets Penstock: plans, start, the running query
testing/   for your own tests: pipelines over lists of rows, batch Spark as the judge
cli/       the command `penstock`

The names below are the public ones. Importing this package loads nothing heavy and starts nothing:
`connect`, `Log` and `Stream` bring Arrow in when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import (
    BadRow,
    Damaged,
    Fenced,
    NotFound,
    PenstockError,
    PlanChanged,
    QueryFailed,
    Refused,
    Retryable,
    SchemaMismatch,
    Trimmed,
    Unavailable,
    Unknown,
    Unsupported,
)

if TYPE_CHECKING:
    from penstock.cli.live import follow
    from penstock.connector.foreach_batch import foreach_batch_writer
    from penstock.connector.registering import register
    from penstock.connector.tuned import tuned
    from penstock.delivery.deliver import Delivery, deliver
    from penstock.spark.frontend import explain
    from penstock.spark.queries import Queries, queries
    from penstock.spark.query import StreamingQuery
    from penstock.spark.start import start
    from penstock.stream.session import Log, connect
    from penstock.stream.stream import Stream
else:
    _LAZY = {
        "connect": "penstock.stream.session",
        "deliver": "penstock.delivery.deliver",
        "Delivery": "penstock.delivery.deliver",
        "explain": "penstock.spark.frontend",
        "follow": "penstock.cli.live",
        "Log": "penstock.stream.session",
        "start": "penstock.spark.start",
        "Stream": "penstock.stream.stream",
        "StreamingQuery": "penstock.spark.query",
        "Queries": "penstock.spark.queries",
        "queries": "penstock.spark.queries",
        "foreach_batch_writer": "penstock.connector.foreach_batch",
        "register": "penstock.connector.registering",
        "tuned": "penstock.connector.tuned",
    }

    def __getattr__(name):
        import importlib

        if name not in _LAZY:
            raise AttributeError(f"module penstock has no attribute {name}")
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        # What `help(penstock)` and completion show: the public names, loaded or not.
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


#: Also the version of the distribution (pyproject.toml), so that a bare checkout has one.
__version__ = "0.1.0"

__all__ = [
    "BadRow",
    "Damaged",
    "Delivery",
    "Fenced",
    "Log",
    "NotFound",
    "PenstockError",
    "PlanChanged",
    "Queries",
    "QueryFailed",
    "Refused",
    "Retryable",
    "SchemaMismatch",
    "Stream",
    "StreamingQuery",
    "Trimmed",
    "Unavailable",
    "Unknown",
    "Unsupported",
    "__version__",
    "connect",
    "deliver",
    "explain",
    "follow",
    "foreach_batch_writer",
    "queries",
    "register",
    "start",
    "tuned",
]
