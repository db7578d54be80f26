"""The newest price per product from a feed of changes, and the dearest two per shop: top N.

Both ranks change as rows come in. In update mode the result is a stream of changes: a column
`_weight` says 1 for a row that is new and -1 for one that is no more. `query.result()` adds them
up, which gives the result as it stands.

    python examples/top_products.py
"""

import tempfile

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import penstock

CHANGES = "shop string, product string, version long, price double, deleted boolean"


def change(shop: str, product: str, version: int, price: float, deleted: bool = False) -> dict:
    return {
        "shop": shop, "product": product, "version": version, "price": price, "deleted": deleted,
    }  # fmt: skip


def top_products(changes: DataFrame) -> DataFrame:
    newest = Window.partitionBy("shop", "product").orderBy(F.desc("version"))
    latest = changes.withColumn("n", F.row_number().over(newest)).where("n = 1 AND NOT deleted")
    dearest = Window.partitionBy("shop").orderBy(F.desc("price"), "product")
    ranked = latest.withColumn("place", F.row_number().over(dearest))
    return ranked.where("place <= 2").select("shop", "place", "product", "price")


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        changes = log.create_stream("changes", CHANGES)
        frame = top_products(changes.df(spark))
        query = penstock.start(frame, to="top", name="top", mode="update", log=log)
        prices = {"a": 3.0, "b": 5.0, "c": 4.0}
        changes.append([change("bern", name, 1, price) for name, price in prices.items()])
        query.processAllAvailable()
        show("at first", query)
        changes.append([change("bern", "b", 2, 1.0), change("bern", "c", 2, 4.0, deleted=True)])
        query.processAllAvailable()
        show("after a change and a deletion", query)
        query.stop()


def show(title: str, query: penstock.StreamingQuery) -> None:
    print(title)
    for row in sorted(query.result().to_pylist(), key=str):
        print(f"  {row['shop']} {row['place']}. {row['product']} {row['price']}")


if __name__ == "__main__":
    main()
