"""The log of one machine: a server, its clients, disk, clock and network.

world.py      the whole, its two phases and the faults between
swarm.py      what a seed draws: which faults there are, how often, and how small the limits are
story.py      what every client asked, was told and saw: the histories that checkers read
machine.py    the server's computer: disk operations that fail or kill, cold store, wall clock
network.py    connections: delays, cuts, requests that arrive after their sender has given up
owner.py      the owner's shell around the real sequencer, tails and storage
server.py     the server's shell: connections, requests, start and stop
link.py       a client's connection and its calls, kept alive over cuts
appender.py   the shell around the real AppenderCore: claim, send again, give up, retire
writers.py    clients that append: named, anonymous, zombies
registers.py  clients that compare and set: counters and locks
readers.py    clients that follow, scan, ask and trim
"""
