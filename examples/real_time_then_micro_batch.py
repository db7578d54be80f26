"""Two engines on one stream: a real-time query cleans orders, a nightly job sums them up.

The first runs on Penstock and answers in milliseconds. The second is Structured Streaming, Spark's
own engine, with `availableNow`: it takes what is new since its last run, and stops. Both are
exactly once.

    python examples/real_time_then_micro_batch.py
"""

import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock

ORDERS = "order_id long NOT NULL, shop string, amount long"


def order(number: int) -> dict:
    return {"order_id": number, "shop": f"shop-{number % 2}", "amount": number % 7 - 1}


def valid(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 0")


def totals(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
    """What one micro-batch writes, by stream: a run adds one row per shop."""
    sums = batch.groupBy("shop").agg(F.sum("amount").alias("amount"), F.count("*").alias("orders"))
    return {"totals": sums.withColumn("batch", F.lit(batch_id).cast("long"))}


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(f"{directory}/log") as log,
    ):
        orders = log.create_stream("orders", ORDERS)
        frame = valid(orders.df(spark))
        query = penstock.start(frame, to="valid", name="valid", mode="append", workers=1, log=log)
        for day in range(2):
            orders.append([order(number) for number in range(day * 70, (day + 1) * 70)])
            query.processAllAvailable()
            writer = log.stream("valid").df(spark).writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
            job = writer.foreachBatch(penstock.foreach_batch_writer(totals, log=log)).start()
            job.awaitTermination()
        query.stop()

        rows = log.stream("totals").read().to_pylist()
        for row in sorted(rows, key=lambda row: (row["batch"], row["shop"])):
            print(f"run {row['batch']}: {row['shop']} {row['amount']} of {row['orders']} orders")


if __name__ == "__main__":
    main()
