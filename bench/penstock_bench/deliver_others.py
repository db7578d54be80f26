"""What one target does to the others: a delivery as it ships, to 20 targets beside their data.

Owns two scenarios. In the first, one of the targets is dead in every second round: the others are
to get their rows as fast as without. In the second, a target was away for 100,000 entries and comes
back: it reads these by itself and joins the shared tail, and the others are not to notice.

Log, player and hosts are processes of their own; the target that dies has a host for itself, in all
rounds. Appends come at a fixed rate, and each touches half of the targets, with 1 KiB for each.
Measured is from the call of `append` to when a target is called with the rows.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import penstock
from penstock.delivery.routing import first_route
from penstock.errors import DeadlineExceeded
from penstock.limits import KIB
from penstock.state.keys import hash_columns, virtual_nodes
from penstock_bench.child import Child
from penstock_bench.deliver_load import HostProcess
from penstock_bench.measure import percentile, summary
from penstock_bench.report import Check, Report, Say

_DDL: Final = "k long, v binary"
_HOSTS: Final = 4
_WARM_UP: Final = 100
_WAIT_SECONDS: Final = 120.0
#: An append of the long absence; each row is an entry.
_AWAY_ROWS: Final = 500
ON_THE_TAIL: Final = "on the tail"
#: A dead target may cost the others so much, of their 99th percentile.
DEAD_RATIO: Final = 1.1
#: And one that catches up.
CATCHING_UP_RATIO: Final = 2.0


@dataclass(frozen=True, slots=True)
class OthersSizes:
    """How much of it."""

    #: Each is one with the target alive and one with it dead.
    rounds: int = 5
    transactions: int = 800
    rate: int = 200
    row_bytes: int = KIB
    targets: int = 20
    #: Entries that the target misses.
    away: int = 100_000


def measure_others(root: Path, sizes: OthersSizes, report: Report, say: Say) -> None:
    """Both scenarios, one after the other, with a log each."""
    _measure_dead(root / "dead", sizes, report, say)
    _measure_return(root / "return", sizes, report, say)


# ---- one of them is dead


def _measure_dead(root: Path, sizes: OthersSizes, report: Report, say: Say) -> None:
    found: dict[str, list[list[float]]] = {"alive": [], "dead": []}
    with open_scene(root, sizes) as scene:
        for _ in range(sizes.rounds):
            scene.wait_until(lambda states: states[-1] == ON_THE_TAIL)
            found["alive"].append(scene.load(sizes.transactions))
            scene.kill()
            scene.wait_until(lambda states: states[-1] != ON_THE_TAIL)
            found["dead"].append(scene.load(sizes.transactions))
            scene.revive()
    p99 = {name: [percentile(one, 99) for one in rounds] for name, rounds in found.items()}
    report.figures["one_dead"] = {
        "append_to_receipt_ms": {
            name: summary(list(chain.from_iterable(rounds)), digits=3)
            for name, rounds in found.items()
        },
        "p99_ms_rounds": {name: [round(one, 3) for one in ones] for name, ones in p99.items()},
    }
    ratio = statistics.median(p99["dead"]) / statistics.median(p99["alive"])
    detail = f"p99 of {sizes.targets - 1} targets, one more dead, over all alive; medians of rounds"
    report.judge(Check("one_dead_p99_ratio", ratio, DEAD_RATIO, "at most", "times", detail), say)


# ---- one comes back


def _measure_return(root: Path, sizes: OthersSizes, report: Report, say: Say) -> None:
    with open_scene(root, sizes) as scene:
        before = scene.load(sizes.transactions)
        scene.kill()
        scene.append_much(sizes.away)
        scene.revive()
        began = time.monotonic()
        during: list[float] = []
        while not scene.is_back():  # the load goes on meanwhile
            during += scene.load(sizes.rate // 4, warm_up=0)
            if time.monotonic() > began + _WAIT_SECONDS:
                raise DeadlineExceeded(f"the target did not come back: {scene.states()}")
        seconds = time.monotonic() - began
        missed = scene.receipts_of_the_last()
    ratio = percentile(during, 99) / percentile(before, 99)
    report.figures["one_returns"] = {
        "entries_missed": sizes.away,
        "seconds_until_on_the_tail": round(seconds, 2),
        "batches_of_it": missed,
        "others_append_to_receipt_ms": {
            "before": summary(before, digits=3), "meanwhile": summary(during, digits=3),
        },
    }  # fmt: skip
    detail = f"p99 of the others while one takes in {sizes.away} entries, over before"
    check = Check("one_returns_p99_ratio", ratio, CATCHING_UP_RATIO, "at most", "times", detail)
    report.judge(check, say)


# ---- what both are played on


class Scene:
    """A log, a delivery of a stream of it, and its targets."""

    def __init__(self, log: penstock.Log, hosts: Sequence[HostProcess], sizes: OthersSizes) -> None:
        self._sizes = sizes
        self._stream = log.create_stream("rows", _DDL)
        #: The last one is the host of the last target alone.
        self._hosts = list(hosts)
        self._keys = _a_key_each(sizes.targets)
        self._chance = random.Random(1)
        self._payload = self._chance.randbytes(sizes.row_bytes)
        places = sorted((shard, host, at) for host in hosts for at, shard in enumerate(host.shards))
        to = [f"{host.address}/{at}?token_file={host.token_file}" for _, host, at in places]
        self._player = Child("the player", _play, log.target, to)
        self._player.answer(_WAIT_SECONDS)
        self.wait_until(lambda states: set(states) == {ON_THE_TAIL})

    def close(self) -> None:
        self._player.close()
        self._hosts[-1].kill()

    def kill(self) -> None:
        """The host of the last target."""
        self._hosts[-1].kill()

    def revive(self) -> None:
        """It has forgotten everything, and so begins anew."""
        self._hosts[-1] = self._hosts[-1].again().__enter__()

    def states(self) -> list[str]:
        return [target["state"] for target in self._ask("status")["targets"]]

    def is_back(self) -> bool:
        return self.states()[-1] == ON_THE_TAIL

    def wait_until(self, holds: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not holds(states := self.states()):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"targets are {states}")
            time.sleep(0.02)

    def _ask(self, what: str) -> Any:
        self._player.send(what)
        return self._player.answer(_WAIT_SECONDS)

    def append_much(self, count: int) -> None:
        """As many entries, of one row each; on return the others have them."""
        rows = self._rows(range(self._sizes.targets)).select(["k"])
        small = rows.append_column("v", pa.array([b"x"] * rows.num_rows, pa.binary()))
        ones = [small.slice(at % small.num_rows, 1) for at in range(_AWAY_ROWS)]
        for _ in range(0, count, _AWAY_ROWS):
            lsn = self._stream.append(ones).last_lsn
        assert lsn is not None
        self._wait_delivered(lsn)

    def load(
        self, transactions: int, *, rate: int | None = None, warm_up: int = _WARM_UP
    ) -> list[float]:
        """Milliseconds from append to receipt, of all targets but the last."""
        sizes = self._sizes
        rate = rate or sizes.rate
        appended: list[tuple[int, int, list[int]]] = []
        start = time.monotonic()
        for number in range(transactions + warm_up):
            touched = self._chance.sample(range(sizes.targets), max(1, sizes.targets // 2))
            rows = self._rows(touched)
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            now = time.monotonic_ns()
            lsn = self._stream.append(rows).last_lsn
            assert lsn is not None
            if number >= warm_up:
                appended.append((now, lsn, touched))
        self._wait_delivered(appended[-1][1])
        return self._times(appended)

    def _rows(self, shards: Sequence[int]) -> pa.Table:
        keys = pa.array([self._keys[shard] for shard in shards], pa.int64())
        values = pa.array([self._payload] * len(shards), pa.binary())
        return pa.table({"k": keys, "v": values})

    def _wait_delivered(self, lsn: int) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            positions = [target["position"] for target in self._ask("status")["targets"]][:-1]
            if all(position is not None and position > lsn for position in positions):
                return
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"targets are at {positions}, not behind {lsn}")
            time.sleep(0.02)

    def _times(self, appended: Sequence[tuple[int, int, list[int]]]) -> list[float]:
        received: dict[int, list[tuple[int, int]]] = {}
        for host in self._hosts[:-1]:
            for shard, upto, at in host.receipts():
                received.setdefault(shard, []).append((upto, at))
        last = self._sizes.targets - 1
        times = []
        for now, lsn, touched in appended:
            for shard in touched:
                if shard != last:
                    batches = received[shard]
                    _, at = batches[bisect_right(batches, lsn, key=lambda one: one[0])]
                    times.append((at - now) / 1e6)
        return times

    def receipts_of_the_last(self) -> int:
        return len(self._hosts[-1].receipts())


def _a_key_each(shards: int) -> list[int]:
    """Of each shard, a key whose rows it gets."""
    numbers = pa.array(range(shards * 64), pa.int64())
    nodes = virtual_nodes(hash_columns([numbers], len(numbers))).tolist()
    route = first_route(shards)
    own = {route[node]: number for number, node in enumerate(nodes)}
    return [own[shard] for shard in range(shards)]


def _play(target: str, to: list[str], pipe: Connection) -> None:
    """The player; whatever comes through the pipe is answered with how the delivery stands."""
    with penstock.connect(target) as log:
        delivery = penstock.deliver(log.stream("rows"), to, key="k", name="bench")
        pipe.send("started")
        with delivery, contextlib.suppress(EOFError, OSError):
            while True:
                pipe.recv()
                pipe.send(delivery.status())


@contextlib.contextmanager
def open_scene(root: Path, sizes: OthersSizes) -> Iterator[Scene]:
    """In a directory of its own; ended by `with`."""
    root.mkdir()
    others = sizes.targets - 1
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(
                HostProcess("target", range(number, others, _HOSTS), root / "token")
            )
            for number in range(min(_HOSTS, others))
        ]
        log = stack.enter_context(penstock.connect(root / "log"))
        hosts.append(HostProcess("target", [others], root / "token").__enter__())
        scene = Scene(log, hosts, sizes)
        stack.callback(scene.close)
        yield scene
