"""What relates rows to other rows: joins, set operations, duplicates, subqueries."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import functions as F

from survey.construct import Construct, Group, queries


def _joined(f: Any, how: str) -> Any:
    """Orders and payments within an hour, both with a watermark."""
    orders = f.orders.select("id", "item", "ts").withWatermark("ts", "10 minutes")
    payments = f.payments.withWatermark("paid_at", "10 minutes")
    condition = F.expr(
        "id = order_id AND paid_at >= ts - INTERVAL 1 HOUR AND paid_at <= ts + INTERVAL 1 HOUR"
    )
    return orders.join(payments, condition, how)


JOINS: Final[Group] = (
    *queries(
        {
            "stream with static by a column": lambda f: f.orders.select("id", "customer").join(
                f.customers, "customer"
            ),
            "left join with a static table": lambda f: f.orders.select("id", "customer").join(
                f.customers, "customer", "left"
            ),
            "broadcast join": lambda f: f.orders.select("id", "customer").join(
                F.broadcast(f.customers), "customer"
            ),
            "semi join with a static table": lambda f: f.orders.join(
                f.customers, "customer", "left_semi"
            ).select("id"),
            "anti join with a static table": lambda f: f.orders.join(
                f.customers, "customer", "left_anti"
            ).select("id"),
            "right join that keeps static rows": lambda f: f.orders.select("id", "customer").join(
                f.customers, "customer", "right"
            ),
            "full join with a static table": lambda f: f.orders.select("id", "customer").join(
                f.customers, "customer", "full"
            ),
            "static table left join stream": lambda f: f.customers.join(
                f.orders.select("id", "customer"), "customer", "left"
            ),
            "static rows that no stream row meets": lambda f: f.customers.join(
                f.orders, "customer", "left_anti"
            ),
            "join by a range of a static table": "SELECT o.id, c.customer AS who FROM orders o "
            "JOIN customers c ON o.day >= c.since",
            "stream with stream": lambda f: f.orders.join(
                f.payments, f.orders.id == f.payments.order_id
            ).select("id", "item", "paid"),
            "left join of streams": "SELECT o.id, p.paid FROM orders o LEFT JOIN payments p "
            "ON o.id = p.order_id",
            "full join of streams": "SELECT o.id, p.order_id, p.paid FROM orders o FULL JOIN "
            "payments p ON o.id = p.order_id",
            "semi join of streams": "SELECT o.id FROM orders o LEFT SEMI JOIN payments p "
            "ON o.id = p.order_id",
            "anti join of streams": "SELECT o.id FROM orders o LEFT ANTI JOIN payments p "
            "ON o.id = p.order_id",
            "join of streams by an inequality only": "SELECT o.id, p.paid FROM orders o JOIN "
            "payments p ON o.price < p.paid",
            "join of a stream with itself": "SELECT a.id, b.id AS other FROM orders a JOIN "
            "orders b ON a.customer = b.customer AND a.id < b.id",
            "join with an aggregate": lambda f: f.orders.select("id", "item", "price").join(
                f.orders.groupBy("item").agg(F.avg("price").alias("mean")), "item"
            ),
            "lateral join over a static table": "SELECT o.id, t.country FROM orders o, LATERAL "
            "(SELECT c.country FROM customers c WHERE c.customer = o.customer) t",
        }
    ),
    *queries(
        {
            "interval join in append mode": lambda f: _joined(f, "inner"),
            "left interval join in append mode": lambda f: _joined(f, "left"),
            "full interval join in append mode": lambda f: _joined(f, "full"),
            "aggregate of a join in append mode": lambda f: (
                _joined(f, "inner").groupBy(F.window("ts", "1 hour"), "item").agg(F.sum("paid"))
            ),
        },
        mode="append",
    ),
    Construct(
        "as-of join",
        "SELECT o.id, max_by(p.paid, p.paid_at) AS paid FROM orders o JOIN payments p "
        "ON o.customer = p.payer AND p.paid_at <= o.ts GROUP BY o.id",
    ),
)

SETS: Final[Group] = queries(
    {
        "union of streams": lambda f: f.orders.select("id", "customer").union(
            f.payments.select("order_id", "payer")
        ),
        "unionByName with missing columns": lambda f: f.orders.select("id", "item").unionByName(
            f.payments.select(F.col("order_id").alias("id"), "paid"), allowMissingColumns=True
        ),
        "union distinct": "SELECT customer FROM orders UNION SELECT payer FROM payments",
        "union of a stream and static rows": "SELECT customer FROM orders UNION ALL SELECT "
        "customer FROM customers",
        "union with a created DataFrame": lambda f: f.orders.select("id", "item").union(
            f.spark.createDataFrame([(99, "extra")], "id long, item string")
        ),
        "intersect": "SELECT customer FROM orders INTERSECT SELECT payer FROM payments",
        "intersect with a static table": lambda f: f.orders.select("customer").intersect(
            f.customers.select("customer")
        ),
        "intersectAll": lambda f: f.orders.select("customer").intersectAll(
            f.payments.select("payer")
        ),
        "except": "SELECT customer FROM orders EXCEPT SELECT payer FROM payments",
        "exceptAll": lambda f: f.orders.select("customer").exceptAll(f.payments.select("payer")),
    }
)


def _deduplicated(f: Any) -> Any:
    return f.orders.select("item", "ts").withWatermark("ts", "10 minutes")


DUPLICATES: Final[Group] = (
    *queries(
        {
            "distinct": lambda f: f.orders.select("item", "active").distinct(),
            "select distinct": "SELECT DISTINCT customer FROM orders",
            "dropDuplicates by all columns": lambda f: f.orders.select(
                "customer", "item"
            ).dropDuplicates(),
            "dropDuplicates by a key": lambda f: f.orders.select("id", "item").dropDuplicates(
                ["item"]
            ),
            "dropDuplicates with a watermark": lambda f: _deduplicated(f).dropDuplicates(
                ["item", "ts"]
            ),
        }
    ),
    Construct(
        "dropDuplicatesWithinWatermark",
        lambda f: _deduplicated(f).dropDuplicatesWithinWatermark(["item"]),
        "append",
        "streams only: tests/oracle/test_modes_match_structured_streaming.py",
    ),
)

SUBQUERIES: Final[Group] = queries(
    {
        "scalar subquery over a static table": "SELECT id, price * (SELECT max(rate) FROM rates) "
        "AS tax FROM orders",
        "correlated scalar subquery over a static table": "SELECT id, (SELECT max(country) FROM "
        "customers c WHERE c.customer = o.customer) AS country FROM orders o",
        "in a subquery over a static table": "SELECT id FROM orders WHERE customer IN (SELECT "
        "customer FROM customers WHERE credit > 10)",
        "not in a subquery over a static table": "SELECT id FROM orders WHERE customer NOT IN "
        "(SELECT customer FROM customers WHERE credit > 10)",
        "exists over a static table": "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM "
        "customers c WHERE c.customer = o.customer)",
        "exists in an or": "SELECT id FROM orders o WHERE price > 90 OR EXISTS (SELECT 1 FROM "
        "customers c WHERE c.customer = o.customer)",
        "in a subquery over a stream": "SELECT id FROM orders WHERE id IN (SELECT order_id FROM "
        "payments)",
        "scalar subquery over a stream": "SELECT id, (SELECT max(paid) FROM payments) AS top FROM "
        "orders",
        "DataFrame.scalar": lambda f: f.orders.select(
            "id", (F.col("price") * f.rates.agg(F.max("rate")).scalar()).alias("tax")
        ),
        "DataFrame.exists": lambda f: (
            f.orders.alias("o")
            .where(f.customers.where(F.col("customer") == F.col("o.customer").outer()).exists())
            .select("id")
        ),
    }
)
