"""For tests of your own pipelines: no cluster, no log server, one process.

    from penstock.testing import assert_matches_batch, run

    def hot(bids):
        return bids.groupBy("auction").count()

    inputs = {"bids": ([{"auction": 1}, {"auction": 1}], "auction long")}
    assert run(spark, hot, inputs=inputs) == [(1, 2)]
    assert_matches_batch(spark, hot, inputs=inputs)

The public names are these three: `run` and `assert_matches_batch`, which take a function of
DataFrames and lists of rows, and `MemoryLog`, a log without files or sockets.

pipelines.py       run, assert_matches_batch
memory_log.py      a log without files or sockets, for tests of what stands on one
oracle.py          the same DataFrame function by batch Spark and by our operators
"""

from penstock.testing.memory_log import MemoryLog
from penstock.testing.pipelines import assert_matches_batch, run

__all__ = ["MemoryLog", "assert_matches_batch", "run"]
