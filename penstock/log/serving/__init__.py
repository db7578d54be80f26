"""What every process of the log has in common: log server, proxy, storage node.

directory.py     lock, token and address in a data directory
connection.py    one connection before and after its token, GET /metrics
listener.py      the listening socket, admission, TLS, turns of the loop
group_commit.py  one write with its fsync at a time, inline or in a thread
task_set.py      asyncio tasks that end with their owner
process.py       descriptors, signals, exit codes
openmetrics.py   counters, gauges, histograms and their text
"""
