"""Enrich orders with what is known about their customers: a stream joined with a table.

The table is an ordinary DataFrame. It is read when the query starts and sent to every worker. An
order of an unknown customer is kept, with nulls, because the join is a left join.

    python examples/enriched_orders.py
"""

import tempfile
from decimal import Decimal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock

ORDERS = "order_id long NOT NULL, customer_id long, amount decimal(10,2)"
CUSTOMERS = [(1, "Ada", "DE"), (2, "Ben", "US")]


def enriched(orders: DataFrame, customers: DataFrame) -> DataFrame:
    joined = orders.join(F.broadcast(customers), "customer_id", "left")
    return joined.select(
        "order_id",
        F.coalesce("name", F.lit("unknown")).alias("customer"),
        "country",
        (F.col("amount") * F.when(F.col("country") == "DE", F.lit(1.19)).otherwise(F.lit(1.0)))
        .cast("decimal(10,2)")
        .alias("with_tax"),
    )


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    customers = spark.createDataFrame(CUSTOMERS, "customer_id long, name string, country string")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        orders = log.create_stream("orders", ORDERS)
        frame = enriched(orders.df(spark), customers)
        query = penstock.start(frame, to="enriched", name="enriched", mode="append", log=log)
        orders.append(
            [
                {"order_id": 100, "customer_id": 1, "amount": Decimal("10.00")},
                {"order_id": 101, "customer_id": 2, "amount": Decimal("20.00")},
                {"order_id": 102, "customer_id": 7, "amount": Decimal("30.00")},
            ]
        )
        query.processAllAvailable()
        query.stop()

        for row in sorted(log.stream("enriched").read().to_pylist(), key=str):
            print(row["order_id"], row["customer"], row["country"], row["with_tax"])


if __name__ == "__main__":
    main()
