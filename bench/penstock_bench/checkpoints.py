"""`penstock bench checkpoints`: stores of checkpoints, as a thesis about S4 measured its own.

Engines of bytes by key, beside a file per key, in turns, on one disk: how many puts a second are
durable, alone and a hundred in a commit; whether that depends on how many keys there are; how long
an index takes to be made again; and how long one waits for a first key and for all of them.

The thesis (Valles, "An Analysis of a Checkpointing Mechanism for a Distributed Stream Processing
System", 2012) had other disks, over NFS: its ratios can be compared, its rates cannot.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.log.storage.disk import RealDisk
from penstock.state.stores.indexed import IndexedEngine
from penstock.state.stores.redis_engine import RedisEngine
from penstock.state.stores.rocksdb_engine import RocksdbEngine
from penstock_bench.checkpoints_peers import FilePerKey, own_redis
from penstock_bench.checkpoints_recovery import measure_recovery
from penstock_bench.measure import RawDisk, busy_load, scratch, summary
from penstock_bench.report import Check, Report, Say

#: Figures 4.1, 4.2, 4.5 and 4.7 of the thesis, and what its text says of them.
THESIS: Final = {
    "writes, indexed over file per key": 4.85,
    "reads, indexed over file per key": 3.0,
    "puts/s at most, file per key": 700,
    "puts/s at most, indexed": 2_100,
    "puts/s with 1 k keys and fewer, file per key": 400,
    "puts/s with 1 M keys, file per key": 150,
    "puts/s with any number of keys, indexed": 1_300,
    "index of 1 M entries made again, ms": 250,
}
#: As in the thesis: values of 1 KiB under a thousand keys, and entries of 70 bytes.
_VALUE_BYTES: Final = 1024
_KEYS: Final = 1000
_ENTRY_BYTES: Final = 70
_PER_COMMIT: Final = 100
_FILE_PER_KEY: Final = "file per key"
_INDEXED: Final = "indexed"


@dataclass(frozen=True, slots=True)
class CheckpointBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rounds: int = 7
    #: Durable commits of each store in each round: of one put, and of a hundred.
    single: int = 200
    hundreds: int = 20
    keys: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    #: More files than this take too long to be made.
    files: int = 100_000
    openings: int = 7
    #: Of the query that is resumed.
    recovered: int = 200_000


FULL: Final = CheckpointBenchSizes()
QUICK: Final = CheckpointBenchSizes(
    rounds=2, single=3, hundreds=2, keys=(200, 2_000), files=200, openings=2, recovered=2_000
)


def run_bench(plan: CheckpointBenchSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("checkpoints", parameters={"plan": repr(plan), "load": busy_load(say)})
    report.figures["thesis"] = THESIS
    with scratch("penstock-checkpoints-", directory) as place:
        with own_redis(place / "redis") as redis:
            if redis is None:
                say("no redis-server on the path: it is left out")
            _measure_stores(plan, place / "stores", redis, report, say)
            _measure_reads(plan, place / "reads", redis, report, say)
        _measure_sizes(plan, place / "sizes", report, say)
        _measure_openings(plan, place / "openings", report, say)
        measure_recovery(plan.recovered, place / "recovery", report, say)
    return report


# ---- the stores beside each other


def _openers(place: Path, redis: str | None) -> dict[str, Callable[[], Any]]:
    openers: dict[str, Callable[[], Any]] = {
        _FILE_PER_KEY: lambda: FilePerKey(place / "files"),
        _INDEXED: lambda: IndexedEngine(RealDisk(place / "indexed")),
        "rocksdb": lambda: RocksdbEngine(place / "rocksdb"),
    }
    if redis is not None:
        openers["redis"] = lambda: RedisEngine(redis, place.name)
    return openers


@contextmanager
def _opened(openers: dict[str, Callable[[], Any]]) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        stores = {}
        for name, open in openers.items():
            stores[name] = open()
            stack.callback(stores[name].close)
        yield stores


def _measure_stores(
    plan: CheckpointBenchSizes, place: Path, redis: str | None, report: Report, say: Say
) -> None:
    place.mkdir()
    names = _openers(place, redis)
    singles: dict[str, list[float]] = {name: [] for name in names}
    hundreds: dict[str, list[float]] = {name: [] for name in names}
    raw: list[float] = []
    disk = RawDisk(place)
    draw = random.Random(1)
    with _opened(names) as stores:
        for _ in range(plan.rounds):
            raw += disk.write(bytes(_VALUE_BYTES), plan.single)
            for name, store in stores.items():
                singles[name] += _commits(store, draw, plan.single, 1, _KEYS, _VALUE_BYTES)
                hundreds[name] += _commits(
                    store, draw, plan.hundreds, _PER_COMMIT, _KEYS, _VALUE_BYTES
                )
    disk.close()
    report.figures["1 KiB after 1 KiB, synced, us"] = summary(raw, scale=1e6)
    for name in names:
        one, many = singles[name], hundreds[name]
        report.figures[name] = {
            "puts/s, one per sync": round(1 / statistics.median(one)),
            "puts/s, 100 per commit": round(_PER_COMMIT / statistics.median(many)),
            "one put, us": summary(one, scale=1e6),
            "commit of 100, us": summary(many, scale=1e6),
        }
        figures = report.figures[name]
        say(
            f"{name}: {figures['puts/s, one per sync']:,} puts/s one per sync, "
            f"{figures['puts/s, 100 per commit']:,} a hundred per commit"
        )
    for what, seconds, bar in (("one_put", singles, 2.0), ("commit_of_100", hundreds, 20.0)):
        ours, theirs = (statistics.median(seconds[name]) for name in (_INDEXED, _FILE_PER_KEY))
        detail = f"{theirs * 1e6:,.0f} over {ours * 1e6:,.0f} us, medians; the thesis has 4.85"
        name = f"{what}_of_indexed_over_file_per_key"
        report.judge(Check(name, theirs / ours, bar, "at least", "x", detail), say)


def _commits(
    store: Any, draw: random.Random, count: int, per_commit: int, keys: int, size: int
) -> list[float]:
    """Seconds of each commit of so many random keys."""
    seconds = []
    for _ in range(count):
        puts = {_key(draw.randrange(keys)): draw.randbytes(size) for _ in range(per_commit)}
        cut = store.cut()
        began = time.perf_counter()
        store.commit(puts, base=cut, cut=cut + 1)
        seconds.append(time.perf_counter() - began)
    return seconds


def _key(number: int) -> bytes:
    """As a store of rows makes them: part, virtual node, hash."""
    return b"\0\1%c%010d" % (number % 64, number)


def _measure_reads(
    plan: CheckpointBenchSizes, place: Path, redis: str | None, report: Report, say: Say
) -> None:
    """Of 100 random keys, from what was opened again; the disk's cache is warm."""
    place.mkdir()
    openers = _openers(place, redis)
    draw = random.Random(2)
    with _opened(openers) as stores:
        for store in stores.values():
            puts = {_key(number): draw.randbytes(_VALUE_BYTES) for number in range(_KEYS)}
            store.commit(puts, base=0, cut=1)
    seconds: dict[str, list[float]] = {name: [] for name in openers}
    with _opened(openers) as stores:
        for _ in range(plan.rounds):
            for name, store in stores.items():
                for _ in range(plan.hundreds):
                    keys = [_key(draw.randrange(_KEYS)) for _ in range(_PER_COMMIT)]
                    began = time.perf_counter()
                    found = store.get(keys)
                    seconds[name].append(time.perf_counter() - began)
                    assert None not in found
    for name in openers:
        report.figures[name]["get of 100, us"] = summary(seconds[name], scale=1e6)
    medians = {name: f"{statistics.median(seconds[name]) * 1e6:,.0f}" for name in openers}
    say("100 keys, us: " + ", ".join(f"{name} {us}" for name, us in medians.items()))


# ---- the number of keys


def _measure_sizes(plan: CheckpointBenchSizes, place: Path, report: Report, say: Say) -> None:
    """Commits of 100 random keys, of stores that have 1 k to 1 M of them."""
    place.mkdir()
    stores: dict[tuple[str, int], Any] = {}
    for keys in plan.keys:
        stores[_INDEXED, keys] = IndexedEngine(RealDisk(place / f"indexed-{keys}"))
        _fill(stores[_INDEXED, keys], keys)
        if keys <= plan.files:
            files = stores[_FILE_PER_KEY, keys] = FilePerKey(place / f"files-{keys}")
            for number in range(keys):
                files.write(_key(number), bytes(_ENTRY_BYTES), is_durable=False)
    say(f"stores of {', '.join(f'{keys:,}' for keys in plan.keys)} keys are made")
    seconds: dict[tuple[str, int], list[float]] = {each: [] for each in stores}
    draw = random.Random(3)
    for turn in range(plan.rounds * plan.hundreds):
        # In turns, one commit each: what else the machine does, all of them see.
        for (name, keys), store in stores.items():
            if name == _INDEXED or turn % 10 == 0:
                seconds[name, keys] += _commits(store, draw, 1, _PER_COMMIT, keys, _ENTRY_BYTES)
    for store in stores.values():
        store.close()
    rates = {each: _PER_COMMIT / statistics.median(found) for each, found in seconds.items()}
    for name in (_INDEXED, _FILE_PER_KEY):
        by_keys = {keys: round(rates[name, keys]) for keys in plan.keys if (name, keys) in rates}
        report.figures[f"puts/s by keys, {name}"] = by_keys
        say(f"{name}, puts/s: " + ", ".join(f"{n:,} keys {rate:,}" for n, rate in by_keys.items()))
    ours = [rates[_INDEXED, keys] for keys in plan.keys]
    detail = " to ".join(f"{rate:,.0f}" for rate in (min(ours), max(ours))) + " puts/s"
    check = Check(
        "slowest_over_fastest_by_keys", min(ours) / max(ours), 0.8, "at least", "x", detail
    )
    report.judge(check, say)


def _fill(store: Any, keys: int) -> None:
    for first in range(0, keys, 10_000):
        numbers = range(first, min(first + 10_000, keys))
        cut = store.cut()
        store.commit({_key(n): b"%070d" % n for n in numbers}, base=cut, cut=cut + 1)


# ---- opening again


def _measure_openings(plan: CheckpointBenchSizes, place: Path, report: Report, say: Say) -> None:
    """What comes after a restart: the index, a first key, all of the keys."""
    place.mkdir()
    found: dict[str, dict[int, float]] = {"index": {}, "first": {}, "all": {}}
    for keys in plan.keys:
        path = place / str(keys)
        store = IndexedEngine(RealDisk(path))
        _fill(store, keys)
        store.close()
        draw = random.Random(keys)
        times: dict[str, list[float]] = {what: [] for what in found}
        for _ in range(plan.openings):
            began = time.perf_counter()
            store = IndexedEngine(RealDisk(path))
            times["index"].append(time.perf_counter() - began)
            assert None not in store.get([_key(draw.randrange(keys)) for _ in range(_PER_COMMIT)])
            times["first"].append(time.perf_counter() - began)
            count = sum(1 for _ in store.scan(b""))
            times["all"].append(time.perf_counter() - began)
            assert count == keys
            store.close()
        for what in found:
            found[what][keys] = min(times[what])
        first, index = found["first"][keys], found["index"][keys]
        say(
            f"{keys:,} keys: index {index * 1000:.1f} ms, first 100 keys {first * 1000:.1f} ms, "
            f"all {found['all'][keys] * 1000:,.0f} ms"
        )
    for what, name in (
        ("index", "index made again, ms"),
        ("first", "first 100 keys, ms"),
        ("all", "all keys, ms"),
    ):
        report.figures[name] = {n: round(each * 1000, 2) for n, each in found[what].items()}
    largest = max(plan.keys)
    scaled = found["index"][largest]
    detail = f"{largest:,} entries, the best of {plan.openings}; the thesis has 0.25 s"
    report.judge(Check("index_made_again", scaled, 0.25, "at most", "s", detail), say)
    slowest = max(found["first"].values())
    detail = "opening included, at the slowest number of keys"
    report.judge(Check("first_keys_after_opening", slowest, 0.3, "at most", "s", detail), say)
