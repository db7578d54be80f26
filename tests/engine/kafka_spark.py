"""Spark's own `format("kafka")` at a gateway: a program of its own, since Spark loads the jars of a
source when it starts.

Its arguments are JSON: `jars`, `ways` (of Kafka's clients), `raw` and `typed` (two topics),
`checkpoint`. Says on standard output, in JSON, what it has read.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS = 200


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(given["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    ways = {f"kafka.{name}": value for name, value in given["ways"].items()}

    def write(first: int) -> None:
        rows = spark.range(first, first + ROWS).select(
            F.col("id").cast("string").alias("key"),
            F.to_json(F.struct(F.col("id").alias("n"))).alias("value"),
            F.array(F.struct(F.lit("h").alias("key"), F.lit(b"x").alias("value"))).alias("headers"),
            (F.col("id") % 3).cast("int").alias("partition"),
        )
        options = ways | {"includeHeaders": "true"}
        rows.write.format("kafka").options(**options).option("topic", given["raw"]).save()

    def read(topic: str, **options: str) -> DataFrame:
        reader = spark.read.format("kafka").options(**ways).options(**options)
        return reader.option("subscribe", topic).load()

    def copy() -> int:
        """What is new, in batches; how many there were."""
        source = (
            spark.readStream.format("kafka").options(**ways).option("subscribe", given["raw"])
            .option("startingOffsets", "earliest")
            # Offsets leap, so that this is about one entry of the log for each partition.
            .option("maxOffsetsPerTrigger", str(3 << 16))
        )  # fmt: skip
        sink = source.load().select("value").writeStream.format("kafka").options(**ways)
        query = (
            sink.option("topic", given["typed"]).option("checkpointLocation", given["checkpoint"])
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return len(query.recentProgress)

    told: dict[str, Any] = {"batches": []}
    for first in (0, ROWS):
        write(first)
        told["batches"].append(copy())
    frame = read(given["raw"], includeHeaders="true")
    told["raw"] = [
        [row.key.decode(), row.partition, row.offset, row.headers[0].key]
        for row in frame.orderBy("partition", "offset").collect()
    ]
    told["typed"] = [json.loads(row.value)["n"] for row in read(given["typed"]).collect()]
    times = frame.select(F.min("timestamp"), F.max("timestamp")).collect()[0]
    millis = [round(each.timestamp() * 1000) for each in times]
    for name, time_ms in (("from the first", millis[0]), ("after the last", millis[1] + 60_000)):
        # A time after all that is there has no offset: Spark is told what to take it for.
        told[name] = read(
            given["raw"],
            startingTimestamp=str(time_ms), startingOffsetsByTimestampStrategy="latest",
        ).count()  # fmt: skip
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
