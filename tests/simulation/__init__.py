"""Whole systems in one thread, from one seed: safety under faults, then liveness.

kernel/     virtual time, processes, the network: the one scheduler of all simulators
log/        a log server, its clients, disk, clock and network
pipeline/   a query's tasks, workers and drivers; its laws
delivery/   players and targets of deliveries
cluster/    proxies and nodes of a replicated log
checkers/   the laws of the log over what clients did and saw
"""
