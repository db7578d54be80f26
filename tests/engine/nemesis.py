"""The nemesis: kills and stops processes of a stand, one after the other, as a seed says.

worker    SIGKILL for a Python worker
zombie    SIGSTOP for one, until long after its lease, then SIGCONT: it goes on where it was
server    SIGKILL for the log server, which is started again a little later
executor  SIGKILL for an executor's JVM, with all Python workers under it
balance   hot virtual nodes of all queries are to get other tasks
driver    SIGKILL for the driver and its JVM; a new one goes on with the queries

A query whose tasks end again and again without a commit is stopped by its coordinator, which takes
it for poisoned. So no query is hit a fourth time before all its tasks have committed again; on a
slow machine that makes the fire slower, not the test red.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import fire_processes as processes
from fire import Kill, Stand, Wound

from penstock.log.records import Kind, NewEntry
from penstock.protocol.names import control_tag, parse_task
from penstock.runtime.control import Balance, Message, Rescale, encode_message

#: Seconds between two faults.
GAP = (0.3, 1.5)
#: The lease is 3 s: 12 pulses, four a second.
ZOMBIE_SECONDS = (3.6, 5.0)
DRIVER_SECONDS = 300.0
PATIENCE_SECONDS = 300.0
HITS_MAX = 3


class Nemesis:
    """`counts` says what was done, by kind."""

    def __init__(self, stand: Stand, rng: random.Random) -> None:
        self._stand = stand
        self._rng = rng
        self.counts: Counter[str] = Counter()
        #: Stopped processes, and when they may go on.
        self._stopped: dict[int, float] = {}
        #: Seconds from the kill of a driver until every task has committed again.
        self.driver_seconds: list[float] = []
        #: By query: hits since all its tasks had committed, and those that have not yet.
        self._hits: Counter[str] = Counter()
        self._wounds: dict[str, dict[str, Wound]] = {}

    def run(self, faults: Sequence[str], until: float) -> None:
        """These, in an order and at moments that the seed decides; as many as fit."""
        order = list(faults)
        self._rng.shuffle(order)
        for kind in order:
            if time.monotonic() > until:
                break
            self._sleep(self._rng.uniform(*GAP))
            getattr(self, kind)()
        while self._stopped:
            self._sleep(0.05)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        now = time.monotonic()
        for pid in [pid for pid, until in self._stopped.items() if until <= now]:
            del self._stopped[pid]
            processes.send(pid, signal.SIGCONT, root=self._stand.driver.pid)

    # ---- whom to hit

    def _pick_worker(self) -> int:
        """A Python worker that lives and is not stopped; there is one soon if there is none now."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            alive = set(processes.descendants(self._stand.driver.pid)) - self._stopped.keys()
            found = sorted(
                pid
                for (query, _), (_, pid) in dict(self._stand.workers.last).items()
                if pid in alive and self._may_hit(query)
            )
            if found:
                return self._rng.choice(found)
            self._sleep(0.1)
        raise AssertionError(f"no worker to kill for {PATIENCE_SECONDS} s: {self._wounds}")

    def _may_hit(self, query: str) -> bool:
        wounds = self._wounds.get(query, {})
        if wounds:
            wounds = {
                task: wound
                for task, wound in wounds.items()
                if task in self._stand.workers.places and not self._stand.has_committed(task, wound)
            }
            self._wounds[query] = wounds
        if not wounds:
            self._hits[query] = 0
        return self._hits[query] < HITS_MAX

    def _note(self, kill: Kill, *, survives: bool = False) -> Kill:
        for query in {parse_task(task).query for task in kill.lost}:
            self._hits[query] += 1
        for task, instance in kill.lost.items():
            # Who was only stopped may wake up before anybody missed it, and go on.
            wound = Wound(-1 if survives else instance, kill.lsn)
            self._wounds.setdefault(parse_task(task).query, {})[task] = wound
        return kill

    # ---- faults

    def worker(self) -> Kill:
        """One of the newest workers, whatever it does at the moment."""
        pid = self._pick_worker()
        self.counts["worker"] += 1
        return self._note(self._stand.kill([pid]))

    def zombie(self) -> None:
        pid = self._pick_worker()
        wound = self._stand.wound([pid])
        if processes.send(pid, signal.SIGSTOP, root=self._stand.driver.pid):
            self._note(wound, survives=True)
            self._stopped[pid] = time.monotonic() + self._rng.uniform(*ZOMBIE_SECONDS)
            self.counts["zombie"] += 1

    def server(self) -> None:
        self._stand.server.kill()
        self.counts["server"] += 1
        self._sleep(self._rng.uniform(0.0, 0.5))
        self._stand.launch_server()

    def executor(self) -> Kill:
        """The one with most tasks, which hurts most."""
        queries = sorted({query for query, _ in self._stand.workers.last})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(map(self._may_hit, queries)):
            assert time.monotonic() < deadline, f"no recovery: {self._wounds}"
            self._sleep(0.1)
        found = processes.executors(self._stand.driver.pid)
        chosen = max(found, key=lambda pid: len(self._stand.wound([pid]).lost))
        self.counts["executor"] += 1
        return self._note(self._stand.kill([chosen]))

    def rescale(self, workers: int) -> None:
        """All queries, however far they have come with it before."""
        for query in self._queries():
            self._ask(query, Rescale(workers, "nemesis"))
            self.counts["rescale"] += 1

    def balance(self) -> None:
        for query in self._queries():
            self._ask(query, Balance("nemesis"))
            self.counts["balance"] += 1

    def _queries(self) -> list[str]:
        return sorted({query for query, _ in self._stand.workers.last})

    def _ask(self, query: str, message: Message) -> None:
        entry = NewEntry(encode_message(message), (control_tag(query),), Kind.CONTROL)
        self._stand.log.client.append([entry])

    def driver(self) -> None:
        """Kill it, start it again with the server killed meanwhile, wait until all is as before."""
        self._stopped.clear()  # they die with their executors, or are seen to in the end
        self._hits.clear()
        self._wounds.clear()
        kill = self._stand.kill_driver()
        self.counts["driver"] += 1
        driver = self._stand.start_driver()
        time.sleep(self._rng.uniform(1.0, 5.0))
        self.server()
        driver.wait_for("running")
        self.driver_seconds.append(self._stand.wait_recovered(kill, DRIVER_SECONDS)[-1])


@contextmanager
def cpu_load(count: int) -> Iterator[None]:
    """Processes that want all of the processor, at the priority of the others."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()
