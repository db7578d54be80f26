"""One connection to a log for each process: Spark calls sources and sinks in processes that it
keeps, once per batch or task, and a new connection each time would cost more than the call.
"""

from __future__ import annotations

import gc
from typing import Final

from penstock.connector.options import Where
from penstock.stream.session import Log, connect

_LOGS: Final[dict[Where, Log]] = {}
_FREEZES: Final = (1, 3, 10)
_calls = 0


def connected(where: Where) -> Log:
    """The process's own connection; made at the first call, and anew if it was closed."""
    log = _LOGS.get(where)
    if log is None or log.is_closed:
        log = _LOGS[where] = connect(where.log, token_file=where.token_file, tls_ca=where.tls_ca)
    return log


def set_modules_aside() -> None:
    """Call it first in everything that Spark calls: what is loaded stays, garbage or not.

    Spark's workers collect garbage after every call, over all modules that are loaded: 10 ms a
    time. Spark and Arrow load more after our first calls, hence more than once; on every call,
    garbage would pile up. Not `gc.get_freeze_count`: it walks all that is frozen.
    """
    global _calls
    _calls += 1
    if _calls in _FREEZES:
        gc.freeze()
