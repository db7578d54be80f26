"""The cluster's metadata: who lives, who owns which log, where its segments lie.

api.py               the interface: versioned values, ephemeral nodes, watches
paths.py             pure: paths and values that every store accepts
memory.py            in memory, for tests and the simulator, with faults on request
zookeeper.py         in ZooKeeper, over kazoo
zookeeper_server.py  a ZooKeeper process of our own, on loopback
open.py              addresses of clusters, and the store that one means
"""
