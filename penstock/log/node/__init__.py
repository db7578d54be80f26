"""A storage node of the replicated log, and the client that proxies use.

server.py         who it is, recover, listen, stop
registration.py   its place in the metadata, and which segments were given up
cookie.py         name and cookie: when it is another node
config.py         its settings
requests.py       one proxy's requests
owner.py          the core on real time and files: group commit, reads, flushes
journal_format.py its records: heads, and echoes of heads
journal.py        what makes blocks, fences and tombstones durable
segment_store.py  where blocks lie: memory, then one file per part
metrics.py        its counters
client.py         nodes over the network
"""
