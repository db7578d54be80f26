"""A stream as a table of another library, and as text: the rows that are there now."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from embedded_server import stop_server

import penstock
from penstock.errors import Refused

DDL = "auction long, bidder string, ts timestamp, tags array<string>"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def bids(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Stream]:
    directory = tmp_path_factory.mktemp("frames") / "log"
    with penstock.connect(directory) as log:
        bids = log.create_stream("bids", DDL)
        for n in range(3):
            bids.append({"auction": n, "bidder": "☃" * n * 15 or None, "ts": NOON, "tags": ["a"]})
        yield bids
    stop_server(directory)


def test_rows_are_frames_of_other_libraries(bids: penstock.Stream) -> None:
    frame = bids.to_pandas()
    assert isinstance(frame, pd.DataFrame) and list(frame["auction"]) == [0, 1, 2]
    assert frame["ts"][0] == NOON
    assert len(bids.to_pandas(start="latest")) == 0

    rows = bids.to_duckdb()  # noqa: F841 (SQL finds it by its name)
    found = duckdb.sql("SELECT count(*), max(auction), min(epoch(ts)) FROM rows").fetchall()
    assert found == [(3, 2, NOON.timestamp())]


def test_polars_is_an_extra(bids: penstock.Stream) -> None:
    import polars

    assert bids.to_polars().filter(polars.col("auction") > 0).height == 2


@pytest.mark.parametrize("name", ["polars", "duckdb"])
def test_a_library_that_is_missing_is_named_with_its_extra(
    name: str, bids: penstock.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Refused, match=rf"pip install 'penstock\[{name}\]'"):
        getattr(bids, f"to_{name}")()


def test_rows_are_shown_as_spark_shows_them(
    bids: penstock.Stream, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bids.show(2)
    assert capsys.readouterr().out.splitlines() == [
        "+-------+---------------+-------------------+----+",
        "|auction|         bidder|                 ts|tags|",
        "+-------+---------------+-------------------+----+",
        "|      0|           NULL|2026-01-01 12:00:00| [a]|",
        "|      1|☃☃☃☃☃☃☃☃☃☃☃☃☃☃☃|2026-01-01 12:00:00| [a]|",
        "+-------+---------------+-------------------+----+",
    ]
    bids.show()
    assert "☃" * 17 + "..." in capsys.readouterr().out
    bids.show(truncate=False)
    assert "☃" * 30 in capsys.readouterr().out
    bids.show(0)
    assert len(capsys.readouterr().out.splitlines()) == 4
