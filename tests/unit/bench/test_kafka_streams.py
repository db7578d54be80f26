"""The peer kafka_streams, without Kafka: its variants, its rows, and the lines that it is fed."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from penstock_bench.measure import now_us
from penstock_bench.nexmark.peer_run import read_rows
from penstock_bench.nexmark.peers import find_peer, peers_directory

HERE = peers_directory() / "kafka_streams"
SETTINGS = runpy.run_path(str(HERE / "settings.py"))


def test_every_variant_of_the_file_has_settings_and_the_other_way_round() -> None:
    assert set(find_peer("kafka_streams").variants) == set(SETTINGS["VARIANTS"])


@pytest.mark.parametrize("name", SETTINGS["VARIANTS"])
def test_every_variant_is_exactly_once(name: str) -> None:
    settings = {**SETTINGS["STREAMS"], **SETTINGS["VARIANTS"][name].streams}

    assert settings["processing.guarantee"] == "exactly_once_v2"


@pytest.mark.parametrize("name", [n for n in SETTINGS["VARIANTS"] if n.endswith("_flushed")])
def test_a_flushed_variant_differs_in_when_the_broker_syncs_alone(name: str) -> None:
    flushed = SETTINGS["VARIANTS"][name]
    other = SETTINGS["VARIANTS"][name.removesuffix("_flushed")]

    assert flushed.broker == {**other.broker, "log.flush.interval.messages": "1"}
    assert (flushed.streams, flushed.java) == (other.streams, other.java)


def test_rows_are_handed_over_as_the_harness_reads_them(tmp_path: Path) -> None:
    hand_over = runpy.run_path(str(HERE / "rows.py"))["hand_over"]
    lines = '1002000\t1001000\t1000\t908.000\t999\t"a\t1000\n'
    (tmp_path / "rows").write_text(lines + lines.replace("908", "1"))
    columns = ("auction", "price", "dateTime", "extra")

    figures = hand_over(tmp_path / "rows", columns, tmp_path / "rows.arrow")
    rows = read_rows(tmp_path / "rows.arrow")

    assert figures == {"rows": str(tmp_path / "rows.arrow"), "results": 2}
    assert rows.table.column_names == list(columns)
    assert rows.table.column("extra").to_pylist() == ['"a', '"a']
    assert rows.table.column("price").type == pa.decimal128(23, 3)
    assert rows.weights is not None and rows.weights.to_pylist() == [1, 1]
    _, visible, emitted = rows.latencies_ms(1_000_000, 1_000_001)
    assert (visible.tolist(), emitted.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_no_rows_are_handed_over_as_none(tmp_path: Path) -> None:
    hand_over = runpy.run_path(str(HERE / "rows.py"))["hand_over"]
    (tmp_path / "rows").touch()

    assert hand_over(tmp_path / "rows", ("id",), tmp_path / "out")["results"] == 0
    assert read_rows(tmp_path / "out").table.num_rows == 0


def test_lines_are_written_by_tick_on_schedule_and_closed_by_one_of_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(peers_directory()))
    import paced_lines

    written: list[bytes] = []
    start_us = now_us()
    command: dict[str, Any] = {
        **{"seed": 42, "rate": 1_000.0, "base_ms": 0, "start_us": start_us, "first": 0},
        **{"count": 100, "flush_us": 5_000, "closing_ms": 60_000},
    }

    fed = paced_lines.feed(command, written.append)

    assert time.time_ns() // 1_000 >= start_us + 99_000
    assert len(written) == 21 + 1, "a tick each, the first at the start, and what closes"
    lines = b"".join(written).splitlines()
    assert fed["lines"] == len(lines) == 103
    assert [line[:1] for line in lines[:5]] == [b"0", b"1", b"1", b"1", b"2"]
    assert [line.split(b"\t")[0] for line in lines[100:]] == [b"0", b"1", b"2"]
    assert fed["bytes"] == sum(map(len, written[:-1]))
