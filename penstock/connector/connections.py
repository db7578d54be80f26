"""One connection to a log for each process: Spark calls sources and sinks in processes that it
keeps, once per batch or task, and a new connection each time would cost more than the call.
"""

from __future__ import annotations

import gc
from typing import Final

from penstock.connector.options import Where
from penstock.errors import Unavailable
from penstock.stream.session import Log, connect

_LOGS: Final[dict[Where, Log]] = {}
#: A server that is not there is told within it; requests to a known one wait longer, for a restart.
_FIRST_ANSWER_SECONDS: Final = 10.0
_FREEZES: Final = (1, 3, 10)
_calls = 0


def connected(where: Where) -> Log:
    """The process's own connection; made at the first call, and anew if it was closed."""
    log = _LOGS.get(where)
    if log is None or log.is_closed:
        if "://" in where.log:
            _check_server(where)
        log = _LOGS[where] = connect(where.log, token_file=where.token_file, tls_ca=where.tls_ca)
    return log


def _check_server(where: Where) -> None:
    """Raises Unavailable, Unauthorized."""
    files = {"token_file": where.token_file, "tls_ca": where.tls_ca}
    try:
        with connect(where.log, **files, timeout=_FIRST_ANSWER_SECONDS) as log:
            log.bounds()
    except Unavailable as error:
        raise Unavailable(
            f"{error}. Start it with `penstock log serve`, or correct the option log"
        ) from None


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
