"""What the demo shows and how it judges; the demo itself is in tests/engine/test_demo.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli import demo_run
from penstock.cli.demo_run import Outcome, compare
from penstock.cli.demo_view import View, Windows
from penstock.cli.main import cli

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = NOON.timestamp() * 1000


def table(*rows: tuple[int, int]) -> pa.Table:
    return pa.table({"auction": [one for one, _ in rows], "bids": [two for _, two in rows]})


@pytest.mark.parametrize(
    ("rows", "missing", "extra"),
    [
        (((1, 5), (2, 6)), 0, 0),
        (((2, 6), (1, 5)), 0, 0),
        (((1, 5),), 1, 0),
        (((1, 5), (2, 6), (2, 6)), 0, 1),
        (((1, 5), (2, 7)), 1, 1),
    ],
)
def test_a_row_that_is_missing_doubled_or_wrong_is_a_difference(
    rows: tuple[tuple[int, int], ...], missing: int, extra: int
) -> None:
    outcome = Outcome()
    compare(table(*rows), table((1, 5), (2, 6)), outcome)
    assert (outcome.missing, outcome.extra, outcome.rows) == (missing, extra, len(rows))
    assert outcome.ok is (missing == extra == 0)
    assert (outcome.difference is None) is outcome.ok


def test_an_empty_result_is_never_right() -> None:
    outcome = Outcome()
    compare(table(), table(), outcome)
    assert not outcome.ok


def windows() -> Windows:
    """Two seconds; the rows of the first came in two batches, 40 and 90 ms after its end."""
    found = Windows()
    found.take(_rows(NOON, {7: 10, 8: 30}), NOON_MS + 40)
    found.take(_rows(NOON, {9: 20}), NOON_MS + 90)
    found.take(_rows(NOON + timedelta(seconds=1), {7: 1}), NOON_MS + 1_005)
    return found


def _rows(end: datetime, bids: dict[int, int]) -> dict[str, list[Any]]:
    return {
        "second": [end] * len(bids),
        "auction": list(bids),
        "bids": list(bids.values()),
        "price": [100 * auction for auction in bids],
    }


def test_rows_of_a_window_add_up_and_its_last_one_says_when_it_was_visible() -> None:
    first, second = windows().newest(5)
    assert (first.bids, first.auctions, first.hottest) == (60, 3, (30, 8, 800))
    assert (first.visible_ms, second.visible_ms) == (90, 5)
    assert [one.end for one in windows().newest(1)] == [second.end]


def test_latencies_are_of_the_windows_that_ended_in_the_span() -> None:
    assert windows().latencies_ms(NOON_MS, NOON_MS + 2_000) == [5, 90]
    assert windows().latencies_ms(NOON_MS + 1, NOON_MS + 2_000) == [5]
    assert windows().latencies_ms(NOON_MS, NOON_MS + 1_000) == [90]


def test_without_a_terminal_the_newest_window_is_a_plain_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with View(quiet=False) as view:
        view.show([], None)
        view.show(windows().newest(5), None)
        view.show(windows().newest(5), None)
    assert capsys.readouterr().out == (
        "  second 12:00:01: 1 bids for 1 auctions, most (1) for 7; visible 5.0 ms after its end\n"
    )


def test_who_wants_an_object_gets_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with View(quiet=True) as view:
        view.title("1.")
        view.show(windows().newest(5), None)
        view.verdict("OK", ok=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("missing", "code"), [(0, 0), (1, 1)])
def test_a_single_row_that_differs_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, missing: int, code: int
) -> None:
    outcome = Outcome(rows=5, missing=missing)
    monkeypatch.setattr(demo_run, "run_demo", lambda seconds, view, show_page: outcome)
    found = CliRunner().invoke(cli, ["demo", "--json"])
    assert found.exit_code == code
    assert json.loads(found.stdout)["ok"] is (code == 0)
