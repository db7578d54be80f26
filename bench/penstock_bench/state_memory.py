"""State larger than memory, for `penstock bench state`: rows by key at random, and a large fill.

Everything runs in processes of its own, one after the other, so that their memory is their own.

lookups   some random keys of very many are found and a column is read: warm (all was used before),
          and cold (nothing of it is in the kernel's cache). Beside it RocksDB, through rocksdict,
          with the same keys and eight bytes for each
large     the operators of a count by key, fed with batches as a task is, changes encoded as for the
          log: in memory, and with a bound. Rates of filling in and of changing keys at random, and
          the anonymous memory of the process

Law: after the fill, both have as many rows as there are keys.
"""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.limits import MIB
from penstock.ops.api import Delta
from penstock.ops.chain import Chain
from penstock.plan.stages import Query
from penstock.state.changelog import encode_changes
from penstock.state.memory import MemoryState
from penstock.state.room import MEMORY, Room
from penstock.state.scratch import Scratch
from penstock_bench.child import context
from penstock_bench.measure import resident_bytes
from penstock_bench.report import Check, Report, Say

T = TypeVar("T")
WARM_MS_BAR: Final = 0.8
COLD_MS_BAR: Final = 25.0
WARM_RATIO_BAR: Final = 5.0
COLD_RATIO_BAR: Final = 4.0
ANONYMOUS_MIB_BAR: Final = 600.0
RATE_BAR: Final = 0.5
KEYS_A_CALL: Final = 1_000
_FILL_ROWS: Final = 20_000
_CHANGE_ROWS: Final = 1_000
_WARM_CALLS: Final = 200
_COLD_CALLS: Final = 9
_LOOK_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class Lookups:
    """Medians, of one call."""

    warm_ms: float
    cold_ms: float


@dataclass(frozen=True, slots=True)
class Large:
    """What a fill and changes came to."""

    rows: int
    fill_rows_per_second: float
    change_rows_per_second: float
    anonymous_bytes: int
    mapped_bytes: int
    mapped_in_bytes: int


def in_child(measure: Callable[..., T], *arguments: Any) -> T:
    """In a process of its own."""
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


# -- lookups


def our_lookups(keys: int, bound_bytes: int, directory: Path) -> Lookups:
    room = Scratch(bound_bytes, str(directory))
    state = MemoryState(None, room)
    table = state.table("t", pa.schema([("k", pa.int64())]), {"n": pa.int64()})
    rng = np.random.default_rng(1)
    numbers = rng.permutation(keys)
    for start in range(0, keys, _FILL_ROWS):
        slots, _ = table.locate([pa.array(numbers[start : start + _FILL_ROWS])])
        table.write("n", slots, numbers[start : start + _FILL_ROWS])
        state.forget_log()

    def look_up(sought: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        found = table.read("n", table.find([pa.array(sought)]))
        assert (found == sought).all()
        state.forget_log()

    def drop() -> None:
        for mapping in list(room._mappings):
            mapping.flush()
            mapping.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(mapping.file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    warm = _median_ms(look_up, rng, keys, _WARM_CALLS)
    return Lookups(warm, _median_ms(look_up, rng, keys, _COLD_CALLS, drop))


def rocksdb_lookups(keys: int, directory: Path) -> Lookups:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    rng = np.random.default_rng(1)
    numbers = rng.permutation(keys)
    database = rocksdict.Rdict(str(directory), options)
    for start in range(0, keys, 100_000):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for number in numbers[start : start + 100_000].tolist():
            batch.put(number.to_bytes(8, "big"), number.to_bytes(8, "little"))
        database.write(batch)
    database.flush()
    database.compact_range(None, None)

    def look_up(sought: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        values: Any = database.get([number.to_bytes(8, "big") for number in sought.tolist()])
        found = np.frombuffer(b"".join(values), np.int64)
        assert (found == sought).all()

    warm = _median_ms(look_up, rng, keys, _WARM_CALLS)

    def drop() -> None:
        nonlocal database
        database.close()
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        database = rocksdict.Rdict(str(directory), options)

    cold = _median_ms(look_up, rng, keys, _COLD_CALLS, drop)
    database.close()
    return Lookups(warm, cold)


def _median_ms(
    look_up: Callable[[Any], None],
    rng: np.random.Generator,
    keys: int,
    calls: int,
    prepare: Callable[[], None] = lambda: None,
) -> float:
    seconds = []
    for _ in range(calls):
        sought = rng.integers(0, keys, KEYS_A_CALL)
        prepare()
        began = time.perf_counter()
        look_up(sought)
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds) * 1000, 3)


# -- a large fill


def large_state(
    query: Query, keys: int, changes: int, bound_bytes: int | None, directory: Path
) -> Large:
    room: Room = MEMORY if bound_bytes is None else Scratch(bound_bytes, str(directory))
    state = MemoryState(None, room)
    chain = Chain(query.stages, state, {})
    rng = np.random.default_rng(1)
    anonymous = mapped_in = 0

    def feed(numbers: np.ndarray[Any, np.dtype[np.int64]], size: int) -> float:
        nonlocal anonymous, mapped_in
        began = time.perf_counter()
        for place, start in enumerate(range(0, len(numbers), size)):
            rows = pa.record_batch({"k": numbers[start : start + size]})
            chain.push(0, Delta(rows))
            encode_changes(state.take_log())
            if place % _LOOK_BATCHES == 0:
                anonymous = max(anonymous, resident_bytes(os.getpid())[0])
                if isinstance(room, Scratch):
                    mapped_in = max(mapped_in, room.mapped_in_bytes)
        return round(len(numbers) / (time.perf_counter() - began))

    filled = feed(_permuted(keys), _FILL_ROWS)
    changed = feed(rng.integers(0, keys, changes), _CHANGE_ROWS)
    mapped = room.bytes if isinstance(room, Scratch) else 0
    return Large(state.rows_kept(), filled, changed, anonymous, mapped, mapped_in)


def _permuted(keys: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All keys in an order that is none: of 32 bits, since they are in memory, too."""
    return np.random.default_rng(2).permutation(np.arange(keys, dtype=np.int32)).astype(np.int64)


# -- all of it


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """How much of everything."""

    lookup_keys: int = 5_000_000
    large_keys: int = 20_000_000
    changes: int = 2_000_000
    bound_bytes: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Everything that was measured."""

    ours: Lookups
    rocksdb: Lookups
    in_memory: Large
    bounded: Large


def measure_memory(query: Query, plan: MemorySizes, directory: Path, say: Say) -> MemoryFigures:
    say(f"{KEYS_A_CALL:,} keys of {plan.lookup_keys:,} at random")
    places = [directory / name for name in ("scratch", "rocksdb")]
    for place in places:
        place.mkdir()
    ours = in_child(our_lookups, plan.lookup_keys, plan.bound_bytes, places[0])
    rocksdb = in_child(rocksdb_lookups, plan.lookup_keys, places[1])
    shutil.rmtree(places[1])
    say(f"counting {plan.large_keys:,} keys in memory, and with {plan.bound_bytes // MIB} MiB")
    in_memory, bounded = (
        in_child(large_state, query, plan.large_keys, plan.changes, bound, places[0])
        for bound in (None, plan.bound_bytes)
    )
    return MemoryFigures(ours, rocksdb, in_memory, bounded)


def judge_memory(report: Report, found: MemoryFigures, plan: MemorySizes, say: Say) -> None:
    """The verdict."""
    ours, rocksdb, bounded = found.ours, found.rocksdb, found.bounded
    of = f"{KEYS_A_CALL:,} keys of {plan.lookup_keys:,} a call"
    fill = bounded.fill_rows_per_second / found.in_memory.fill_rows_per_second
    change = bounded.change_rows_per_second / found.in_memory.change_rows_per_second
    mib = bounded.anonymous_bytes / MIB
    held = (
        f"{plan.large_keys:,} keys, {found.in_memory.anonymous_bytes / MIB:,.0f} MiB in memory; "
        f"{bounded.mapped_bytes / MIB:,.0f} MiB of files, "
        f"{bounded.mapped_in_bytes / MIB:,.0f} mapped in at most"
    )
    lost = abs(bounded.rows - plan.large_keys) + abs(found.in_memory.rows - plan.large_keys)
    for check in (
        Check("warm_lookup", ours.warm_ms, WARM_MS_BAR, "at most", "ms", of),
        Check("cold_lookup", ours.cold_ms, COLD_MS_BAR, "at most", "ms", of),
        Check(
            "warm_lookup_over_rocksdb",
            rocksdb.warm_ms / ours.warm_ms,
            WARM_RATIO_BAR,
            "at least",
            "x",
            f"RocksDB {rocksdb.warm_ms} ms",
        ),
        Check(
            "cold_lookup_over_rocksdb",
            rocksdb.cold_ms / ours.cold_ms,
            COLD_RATIO_BAR,
            "at least",
            "x",
            f"RocksDB {rocksdb.cold_ms} ms",
        ),
        Check("bounded_anonymous", mib, ANONYMOUS_MIB_BAR, "at most", "MiB", held),
        Check("bounded_fill_rate", fill, RATE_BAR, "at least", "x", _rates(found, "fill")),
        Check("bounded_change_rate", change, RATE_BAR, "at least", "x", _rates(found, "change")),
        Check("rows_lost_by_the_bound", lost, 0, "at most", "rows"),
    ):
        report.judge(check, say)


def _rates(found: MemoryFigures, what: str) -> str:
    rates = [getattr(one, f"{what}_rows_per_second") for one in (found.bounded, found.in_memory)]
    return f"{rates[0]:,.0f} rows/s, in memory {rates[1]:,.0f}"
