"""`penstock bench recovery`: its input and its verdict; nothing runs here."""

from __future__ import annotations

import pyarrow as pa
from penstock_bench.nexmark import model
from penstock_bench.recovery import RecoveryBenchSizes, RecoveryFigures, _make_entries, make_report

from penstock.stream.batches import decode_batch


def found(**changes: object) -> RecoveryFigures:
    usual = RecoveryFigures(
        with_checkpoints=[0.1, 0.2, 0.3],
        without=[2.5, 2.0, 9.0],
        worker_killed=[0.5, 1.5],
        executor_killed=[4.0],
    )
    for name, value in changes.items():
        setattr(usual, name, value)
    return usual


def test_medians_are_compared_and_the_worst_kill_counts() -> None:
    report = make_report(found(), RecoveryBenchSizes())

    assert report.ok
    assert [check.value for check in report.checks] == [12.5, 0, 1.5, 4.0]


def test_each_bar_can_be_missed() -> None:
    for changes in (
        {"with_checkpoints": [0.3, 0.3, 0.3]},
        {"rows_differ": 1},
        {"worker_killed": [0.1, 2.1]},
        {"executor_killed": [10.5]},
    ):
        report = make_report(found(**changes), RecoveryBenchSizes())

        assert [check.ok for check in report.checks].count(False) == 1, changes


def test_what_was_not_measured_is_absent() -> None:
    report = make_report(found(executor_killed=[]), RecoveryBenchSizes())

    assert [check.name for check in report.checks][-1].startswith("killed worker")


def test_a_step_holds_the_persons_and_auctions_of_its_event_time() -> None:
    """10,000 events a second, of 50 events 1 a person and 3 auctions: in 0.1 s, 20 and 60."""
    person, auction = _make_entries(700)

    assert (person.tags[0], auction.tags[0]) == ("s/person", "s/auction")
    assert (person.rows, auction.rows) == (20, 60)
    for entry, schema in ((person, model.PERSON), (auction, model.AUCTION)):
        times = decode_batch(entry.payload, schema).column("dateTime").cast(pa.int64()).to_pylist()
        assert min(times) >= 700_000
        assert max(times) < 800_000
