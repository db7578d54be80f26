"""Average readings per sensor and ten seconds, in event time, with a reading that comes too late.

A window is final once the watermark, five seconds behind the newest reading, has passed its end.
Then its row is written, once. A reading for a window that is final is dropped and counted.

    python examples/windowed_averages.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock

READINGS = "sensor string NOT NULL, celsius double, ts timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reading(sensor: str, celsius: float, second: int) -> dict:
    return {"sensor": sensor, "celsius": celsius, "ts": NOON + timedelta(seconds=second)}


def averages(readings: DataFrame) -> DataFrame:
    return (
        readings.withWatermark("ts", "5 seconds")
        .groupBy(F.window("ts", "10 seconds"), "sensor")
        .agg(F.avg("celsius").alias("average"), F.count("*").alias("readings"))
        .select("window.start", "sensor", "average", "readings")
    )


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        readings = log.create_stream("readings", READINGS)
        frame = averages(readings.df(spark))
        query = penstock.start(frame, to="averages", name="averages", mode="append", log=log)
        for second in range(30):
            readings.append(
                [reading("roof", 20.0 + second, second), reading("cellar", 12.0, second)]
            )
        query.processAllAvailable()
        readings.append([reading("roof", 99.0, 3)])  # its window is final: too late
        query.processAllAvailable()
        query.stop()

        rows = log.stream("averages").read().to_pylist()
        for row in sorted(rows, key=lambda row: (row["start"], row["sensor"])):
            average = f"{row['average']} of {row['readings']} readings"
            print(f"{row['start']:%H:%M:%S} {row['sensor']} {average}")
        states = query.lastProgress["stateOperators"]
        print("late readings:", sum(state["numRowsDroppedByWatermark"] for state in states))


if __name__ == "__main__":
    main()
