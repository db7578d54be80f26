"""A table whose rows are in files still answers as one that has read them all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.rooms import ROOMS, make_room
from simulation.pipeline.store import SimFolder

from penstock.state import checkpoint_store, fold
from penstock.state import unread as unread_module
from penstock.state.api import Change
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.fold import merge_changes
from penstock.state.folders import Folder, LocalFolder
from penstock.state.int_index import IntIndex
from penstock.state.keys import key_objects
from penstock.state.memory import MemoryState
from penstock.state.memory_table import MemoryTable
from penstock.state.room import Room
from penstock.state.stores.api import Increment, Reference
from penstock.state.unread import Unread, UnreadLost

LOG = "0123456789abcdef" * 2
TASK = "hot.1/0/2"
KEYS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
COLUMNS = {"n": pa.int64(), "s": pa.string()}
#: Few keys, so that most are met again; null among them.
KEYS_MAX = 40
SEEDS = 14


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a checkpoint is, and with so little held that it is read again."""
    monkeypatch.setattr(checkpoint_store, "LAZY_BYTES_MIN", 0)
    monkeypatch.setattr(unread_module, "_HELD_BYTES_MAX", 2000)
    monkeypatch.setattr("penstock.state.checkpoint_format.SECTION_BYTES", 500)
    hash_columns = fold.hash_columns

    def poor_hash(columns: Sequence[pa.Array], rows: int) -> Any:
        """Different keys share a place."""
        return hash_columns(columns, rows) & np.uint64((7 << 61) | 15)

    monkeypatch.setattr(fold, "hash_columns", poor_hash)


class Store:
    """A state with a table that is asked by key, and one that is asked for all rows."""

    def __init__(self, room: Room, width: int) -> None:
        self.width = width
        self.state = MemoryState(None, room)
        keys = pa.schema(list(KEYS)[:width])
        self.table = self.state.table("t", keys, COLUMNS, [0], is_by_key=True)
        self.other = self.state.table("other", keys, COLUMNS)
        self.said: list[Any] = []

    def keys(self, numbers: list[int]) -> list[pa.Array]:
        whole = [number if number else None for number in numbers]
        half = [None if number % 5 == 0 else number // 2 for number in numbers]
        return [
            pa.array(whole, pa.int64()),
            pa.array(half, pa.int64()).cast(pa.timestamp("us")),
        ][: self.width]

    def do(self, action: tuple[str, list[int]], value: int) -> None:
        verb, numbers = action
        keys = self.keys(numbers)
        if verb == "put":
            for table in (self.table, self.other):
                slots, is_new = table.locate(keys)
                if table is self.table:
                    before = table.read("n", slots).tolist()
                    self.said.append((is_new.tolist(), before))
                slots = np.unique(slots)
                texts = np.full(len(slots), f"text {value}", object)
                table.write("n", slots, np.full(len(slots), value))
                table.write("s", slots, texts)
                table.touch(slots)
        elif verb == "delete":
            for table in (self.table, self.other):
                slots = np.unique(table.find(keys))
                table.delete(slots[slots >= 0])
        else:
            slots = self.table.find(keys)
            there = slots >= 0
            values = self.table.read("s", slots[there]).tolist()
            self.said.append((there.tolist(), values))

    def logged(self) -> list[Any]:
        """What changed, whatever the order of rows."""
        return [
            (one.name, one.kind, sorted(map(repr, one.rows.to_pylist())))
            for one in self.state.take_log()
        ]

    def contents(self) -> list[Any]:
        found = []
        for table in (self.table, self.other):
            slots = table.slots()
            rows = key_objects(table.keys(slots), len(slots))
            values = zip(table.read("n", slots), table.read("s", slots), strict=True)
            found.append(sorted(map(repr, zip(rows, values, strict=True))))
        return found


def actions(random: Random, count: int) -> list[tuple[str, list[int]]]:
    verbs = ("put", "put", "delete", "find")
    return [
        (random.choice(verbs), [random.randrange(KEYS_MAX) for _ in range(random.randrange(1, 9))])
        for _ in range(count)
    ]


def checkpointed(
    random: Random, room: Room, folder: Folder, width: int
) -> tuple[CheckpointStore, Reference, list[Change]]:
    """A store of files, a checkpoint there, and what was changed after it."""
    files, store = CheckpointStore("memory", LOG, folder), Store(room, width)
    reference: Reference | None = None
    lsn, value = 0, 0
    for _ in range(random.randrange(1, 6)):
        for action in actions(random, random.randrange(1, 12)):
            value += 1
            store.do(action, value)
        lsn += 10
        base_lsn = None if reference is None else lsn - 10
        parts = store.state.parts()
        merged = merge_changes(store.state.take_log(), parts, is_whole=base_lsn is None)
        increment = Increment(TASK, base_lsn, lsn, 1, "f", parts, merged)
        reference = files.put(increment, reference)
    assert reference is not None
    for action in actions(random, random.randrange(4)):
        value += 1
        store.do(action, value)
    return files, reference, list(store.state.take_log())


def restored(
    store: Store, files: CheckpointStore, reference: Reference, replayed: list[Change]
) -> Store:
    """As a task is that resumes."""
    loaded = files.load_lazily(reference, store.state.tables_that_may_wait())
    store.state.lend(loaded.unread)
    store.state.apply(list(loaded.changes))
    store.state.apply(replayed)
    store.state.forget_log()
    return store


class Ahead:
    """What a thread reads ahead, and brings in some time later."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.table, MemoryTable)
        self._table = store.table
        self._steps = self._run()

    def _run(self) -> Iterator[None]:
        table = self._table
        unread = table.unread
        if unread is not None:
            places = table.make_places(unread)
            yield
            table.expect(unread, places)
        for node in [] if unread is None else unread.nodes:
            assert unread is not None
            rows = unread.read_node(node)
            yield
            for start in range(0, 0 if rows is None else rows.num_rows, 2):
                assert rows is not None
                table.bring(unread, rows.slice(start, 2))
                yield
            table.brought(unread, node)

    def step(self) -> None:
        next(self._steps, None)


def check(seed: int, room: Room) -> None:
    """Work on two states, one of which has read all, while the other still reads."""
    random = Random(seed)
    width = random.choice([1, 2])
    files, reference, replayed = checkpointed(random, room, SimFolder(), width)
    whole = Store(room, width)
    whole.state.apply(list(files.load(reference).changes))
    whole.state.apply(replayed)
    whole.state.forget_log()
    lazy = restored(Store(room, width), files, reference, replayed)
    ahead = Ahead(lazy)
    speed = random.choice([0, 1, 3, 200])
    for number, action in enumerate(actions(random, 25)):
        for _ in range(random.randrange(speed + 1)):
            ahead.step()
        for store in (whole, lazy):
            store.do(action, 10_000 + number)
        if random.random() < 0.3:
            assert lazy.logged() == whole.logged()
    assert lazy.said == whole.said
    assert lazy.logged() == whole.logged()
    assert lazy.contents() == whole.contents()
    assert not lazy.state.rows_unread() and len(lazy.table) == len(whole.table)


def check_all(room: Room) -> None:
    for seed in range(SEEDS):
        check(seed, room)


@pytest.mark.parametrize("room", ROOMS)
def test_answers_are_those_of_a_table_that_has_read_all(room: str) -> None:
    check_all(make_room(room))


@pytest.mark.parametrize("name", ROOMS)
@pytest.mark.parametrize("width", [1, 2])
def test_an_index_that_expects_many_keys_keeps_those_that_it_has(name: str, width: int) -> None:
    room, random = make_room(name), np.random.default_rng(1)
    words = random.permutation(30_000)[:, None] * np.arange(1, width + 1)
    index = IntIndex(width, room)
    slots, _ = index.locate(words[:500])
    index.forget(slots[:100])
    made = index.make_places(30_000)
    index.locate(words[500:900])  # they come while a thread makes places
    index.expect(30_000, made)
    assert index._places is made
    assert (index.find(words[:100]) < 0).all()
    assert (index.find(words[100:500]) == slots[100:]).all()
    found, is_new = index.locate(words)
    assert is_new.sum() == 30_000 - 800 and len(np.unique(found)) == len(index) == 30_000
    assert index._places is made  # nothing was rebuilt on the way
    assert (index.words(found) == words).all()


# -- damage


def _flip(folder: SimFolder, path: str, at: int) -> None:
    data = bytearray(folder.files[path])
    data[at] ^= 1
    folder.files[path] = bytes(data)


def _first_section(files: CheckpointStore, reference: Reference) -> tuple[str, int]:
    """The oldest file, and a byte of rows of the table in it."""
    ref = CheckpointRef.from_json(reference)
    line = files.increments(ref)[0]
    file, found = files.open_file(line.path, line)
    file.close()
    return line.path, found.sections("t")[0].at + 1


def test_a_copy_that_is_damaged_is_passed_over_and_two_are_told() -> None:
    for seed in range(8):
        folder = SimFolder()
        made = checkpointed(Random(seed), make_room(ROOMS[0]), folder, 1)
        files, reference, _ = made
        path, at = _first_section(files, reference)
        _flip(folder, path, at)
        whole = Store(make_room(ROOMS[0]), 1)
        whole.state.apply(list(files.load(reference).changes))
        lazy = restored(Store(make_room(ROOMS[0]), 1), files, reference, [])
        assert lazy.contents() == whole.contents()
        _flip(folder, f"{path}.2", at)
        broken = restored(Store(make_room(ROOMS[0]), 1), files, reference, [])
        with pytest.raises(UnreadLost):
            broken.contents()
        assert broken.state.rows_unread()


def test_files_that_are_deleted_meanwhile_are_read_to_the_end() -> None:
    folder = SimFolder()
    files, reference, replayed = checkpointed(Random(3), make_room(ROOMS[0]), folder, 2)
    whole = Store(make_room(ROOMS[0]), 2)
    whole.state.apply(list(files.load(reference).changes))
    whole.state.apply(replayed)
    lazy = restored(Store(make_room(ROOMS[0]), 2), files, reference, replayed)
    folder.files.clear()
    assert lazy.contents() == whole.contents()


def test_files_of_a_disk_are_closed_once_all_is_read(tmp_path: Path) -> None:
    def open_files() -> int:
        there = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(str(tmp_path) in os.readlink(link) for link in there)

    folder = LocalFolder(str(tmp_path))
    files, reference, replayed = checkpointed(Random(3), make_room(ROOMS[0]), folder, 1)
    assert files.is_near and not open_files()
    lazy = restored(Store(make_room(ROOMS[0]), 1), files, reference, replayed)
    assert open_files() == len(files.increments(CheckpointRef.from_json(reference)))
    shutil.rmtree(tmp_path)
    assert lazy.contents()[0]
    assert not lazy.state.rows_unread() and not open_files()


def test_tables_that_are_asked_for_all_rows_and_keys_of_texts_do_not_wait() -> None:
    state = MemoryState()
    numbers, texts = pa.schema([("k", pa.int64())]), pa.schema([("k", pa.string())])
    state.table("by key", numbers, {}, is_by_key=True)
    state.table("all", numbers, {})
    state.table("texts", texts, {}, is_by_key=True)
    state.table("one row", pa.schema([]), {}, is_by_key=True)
    assert list(state.tables_that_may_wait()) == ["by key"]


def test_rows_that_are_brought_in_keep_the_bound_of_their_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task without input makes no commit, which would look after it."""
    room = make_room(ROOMS[1])
    files, reference, _ = checkpointed(Random(3), room, SimFolder(), 1)
    lazy = restored(Store(room, 1), files, reference, [])
    looked: list[Room] = []
    monkeypatch.setattr(type(room), "tidy", lambda self: looked.append(self))
    ahead = Ahead(lazy)
    while lazy.state.rows_unread():
        ahead.step()
    assert looked


def test_rows_that_an_older_file_has_in_another_order_are_not_left_there() -> None:
    """Another version of this program may have placed them by other columns."""
    folder, room = SimFolder(), make_room(ROOMS[0])
    files, reference = CheckpointStore("memory", LOG, folder), None
    for lsn, partition in ((10, [1]), (20, [0])):
        state = MemoryState(None, room)
        table = state.table("t", KEYS, COLUMNS, partition, is_by_key=True)
        keys = [pa.array(range(lsn, lsn + 50)), pa.array(range(50), pa.timestamp("us"))]
        table.touch(table.locate(keys)[0])
        base_lsn, changes = (None if lsn == 10 else 10), list(state.take_log())
        increment = Increment(TASK, base_lsn, lsn, 1, "f", state.parts(), changes)
        reference = files.put(increment, reference)
    assert reference is not None and len(files.increments(CheckpointRef.from_json(reference))) == 2
    loaded = files.load_lazily(reference, state.tables_that_may_wait())
    assert not loaded.unread and sum(one.rows.num_rows for one in loaded.changes) == 100


# -- mistakes made on purpose


def _deleted_keys_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Unread, "forget", lambda self, keys: None)


def _what_is_unread_wins_over_what_is_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTable, "bring", lambda self, unread, rows: self._take_in(rows))


def _what_is_unread_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTable, "_bring_keys", lambda self, keys: None)


def _the_oldest_file_decides(patch: pytest.MonkeyPatch) -> None:
    original = Unread.__init__

    def init(self: Unread, name: str, part: Any, files: Any) -> None:
        original(self, name, part, files)
        self._runs.reverse()

    patch.setattr(Unread, "__init__", init)


def _one_place_is_one_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unread_module, "_are_equal", lambda keys, places, own: np.ones(len(places), bool))


def _deletions_in_files_are_not_searched(patch: pytest.MonkeyPatch) -> None:
    original = Unread._find_in

    def find(self: Unread, run: Any, keys: Any, places: Any, left: Any) -> Any:
        if run.kind == "delete":
            return None, np.zeros(len(left), bool)
        return original(self, run, keys, places, left)

    patch.setattr(Unread, "_find_in", find)


def _a_node_is_done_before_its_rows_are_here(patch: pytest.MonkeyPatch) -> None:
    original = Unread.read_node

    def read(self: Unread, node: int) -> Any:
        rows = original(self, node)
        self._is_read[node] = True
        return rows

    patch.setattr(Unread, "read_node", read)


def _rows_that_were_found_are_told_as_changes(patch: pytest.MonkeyPatch) -> None:
    original = MemoryTable._set

    def put(self: MemoryTable, rows: pa.RecordBatch) -> None:
        original(self, rows)
        self._touched.append(self._find(rows.columns[: len(self._keys)]))

    patch.setattr(MemoryTable, "_set", put)


def _slots_that_are_used_again_are_still_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTable, "_take_in", MemoryTable._set)


@pytest.mark.parametrize(
    "mistake",
    [
        _slots_that_are_used_again_are_still_changed,
        _deleted_keys_come_back,
        _what_is_unread_wins_over_what_is_here,
        _what_is_unread_is_taken_for_absent,
        _the_oldest_file_decides,
        _one_place_is_one_key,
        _deletions_in_files_are_not_searched,
        _a_node_is_done_before_its_rows_are_here,
        _rows_that_were_found_are_told_as_changes,
    ],
    ids=lambda mistake: mistake.__name__.strip("_").replace("_", " "),
)
def test_the_law_notices(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check_all(make_room(ROOMS[0]))
