"""Clients of a log.

client.py         asyncio: one connection kept alive, requests retried
appender.py       an open producer
appender_core.py  pure: seqs, coalescing, window, resending
packing.py        pure: entries into groups that fit
reader.py         a subscription that resumes
connection.py     requests paired with answers
cluster.py        which proxy of a cluster: candidates, redirects
blocking.py       the same for ordinary code, safe over forks
"""
