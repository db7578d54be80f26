"""`penstock nexmark report` and `recovery`: what is compared, what is said to be missing, the page.

Result objects are made up here, in the form that a run prints.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from penstock_bench.cli.nexmark_report import recovery as recovery_command
from penstock_bench.cli.nexmark_report import report as report_command
from penstock_bench.nexmark import report_runs
from penstock_bench.nexmark.recovery import make_report, make_table, run_recovery
from penstock_bench.nexmark.report_page import GAP, Section, make_page, make_sections, write_report
from penstock_bench.nexmark.report_runs import OURS, Held, Run, Series, parse
from penstock_bench.recovery import RecoveryFigures, Replay

from penstock.errors import NotFound

BEST = Series("structured_streaming", "best")
FLINK = Series("flink", "exactly_once")


def result(series: Series = OURS, query: str = "q5", rate: float = 10_000, **changes: Any) -> Any:
    p50, p99 = changes.pop("p50", 10.0), changes.pop("p99", 20.0)
    made = {
        "bench": "nexmark",
        "system": series.system,
        "variant": series.variant,
        "query": query,
        "mode": "append",
        "rate": rate,
        "commit_interval_ms": 100 if series.system == "penstock" else None,
        "latency_ms": {"p50": p50, "p90": p50, "p99": p99, "p99.9": p99, "max": p99},
        "latency_from": "window end",
        "rows": 1000,
        "percentiles": [[0, p50 / 2], [50, p50], [99, p99], [100, p99]],
        "emitted_latency_ms": None,
        "is_sustained": True,
        "schedule": {"delay_ms": {}, "is_held": True, "note": ""},
        "oracle": "equal",
        "oracle_reason": "",
        "commit": "abc123",
        "machine": {"cores": 2, "memory_gib": 8, "arch": "x86_64"},
    }
    return {**made, **changes}


def runs(*objects: Any) -> list[Run]:
    return [parse(figures) for figures in objects]


def put(directory: Path, *objects: Any) -> None:
    for n, figures in enumerate(objects):
        (directory / f"{n}.json").write_text(json.dumps(figures))


# -- what is compared


def test_repeats_are_one_point_with_the_median_of_them() -> None:
    [panel] = report_runs.rate_panels(
        runs(result(p50=10.0), result(p50=90.0), result(p50=12.0), result(rate=20_000))
    )

    [line] = panel.lines
    assert [(point.x, point.p50, point.repeats) for point in line.points] == [
        (10_000, 12.0, 3),
        (20_000, 10.0, 1),
    ]


def test_a_line_over_rates_has_one_commit_interval() -> None:
    measured = runs(result(), result(rate=20_000), result(commit_interval_ms=10, p50=99.0))

    [panel] = report_runs.rate_panels(measured)

    assert [point.p50 for point in panel.lines[0].points] == [10.0, 10.0]


def test_a_protocol_at_another_interval_than_markers_is_not_drawn_beside_them() -> None:
    aligned = Series("penstock", "aligned")
    measured = runs(
        result(commit_interval_ms=0),
        result(aligned, commit_interval_ms=0),
        result(aligned, query="q1", commit_interval_ms=100),
        result(query="q1", commit_interval_ms=0),
    )

    drawn = {panel.query: len(panel.curves) for panel in report_runs.curve_panels(measured)}

    assert drawn == {"q1": 1, "q5": 2}


def test_commit_intervals_are_compared_at_the_rate_that_has_most_of_them() -> None:
    measured = runs(
        *(result(commit_interval_ms=ms) for ms in (10, 25, 100)),
        *(result(Series("penstock", "aligned"), commit_interval_ms=ms) for ms in (10, 100)),
        result(rate=90_000, commit_interval_ms=100),
        result(BEST, commit_interval_ms=100),
    )

    [panel] = report_runs.interval_panels(measured)

    assert panel.note == "10,000 events/s"
    drawn = {line.series.variant: [point.x for point in line.points] for line in panel.lines}
    assert drawn == {"marker": [10, 25, 100], "aligned": [10, 100]}


def test_latencies_from_the_event_and_from_the_window_end_never_meet(tmp_path: Path) -> None:
    put(tmp_path, result(), result(BEST, latency_from="event", p50=500.0))

    loaded = report_runs.load(tmp_path)

    assert {panel.query for panel in report_runs.rate_panels(loaded.runs)} == {
        "q5 from event",
        "q5 from window end",
    }
    assert report_runs.ratios(loaded.runs) == []


def test_a_ratio_is_taken_at_the_highest_rate_that_both_keep_up_with() -> None:
    measured = runs(
        result(rate=10_000, p50=10.0),
        result(rate=20_000, p50=11.0),
        result(rate=40_000, p50=12.0),
        result(BEST, rate=10_000, p50=300.0),
        # Above the limit for p99, so not held; but it keeps up, and says so.
        result(BEST, rate=20_000, p50=330.0, is_sustained=False, keeps_up=True),
        result(BEST, rate=40_000, p50=9_000.0, is_sustained=False),
    )

    [ratio] = report_runs.ratios(measured)

    assert (ratio.rate, ratio.times) == (20_000, 30.0)


def test_what_was_run_differently_is_no_repeat() -> None:
    measured = report_runs.tell_apart(
        runs(result(workers=1, p50=8.0), result(workers=4, p50=80.0), result(mode="update"))
    )
    assert {run.query for run in measured} == {
        "q5, append, 1 workers",
        "q5, append, 4 workers",
        "q5, update",
    }


def test_a_run_of_ours_that_missed_only_its_limit_keeps_up() -> None:
    checks = [{"name": "p99 latency", "ok": False}, {"name": "growth of the lag", "ok": True}]
    [late] = runs(result(is_sustained=False, checks=checks))
    assert late.is_kept_up
    checks[1]["ok"] = False
    [behind] = runs(result(is_sustained=False, checks=checks))
    assert not behind.is_kept_up


def test_a_wrong_result_is_no_figure(tmp_path: Path) -> None:
    put(tmp_path, result(), result(p50=1.0, oracle="different"))
    loaded = report_runs.load(tmp_path)
    assert [run.latency_ms["p50"] for run in loaded.runs] == [10.0]
    assert "differs from batch Spark" in loaded.refused[0]


def test_a_protocol_of_ours_is_no_peer() -> None:
    assert report_runs.ratios(runs(result(), result(Series("penstock", "aligned")))) == []


@pytest.mark.parametrize(
    "fault",
    [{"p99": 1000.1}, {"is_sustained": False}, {"schedule": {"is_held": False}}, {"rows": 0}],
)
def test_a_rate_is_held_only_if_nothing_is_wrong_with_it(fault: dict[str, Any]) -> None:
    measured = runs(result(rate=1000), result(rate=2000, p99=999.0), result(rate=4000, **fault))

    [held] = report_runs.saturation(measured)

    assert (held.held, held.held_p99, held.failed) == (2000, 999.0, 4000)


def test_q1_and_q2_have_a_limit_of_60_ms() -> None:
    measured = runs(result(query="q1", rate=1000), result(query="q1", rate=2000, p99=61.0))

    assert report_runs.saturation(measured) == [Held("q1", OURS, 1000, 20.0, 2000, 61.0)]


def test_one_rate_says_nothing_of_saturation() -> None:
    assert report_runs.saturation(runs(result())) == []


# -- what is missing


def test_who_was_not_run_or_gave_no_rows_is_named() -> None:
    measured = runs(result(), result(BEST, query="q4"), result(BEST, rows=0), result(query="q4"))

    missing = report_runs.missing_lines(measured, report_runs.rate_panels(measured))

    assert missing == ["Spark best: no rows, or one rate only, for q5"]
    absent = runs(result(), result(query="q4"), result(FLINK))
    assert report_runs.missing_ratios(absent, report_runs.ratios(absent)) == [
        "Flink exactly once: not run for q4"
    ]


def test_a_run_without_rows_is_a_gap_and_no_zero(tmp_path: Path) -> None:
    empty = {"p50": 0.0, "p90": 0.0, "p99": 0.0, "p99.9": 0.0, "max": 0.0}
    put(tmp_path, result(rows=0, latency_ms=empty), result(query="q1"))

    sections = {section.name: section for section in make_sections(report_runs.load(tmp_path))}

    assert [row[0] for row in sections["rates"].table.rows] == ["q1"]
    assert sections["rates"].picture is not None
    assert "no result rows were measured" in sections["rates"].picture.svg


def test_an_interval_that_was_not_measured_is_a_gap_in_the_table(made: Made) -> None:
    [table] = [section.table for section in made.sections if section.name == "intervals"]

    assert table.headers[3:] == tuple(f"{ms} ms: p50 / p99, ms" for ms in (10, 25, 50, 100))
    assert {row[2]: row[3:] for row in table.rows} == {
        "Penstock marker": ("10 / 20", "10 / 20", "10 / 20", "10 / 20"),
        "Penstock unsafe": (GAP, GAP, "5 / 20", GAP),
    }


# -- reading


def test_lists_of_runs_are_read_and_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    put(tmp_path / "deep", {"bench": "nexmark_compare", "runs": [result(), result(BEST)]})
    (tmp_path / "marker.json").write_text(json.dumps(result()))  # that one once more
    put(tmp_path, {"bench": "log"}, {"bench": "nexmark", "runs": [{"system": "flink"}]})
    skips = [{"system": "flink", "variant": None, "query": "q6", "reason": "no such SQL"}]
    figures = {"results": [result(FLINK)], "skipped": skips}
    (tmp_path / "compare.json").write_text(json.dumps({"figures": figures}))
    (tmp_path / "torn.json").write_text("{")

    loaded = report_runs.load(tmp_path)

    assert [run.series for run in loaded.runs] == [FLINK, OURS, BEST]
    assert loaded.refused == ("Flink: not run for q6: no such SQL",)
    assert [line.partition(":")[0] for line in loaded.skipped] == ["0.json", "1.json", "torn.json"]


def test_no_results_is_an_error_that_says_how_to_make_some(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFound, match=r"make some with: penstock nexmark run q5 .*--results"):
            write_report(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the page


class Links(HTMLParser):
    """What a page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "iframe", "img"):
            self.found.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.found.append(f"{tag} {value}")


@dataclass(frozen=True)
class Made:
    sections: list[Section]
    page: str


@pytest.fixture(scope="module")
def made() -> Made:
    """All charts, drawn once: it takes a second."""
    everything = [
        *(result(query=q, rate=r) for q in ("q1", "q5") for r in (10_000, 20_000)),
        *(result(commit_interval_ms=ms) for ms in (10, 25, 50)),
        result(Series("penstock", "unsafe"), commit_interval_ms=50, p50=5.0),
        result(BEST, p50=300.0, p99=500.0),
        result(FLINK, p50=5.0),
        result(Series("kafka_streams", "<eos> & co"), oracle="different"),
    ]
    loaded = report_runs.Loaded(tuple(runs(*everything)), None, ())
    sections = make_sections(loaded)
    return Made(sections, make_page(loaded, sections))


def test_the_page_loads_nothing(made: Made) -> None:
    links = Links()
    links.feed(made.page)

    assert links.found == []
    assert "url(http" not in made.page and "@import" not in made.page


def test_the_page_says_what_a_reader_must_know(made: Made) -> None:
    assert "abc123" in made.page
    assert "2 cores, 8 GiB, x86_64" in made.page
    assert "WRONG RESULT: q5, Kafka Streams &lt;eos&gt; &amp; co, 10,000 events/s" in made.page
    assert "<eos>" not in made.page
    assert "How latency is counted" in made.page
    assert "penstock nexmark recovery" in made.page


def test_charts_are_sound_and_take_all_colours_from_the_page(made: Made) -> None:
    pictures = [section.picture for section in made.sections if section.picture is not None]

    assert len(pictures) == 5
    for picture in pictures:
        ElementTree.fromstring(picture.svg)
        assert not re.findall(r"(?:fill|stroke): ?#[0-9a-f]{6}", picture.svg)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", made.page))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):#", made.page))


def test_the_command_writes_page_and_pictures_and_says_where(tmp_path: Path) -> None:
    put(tmp_path, result())

    done = CliRunner().invoke(report_command, ["--results", str(tmp_path), "--json"])

    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert Path(said["page"]).parent == tmp_path / "report"
    assert said["missing"]["ratios"] == ["no peer was run"]
    names = [Path(path).name for path in said["images"]]
    assert names == ["latency-rate.png", "latency-cdf.png"]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in said["images"])


def test_the_report_runs_without_matplotlib_as_far_as_saying_so(tmp_path: Path) -> None:
    put(tmp_path, result())
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from penstock_bench.cli.nexmark_report import report\n"
        f"report(['--results', {str(tmp_path)!r}], standalone_mode=False)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "NotFound" in done.stderr
    assert "pip install matplotlib" in done.stderr


# -- recovery


def found(**changes: Any) -> RecoveryFigures:
    usual = RecoveryFigures(
        with_checkpoints=[0.1, 0.2, 0.3],
        without=[2.5, 2.0, 9.0],
        replay_all=Replay(entries=3000, bytes=4_000_000, changes=50_000),
        replay_suffix=Replay(entries=100, bytes=90_000, changes=700),
        checkpoint_bytes=150_000,
        state_rows=6000,
    )
    for name, value in changes.items():
        setattr(usual, name, value)
    return usual


def test_recovery_has_both_bars_at_each_rate_and_each_can_be_missed() -> None:
    good = make_report({10_000: found(), 20_000: found()}, seconds=300, rounds=3)
    assert good.ok
    assert [check.value for check in good.checks] == [12.5, 0, 12.5, 0]

    for changes in ({"without": [1.0, 1.9, 2.0]}, {"rows_differ": 1}):
        bad = make_report({10_000: found(), 20_000: found(**changes)}, seconds=300, rounds=3)
        assert [check.ok for check in bad.checks].count(False) == 1, changes


def test_the_recovery_table_has_a_column_per_rate_and_is_in_the_page(tmp_path: Path) -> None:
    report = make_report({10_000: found(), 20_000: found()}, seconds=300, rounds=3).as_json()

    headers, rows = make_table(report)

    assert headers[2:] == ["10,000", "20,000"]
    assert ["recovery time, s", "no checkpoints", "2.500", "2.500"] in rows
    assert ["entries read", "checkpoints", "100", "100"] in rows
    assert ["times faster", "", "12.5×", "12.5×"] in rows
    put(tmp_path, report)
    assert "12.5×" in write_report(tmp_path, tmp_path / "out").page.read_text()


@pytest.mark.parametrize("rates", ["ten", "10000,", "10001", "0"])
def test_rates_that_cannot_be_are_refused_before_anything_runs(rates: str) -> None:
    done = CliRunner().invoke(recovery_command, ["--rates", rates])

    assert done.exit_code == 2
    assert "rate" in done.output or "numbers" in done.output


@pytest.mark.soak
def test_recovery_is_measured_at_each_rate(tmp_path: Path) -> None:
    done = run_recovery([1000, 2000], seconds=10, rounds=1, directory=tmp_path)

    rates = done.figures["rates"]
    assert [rate["rate"] for rate in rates] == [1000, 2000]
    assert all(one["without"]["changes"] > 0 for one in rates)
    assert rates[0]["state_rows"] < rates[1]["state_rows"]
    assert [check.value for check in done.checks if check.unit == "rows"] == [0, 0]
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"
