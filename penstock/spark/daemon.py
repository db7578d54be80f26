"""Spark's daemon of Python workers, which has loaded what they need before it forks them.

Spark runs it as a program, if spark.python.daemon.module names it (`penstock.tuned`). A worker, and
one that follows a lost one, then works after some milliseconds, not after the second that it takes
to load Arrow, pandas and Penstock. Law: before a fork there is no connection, no file and no thread
but those that the libraries know to look after; and workers do not share their random numbers.
"""

from __future__ import annotations

import gc
import os


def prepare() -> None:
    """Before it forks workers."""
    import numpy as np

    from penstock.spark.loading import load

    load()
    # NumPy's own random numbers would be the same in all workers.
    os.register_at_fork(after_in_child=np.random.seed)
    gc.collect()
    gc.freeze()  # so that no worker copies it only to look for garbage


if __name__ == "__main__":
    from pyspark.daemon import manager

    prepare()
    manager()
