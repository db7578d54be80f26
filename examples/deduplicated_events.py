"""Remove duplicates from an event feed: two producers send the same events, each is wanted once.

A duplicate is an event with the same id whose time is at most ten seconds away. Ids are forgotten
once the watermark has passed them, so the state does not grow for ever.

    python examples/deduplicated_events.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

import penstock

EVENTS = "id string NOT NULL, action string, ts timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(number: int, second: int) -> dict:
    ts = NOON + timedelta(seconds=second)
    return {"id": f"event-{number}", "action": "click", "ts": ts}


def deduplicated(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["id"])


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        events = log.create_stream("events", EVENTS)
        frame = deduplicated(events.df(spark))
        query = penstock.start(frame, to="clean", name="clean", mode="append", log=log)
        # A named producer makes retries of one program safe; two programs are two producers.
        with events.producer("east") as east, events.producer("west") as west:
            for number in range(20):
                east.append([event(number, number)])
                west.append([event(number, number)])
        query.processAllAvailable()
        query.stop()

        raw, clean = events.read().num_rows, log.stream("clean").read()
        print(f"{raw} events came in, {clean.num_rows} went out")
        print("each once:", len(set(clean["id"].to_pylist())) == clean.num_rows)


if __name__ == "__main__":
    main()
