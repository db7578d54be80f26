"""A session and a thread in which Spark finds the format, and workers that know Penstock.

Spark looks for sources by itself, but with the `python3` that is first on the path, which in a
virtual environment that is not active has no Penstock; once in a session, also if it could not
look; and for sinks only where the calling thread has an active session. That is the thread that
made the session, and no other. It says DATA_SOURCE_NOT_FOUND in each case. So `Stream.df` registers
the format itself, and whoever does without it may.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Final

from penstock.connector.classic import check_session
from penstock.connector.data_source import PenstockDataSource

_KNOW: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def register(spark: Any) -> None:
    """Let Spark find `format("penstock")` in this session, and in the thread that calls this.

    Seldom needed: where Spark says `DATA_SOURCE_NOT_FOUND` although Penstock is installed. In a
    thread of your own that writes (`writeStream`, `df.write`), call it there first: Spark looks for
    sinks only in the thread that made the session. May be called again at any time.

        def run():
            penstock.register(spark)
            rows.writeStream.format("penstock")...start().awaitTermination()

        threading.Thread(target=run).start()
    """
    check_session(spark)
    if spark not in _KNOW:
        choose_python(spark.sparkContext)
        spark.dataSource.register(PenstockDataSource)
        _KNOW.add(spark)
    # As spark.createDataFrame does. PySpark has no call that does only this.
    spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


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
