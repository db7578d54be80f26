"""NEXMark by hand: 24 events whose answers can be checked on paper, as one mixed stream.

An auction before its seller, a bid before its auction, at its end and after it, a tie of prices, an
auction that does not exist, bids on the edges of windows, two auctions of one seller. Times are in
milliseconds after `BASE_MS`, which is a multiple of ten seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.queries import QUERIES, split_events

from penstock.ops.driver import Driver
from penstock.spark.frontend import plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.plan.nodes import Mode

BASE_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
FLUSH_MS = 120_000

PERSONS = [
    (1001, "Ann Abe", "Boise", "ID", 1_000),
    (1002, "Bob Bly", "Portland", "OR", 4_000),
    (1003, "Cat Cho", "Seattle", "WA", 12_000),
    (1004, "Dan Day", "Bend", "OR", 21_000),
]
AUCTIONS = [  # id, seller, category, time, end
    (1107, 1001, 10, 2_000, 12_000),
    (1108, 1001, 11, 3_000, 9_000),
    (1109, 1002, 10, 3_500, 15_000),
    (1110, 1003, 10, 13_000, 18_000),
    (1230, 1002, 11, 14_000, 19_000),
    (1111, 1004, 10, 20_500, 26_000),
]
BIDS = [  # auction, bidder, price, time
    (1107, 1002, 100, 2_500),
    (1108, 1002, 250, 2_900),
    (1107, 1003, 300, 5_000),
    (1108, 1004, 200, 9_000),
    (1107, 1004, 300, 9_500),
    (1109, 1003, 500, 10_000),
    (1107, 1002, 900, 12_500),
    (1230, 1001, 700, 14_500),
    (1110, 1002, 400, 15_000),
    (1999, 1002, 50, 16_000),
    (1230, 1003, 750, 19_000),
    (1110, 1001, 900, 20_000),
    (1111, 1001, 601, 22_000),
    (1107, 1001, 1000, 26_000),
]
#: They join nothing and close all windows.
FLUSH = [
    ("person", (9, "", "", "", FLUSH_MS)),
    ("auction", (9, 8, 99, FLUSH_MS, FLUSH_MS)),
    ("bid", (8, 9, 0, FLUSH_MS)),
]


def _events() -> list[tuple[str, tuple[Any, ...]]]:
    """All events by time, without the flush."""
    told = [
        *((row[4], "person", row) for row in PERSONS),
        *((row[3], "auction", row) for row in AUCTIONS),
        *((row[3], "bid", row) for row in BIDS),
    ]
    return [(kind, row) for _, kind, row in sorted(told, key=lambda event: event[0])]


def _micros(milliseconds: int) -> int:
    return (BASE_MS + milliseconds) * 1000


def _row(kind: str, row: tuple[Any, ...]) -> dict[str, Any]:
    """The event as the mixed stream has it; what no query reads is empty."""
    filled: dict[str, Any]
    if kind == "person":
        filled = dict(zip(["id", "name", "city", "state"], row[:4], strict=True))
    elif kind == "auction":
        filled = dict(zip(["id", "seller", "category"], row[:3], strict=True))
        filled["expires"] = _micros(row[4])
        row = row[:4]
    else:
        filled = dict(zip(["auction", "bidder", "price"], row[:3], strict=True))
    filled["dateTime"] = _micros(row[-1])
    empty = {field.name: "" if pa.types.is_string(field.type) else 0 for field in model.KINDS[kind]}
    return {"event_type": list(model.KINDS).index(kind), kind: empty | filled}


def _batch(events: list[tuple[str, tuple[Any, ...]]]) -> pa.RecordBatch:
    rows = [_row(kind, row) for kind, row in events]
    return pa.RecordBatch.from_pylist(rows, schema=model.EVENT)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type):
        values = [micros // 1000 - BASE_MS for micros in column.cast(pa.int64()).to_pylist()]
    return values


class Story:
    """One query over the events, told in batches of three."""

    def __init__(self, spark: SparkSession, path: Path, name: str, mode: Mode = "update") -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        events = spark.readStream.schema(from_arrow_schema(model.EVENT)).parquet(str(path))
        frames = split_events(events)
        if mode == "append":
            person, auction, bid = (df.withWatermark("dateTime", "4 seconds") for df in frames)
            frames = (person, auction, bid)
        planned = plan(QUERIES[name].build(*frames), mode=mode)
        self._path = str(path)
        self._driver = Driver(planned.query, planned.static_rows())

    def tell(self, events: list[tuple[str, tuple[Any, ...]]], size: int = 3) -> None:
        for start in range(0, len(events), size):
            self._driver.feed(self._path, _batch(events[start : start + size]))

    def rows(self) -> list[tuple[Any, ...]]:
        """The result so far, times in milliseconds after the base, in order."""
        table = self._driver.result()
        columns = [_plain(column) for column in table.columns]
        return sorted(zip(*columns, strict=True), key=repr)


def _results(spark: SparkSession, path: Path, name: str) -> list[tuple[Any, ...]]:
    story = Story(spark, path, name)
    story.tell(_events())
    return story.rows()


def test_q1_converts_prices(spark: SparkSession, tmp_path: Path) -> None:
    rows = _results(spark, tmp_path, "q1")

    in_order = [row[2] for row in sorted(rows, key=lambda row: row[3])]
    assert [str(price) for price in in_order[:3]] == ["90.800", "227.000", "272.400"]
    assert [int(price * 1000) for price in in_order] == [
        *(90_800, 227_000, 272_400, 181_600, 272_400, 454_000, 817_200),
        *(635_600, 363_200, 45_400, 681_000, 817_200, 545_708, 908_000),
    ]


ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "q2": [
        (1107, 100),
        (1107, 300),
        (1107, 300),
        (1107, 900),
        (1107, 1000),
        (1230, 700),
        (1230, 750),
    ],
    "q3": [
        ("Ann Abe", "Boise", "ID", 1107),
        ("Bob Bly", "Portland", "OR", 1109),
        ("Dan Day", "Bend", "OR", 1111),
    ],
    "q4": [(10, 450), (11, 475)],
    "q6": [
        (1001, 200, 9_000),
        (1001, 250, 12_000),
        (1002, 500, 15_000),
        (1002, 625, 19_000),
        (1003, 400, 18_000),
        (1004, 601, 26_000),
    ],
    "q7": [
        (1107, 300, 1003, 5_000, ""),
        (1107, 300, 1004, 9_500, ""),
        (1107, 900, 1002, 12_500, ""),
        (1107, 1000, 1001, 26_000, ""),
        (1110, 900, 1001, 20_000, ""),
    ],
    "q8": [
        (1001, "Ann Abe", 0),
        (1002, "Bob Bly", 0),
        (1003, "Cat Cho", 10_000),
        (1004, "Dan Day", 20_000),
    ],
    "q11": [
        (1001, 4, 14_500, 36_000),
        (1002, 5, 2_500, 26_000),
        (1003, 3, 5_000, 29_000),
        (1004, 2, 9_000, 19_500),
    ],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_the_one_on_paper(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = _results(spark, tmp_path, name)

    assert rows == sorted(ANSWERS[name], key=repr)


#: Window start in seconds: the most bids, and the auctions that have them.
HOT = {
    -6: (1, [1107, 1108]),
    -4: (2, [1107]),
    -2: (2, [1107]),
    0: (3, [1107]),
    2: (3, [1107]),
    4: (3, [1107]),
    6: (2, [1107]),
    8: (2, [1107]),
    10: (2, [1230]),
    12: (2, [1110, 1230]),
    14: (2, [1110, 1230]),
    16: (1, [1110, 1111, 1230, 1999]),
    18: (1, [1107, 1110, 1111, 1230]),
    20: (1, [1107, 1110, 1111]),
    22: (1, [1107, 1111]),
    24: (1, [1107]),
    26: (1, [1107]),
}
HOT_ROWS = [
    (auction, most, start * 1000, start * 1000 + 10_000)
    for start, (most, auctions) in HOT.items()
    for auction in auctions
]


def test_q5_finds_the_hot_auctions_of_every_window(spark: SparkSession, tmp_path: Path) -> None:
    rows = _results(spark, tmp_path, "q5")

    assert len(rows) == 29
    assert rows == sorted(HOT_ROWS, key=repr)


def test_q5_in_append_mode_shows_a_window_once_its_time_has_passed(
    spark: SparkSession, tmp_path: Path
) -> None:
    story = Story(spark, tmp_path, "q5", "append")

    story.tell(_events())
    before = story.rows()
    story.tell(FLUSH)

    # The last bid is of 26 s, so the watermark stands at 22 s.
    assert before == sorted((row for row in HOT_ROWS if row[3] <= 22_000), key=repr)
    assert story.rows() == sorted(HOT_ROWS, key=repr)


@pytest.mark.parametrize(("name", "column"), [("q7", 3), ("q8", 2)])
def test_append_mode_shows_the_rest_after_the_flush(
    spark: SparkSession, tmp_path: Path, name: str, column: int
) -> None:
    story = Story(spark, tmp_path, name, "append")

    story.tell([*_events(), *FLUSH])

    shown = [row for row in story.rows() if row[column] < FLUSH_MS]
    assert shown == sorted(ANSWERS[name], key=repr)


def test_q4_keeps_a_running_average(spark: SparkSession, tmp_path: Path) -> None:
    story = Story(spark, tmp_path, "q4")
    seen: dict[int, list[int]] = {10: [], 11: []}

    for event in _events():
        story.tell([event])
        for category, average in story.rows():
            if seen[category][-1:] != [average]:
                seen[category].append(average)

    assert seen == {10: [100, 300, 400, 450], 11: [200, 450, 475]}


def test_q9_shows_the_winner_of_each_auction(spark: SparkSession, tmp_path: Path) -> None:
    rows = _results(spark, tmp_path, "q9")

    winners = [(row[10], row[11], row[12], row[13]) for row in rows]
    assert sorted(winners) == [
        (1107, 1003, 300, 5_000),
        (1108, 1004, 200, 9_000),
        (1109, 1003, 500, 10_000),
        (1110, 1002, 400, 15_000),
        (1111, 1001, 601, 22_000),
        (1230, 1003, 750, 19_000),
    ]


def test_q17_counts_the_bids_of_an_auction(spark: SparkSession, tmp_path: Path) -> None:
    (row,) = (row for row in _results(spark, tmp_path, "q17") if row[0] == 1107)

    assert row == (1107, "2024-01-01", 5, 5, 0, 0, 100, 1000, 520, 2600)


def test_q20_shows_bids_before_their_auction_too(spark: SparkSession, tmp_path: Path) -> None:
    rows = _results(spark, tmp_path, "q20")

    assert len(rows) == 9
    assert {row[0] for row in rows} == {1107, 1109, 1110, 1111}
