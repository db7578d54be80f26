"""The shared log: one total order of tagged entries, appended in atomic, guarded groups.

api.py           the interface, with the positions drawn
records.py       entries, kinds, guards: the values
group_format.py  the bytes of a group
record_format.py the bytes of a record: a group with its place
embedded.py      find or start the server of a data directory
core/            pure: sequencer, state, tag index, tails
storage/         files: segments, indexes, snapshots, manifest, recovery, verify, cold store
server/          the process: owner of one log, connections, metrics
client/          asyncio and blocking clients
"""
