"""Sales per city, kept in a table of a database while orders come in; with live corrections.

The result of the query changes with every order. `penstock.deliver` keeps a table equal to it, each
transaction of the database with the position in the log: whatever is killed, no row is lost or
counted twice. Here the database is a file of SQLite, which needs nothing; for PostgreSQL only the
address is another: "postgresql://user@host/database".

    python examples/results_in_a_database.py
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock

ORDERS = "city string, amount double"


def sales(orders: DataFrame) -> DataFrame:
    return orders.groupBy("city").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        database = Path(directory) / "shop.db"
        orders = log.create_stream("orders", ORDERS)
        frame = sales(orders.df(spark))
        query = penstock.start(frame, to="sales", name="sales", mode="update", log=log)

        with penstock.deliver(query, to=f"sqlite:///{database}") as delivery:
            orders.append([{"city": "bern", "amount": 10.0}, {"city": "basel", "amount": 7.5}])
            query.processAllAvailable()
            delivery.processAllAvailable()
            show("at first", database)

        # Nobody delivers now. Started again, it goes on where the table is.
        orders.append([{"city": "bern", "amount": 2.5}, {"city": "chur", "amount": 1.0}])
        query.processAllAvailable()
        show("while nobody delivered", database)

        with penstock.deliver(query, to=f"sqlite:///{database}") as delivery:
            delivery.processAllAvailable()
            show("started again", database)
        query.stop()


def show(title: str, database: Path) -> None:
    print(title)
    with closing(sqlite3.connect(database)) as connection:
        for city, orders, total in connection.execute("SELECT * FROM sales ORDER BY city"):
            print(f"  {city} {total} of {orders} orders")


if __name__ == "__main__":
    main()
