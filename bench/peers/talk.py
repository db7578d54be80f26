"""How a peer's program talks to the harness: one JSON object per line, in turn.

Standard library only: it runs in the virtual environment of any peer. The channel is the standard
output that the program was started with; whatever else prints goes to standard error instead. When
the harness closes its end, or dies, the program has a moment to end by itself, and then its whole
process group is killed: no JVM survives a run.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

Command = dict[str, Any]
Figures = dict[str, Any]
Handler = Callable[[Command], Figures]

_GRACE_SECONDS: Final = 10.0


class Refusal(Exception):
    """This peer cannot run what was asked; the message is the reason."""


def serve(handlers: dict[str, Handler], *, close: Callable[[], None]) -> None:
    """Obey until the harness has gone: each command gets the answer of its handler."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    commands: queue.Queue[Command | None] = queue.Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    try:
        while (command := commands.get()) is not None:
            channel.write(json.dumps(_answer(handlers, command)) + "\n")
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # the harness has ended, or the whole terminal was interrupted
    finally:
        close()


def _listen(commands: queue.Queue[Command | None]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put(None)
    time.sleep(_GRACE_SECONDS)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _answer(handlers: dict[str, Handler], command: Command) -> dict[str, Any]:
    try:
        return {"ok": True, **handlers[command["do"]](command)}
    except Refusal as refusal:
        return {"error": str(refusal), "refused": True}
    except Exception:
        return {"error": traceback.format_exc()}
