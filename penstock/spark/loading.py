"""What a worker loads before it works; and how it does so without being in anybody's way.

To load Arrow, pandas and Penstock takes 0.9 s of a processor. Workers that join a query which runs
do it aside: in a thread that yields to everything else on the machine. Who has yielded by `nice`
may not take it back without rights, but a thread is niced alone, and ends. Threads that it starts
would stay as nice: so libraries that start some when they are loaded (NumPy's linear algebra,
Arrow's memory) are loaded before it, 0.1 s of a processor. Law: nothing of a user is loaded in that
thread, which may want to be in the main one.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Final

#: A tenth of the share of whoever is not nice: where all processors are busy it still comes on.
_NICENESS: Final = 10


def load() -> None:
    """What a worker of a real-time query loads, and a task that reads or writes a stream."""
    import numpy as np  # noqa: F401
    import pandas  # type: ignore[import-untyped]  # noqa: F401  # Arrow does, at its first scalar
    import pyspark.worker  # noqa: F401

    import penstock.connector.read_partition
    import penstock.connector.staging
    import penstock.runtime.worker  # noqa: F401
    from penstock.ops import aggregates, functions

    # Or the first task of a worker does it, while its rows wait: 0.13 s.
    functions.load()
    aggregates.load()


def load_aside() -> None:
    """Returns when it is loaded. What is missing is told by whoever needs it."""
    with suppress(ImportError):
        import pyarrow  # noqa: F401  # and NumPy
    thread = threading.Thread(target=_load_nicely, name="penstock-load")
    thread.start()
    thread.join()


def _load_nicely() -> None:
    if sys.platform == "linux":  # elsewhere niceness is of processes
        with suppress(OSError):  # a container may forbid it, or not know of it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _niceness())
    with suppress(ImportError):
        load()


def _niceness() -> int:
    return min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
