"""Chains of increments: put, merged, found by key, swept, damaged, and cut off by crashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.pipeline.store import SimFolder
from state_actions import ACTIONS, TAKE, Store, contents, do, make_rows, make_store

from penstock.errors import BadRequest, Damaged, MissingFile, Unavailable
from penstock.state import compaction
from penstock.state.api import Change
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.compaction import plan_merge
from penstock.state.fold import merge_changes
from penstock.state.keys import VIRTUAL_NODES
from penstock.state.stores.api import Increment, Reference, StaleCut

LOG = "0123456789abcdef" * 2
TASK = "hot.1/0/2"


class Writer:
    """A task: a state, and checkpoints of it."""

    def __init__(self, store: CheckpointStore) -> None:
        self.files = store
        self.store = make_store()
        self.lsn = 0
        #: What is named, newest first; and what the state was there.
        self.named: list[Reference] = []
        self.held: dict[int, Any] = {}
        self._done = 0
        self._waiting: list[Change] = []

    def do(self, actions: Iterable[Any]) -> None:
        for action in actions:
            self._done += 1
            do(self.store, action, self._done)

    def increment(self) -> Increment:
        """What changed since the last one that was put, at a new marker."""
        self.lsn += 10
        self._waiting += self.store.state.take_log()
        self.held[self.lsn] = contents(self.store)
        base = int(self.named[0]["marker_lsn"]) if self.named else None
        parts = self.store.state.parts()
        merged = merge_changes(self._waiting, parts, is_whole=base is None)
        return Increment(TASK, base, self.lsn, 1, "f", parts, merged)

    def put(self) -> Reference:
        increment = self.increment()
        reference = self.files.put(increment, self.named[0] if self.named else None)
        self._waiting.clear()
        self.named = [reference, *self.named[:1]]
        return reference

    def check(self, reference: Reference, files: CheckpointStore | None = None) -> None:
        """It is what the state was, as a whole and by halves."""
        store = self.files if files is None else files
        lsn = int(reference["marker_lsn"])
        whole, halves = make_store(), make_store()
        loaded = store.load(reference)
        assert loaded.cut == lsn
        whole.state.apply(list(loaded.changes))
        assert contents(whole) == self.held[lsn]
        for first in (0, 1):
            nodes = frozenset(range(first, VIRTUAL_NODES, 2))
            halves.state.apply(list(store.load(reference, nodes).changes), nodes)
        assert contents(halves) == self.held[lsn]


def _store(folder: SimFolder | None = None) -> tuple[CheckpointStore, SimFolder]:
    kept = SimFolder() if folder is None else folder
    return CheckpointStore("memory", LOG, kept), kept


def _some(random: Random) -> list[Any]:
    keys = [random.choice([None, *range(6)]) for _ in range(3)]
    rows = [(random.randrange(4), random.choice([None, *range(10)]), "a", 1) for _ in range(3)]
    return [
        random.choice([("put", keys), ("delete", keys), ("insert", rows)]),
        random.choice([("evict", random.randrange(10)), ("set", random.randrange(99)), TAKE]),
        ("insert", rows),
        ("put", keys[:1]),
    ]


@pytest.mark.parametrize("first", [[1.0], [0.7, 0.3], [0.55, 0.45], [0.5, 0.45, 0.05]])
def test_merging_writes_each_byte_a_few_times_in_the_long_run(first: list[float]) -> None:
    """Increments of a hundredth of the keys each, at random, to a state of 128 MB."""
    whole, share = 128_000_000, 0.01
    chain = [(int(part * whole), 0) for part in first]  # bytes, and increments in it
    written = 0
    for _ in range(400):
        sizes = [*(size for size, _ in chain), int(whole * share)]
        start = plan_merge(sizes)
        merged = 1 + sum(count for _, count in chain[start:])
        size = whole if start == 0 else int(whole * (1 - (1 - share) ** merged))
        written += size
        chain = [*chain[:start], (size, 0 if start == 0 else merged)]
        assert sum(size for size, _ in chain) <= 2.1 * whole and len(chain) < 20
    assert written / (400 * whole * share) < 6


@settings(max_examples=60, deadline=None)
@given(histories=st.lists(ACTIONS, min_size=1, max_size=9))
def test_every_checkpoint_is_the_state_of_its_marker(histories: list[Any]) -> None:
    """Whatever was merged with what on the way."""
    writer = Writer(_store()[0])
    for actions in histories:
        writer.do([*actions, TAKE])
        writer.put()
        for reference in writer.named:
            writer.check(reference)


@settings(max_examples=40, deadline=None)
@given(histories=st.lists(ACTIONS, min_size=2, max_size=6), group_bytes=st.sampled_from([1, 10**9]))
def test_a_merge_of_files_is_the_same_for_groups_of_nodes(
    histories: list[Any], group_bytes: int
) -> None:
    """Some virtual nodes after the others, or all at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "MERGED_BYTES", group_bytes)
        patch.setattr("penstock.state.checkpoint_store.plan_merge", lambda sizes: 0)
        writer = Writer(_store()[0])
        for actions in histories:
            writer.do([*actions, TAKE])
            writer.put()

        writer.check(writer.named[0])
        (line,) = writer.files.increments(CheckpointRef.from_json(writer.named[0]))
        assert line.base_lsn is None


@settings(max_examples=60, deadline=None)
@given(histories=st.lists(ACTIONS, min_size=1, max_size=6))
def test_what_is_found_by_key_is_what_the_state_has(histories: list[Any]) -> None:
    writer = Writer(_store()[0])
    for actions in histories:
        writer.do([*actions, TAKE])
        writer.put()
    reference = writer.named[0]
    whole = merge_changes(
        writer.files.load(reference).changes, writer.store.state.parts(), is_whole=True
    )

    for part, kind in (("op/numbers", pa.int64()), ("op/rows", pa.int64())):
        for key in (None, 0, 3, 99):
            found = list(writer.files.find(reference, part, [pa.array([key], kind)]).changes)
            wanted = [
                row for one in whole if one.name == part for row in one.rows.to_pylist()
                if row["k"] == key
            ]  # fmt: skip
            assert [row for one in found for row in one.rows.to_pylist()] == wanted


def test_parts_that_are_not_there_are_told() -> None:
    writer = Writer(_store()[0])
    writer.do([("put", [1])])

    with pytest.raises(BadRequest, match=r"no part op/x: expected one of op/largest, op/numbers"):
        writer.files.find(writer.put(), "op/x", [pa.array([1])])


def test_a_put_that_does_not_go_on_from_what_is_there_is_refused() -> None:
    writer = Writer(_store()[0])
    writer.do([("put", [1])])
    first = writer.put()
    writer.do([("put", [2])])
    stale = writer.increment()
    writer.files.put(stale, first)

    with pytest.raises(StaleCut) as refused:
        writer.files.put(stale, None)
    assert refused.value.cut is None
    with pytest.raises(StaleCut) as refused:
        writer.files.put(Increment(TASK, 5, 99, 1, "f", stale.parts, ()), first)
    assert refused.value.cut == 10
    with pytest.raises(StaleCut):
        writer.files.put(Increment(TASK, 10, 10, 1, "f", stale.parts, ()), first)
    with pytest.raises(BadRequest, match="is no checkpoint of"):
        writer.files.put(Increment("other.1/0/0", 10, 20, 1, "f", stale.parts, ()), first)


# ---- merging


def test_small_changes_write_little_and_the_chain_stays_short() -> None:
    """Goal: the cost of compaction is bounded. Method: a thousand checkpoints of one size."""
    unit, sizes, written = 300_000, [300_000 * 400], 0
    longest = 0
    for _ in range(1_000):
        first = plan_merge([*sizes, unit])
        merged = sum(sizes[first:]) + unit
        if first == 0:
            merged = max(sizes[0], unit)  # the same keys again
        sizes[first:] = [merged]
        written += merged
        longest = max(longest, len(sizes))
        assert sum(sizes[1:]) <= sizes[0]

    assert longest <= 20
    assert written / (1_000 * unit) < 7


def test_four_alike_become_one_and_larger_ones_are_left() -> None:
    kib = 1024
    assert plan_merge([1]) == 0
    assert plan_merge([100_000 * kib, 300 * kib]) == 1
    assert plan_merge([100_000 * kib, 300 * kib, 300 * kib, 300 * kib]) == 3
    assert plan_merge([100_000 * kib, *[300 * kib] * 4]) == 1
    assert plan_merge([100_000 * kib, *[2_000 * kib] * 3, *[300 * kib] * 4]) == 1, "and on"
    assert plan_merge([100_000 * kib, 90_000 * kib, 20_000 * kib]) == 0, "overgrown"


def test_what_was_deleted_and_struck_is_not_in_a_whole_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.state.checkpoint_store.plan_merge", lambda sizes: 0)
    writer = Writer(_store()[0])
    writer.do([("put", [1, 2, 3]), ("insert", [(1, 3, "a", 1), (1, 9, "b", 1)]), TAKE])
    writer.put()
    writer.do([("delete", [1, 2, 3]), ("evict", 5), TAKE])
    writer.put()
    writer.do([("put", [4, 5, 6, 7, 8, 9]), ("insert", [(2, 9, "c" * 500, 1)]), TAKE])
    writer.put()

    lines = writer.files.increments(CheckpointRef.from_json(writer.named[0]))
    assert [line.base_lsn for line in lines] == [None]
    kinds = {kind for _, kind, _, _ in writer.files.sizes(lines[0])}
    assert kinds <= {"put", "add", "set"}
    writer.check(writer.named[0])


# ---- damage


def test_any_flipped_bit_is_found_and_the_other_copy_is_read() -> None:
    """Goal: no damaged byte is ever returned. Method: flip bits all over one file after the other,
    in one copy and then in both."""
    store, folder = _store()
    writer, random = Writer(store), Random(3)
    writer.do([("put", [*range(500)]), TAKE])
    writer.put()
    writer.do([*_some(random), TAKE])
    reference = writer.put()
    paths = [line.path for line in store.increments(CheckpointRef.from_json(reference))]
    assert len(paths) == 2
    for path in paths:
        whole = folder.files[path]
        for place in range(0, len(whole), 1 + len(whole) // 150):
            broken = bytearray(whole)
            broken[place] ^= 1 << random.randrange(8)
            folder.files[path] = bytes(broken)
            writer.check(reference)

            folder.files[f"{path}.2"] = bytes(broken)
            try:
                writer.check(reference)  # what is not read may be damaged: filters
            except Damaged:
                pass
            else:
                with pytest.raises(Damaged):
                    store._check(path, _line(store, reference, path))
            folder.files[path] = folder.files[f"{path}.2"] = whole
    manifest = folder.files[str(reference["path"])]
    for place in range(len(manifest)):
        broken = bytearray(manifest)
        broken[place] ^= 1 << random.randrange(8)
        folder.files[str(reference["path"])] = bytes(broken)
        with pytest.raises(Damaged):
            store.load(reference)


def _line(store: CheckpointStore, reference: Reference, path: str) -> Any:
    lines = store.increments(CheckpointRef.from_json(reference))
    return next(line for line in lines if line.path == path)


@pytest.mark.parametrize("suffix", ["", ".2"])
def test_a_copy_that_is_lost_is_made_again(suffix: str) -> None:
    store, folder = _store()
    writer = Writer(store)
    writer.do([("put", [*range(500)]), TAKE])
    first = writer.put()
    path = store.increments(CheckpointRef.from_json(first))[0].path
    data = folder.files.pop(path + suffix)
    writer.do([("put", [1]), TAKE])

    second = writer.put()

    assert path in [one.path for one in store.increments(CheckpointRef.from_json(second))]
    assert folder.files[path + suffix] == data
    writer.check(second)


def test_no_copy_is_made_of_a_damaged_one() -> None:
    store, folder = _store()
    writer = Writer(store)
    writer.do([("put", [*range(500)]), TAKE])
    path = store.increments(CheckpointRef.from_json(writer.put()))[0].path
    del folder.files[path]
    folder.files[f"{path}.2"] = bytes(len(folder.files[f"{path}.2"]))
    writer.do([("put", [1]), TAKE])

    with pytest.raises(Damaged):
        writer.put()

    assert path not in folder.files


def test_damage_is_found_before_the_other_copy_is_damaged_too() -> None:
    """Goal: bits that flip one after the other lose nothing. Method: damage one copy of each file,
    then let a task write checkpoints in which nothing is merged."""
    store, folder = _store()
    writer, random = Writer(store), Random(2)
    writer.do([("put", [*range(2_000)]), TAKE])
    writer.put()
    writer.do([*_some(random), TAKE])
    path = store.increments(CheckpointRef.from_json(writer.put()))[0].path
    whole = folder.files[path]
    folder.files[path] = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.state.checkpoint_store.plan_merge", lambda sizes: len(sizes) - 1)
        for _ in range(12):
            writer.lsn += random.randrange(3)
            writer.do([*_some(random), TAKE])
            writer.put()

    assert folder.files[path] == folder.files[f"{path}.2"] == whole


def test_an_increment_without_any_copy_is_gone_on_from_by_nobody() -> None:
    """Else what is written would be whole in name only, until somebody needs it."""
    store, folder = _store()
    writer = Writer(store)
    writer.do([("put", [*range(500)]), TAKE])
    path = store.increments(CheckpointRef.from_json(writer.put()))[0].path
    del folder.files[path], folder.files[f"{path}.2"]
    writer.do([("put", [1]), TAKE])

    with pytest.raises(MissingFile, match="no other copy"):
        writer.put()


def test_a_whole_file_of_today_can_be_gone_on_from(tmp_path: Path) -> None:
    """A marker names a file with all rows; the next checkpoint adds to it, and it gets a copy."""
    writer = Writer(CheckpointStore(str(tmp_path), LOG))
    writer.do([("put", [1, 2]), ("insert", [(1, 3, "a", 1)]), TAKE])
    writer.increment()
    whole = writer.files.write(
        TASK, marker_lsn=writer.lsn, instance=1, fingerprint="f",
        parts=writer.store.state.parts(), changes=writer.store.state.freeze(),
    )  # fmt: skip
    writer._waiting.clear()
    writer.named = [whole.to_json()]
    writer.do([("delete", [1]), ("put", [3]), TAKE])

    second = writer.put()

    writer.check(second)
    (found,) = writer.files.find(second, "op/rows", [pa.array([1])]).changes
    assert found.rows.num_rows == 1, "in the whole file"
    writer.do([("put", [*range(6)]), TAKE])
    writer.check(writer.put())
    writer.files.sweep(TASK, writer.named)
    for reference in writer.named:
        writer.check(reference)


# ---- sweeping


def test_sweeping_keeps_what_the_kept_need_and_nothing_else() -> None:
    """However old it is: the first increment is older than all checkpoints that are named."""
    store, folder = _store()
    writer, random = Writer(store), Random(1)
    writer.do([("put", [*range(2_000)]), TAKE])
    writer.put()
    for _ in range(12):
        writer.do([*_some(random), TAKE])
        writer.put()
        store.sweep(TASK, writer.named)
        for reference in writer.named:
            writer.check(reference)
        needed = set()
        for reference in writer.named:
            needed.add(reference["path"])
            for line in store.increments(CheckpointRef.from_json(reference)):
                needed |= {line.path, f"{line.path}.2"}
        assert {*folder.files} == needed


def test_nothing_is_swept_if_it_is_not_known_what_is_needed() -> None:
    """R40: a manifest that cannot be read is no sign that its increments are garbage."""
    store, folder = _store()
    writer = Writer(store)
    for key in range(3):
        writer.do([("put", [key]), TAKE])
        writer.put()
    path = str(writer.named[1]["path"])
    whole = folder.files[path]
    for broken in (None, whole[:-1], bytes(len(whole))):
        if broken is None:
            del folder.files[path]
        else:
            folder.files[path] = broken
        before = {*folder.files}

        with pytest.raises(Damaged):
            store.sweep(TASK, writer.named)

        assert {*folder.files} == before


def test_a_zombie_sweeps_nothing_that_its_heir_needs() -> None:
    """R38: it knows older checkpoints; its heir goes on from them, and merges their increments."""
    store, _ = _store()
    writer, random = Writer(store), Random(5)
    writer.do([("put", [*range(300)]), TAKE])
    writer.put()
    writer.do([*_some(random), TAKE])
    writer.put()
    known = list(writer.named)
    for _ in range(9):
        writer.do([*_some(random), TAKE])
        writer.put()

        store.sweep(TASK, known)

        for reference in (*writer.named, *known):
            writer.check(reference)


# ---- crashes


class Crash(BaseException):
    """The process is gone."""


class _Mortal(SimFolder):
    """Dies at a given step; what is written then is there by half."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.dies_at: int | None = None

    def _step(self) -> bool:
        self.steps += 1
        return self.dies_at is not None and self.steps >= self.dies_at

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        if self._step():
            self.files[path] = data[: len(data) // 2]
            raise Crash
        self.files[path] = data

    def publish(self, old: str, new: str) -> None:
        if self._step():
            raise Crash
        super().publish(old, new)
        if self._step():  # it is done, and nobody is told
            raise Crash

    def delete(self, path: str) -> None:
        if self._step():
            raise Crash
        super().delete(path)


def _lives(merges: bool) -> Iterator[tuple[Writer, _Mortal, list[Reference]]]:
    """A task that dies at each step of a checkpoint and of the sweep after it."""
    for step in range(1, 60):
        folder = _Mortal()
        writer, random = Writer(_store(folder)[0]), Random(step)
        writer.do([("put", [*range(400 if merges else 3_000)]), TAKE])
        writer.put()
        for _ in range(2):
            writer.do([*_some(random), TAKE])
            writer.put()
        named = list(writer.named)
        if merges:
            writer.do([("put", [*range(300, 900)]), TAKE])
        writer.do([*_some(random), TAKE])
        folder.steps, folder.dies_at = 0, step
        try:
            writer.put()
            named = list(writer.named)
            writer.files.sweep(TASK, named)
        except Crash:
            yield writer, folder, named
        else:
            assert step > 10, "there are fewer steps than files to write and delete"
            return
    raise AssertionError("it never got through")


@pytest.mark.parametrize("merges", [False, True], ids=["added", "merged"])
def test_a_crash_at_any_step_leaves_what_was_named(merges: bool) -> None:
    """Goal: until it is named, a checkpoint is garbage at most; what is named stays. Method: die at
    every step of writing, copying, merging, naming and sweeping; then go on as an heir does."""
    for writer, folder, named in _lives(merges):
        folder.dies_at = None
        for reference in named:
            writer.check(reference)
        heir = Writer(writer.files)
        for change in heir.files.load(named[0]).changes:
            heir.store.state.apply([change])
        heir.store.state.forget_log()
        heir.lsn, heir.named, heir.held = writer.lsn, list(named), writer.held
        for key in range(3):
            heir.do([("put", [key]), TAKE])
            heir.put()
        heir.files.sweep(TASK, heir.named)
        for reference in heir.named:
            heir.check(reference)
        needed = set()
        for reference in heir.named:
            for line in heir.files.increments(CheckpointRef.from_json(reference)):
                needed |= {line.path, f"{line.path}.2"}
        assert {*folder.files} == {*needed, *(one["path"] for one in heir.named)}, "garbage"


def test_a_store_that_fails_is_not_known_to_have_anything() -> None:
    broken = [False]
    folder = SimFolder(fails=lambda: broken[0])
    writer = Writer(_store(folder)[0])
    writer.do([("put", [1]), TAKE])
    writer.put()
    before = dict(folder.files)
    broken[0] = True
    writer.do([("put", [2]), TAKE])

    with pytest.raises(Unavailable):
        writer.put()

    assert folder.files == before
    broken[0] = False
    writer.check(writer.put())


def test_what_is_gone_is_told() -> None:
    store, folder = _store()
    writer = Writer(store)
    writer.do([("put", [1]), TAKE])
    reference = writer.put()
    folder.files.clear()

    with pytest.raises(MissingFile):
        store.load(reference)


def test_rows_of_a_key_keep_their_order() -> None:
    """Through increments, merges of them, and the file."""
    writer = Writer(_store()[0])
    rows: list[tuple[int, int, str]] = []
    for number in range(8):
        new = [(number % 3, 9, f"{number}.{place}") for place in range(5)]
        rows += new
        writer.store.rows.insert(make_rows(new), np.ones(len(new), np.int64))
        writer.put()

    copy: Store = make_store()
    copy.state.apply(list(writer.files.load(writer.named[0]).changes))
    _, found, _ = copy.rows.fetch([pa.array([0, 1, 2])])

    wanted = [text for key in range(3) for k, _, text in rows if k == key]
    assert found.column("v").to_pylist() == wanted
