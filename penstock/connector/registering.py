"""A session that knows the format, and workers that know Penstock.

Spark looks for sources by itself, but with the `python3` that is first on the path. In a virtual
environment that is not active, that one has no Penstock. So `Stream.df` and `penstock.start`
register the format themselves.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Final

from penstock.connector.data_source import PenstockDataSource

_KNOW: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def register(spark: Any) -> None:
    """Let the session know `format("penstock")`. Idempotent."""
    if spark in _KNOW:
        return
    if hasattr(spark, "_jsparkSession"):  # Spark Connect's server has chosen its own
        choose_python(spark.sparkContext)
    spark.dataSource.register(PenstockDataSource)
    _KNOW.add(spark)


def choose_python(sc: Any) -> None:
    """Let a Spark of this machine run workers with the Python that runs the driver.

    Spark would take whatever `python3` is first on the path, which may not know Penstock. Who sets
    PYSPARK_PYTHON, also after Spark was started, or has a cluster, has chosen.
    """
    # Of the settings, Spark reads the first when it starts, the second only with spark-submit.
    chosen = os.environ.get("PYSPARK_PYTHON") or sc.getConf().get("spark.pyspark.python")
    if chosen:
        sc.pythonExec = chosen
    elif sc.master.startswith("local"):
        sc.pythonExec = sys.executable
