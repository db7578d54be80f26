"""A storage node of the replicated log, and the client that proxies use.

server.py         who it is, recover, listen, stop
registration.py   its place in the metadata, and which segments were given up
cookie.py         name and cookie: when it is another node
data_dir.py       lock, token, address of a data directory
config.py         its settings
peer.py           a connection before and after the token, /metrics
connection.py     one proxy's requests
owner.py          the core on real time and files: group commit, reads, flushes
journal.py        what makes blocks, fences and tombstones durable
segment_store.py  where blocks lie: memory, then one file per part
metrics.py        counters and their OpenMetrics text
client.py         nodes over the network
"""
