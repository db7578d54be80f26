"""The log of one machine: the server and the clients that ship, on simulated disk and network.

world.py      the whole, its two phases and the faults between
swarm.py      what a seed draws: which faults there are, how often, and how small the limits are
story.py      what every client asked, was told and saw: the histories that checkers read
machine.py    the server's computer: disk operations that fail or kill, cold store
lives.py      the log server, one process life after the other on that computer
operations.py what programs ask of a log, here and in a cluster: all of it goes into the story
clients.py    the client as the programs below use it, in a process of its own
crowd.py      strangers that say nothing, and few descriptors
writers.py    programs that append: named, anonymous, zombies
registers.py  programs that compare and set: counters and locks
readers.py    programs that follow, scan, ask and trim
taps.py       what the shipped code did, counted; its invariants, checked as it runs
"""
