"""The replicated log in one thread, from one seed: its shipped servers on virtual time.

metadata.py   the metadata store: sessions that are slow, cut off, and end with their process
nodes.py      lives of storage nodes, and disks that lose what was not synced
proxies.py    lives of proxies
clients.py    producers, counters, readers, trimmers on the shipped client, and what they saw
observers.py  what is looked at inside the shipped code: durable records, answers, deliveries
swarm.py      what a seed draws: faults, quorums, small limits
world.py      all of it: a phase with faults, a phase in which everybody must finish, the checks
checkers.py   the laws of the replicated log over manifests, node contents and histories

Event loops, network and time are those of simulation/kernel.
"""
