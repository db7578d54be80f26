"""`penstock bench realtime`: its events, its latencies and its verdict; nothing runs here."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from penstock_bench.arrivals import Arrival, latencies
from penstock_bench.load import PRICE_KEPT, kept, make_bids
from penstock_bench.measure import SECOND_US, next_second
from penstock_bench.queries import QUERIES
from penstock_bench.realtime import (
    MICRO_BATCH_BEST,
    MICRO_BATCH_DEFAULTS,
    PENSTOCK,
    UNSAFE,
    RealtimeBenchSizes,
    VariantFigures,
    make_report,
)

START = 1_700_000_000 * SECOND_US


def _bids(first: int, count: int) -> pa.RecordBatch:
    return make_bids(first, count, start_us=START, rate=20_000)


def test_events_depend_on_their_numbers_alone() -> None:
    whole = pa.Table.from_batches([_bids(0, 1_000)])
    pieces = pa.Table.from_batches([_bids(0, 1), _bids(1, 600), _bids(601, 399)])

    assert pieces.combine_chunks() == whole.combine_chunks()


def test_an_event_carries_the_moment_at_which_it_is_due() -> None:
    times = _bids(20_000, 3).column("ts").cast(pa.int64()).to_pylist()

    assert times == [START + SECOND_US, START + SECOND_US + 50, START + SECOND_US + 100]


def test_what_the_stateless_query_keeps_is_known() -> None:
    prices = _bids(500, 10_000).column("price")

    assert kept(500, 10_000) == pc.sum(pc.greater_equal(prices, PRICE_KEPT)).as_py()
    assert 4_000 < kept(500, 10_000) < 6_000


def test_keys_and_prices_are_spread() -> None:
    bids = _bids(0, 20_000)

    assert len(bids.column("auction").unique()) > 900
    assert min(bids.column("auction").to_pylist()) >= 0
    assert len(bids.column("price").unique()) > 900


def test_a_load_starts_at_a_whole_second_that_is_still_to_come() -> None:
    assert next_second(START) == START + SECOND_US
    assert next_second(START + 1) == START + SECOND_US


def _times(*seconds: float) -> pa.Array:
    moments = pa.array([START + round(second * SECOND_US) for second in seconds])
    return moments.cast(pa.timestamp("us", tz="UTC"))


def _arrival(visible: float, rows: pa.RecordBatch) -> Arrival:
    return Arrival(START + round(visible * SECOND_US), rows, 0)


def test_latency_of_an_event_counts_from_its_creation() -> None:
    rows = pa.record_batch({"ts": _times(0.9, 1.0, 1.5, 1.999, 2.0)})

    measured = latencies(
        [_arrival(2.5, rows)], QUERIES["stateless"], START + SECOND_US, START + 2 * SECOND_US
    )

    assert measured.values == [1_500.0, 1_000.0, 501.0]
    assert measured.events == 3


def test_latency_of_a_window_counts_from_its_end() -> None:
    first = pa.record_batch({"window_end": _times(1, 2, 2), "n": [5, 7, 11]})
    second = pa.record_batch({"window_end": _times(3, 4), "n": [13, 17]})

    measured = latencies(
        [_arrival(2.25, first), _arrival(4.5, second)],
        QUERIES["windowed"],
        START + SECOND_US,
        START + 3 * SECOND_US,
    )

    assert measured.values == [250.0, 250.0, 1_500.0]
    assert measured.events == 7 + 11 + 13


def test_a_span_without_rows_has_no_latencies() -> None:
    assert latencies([], QUERIES["stateless"], 0, 1).values == []


def _figures(p50: float, *, wrong: int = 0) -> VariantFigures:
    return VariantFigures(rounds=[[p50 / 2, p50, p50 * 2]], wrong_events=wrong)


@pytest.mark.parametrize(
    ("ours", "unsafe", "best", "defaults", "missed"),
    [
        (8.0, 6.0, 80.0, 200.0, set()),
        (8.0, 6.0, 79.0, 200.0, {"stateless_p50_micro_batch_best_over_penstock"}),
        (8.0, 6.0, 80.0, 199.0, {"stateless_p50_micro_batch_defaults_over_penstock"}),
        (8.0, 5.0, 80.0, 200.0, {"stateless_p50_exactly_once_over_unsafe"}),
    ],
)
def test_each_bar_is_between_two_medians_of_the_same_run(
    ours: float, unsafe: float, best: float, defaults: float, missed: set[str]
) -> None:
    variants = {
        PENSTOCK: _figures(ours),
        UNSAFE: _figures(unsafe),
        MICRO_BATCH_BEST: _figures(best),
        MICRO_BATCH_DEFAULTS: _figures(defaults),
    }

    report = make_report({"stateless": variants}, RealtimeBenchSizes())

    assert {check.name for check in report.checks if not check.ok} == missed
    assert len(report.checks) == 4


def test_one_lost_event_fails_the_run() -> None:
    report = make_report({"windowed": {PENSTOCK: _figures(1.0, wrong=1)}}, RealtimeBenchSizes())

    assert [check.name for check in report.checks] == ["events_off_balance"]
    assert not report.ok


def test_what_was_not_measured_is_absent() -> None:
    report = make_report({"windowed": {MICRO_BATCH_BEST: _figures(1.0)}}, RealtimeBenchSizes())

    assert [check.name for check in report.checks] == ["events_off_balance"]
    figures = report.figures["windowed, micro_batch_best"]
    assert figures["rows"] == 3
    assert "saturation_events_per_second" not in figures
