"""For tests of pipelines: a log in memory, and batch Spark as the judge.

memory_log.py      a log without files or sockets, for tests of what stands on one
oracle.py          the same DataFrame function by batch Spark and by our operators
"""
