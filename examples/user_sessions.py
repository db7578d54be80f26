"""Sessions per user: clicks that follow each other within thirty seconds belong together.

A session is final once the watermark has passed its last click plus the gap. Ann's last session is
still open when the program ends, so it is not written yet.

    python examples/user_sessions.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock

CLICKS = "user string NOT NULL, page string, ts timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def click(user: str, page: str, second: int) -> dict:
    return {"user": user, "page": page, "ts": NOON + timedelta(seconds=second)}


def sessions(clicks: DataFrame) -> DataFrame:
    return (
        clicks.withWatermark("ts", "5 seconds")
        .groupBy("user", F.session_window("ts", "30 seconds"))
        .agg(F.count("*").alias("clicks"), F.min("ts").alias("begin"), F.max("ts").alias("last"))
        .select("user", "begin", "clicks", F.expr("last - begin").alias("length"))
    )


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        clicks = log.create_stream("clicks", CLICKS)
        frame = sessions(clicks.df(spark))
        query = penstock.start(frame, to="sessions", name="sessions", mode="append", log=log)
        clicks.append([click("ann", "home", 0), click("bob", "home", 5), click("ann", "cart", 20)])
        clicks.append([click("ann", "home", 120), click("bob", "help", 130)])
        clicks.append([click("ann", "home", 300)])
        query.processAllAvailable()
        query.stop()

        for row in sorted(log.stream("sessions").read().to_pylist(), key=lambda row: row["begin"]):
            clicked = f"{row['clicks']} clicks in {row['length']}"
            print(f"{row['begin']:%H:%M:%S} {row['user']} {clicked}")


if __name__ == "__main__":
    main()
