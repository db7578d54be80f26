"""The replicated log in one thread, from one seed: its real code on virtual time, under faults.

network.py    connections that delay, hold back, break and deliver late; nodes as proxies see them
nodes.py      storage nodes: the real core on a journal that loses what was not synced
proxies.py    proxies: sessions, ownership, owned and followed logs, as proxy/server.py runs them
clients.py    producers, counters, readers, trimmers, and what they saw
swarm.py      what a seed draws: faults, quorums, small limits
world.py      all of it: a phase with faults, a phase in which everybody must finish, the checks
checkers.py   the laws of the replicated log over manifests, node contents and histories
"""
