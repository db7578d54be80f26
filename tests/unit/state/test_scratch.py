"""State in mapped files: nothing that was written is lost, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from harness.rooms import Forgetful
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Unavailable
from penstock.ops.aggregate import SlotGroups
from penstock.state import scratch
from penstock.state.int_index import IntIndex
from penstock.state.memory import MemoryState
from penstock.state.room import MEMORY
from penstock.state.scratch import Scratch, choose_folder, is_in_memory

KEYS = pa.schema([("k", pa.int64())])


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Scratch]:
    yield Forgetful(folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []  # files have no names


def test_what_was_written_is_there_after_it_was_let_go(room: Scratch) -> None:
    array = room.zeros((300, 3), np.int64)
    array[:] = np.arange(900).reshape(300, 3)

    room.let_go()

    assert (array == np.arange(900).reshape(300, 3)).all()


def test_an_array_that_grows_keeps_its_rows_and_has_zeros_after_them(room: Scratch) -> None:
    array = room.zeros((100, 2), np.int64)
    array[:] = 7
    for rows in (101, 5_000, 100_000):
        before = len(array)
        array = room.grown(array, rows)
        assert (array[:before] == 7).all()
        assert (array[before:] == 0).all()
        array[:] = 7
        room.let_go()


def test_who_holds_the_shorter_array_sees_what_is_written_to_the_longer_one(room: Scratch) -> None:
    shorter = room.zeros(1_000, np.int64)
    longer = room.grown(shorter, 100_000)

    longer[:1_000] = 3
    room.let_go()

    assert (shorter == 3).all()


def test_arrays_are_joined_along_either_axis(room: Scratch) -> None:
    parts = [np.arange(6).reshape(2, 3), np.arange(4).reshape(2, 2)]

    joined = room.joined(parts, axis=1)
    room.let_go()

    assert joined.tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 2, 3]]


def test_texts_and_lists_are_kept_too(room: Scratch) -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"t": "ä", "l": [1, None]}, {"t": None, "l": None}, {"t": "", "l": []}]
    )

    kept = room.keep(rows)
    room.let_go()

    assert kept.equals(rows)
    assert room.bytes > 0


def test_small_arrays_are_in_memory(tmp_path: Path) -> None:
    room = Scratch(0, str(tmp_path), small_bytes=1_000)

    small, large = room.zeros(100, np.int64), room.zeros(1_000, np.int64)

    assert room.bytes == 8_192  # two pages
    assert room.grown(small, 1_000).nbytes == large.nbytes
    assert (room.grown(small, 1_000) == 0).all()


def nameless_files() -> int:
    """That this process has open. What other tests left behind is collected before."""
    gc.collect()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(os.readlink(link).endswith("(deleted)") for link in links)


def test_files_vanish_with_the_arrays_in_them(room: Scratch) -> None:
    count = nameless_files()
    array = room.grown(room.zeros(10_000, np.int64), 20_000)
    assert nameless_files() > count

    del array

    assert nameless_files() == count
    assert room.bytes == 0


def test_a_full_disk_is_an_error_that_names_cause_and_fix(
    room: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    array = room.zeros(1_000, np.int64)
    monkeypatch.setattr(scratch.os, "posix_fallocate", full)

    with pytest.raises(Unavailable, match=r"8 MiB more in .*: No space left on device; free space"):
        room.grown(array, 1 << 20)
    assert (array == 0).all()


def test_disk_space_is_taken_before_it_is_used(room: Scratch) -> None:
    """A hole in a file would be filled when a page is touched: on a full disk that ends us."""
    array = room.grown(room.zeros(1_000, np.int64), 1 << 20)

    mapping = scratch._mapping_of(array)

    assert mapping is not None
    assert os.fstat(mapping.file.fd).st_blocks * 512 >= array.nbytes


@contextmanager
def no_files_left() -> Iterator[None]:
    """All files that this process may open are taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_where_no_file_can_be_opened_growth_is_an_error_that_can_be_tried_again(
    room: Scratch,
) -> None:
    """It was an OSError: with a dead-letter stream, rows were to blame for it."""
    array = room.zeros(1_000, np.int64)

    with no_files_left(), pytest.raises(Unavailable, match=r"cannot be mapped: .*ulimit -n"):
        room.grown(array, 100_000)


def test_where_no_file_can_be_opened_the_bound_is_looked_at_later(
    tmp_path: Path,
) -> None:
    room = Scratch(1, str(tmp_path), small_bytes=1, look_seconds=0)
    array = room.zeros(1_000, np.int64)

    with no_files_left():
        room.tidy()

    assert len(array) == 1_000


def test_rows_that_wait_are_there_although_there_was_no_room_to_merge_them(
    room: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported of a state merged its rows, and they were gone if that failed."""
    state = MemoryState(None, room)
    rows = state.row_set("r", KEYS, [0])
    for key in range(300):
        rows.insert(pa.record_batch([pa.array([key])], schema=KEYS), None)

    def fail(*_: object) -> None:
        raise Unavailable("full")

    with monkeypatch.context() as patch:
        patch.setattr(room, "_map", fail)
        assert state.size()[0] == 300
        with pytest.raises(Unavailable):
            rows.rows()

    assert rows.rows()[0].column(0).to_pylist() == list(range(300))


def test_no_folder_no_state(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no scratch file for state in .*gone"):
        Scratch(0, str(tmp_path / "gone"), small_bytes=1).zeros(1, np.int64)


def test_above_the_bound_it_is_let_go_and_below_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [0]
    monkeypatch.setattr(scratch, "_mapped_in_bytes", lambda: told[0])
    room = Scratch(10 << 20, str(tmp_path), look_seconds=0.0)
    arrays = [room.zeros(2 << 20, np.int64) for _ in range(2)]
    asked: list[int | None] = []
    monkeypatch.setattr(room, "let_go", asked.append)

    for told[0] in (0, 10 << 20, (10 << 20) + 1):
        room.tidy()

    assert len(asked) == 1
    assert arrays


def test_all_chunks_are_let_go_in_turns(tmp_path: Path) -> None:
    room = Scratch(0, str(tmp_path), small_bytes=1)
    arrays = [room.zeros(3 << 20, np.int64) for _ in range(2)]
    for array in arrays:
        array[:] = 1
    before = room.mapped_in_bytes

    room.let_go(6)
    half = room.mapped_in_bytes
    room.let_go(6)

    assert before == 48 << 20
    assert abs(half - (24 << 20)) < 1 << 20
    assert room.mapped_in_bytes < 1 << 20
    assert all((array == 1).all() for array in arrays)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 400), max_size=60)), max_size=12))
def test_an_index_in_files_gives_the_slots_of_one_in_memory(
    steps: list[tuple[bool, list[int]]],
) -> None:
    mapped, plain = IntIndex(1, Forgetful()), IntIndex(1)
    for is_added, keys in [(True, list(range(3_000))), *steps]:
        words = np.array(keys, np.int64)[:, None] * 7
        if is_added:
            slots, is_new = mapped.locate(words)
            expected, was_new = plain.locate(words)
            assert (is_new == was_new).all()
        else:
            slots, expected = (one.find(words) for one in (mapped, plain))
            for one in (mapped, plain):
                found = np.unique(one.find(words))
                one.forget(found[found >= 0])
        assert slots.tolist() == expected.tolist()
        assert len(mapped) == len(plain)
        assert mapped.slots().tolist() == plain.slots().tolist()


def test_a_table_of_many_keys_is_the_same_when_all_of_it_was_let_go(room: Scratch) -> None:
    state = MemoryState(room=room)
    table = state.table("t", KEYS, {"n": pa.int64(), "f": pa.float64(), "b": pa.bool_()})
    numbers = np.random.default_rng(1).permutation(50_000)
    for start in range(0, len(numbers), 5_000):
        keys = numbers[start : start + 5_000]
        slots, _ = table.locate([pa.array(keys)])
        for name, values in {"n": keys * 3, "f": keys / 2, "b": keys % 2 == 0}.items():
            table.write(name, slots, values)
        state.forget_log()

    slots = table.find([pa.array(numbers)])

    assert (table.read("n", slots) == numbers * 3).all()
    assert (table.read("f", slots) == numbers / 2).all()
    assert (table.read("b", slots) == (numbers % 2 == 0)).all()
    assert room.bytes > 1 << 20


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    program = f"""
import os, numpy
from penstock.state.scratch import Scratch, choose_folder, is_in_memory
array = Scratch(0, {str(tmp_path)!r}, small_bytes=1).zeros(1000, numpy.int64)
array[:] = 1
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=2_000))
def test_groups_of_rows_are_the_same_by_hash_and_by_marks(slots: list[int]) -> None:
    marked, hashed = SlotGroups(MEMORY), SlotGroups(Forgetful())
    hashed._slots_max = 0

    found = hashed.split(np.array(slots))

    for one, other in zip(found, marked.split(np.array(slots)), strict=True):
        assert one.tolist() == other.tolist()


def test_a_folder_in_memory_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scratch, "is_in_memory", lambda folder: folder == "/proc")
    assert choose_folder(["", "/is/not/there", "/proc", "/"]) == "/"
    assert not caplog.records
    assert choose_folder(["", "/proc"]) == "/proc"
    assert "gains nothing: /proc is in memory" in caplog.text


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory here")
def test_what_is_in_memory_is_known() -> None:
    assert is_in_memory("/dev/shm")
    assert not is_in_memory("/proc")


def test_a_room_tells_its_bound_and_what_is_mapped_in(room: Scratch) -> None:
    array = room.zeros(1 << 16, np.int64)
    array[:] = 1
    told = room.report()
    assert told["state_memory"] == room.bound_bytes
    assert told["state_file_bytes"] == room.bytes >= array.nbytes
    assert 0 <= told["state_mapped_in_bytes"] <= told["state_file_bytes"]
    assert MEMORY.report() == {}
