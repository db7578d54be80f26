"""The log server.

server.py      open, listen, stop
listener.py    sessions and turns: also of a proxy
served_log.py  a log as connections use it: reads, sequenced appends
owner.py       the cores on real time, files and readers
connection.py  one client
metrics.py     its counters
"""
