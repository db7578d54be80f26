"""What every process of the log has in common: log server, proxy, storage node.

directory.py     lock, token and address in a data directory
listener.py      the listening socket, admission, TLS, turns of the loop; given a host
arrivals.py      who waits without a token, and who must go
tls_files.py     certificates, read again when they were replaced
acceptor.py      accept sockets, counted before their TLS handshake
connection.py    one connection before and after its token, GET /metrics
group_commit.py  one write with its fsync at a time, inline or in a thread
task_set.py      asyncio tasks that end with their owner
process.py       descriptors, signals, exit codes
launch.py        start one as a process
log_lines.py     its log, on standard error
openmetrics.py   counters, gauges, histograms and their text

For those that serve logs:
log_service.py   logs behind a listener: what clients may, their sessions, turns that pump logs
log_requests.py  the requests of one client
served_log.py    a log as clients use it: reads, sequenced appends
log_metrics.py   the counters of a log server or proxy
query_reports.py the newest report of each query of a log
query_metrics.py those, as metrics
"""
