"""A query under simulated faults: every shell is the shipped one, on virtual time (kernel/).

world.py             who is there, the two phases, the faults
swarm.py             what a seed draws, and small limits
spark.py             drivers with their coordinators, workers in slots
host.py              the process that a shell runs in
log.py               the shipped log server, its lives, and all that it ever held
store.py             checkpoints that get damaged and lost
queries.py           three small queries, their input, their oracle
story.py             what happened, for the checkers
taps.py              where shipped code is listened to, for the story
laws.py              exactly once as functions over the log
lineage.py           which layouts there were, and the law of handover
newcomer.py          a trim that knows nothing of commits, and who reads what is left
bench.py             instances by hand, for short schedules
report_law.py        what reports of a query must be, and strange ones of workers
state_law.py         state after a recovery is the fold of the committed input
transaction_laws.py  what transactions promise
aligned_laws.py      what aligned checkpoints promise
"""
