"""The log server.

server.py      open, listen, stop
listener.py    sockets, admission, turns: also of a proxy
served_log.py  a log as connections use it: reads, sequenced appends
owner.py       the cores on real time, files and readers
connection.py  one client
data_dir.py    lock, token, address of a data directory
metrics.py     counters and their OpenMetrics text
"""
