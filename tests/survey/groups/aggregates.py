"""Aggregates: what is asked of groups, and how groups are made."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F

from survey.construct import Group, queries


def _by_item(texts: dict[str, str]) -> Group:
    """Aggregate expressions by item."""
    return queries(
        {name: f"SELECT item, {e} AS x FROM orders GROUP BY item" for name, e in texts.items()}
    )


FUNCTIONS: Final[Group] = _by_item(
    {
        "count of rows and of values": "struct(count(*), count(price))",
        "sum": "struct(sum(quantity), sum(price), sum(amount))",
        "avg": "struct(avg(quantity), avg(amount))",
        "min and max": "struct(min(price), max(note), min(ts), max(day))",
        "count distinct": "count(DISTINCT customer)",
        "several distinct aggregates": "struct(count(DISTINCT customer), sum(DISTINCT quantity))",
        "approx_count_distinct": "approx_count_distinct(customer)",
        "count_if": "count_if(price > 10)",
        "aggregate with a filter": "sum(price) FILTER (WHERE active)",
        "first and last": "struct(first(id), last(id))",
        "first value that is not null": "first(price, true)",
        "max_by and min_by": "struct(max_by(customer, ts), min_by(id, price))",
        "max_by with several values": "max_by(id, ts, 2)",
        "max of a struct": "max(struct(price, id))",
        "collect_list": "sort_array(collect_list(id))",
        "collect_set": "sort_array(collect_set(customer))",
        "collect_list of structs": "sort_array(collect_list(struct(ts, price)))",
        "map from collected entries": "map_from_entries(collect_list(struct(id, price)))",
        "listagg in an order": "listagg(customer, ',') WITHIN GROUP (ORDER BY id)",
        "stddev and variance": "struct(stddev(price), stddev_pop(price), variance(price))",
        "corr and covar": "struct(corr(price, id), covar_samp(price, id), covar_pop(price, id))",
        "median": "median(price)",
        "percentile": "percentile(price, array(0.25, 0.75))",
        "percentile_cont within group": "percentile_cont(0.9) WITHIN GROUP (ORDER BY price)",
        "percentile_approx": "percentile_approx(price, 0.5)",
        "approx_percentile of several": "approx_percentile(price, array(0.1, 0.9), 100)",
        "mode": "mode(quantity)",
        "bool_and and bool_or": "struct(bool_and(active), bool_or(active), every(id > 2))",
        "histogram_numeric": "histogram_numeric(price, 3)",
        "hll_sketch_estimate": "hll_sketch_estimate(hll_sketch_agg(customer))",
        "theta_sketch_estimate": "theta_sketch_estimate(theta_sketch_agg(id))",
        "kll quantile": "kll_sketch_get_quantile_double(kll_sketch_agg_double(price), 0.5)",
        "approx_top_k": "approx_top_k(customer, 2)",
    }
)

GROUPS: Final[Group] = queries(
    {
        "groupBy and agg of several": lambda f: f.orders.groupBy("item").agg(
            F.count("*").alias("n"), F.sum("price").alias("total"), F.avg("price").alias("mean")
        ),
        "product": lambda f: f.orders.groupBy("item").agg(F.product("quantity")),
        "groupBy().count()": lambda f: f.orders.groupBy("customer").count(),
        "agg without groups": lambda f: f.orders.agg(F.sum("price"), F.max("ts")),
        "agg of a dict": lambda f: f.orders.groupBy("item").agg({"price": "max", "id": "count"}),
        "groupBy an expression": lambda f: f.orders.groupBy(F.year("day").alias("year")).count(),
        "having": "SELECT item, count(*) AS n FROM orders GROUP BY item HAVING count(*) > 3",
        "aggregate of an aggregate": lambda f: (
            f.orders.groupBy("item", "customer")
            .agg(F.sum("price").alias("s"))
            .groupBy("item")
            .agg(F.max("s"), F.count("*"))
        ),
        "rollup": "SELECT item, active, sum(price) FROM orders GROUP BY ROLLUP (item, active)",
        "cube with grouping": "SELECT item, active, grouping(item), count(*) FROM orders "
        "GROUP BY CUBE (item, active)",
        "grouping sets": "SELECT item, customer, grouping_id(), count(*) FROM orders "
        "GROUP BY GROUPING SETS ((item), (customer), ())",
        "pivot with values": lambda f: (
            f.orders.groupBy("customer").pivot("item", ["book", "pen"]).sum("price")
        ),
        "pivot in SQL": "SELECT * FROM (SELECT customer, item, price FROM orders) "
        "PIVOT (max(price) AS top FOR item IN ('book' AS book, 'lamp' AS lamp))",
    }
)
