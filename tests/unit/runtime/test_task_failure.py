"""A task whose processing failed commits nothing more, whoever asks.

The shell's commit loop may run once more before it hears of the failure: a marker then would stand
for entries that were taken in and never processed, and they would be lost.
"""

from __future__ import annotations

import pytest
from engine_samples import count_by, pairs, scan, spec_of

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.ops.pipeline import Pipeline
from penstock.protocol.committed import read_entries
from penstock.protocol.names import TaskId, flush_tag
from penstock.runtime.task_core import Poisoned, TaskCore
from penstock.stream.batches import encode_trusted
from penstock.stream.registration import stream_tag


def core_with_its_first_commit() -> TaskCore:
    core = TaskCore(spec_of(count_by(scan(), 0)), TaskId("q", 1, 0, 0), 1, lambda: 0)
    core.begin(None)
    assert core.take_commit() is not None
    return core


def entry(lsn: int, payload: bytes) -> Entry:
    return Entry(Lsn(lsn), Kind.DATA, (stream_tag("in"),), "p", 1, lsn, 0, 1, payload)


def flush_request(lsn: int) -> Entry:
    tags = (flush_tag("q", 1, 0),)
    return Entry(Lsn(lsn), Kind.CONTROL, tags, "p", 1, lsn, 0, 0, b"")


def take(core: TaskCore, entry: Entry) -> None:
    core.take(entry, read_entries(0).take(entry))


def test_rows_that_make_an_operator_fail_are_not_committed_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_with_its_first_commit()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pipeline, "push", fail)
    take(core, entry(5, encode_trusted(pairs((1, 1)))))
    take(core, flush_request(6))
    with pytest.raises(Poisoned):
        core.work()

    core.work()  # a tick
    assert not core.has_work
    assert core.take_commit() is None


def test_an_entry_that_cannot_be_read_is_not_committed_as_done() -> None:
    core = core_with_its_first_commit()

    take(core, flush_request(4))
    with pytest.raises(BadFormat):
        take(core, entry(5, b"no rows"))

    assert not core.has_work
    assert core.take_commit() is None
