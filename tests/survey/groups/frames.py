"""The DataFrame API: columns, rows, generators, and what shapes a query."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from survey.construct import Construct, Group, queries


def _with_tax(frame: DataFrame) -> DataFrame:
    return frame.withColumn("gross", F.col("price") * 1.19)


def _nullable(f: Any) -> Any:
    schema = f.orders.select("id", "item").schema
    return f.orders.to(StructType([StructField(c.name, c.dataType, True) for c in schema]))


COLUMNS: Final[Group] = queries(
    {
        "select and alias": lambda f: f.orders.select("id", F.col("price").alias("cost")),
        "selectExpr": lambda f: f.orders.selectExpr("id", "price * 2 AS twice"),
        "withColumn": lambda f: f.orders.select("id").withColumn("next", F.col("id") + 1),
        "withColumnRenamed and withColumnsRenamed": lambda f: f.orders.select(
            "id", "item"
        ).withColumnsRenamed({"id": "order", "item": "what"}),
        "drop": lambda f: f.orders.select("id", "item", "note").drop("note"),
        "where and filter": lambda f: f.orders.where("price > 5").filter(F.col("active")),
        "when and otherwise": lambda f: f.orders.select(
            "id", F.when(F.col("price") > 10, "dear").otherwise("cheap")
        ),
        "withField and dropFields": lambda f: f.orders.select(
            "id", F.col("address").withField("what", F.col("note")).dropFields("zip")
        ),
        "star of a struct": lambda f: f.orders.select("id", "address.*"),
        "transform by a function": lambda f: f.orders.select("id", "price").transform(_with_tax),
        "explode": lambda f: f.orders.select("id", F.explode("tags").alias("tag")),
        "explode_outer": lambda f: f.orders.select("id", F.explode_outer("tags")),
        "posexplode": lambda f: f.orders.select("id", F.posexplode("scores")),
        "explode a map": lambda f: f.orders.select("id", F.explode("attrs")),
        "explode structs and take their fields": lambda f: f.orders.select(
            "id", F.explode("lines").alias("line")
        ).select("id", "line.*"),
        "inline": lambda f: f.orders.select("id", F.inline("lines")),
        "json_tuple": lambda f: f.orders.select("id", F.json_tuple("json", "ok", "list")),
        "stack": lambda f: f.orders.selectExpr("id", "stack(2, 'p', price, 'a', double(amount))"),
        "unpivot": lambda f: f.orders.select("id", "price", "quantity").unpivot(
            ["id"], ["price", "quantity"], "what", "value"
        ),
        "split and explode words": lambda f: (
            f.orders.select(F.explode(F.split("note", " ")).alias("word")).groupBy("word").count()
        ),
    }
)

ROWS: Final[Group] = (
    *queries(
        {
            "fillna": lambda f: f.orders.select("id", "customer", "price").fillna(
                {"customer": "?", "price": 0.0}
            ),
            "dropna": lambda f: f.orders.select("id", "customer", "price").dropna(subset=["price"]),
            "na.replace": lambda f: f.orders.select("id", "item").replace("pen", "pencil", "item"),
            "repartition and coalesce": lambda f: f.orders.select("id").repartition(4, "id"),
            "hint": lambda f: f.orders.select("id", "customer").join(
                f.customers.hint("broadcast"), "customer"
            ),
            "alias and qualified columns": lambda f: (
                f.orders.alias("o")
                .join(f.customers.alias("c"), F.col("o.customer") == F.col("c.customer"))
                .select("o.id", "c.country")
            ),
            "sortWithinPartitions": lambda f: f.orders.select("id").sortWithinPartitions("id"),
            "a static table that is cached": lambda f: f.orders.select("id", "customer").join(
                f.customers.where("credit > 0").cache(), "customer"
            ),
            "observe": lambda f: f.orders.select("id").observe("seen", F.count("*").alias("n")),
        }
    ),
    Construct(
        "sample with a seed",
        lambda f: f.orders.select("id").sample(0.5, seed=3),
        unlike_batch="Spark's choice depends on its partitions",
    ),
    Construct(
        "randomSplit",
        lambda f: f.orders.select("id").randomSplit([0.5, 0.5], seed=3)[0],
        unlike_batch="Spark's choice depends on its partitions",
    ),
)


def _sorted(f: Any) -> Any:
    return f.orders.groupBy("item").agg(F.sum("price").alias("s")).orderBy("s")


MODES: Final[Group] = (
    *queries(
        {
            "append of single rows": lambda f: f.orders.select("id", "item").where("id > 2"),
            "append of a stream join": lambda f: f.orders.join(
                f.payments, f.orders.id == f.payments.order_id
            ).select("id", "paid"),
            "append of distinct rows": lambda f: f.orders.select("item").distinct(),
            "append of an aggregate without a watermark": lambda f: f.orders.groupBy(
                "item"
            ).count(),
        },
        mode="append",
    ),
    *queries(
        {
            "complete of an aggregate": lambda f: f.orders.groupBy("item").count(),
            "complete with orderBy": _sorted,
            "complete with orderBy and limit": lambda f: _sorted(f).limit(2),
        },
        mode="complete",
    ),
    *queries(
        {
            "orderBy of a stream": lambda f: f.orders.select("id").orderBy("id"),
            "limit of a stream": lambda f: f.orders.select("item").limit(3),
        }
    ),
)
