"""What people write in SQL around their expressions."""

from __future__ import annotations

from typing import Any, Final

from survey.construct import Construct, Group, queries


def _parameters(f: Any) -> Any:
    return f.spark.sql(
        "SELECT id FROM orders WHERE item = :item AND price < :top",
        args={"item": "pen", "top": 50},
    )


def _temp_view(f: Any) -> Any:
    f.orders.where("active").createOrReplaceTempView("active_orders")
    return f.spark.sql("SELECT item, count(*) AS n FROM active_orders GROUP BY item")


def _sql_function(f: Any) -> Any:
    f.spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION gross(p DOUBLE) RETURNS DOUBLE RETURN p * 1.19"
    )
    return f.spark.sql("SELECT id, gross(price) AS g FROM orders")


SYNTAX: Final[Group] = (
    *queries(
        {
            "common table expression": "WITH dear AS (SELECT * FROM orders WHERE price > 5) "
            "SELECT item, count(*) AS n FROM dear GROUP BY item",
            "two common table expressions joined": "WITH o AS (SELECT id, item FROM orders), "
            "p AS (SELECT order_id, sum(paid) AS paid FROM payments GROUP BY order_id) "
            "SELECT o.item, p.paid FROM o JOIN p ON o.id = p.order_id",
            "nested subquery in from": "SELECT item, n FROM (SELECT item, count(*) AS n FROM "
            "(SELECT * FROM orders WHERE active) GROUP BY item) WHERE n > 1",
            "lateral view explode": "SELECT id, g FROM orders LATERAL VIEW explode(tags) t AS g",
            "lateral view outer posexplode": "SELECT id, p, s FROM orders LATERAL VIEW OUTER "
            "posexplode(scores) t AS p, s",
            "join with values": "SELECT o.id, v.label FROM orders o JOIN (VALUES ('pen', 'P'), "
            "('book', 'B')) AS v(item, label) ON o.item = v.item",
            "unpivot in SQL": "SELECT * FROM (SELECT id, cast(quantity AS double) q, price FROM "
            "orders) UNPIVOT (value FOR what IN (q, price))",
            "select star except": "SELECT * EXCEPT (raw, xml, csv, json) FROM orders",
            "lateral column alias": "SELECT id, price * 2 AS p2, p2 + 1 AS p3 FROM orders",
            "tablesample": "SELECT id FROM orders TABLESAMPLE (50 PERCENT) REPEATABLE (7)",
            "table-valued explode": "SELECT o.id, t.col FROM orders o, LATERAL explode(o.tags) t",
            "pipe syntax": "FROM orders |> WHERE price > 5 |> AGGREGATE count(*) GROUP BY item",
        }
    ),
    Construct(
        "order by and limit in SQL",
        "SELECT item, sum(price) AS s FROM orders GROUP BY item ORDER BY s DESC LIMIT 2",
        "complete",
    ),
    Construct("named parameters", _parameters),
    Construct("temporary view of a stream", _temp_view),
    Construct("function in SQL", _sql_function),
    Construct(
        "sql with DataFrames as arguments",
        lambda f: f.spark.sql("SELECT item FROM {o} WHERE price > {p}", o=f.orders, p=5),
    ),
    Construct("spark.table of a view", lambda f: f.spark.table("orders").select("id")),
    Construct(
        "recursive common table expression beside a stream",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) "
        "SELECT o.id, n.i FROM orders o JOIN n ON n.i = o.quantity",
    ),
)
