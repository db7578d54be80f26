"""Without guarantees: what a task appends then, and what it does not."""

from __future__ import annotations

import pytest
from engine_samples import Wired, count_by, finals, pairs, plain, scan, spec_of, timed, times
from penstock_bench.protocols.unsafe import Unsafe, groups_of

from penstock.log.client import packing
from penstock.log.records import Kind
from penstock.protocol.names import keyed_tag
from penstock.runtime import outputs
from penstock.runtime.commit import Commit
from penstock.runtime.spec import Settings
from penstock.runtime.task_core import TaskCore

UNSAFE = Settings(protocol=Unsafe())


class UnsafeWired(Wired):
    def append_commit(self, core: TaskCore, commit: Commit) -> None:
        for group in groups_of(commit):
            self.append(core.task.producer, core.instance, group)


def test_only_time_is_marked() -> None:
    wired = UnsafeWired(spec_of(finals(timed(delay_ms=1000)), mode="append", settings=UNSAFE))
    wired.settle()
    for seconds in ([1, 1, 2], [2, 3], [3]):
        wired.feed(times(*seconds))
        wired.settle()
    assert plain(wired.result()) == [(1, 2), (2, 2)]
    kinds = [entry.kind for entry in wired.log if entry.producer.startswith("@")]
    assert Kind.CHANGE not in kinds
    tags = [entry.tags for entry in wired.log if entry.kind is Kind.MARKER]
    assert set(tags) == {(keyed_tag("q", 1, 0),), ("s/out",)}, "none to resume from"


def test_whoever_asks_gets_a_marker() -> None:
    wired = UnsafeWired(spec_of(count_by(scan(), 0), settings=UNSAFE))
    wired.settle()
    assert wired.markers(wired.task()) == []
    asked = wired.ask_to_flush(0)
    wired.settle()
    assert [marker.position > asked for marker in wired.markers(wired.task())] == [True]


def test_nothing_piles_up_in_the_state() -> None:
    wired = UnsafeWired(spec_of(count_by(scan(), 0), settings=UNSAFE))
    wired.feed(pairs((1, 1)))
    wired.settle()
    assert wired.core(1).state.take_log() == ()


def test_large_results_count_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GROUP_BYTES", 3_000)
    monkeypatch.setattr(outputs, "PAYLOAD_BYTES_MAX", 800)
    wired = UnsafeWired(spec_of(scan(), settings=UNSAFE))
    wired.settle()
    wired.feed(pairs(*[(key, key) for key in range(300)]))
    wired.take(wired.task())
    commit = wired.core().take_commit()
    assert commit is not None
    groups = groups_of(commit)
    assert len(groups) > 2
    assert {entry.kind for group in groups for entry in group} == {Kind.DATA}
