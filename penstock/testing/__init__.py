"""Fakes and faults for tests; nothing in Penstock itself imports this.

disk.py            a disk in memory that loses what was not synced
faults.py          disks that fail on request, or write down what they are asked to do
crash_states.py    every disk that a power cut could leave behind, from a recorded trace
driver.py          one log on one disk, without a server, checked against what was sent
engine_checkers.py the laws of exactly once, over all entries of a log
history.py         what clients did and saw, and the check against the final log
oracle.py          the same DataFrame function by batch Spark and by our operators
memory_log.py      a log without files or sockets, for tests of what stands on one
server_process.py  a log server to be killed, paused and starved
in_process_cluster.py  nodes and proxies in one event loop, with real sockets
tcp_proxy.py       a network that delays, stalls, cuts and swallows
world.py           a whole system in one thread, from one seed: safety under faults, then liveness
sim/               its parts: swarm, network, machine, shells of server and clients
pipeline/          a query's tasks, workers and drivers under faults, from one seed; its laws
cluster/           proxies and nodes of a replicated log under faults, from one seed
checkers/          the laws of the log over what clients did and saw
"""
