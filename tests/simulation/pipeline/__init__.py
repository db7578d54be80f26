"""A query under simulated faults: the real cores, with shells that a seed can stop anywhere.

world.py             who is there, the two phases, the faults
fibers.py            virtual time, coroutines, processes that die or sleep
swarm.py             what a seed draws, and small limits
log.py               the real sequencer, its restarts, its readers
client.py            a network that loses, repeats and delays; retries
tasks.py             the shell of a task
workers.py           the shell of a worker
drivers.py           the shell of a coordinator, and Spark
store.py             checkpoints that get damaged and lost
queries.py           three small queries, their input, their oracle
story.py             what happened, for the checkers
laws.py              exactly once as functions over the log
bench.py             instances by hand, for short schedules
state_law.py         state after a recovery is the fold of the committed input
transaction_laws.py  what transactions promise
aligned_laws.py      what aligned checkpoints promise
"""
