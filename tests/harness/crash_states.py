"""Every disk that a power cut or a kill could leave behind, at every point of a recorded trace.

Owns the enumeration: after each operation of the trace, the state with all unsynced changes lost,
the one with all of them kept, and some seeded mixtures with torn writes (ALICE, OSDI'14, in the
manner of its abstract persistence model). States that are equal in bytes and in what was marked
before them are given once. A killed process leaves a disk that still has everything to lose: a
power cut may follow while the next process recovers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from harness.disk import ALL_KEPT, ALL_LOST, Odds, SimDisk, SimFile
from harness.faults import Mark, Operation


@dataclass(frozen=True, slots=True)
class CrashState:
    """One disk after a power cut or a kill."""

    disk: SimDisk
    #: How many operations and marks of the trace had been done.
    after: int
    #: "lost", "kept" or "mixed" by a power cut, or "killed".
    manner: str
    #: Values of the marks before the cut, oldest first.
    marks: tuple[object, ...]


def crash_states(
    trace: Sequence[Operation | Mark], *, seed: int, mixtures: int
) -> Iterator[CrashState]:
    """The states in order of the trace; `mixtures` per point are drawn from `seed`."""
    random = Random(seed)
    replay = Replay()
    seen: set[tuple[bytes, int]] = set()
    for after, step in enumerate(trace, start=1):
        replay.step(step)
        draws = [(ALL_LOST, "lost"), (ALL_KEPT, "kept")]
        if replay.disk.has_unsynced:
            draws += [(draw_odds(random), "mixed") for _ in range(mixtures)]
        for odds, manner in draws:
            disk = replay.disk.crash(random, odds)
            key = (disk.fingerprint(), len(replay.marks))
            if key not in seen:
                seen.add(key)
                yield CrashState(disk, after, manner, tuple(replay.marks))


def killed_states(trace: Sequence[Operation | Mark]) -> Iterator[CrashState]:
    """After each operation: the process died, and the page cache holds all that it did."""
    for after, step in enumerate(trace, start=1):
        if isinstance(step, Mark):
            continue
        replay = Replay()
        for done in trace[:after]:
            replay.step(done)
        replay.disk.kill()
        yield CrashState(replay.disk, after, "killed", tuple(replay.marks))


def draw_odds(random: Random) -> Odds:
    """Anything from a cut that loses nearly all to one that loses nearly nothing."""
    lost = random.random()
    return Odds(lost, torn=(1 - lost) * random.random())


class Replay:
    """A disk on which a trace is done again, step by step."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.marks: list[object] = []
        self._files: dict[int, SimFile] = {}

    def step(self, step: Operation | Mark) -> None:
        if isinstance(step, Mark):
            self.marks.append(step.value)
        elif step.kind == "create":
            self._files[step.file] = self.disk.create(step.name)
        elif step.kind == "open":
            self._files[step.file] = self.disk.open(step.name, writable=True)
        elif step.kind == "rename":
            self.disk.rename(step.name, step.target)
        elif step.kind == "remove":
            self.disk.remove(step.name)
        elif step.kind == "sync_dir":
            self.disk.sync_dir()
        else:
            self._step_file(self._files[step.file], step)

    def _step_file(self, file: SimFile, step: Operation) -> None:
        if step.kind == "write" and step.position < 0:
            file.append([step.data])
        elif step.kind == "write":
            file.write_at(step.position, step.data)
        elif step.kind == "truncate":
            file.truncate(step.position)
        else:
            assert step.kind == "sync", step
            file.sync()
