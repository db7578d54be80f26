"""What an indexed store goes through in tests of crashes, damage and mutants; and what must hold.

The checker sees commits as they were sent and acknowledged, and disks as a crash leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from harness.crash_states import CrashState, crash_states, draw_odds, killed_states
from harness.disk import ALL_KEPT, ALL_LOST, SimDisk
from harness.faults import CHANGING, FaultyDisk, Mark, Operation, TracingDisk

from penstock.errors import Damaged, Unavailable
from penstock.log.storage.disk import Disk
from penstock.state.stores.api import StaleCut
from penstock.state.stores.indexed import IndexedEngine

#: What opens a store; a mutant of it, where checkers are tested.
Opener = Callable[[Disk], Any]
Rows = dict[bytes, bytes]


def open_store(disk: Disk, kind: Any = IndexedEngine) -> Any:
    """With files so small that there are many."""
    return kind(disk, segment_bytes=1500, segment_commits=7, secret=b"12345678")


@dataclass
class Story:
    """Commits that are drawn from a seed, and what there is after each of them."""

    seed: int
    commits: int
    #: The rows at each cut.
    rows: dict[int, Rows] = field(default_factory=lambda: {0: {}})

    def tell(self, disk: Disk, open: Opener, on_step: Callable[[str, int], None]) -> None:
        """`on_step` hears of a cut when it is sent, and when it is done."""
        random = Random(self.seed)
        store, cut, rows = open(disk), 0, dict[bytes, bytes]()
        for number in range(self.commits):
            puts, deletes = draw(random)
            anew = number in (self.commits // 3, self.commits // 2)
            if anew:
                deletes = []
                rows = {}
            rows = {key: value for key, value in (rows | puts).items() if key not in deletes}
            self.rows[cut + 3] = rows
            on_step("sent", cut + 3)
            try:
                store.commit(puts, deletes, base=None if anew else cut, cut=cut + 3)
            except Unavailable:
                # Who tries again is refused, or has its way; or the store has it, and says so.
                if store.cut() == cut:
                    store.commit(puts, deletes, base=None if anew else cut, cut=cut + 3)
            on_step("done", cut + 3)
            with pytest.raises(StaleCut):
                store.commit({b"late": b""}, base=cut, cut=cut + 4)
            cut += 3
            if number % 11 == 10:
                store.close()
                store = open(disk)
            if random.random() < 0.2:
                assert contents(store) == rows
        store.close()

    def record(self, open: Opener) -> list[Operation | Mark]:
        """The trace of it on a disk."""
        disk = TracingDisk(SimDisk())
        self.tell(disk, open, lambda step, cut: disk.mark((step, cut)))
        return disk.trace

    def check(self, disk: Disk, marks: Sequence[Any], open: Opener) -> Any:
        """What was acknowledged is there, or what was sent after it; and nothing between."""
        store = open(disk)
        done = max((cut for step, cut in marks if step == "done"), default=0)
        sent = max((cut for step, cut in marks if step == "sent"), default=0)
        assert store.cut() in (done, sent), (store.cut(), done, sent)
        rows = self.rows[store.cut()]
        assert contents(store) == rows, f"at cut {store.cut()}"
        keys = sorted({*rows, *KEYS})
        assert store.get(keys) == [rows.get(key) for key in keys]
        return store


#: Above so many, files are emptied for the deletions in them; as it ships, that is far more.
DELETIONS_MIN = 3
KEYS = [b"%02d/key" % number for number in range(30)]


def draw(random: Random) -> tuple[Rows, list[bytes]]:
    """A small commit: most of it about few keys."""
    hot = random.random() < 0.7
    pool = KEYS[:6] if hot else KEYS
    sizes = (0, 5, 60, 700)
    chosen = random.sample(pool, random.choice((1, 2, 5)))
    puts = {key: random.randbytes(random.choice(sizes)) for key in chosen}
    others = [key for key in pool if key not in puts]
    return puts, random.sample(others, random.choice((0, 0, 1, 3)) % (len(others) + 1))


def contents(store: Any) -> Rows:
    found = list(store.scan(b""))
    assert len(dict(found)) == len(found), "a key came twice"
    return dict(found)


def check_crashes(story: Story, open: Opener, *, seed: int, mixtures: int) -> int:
    """After any crash, the store opens, is right, and goes on; how many disks were looked at."""
    trace = story.record(open)
    states: list[CrashState] = [
        *crash_states(trace, seed=seed, mixtures=mixtures),
        *killed_states(trace),
    ]
    random = Random(seed)
    for number, state in enumerate(states):
        if number % 5 == 0:
            # The disk fails while the store is opened, and then so does the power.
            for step in range(3):
                story.check(crash_at_open(state.disk, step, random, open), state.marks, open)
        store = story.check(state.disk, state.marks, open)
        if number % 5 == 1:
            go_on(story, state.disk, store, random, open)
    return len(states)


def crash_at_open(disk: SimDisk, step: int, random: Random, open: Opener) -> SimDisk:
    """What is left of a copy of the disk."""
    copy = disk.crash(random, ALL_KEPT)
    try:
        open(FaultyDisk(copy, fail_at=step, operations=CHANGING, partly=step == 1)).close()
    except Unavailable:
        pass
    return copy.crash(random, draw_odds(random))


def go_on(story: Story, disk: SimDisk, store: Any, random: Random, open: Opener) -> None:
    """More commits, of which a power cut leaves all; they take no part of what was torn."""
    cut = store.cut()
    rows = dict(story.rows[cut])
    for _ in range(9):
        puts, _ = draw(random)
        store.commit(puts, base=cut, cut=cut + 1)
        rows, cut = rows | puts, cut + 1
    after = open(disk.crash(random, ALL_LOST))
    assert after.cut() == cut
    assert contents(after) == rows


def check_faults(story: Story, open: Opener, *, every: int) -> int:
    """An error of the disk at any operation: nothing is lost; how many errors there were."""
    tried = fired = 0
    while True:
        real = SimDisk()
        faulty = FaultyDisk(real, fail_at=tried, operations=CHANGING, partly=tried % 2 == 0)
        marks: list[tuple[str, int]] = []

        def note(step: str, cut: int, marks: list[tuple[str, int]] = marks) -> None:
            marks.append((step, cut))

        try:
            story.tell(faulty, open, note)
        except Unavailable:
            pass
        if not faulty.fired:
            return fired
        fired += 1
        story.check(real.crash(Random(tried), ALL_LOST), marks, open)
        real.kill()
        story.check(real, marks, open)
        tried += every


def check_flips(story: Story, open: Opener, positions: int | None, seed: int) -> int:
    """A bit that went bad anywhere: wrong bytes are never returned. How many were noticed."""
    disk = SimDisk()
    story.tell(disk, open, lambda step, cut: None)
    files = disk.contents()
    places = [(name, at) for name, data in files.items() for at in range(len(data.rstrip(b"\0")))]
    random = Random(seed)
    if positions is not None:
        places = random.sample(places, positions)
    noticed = 0
    for name, at in places:
        bad = bytearray(files[name])
        bad[at] ^= 1 << random.randrange(8)
        noticed += _notices(story, SimDisk({**files, name: bytes(bad)}), open)
    return noticed


def _notices(story: Story, disk: SimDisk, open: Opener) -> bool:
    try:
        store = open(disk)
    except Damaged:
        return True
    # A last commit that is damaged looks as one that a crash tore.
    assert store.cut() in sorted(story.rows)[-2:], "commits are gone without a word"
    rows = story.rows[store.cut()]
    noticed = False
    for key in KEYS:
        try:
            (value,) = store.get([key])
        except Damaged:
            noticed = True
            continue
        assert value == rows.get(key), f"{key!r} at cut {store.cut()}"
    return noticed


def check_gone(story: Story, open: Opener) -> int:
    """An older data file that is not there: its keys may not look as if they had never been."""
    disk = SimDisk()
    story.tell(disk, open, lambda step, cut: None)
    files = disk.contents()
    older = [name for name in sorted(files) if name.endswith(".data")][:-1]
    for name in older:
        with pytest.raises(Damaged):
            open(SimDisk({other: data for other, data in files.items() if other != name}))
    return len(older)
