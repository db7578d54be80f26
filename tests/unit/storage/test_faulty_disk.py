"""Injected faults fire where they were asked for, and a trace can be done again."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from harness.crash_states import Replay, crash_states
from harness.disk import ALL_LOST, SimDisk
from harness.faults import ALL, FaultyDisk, Mark, Operation, TracingDisk

from penstock.log.storage.disk import Disk, RealDisk, read_whole, replace_file


def work(disk: Disk) -> None:
    """Every kind of operation at least once."""
    file = disk.create("a")
    file.append([b"0123", b"4567"])
    file.sync()
    file.write_at(2, b"xx")
    file.truncate(6)
    file.sync()
    file.close()
    disk.sync_dir()
    disk.rename("a", "b")
    assert read_whole(disk, "b") == b"01xx45"
    disk.remove("b")
    disk.sync_dir()


def test_without_a_fault_every_operation_is_passed_on_and_counted() -> None:
    disk = FaultyDisk(SimDisk(), fail_at=None)
    work(disk)

    assert disk.counts == {
        "create": 1, "write": 2, "sync": 2, "truncate": 1, "sync_dir": 2,
        "rename": 1, "open": 1, "read": 1, "remove": 1,
    }  # fmt: skip
    assert disk.fired == []


@pytest.mark.parametrize("kind", sorted(ALL))
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("partly", [False, True])
def test_each_kind_of_operation_can_be_made_to_fail(kind: str, error: int, partly: bool) -> None:
    disk = FaultyDisk(
        SimDisk(), fail_at=0, error=error, operations=frozenset({kind}), partly=partly
    )

    with pytest.raises(OSError) as raised:
        work(disk)

    assert raised.value.errno == error
    assert disk.fired == [kind]


def test_every_operation_of_a_workload_fails_in_turn() -> None:
    count = 12
    fired = []
    for fail_at in range(count):
        disk = FaultyDisk(SimDisk(), fail_at=fail_at)
        with pytest.raises(OSError):
            work(disk)
        fired += disk.fired

    assert len(fired) == count
    assert set(fired) == ALL


def test_a_short_write_leaves_its_first_half() -> None:
    under = SimDisk()
    disk = FaultyDisk(under, fail_at=1, partly=True)
    file = disk.create("a")

    with pytest.raises(OSError):
        file.append([b"01234567"])

    assert read_whole(under, "a").rstrip(b"\0") == b"0123"


def test_an_operation_that_fails_partly_may_have_been_done() -> None:
    for partly in (False, True):
        under = SimDisk({"a": b""})
        disk = FaultyDisk(
            under, fail_at=0, operations=frozenset({"rename", "sync_dir"}), partly=partly
        )
        with pytest.raises(OSError):
            disk.rename("a", "b")
        assert under.names() == (["b"] if partly else ["a"])


def test_a_failed_sync_drops_what_it_should_have_written() -> None:
    under = SimDisk()
    disk = FaultyDisk(under, fail_at=0, operations=frozenset({"sync"}))
    file = disk.create("a")
    disk.sync_dir()
    file.write_at(0, b"lost")
    with pytest.raises(OSError):
        file.sync()
    file.sync()

    assert read_whole(under, "a") == b"lost"
    assert read_whole(under.crash(Random(0), ALL_LOST), "a") == bytes(4)


def test_a_lasting_fault_stays_and_a_passing_one_goes() -> None:
    for lasting, outcomes in ((True, [1, 0, 0]), (False, [1, 0, 1])):
        disk = FaultyDisk(SimDisk(), fail_at=1, lasting=lasting)
        found = []
        for name in "abc":
            try:
                disk.create(name)
                found.append(1)
            except OSError:
                found.append(0)
        assert found == outcomes


def test_faults_wrap_a_real_disk_too(tmp_path: Path) -> None:
    disk = FaultyDisk(RealDisk(tmp_path), fail_at=0, operations=frozenset({"sync"}))

    with pytest.raises(OSError):
        replace_file(disk, "a", b"x")
    replace_file(disk, "a", b"y")

    assert read_whole(disk, "a") == b"y"


def test_unknown_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="fsync"):
        FaultyDisk(SimDisk(), fail_at=0, operations=frozenset({"fsync"}))


def test_a_trace_done_again_gives_the_same_disk() -> None:
    under = SimDisk()
    disk = TracingDisk(under)
    work(disk)
    disk.mark("between")
    replace_file(disk, "c", b"first")
    replace_file(disk, "c", b"second")
    file = disk.open("c", writable=True)
    file.append([b"!"])

    replay = Replay()
    for step in disk.trace:
        replay.step(step)

    assert replay.disk.contents() == under.contents()
    assert replay.marks == ["between"]
    assert disk.trace.count(Mark("between")) == 1
    assert Operation("rename", "a", target="b") in disk.trace


def test_crash_states_start_with_nothing_and_end_with_everything() -> None:
    disk = TracingDisk(SimDisk())
    replace_file(disk, "a", b"old")
    disk.mark("old")
    replace_file(disk, "a", b"new")
    disk.mark("new")

    states = list(crash_states(disk.trace, seed=1, mixtures=3))

    assert states[0].disk.contents() == {}
    assert states[-1].disk.contents() == {"a": b"new"}
    for state in states:
        found = state.disk.contents().get("a")
        if "new" in state.marks:
            assert found == b"new"
        elif "old" in state.marks:
            assert found in (b"old", b"new")
    assert {state.manner for state in states} == {"lost", "kept", "mixed"}
