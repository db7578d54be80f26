"""One scheduler for all simulators: shipped asyncio code on virtual time, from one seed.

scheduler.py  virtual time, the one queue of everything that happens, the trace, errors
process.py    the event loop of one simulated process: start, pause, kill; jobs of executors
network.py    connections between machines: delays, cuts, resets, silence, late arrival
transport.py  one end of a connection, as asyncio's transports; listening sockets
clock.py      wall clocks that jump; secrets and uuids from the seed
mistakes.py   what no fault explains, and how it is noticed
seeded.py     what all worlds have: time, counts, faults that strike for a while
shipped.py    what a world changes in shipped code, and hears of it, while it runs

A world makes a scheduler, a network and processes, and lets them run:

    scheduler = Scheduler(Random(seed))
    network = Network(scheduler)
    server = scheduler.process("server", machine="m1")      # a process life: kill() ends it
    client = scheduler.process("client", machine="m2")

    async def serve() -> None:                               # shipped code, unchanged
        loop = asyncio.get_running_loop()
        await loop.create_server(Echo, "m1", 7000)           # the host is the machine's name
        await asyncio.to_thread(work)                        # one atomic step, later, or never

    server.spawn(serve())                                    # if it fails, the world ends
    client.spawn(ask("m1", 7000))
    with seeded_secrets(scheduler.random):                   # secrets.token_hex, uuid.uuid4, ...
        scheduler.run_until(lambda: answered, seconds=30.0)  # Stuck, or Unforeseen with the errors
    scheduler.close()

Faults: `process.kill(lose=..., silent=...)`, `pause()` and `resume()`; `network.cut(a, b)` and
`mend(a, b)` one way each; `connection.reset(late=...)`, `go_silent()`, `half_open()`, `hold()` and
`release()` of any of `network.connections`; `network.heal()` mends all of it but what is half open.
`NetworkOdds` says how long bytes take, how often they are split, and how late they may arrive.

`WallClock(scheduler).wall_ms` is for code that takes a `wall_ms` callable; `jump` sets it.
`JobPool(process)` stands for a pool of threads that a shell makes for itself, `JobQueue(process)`
for its writer thread. `scheduler.after(seconds, call)` does something that belongs to no process.

To kill a process in the middle of a step (a crash point of its disk, say): `process.kill()`, then
raise any BaseException to unwind. What the dead process still does on its way out has no effect on
the network, and errors of the dead are nobody's: what the world wants to check or do about a death
is a matter for `scheduler.after(0.0, ...)`.

Laws. I21: the same seed gives the same trace in every process, whatever PYTHONHASHSEED is; tasks
and futures are hashed by number, so that sets of them have an order, too. Nothing of a dead process
happens. An exception that nobody handles ends the world; so does one that a task holds and nobody
asks for (`scheduler.check()`), and a mistake (mistakes.py) that shipped code survives.
"""

from simulation.kernel.clock import WallClock, seeded_secrets
from simulation.kernel.network import Connection, Network, NetworkOdds
from simulation.kernel.process import JobPool, JobQueue, Process
from simulation.kernel.scheduler import Scheduler, Stuck, Unforeseen

__all__ = [
    "Connection",
    "JobPool",
    "JobQueue",
    "Network",
    "NetworkOdds",
    "Process",
    "Scheduler",
    "Stuck",
    "Unforeseen",
    "WallClock",
    "seeded_secrets",
]
