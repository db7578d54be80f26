"""The server of a log on one machine. What it shares with a proxy is in serving/.

server.py      open, listen, stop
owner.py       the cores on real time, files and readers
"""
