"""The shared log: one total order of tagged entries, appended in atomic, guarded groups.

api.py           the interface, with the positions drawn
records.py       entries, kinds, guards: the values
group_format.py  the bytes of a group
record_format.py the bytes of a record: a group with its place
block_format.py  the bytes of a block: what one replicated write stores
directories.py   new ones that survive a power cut
keep_alive.py    connections whose other end is gone are ended
pairing.py       a connection to a server: requests paired with answers
handshake.py     how such a connection begins: the token is proved
embedded.py      find or start the server of a data directory
local_cluster.py a whole cluster on one machine, as processes
core/            pure: sequencer, state, tag index, tails
replication/     pure: quorums, fencing, recovery, placement, routing, repair
meta/            the cluster's metadata: memory, ZooKeeper
storage/         files: segments, indexes, snapshots, manifest, recovery, verify, cold store
serving/         what every process has: lock, token, connections, metrics
node/            the storage node: journal, segment files, server; its client
server/          the process: owner of one log, its connections
proxy/           proxies: owned and followed logs on nodes
client/          asyncio and blocking clients, routing
"""
