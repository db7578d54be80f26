"""The next instance of a task goes on where the last marker stands, with all that it said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_samples import Wired, count_by, finals, pairs, plain, scan, spec_of, timed, times
from penstock_bench.protocols.unsafe import Unsafe

from penstock.log.records import Kind
from penstock.runtime import checkpoints
from penstock.runtime.spec import Settings
from penstock.runtime.task_core import Commit, TaskCore

KEPT = Settings(checkpoints="file:///nowhere", checkpoint_interval_ms=1_000)


def reference(marker_lsn: int, size: int = 10) -> dict[str, object]:
    return {"path": "p", "marker_lsn": marker_lsn, "instance": 1, "bytes": size, "crc": 0}


def test_numbers_and_counters_go_on() -> None:
    wired = Wired(spec_of(count_by(scan(), 0)))
    wired.settle()
    wired.put_through(pairs((1, 1), (2, 1)))
    before = wired.last_marker(1)
    wired.start(wired.task(1))
    assert not wired.core(1).has_work, "nothing new to say"
    assert wired.core(1).position == before.position
    wired.put_through(pairs((1, 1)))
    after = wired.last_marker(1)
    assert (after.number, after.instance) == (before.number + 1, before.instance + 1)
    assert (after.rows_in, after.rows_out) == (3, 4), "a count that changes is taken back first"
    assert plain(wired.result()) == [(1, 2), (2, 1)]


def test_what_was_heard_is_remembered() -> None:
    wired = Wired(spec_of(finals(timed()), mode="append", tasks=(1, 1)))
    wired.put_through(times(10, 12))
    before = wired.last_marker(1)
    wired.start(wired.task(1))
    wired.core(1).refresh()
    wired.put_through(times(12, 13))
    after = wired.last_marker(1)
    assert before.heard["q.1/0/0"].watermark_ms == 12_000
    assert after.heard["q.1/0/0"].watermark_ms == 13_000
    assert wired.core(1).stats.rows_late == 1, "what had passed is passed after a restart too"


@pytest.mark.parametrize("stage", [0, 1])
def test_time_does_not_go_back_over_a_restart(stage: int) -> None:
    wired = Wired(spec_of(finals(timed()), mode="append"))
    wired.put_through(times(10))
    wired.start(wired.task(stage))
    wired.core(stage).refresh()
    wired.put_through(times(4))
    assert wired.last_marker(stage).watermark_ms == 10_000


def test_restored_changes_are_not_written_again() -> None:
    wired = Wired(spec_of(count_by(scan(), 0)))
    wired.put_through(pairs((1, 1)))
    core = wired.start(wired.task(1))
    assert core.state.take_log() == ()
    core.refresh()
    wired.ask_to_flush(1)
    wired.take(wired.task(1))
    commit = wired.commit(wired.task(1))
    assert commit is not None and commit.cut().inline == ()
    assert commit.marker.has_state, "it has, even if this commit changed nothing"


# ---- checkpoints


def change_bytes(commit: Commit) -> int:
    entries = [entry for group in (*commit.cut().ahead, commit.cut().inline) for entry in group]
    return sum(len(entry.payload) for entry in entries if entry.kind is Kind.CHANGE)


class Kept:
    """A counting task whose every commit changes some state; changes of a byte are enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings = KEPT) -> None:
        monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
        self.wired = Wired(spec_of(count_by(scan(), 0), settings=settings))
        self.wired.settle()
        self.task = self.wired.task(1)

    @property
    def core(self) -> TaskCore:
        return self.wired.cores[self.task]

    def commit(self) -> Commit:
        self.wired.feed(pairs((1, 1)))
        self.wired.take(self.wired.task(0))
        self.wired.commit(self.wired.task(0))
        self.wired.take(self.task)
        commit = self.wired.commit(self.task)
        assert commit is not None
        return commit


def test_a_checkpoint_is_due_when_time_has_passed_and_enough_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    assert not kept.commit().is_checkpoint, "too early"
    kept.wired.now_ms += 1_000
    due = kept.commit()
    assert due.is_checkpoint and due.frozen is None, "what changed is enough"
    assert not kept.commit().is_checkpoint, "too early again"
    kept.wired.now_ms += 1_000
    size = change_bytes(kept.commit())
    assert size > 1
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 2 * size + 1)
    kept.wired.now_ms += 1_000
    assert not kept.commit().is_checkpoint, "too few changes"
    assert not kept.commit().is_checkpoint
    assert kept.commit().is_checkpoint


def test_many_changes_make_a_checkpoint_due_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a restart long; and only what changed is written."""
    kept = Kept(monkeypatch)
    size = change_bytes(kept.commit())
    kept.core.checkpointed(reference(5, 10**9))
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MAX", 2 * size + 1)
    assert not kept.commit().is_checkpoint
    assert kept.commit().is_checkpoint
    assert not kept.commit().is_checkpoint, "too early again"


@pytest.mark.parametrize(
    "settings", [replace(KEPT, checkpoints=None), replace(KEPT, protocol=Unsafe())]
)
def test_no_checkpoint_is_due_where_none_is_wanted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(monkeypatch, settings)
    kept.wired.now_ms += 10_000
    assert not kept.commit().is_checkpoint


def test_markers_name_the_two_newest_checkpoints_newest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    assert kept.core.checkpoint_lsn is None
    for lsn in (5, 6, 7):
        kept.core.checkpointed(reference(lsn))
        assert kept.core.has_work, "the next marker names it"
        kept.commit()
    assert kept.wired.markers(kept.task)[-1].checkpoints == (reference(7), reference(6))
    assert kept.core.checkpoint_lsn == 7


def test_checkpoints_are_named_by_the_next_instance_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    kept.core.checkpointed(reference(5))
    kept.commit()
    kept.wired.start(kept.task)
    assert kept.core.checkpoint_lsn == 5
    assert kept.commit().marker.checkpoints == (reference(5),)


def test_a_checkpoint_that_took_longer_than_the_next_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    kept.core.checkpointed(reference(5))
    kept.core.checkpointed(reference(9))
    kept.core.checkpointed(reference(7))
    assert kept.commit().marker.checkpoints == (reference(9), reference(5))


def test_a_checkpoint_and_the_changes_after_it_are_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    kept.commit()
    frozen = kept.core.state.freeze()
    kept.commit()
    wired = kept.wired
    core = TaskCore(wired.spec, kept.task, 99, lambda: wired.now_ms)
    core.restored(frozen, 0)
    core.restored(kept.core.state.freeze(), 0)
    core.begin(wired.markers(kept.task)[-1])
    wired.cores[kept.task] = core
    kept.commit()
    assert plain(wired.result()) == [(1, 3)]
