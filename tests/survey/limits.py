"""What is refused and what to do instead: the tables of docs/limits.md, as data.

A limit names the constructs of the survey that it is about, and has a query that does what it says
to do. `make soak` checks that these constructs, and no others, are refused, and that the queries
run. `python -m survey --limits` prints the page; a test keeps it equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import functions as F

from survey.construct import Build, Construct, Group


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a table."""

    refused: str
    instead: str
    #: Names of constructs of the survey.
    constructs: tuple[str, ...] = ()
    #: What to do, done: SQL over the views, or a function over the frames.
    works: str | Build | None = None


def _xml_in_python(f: Any) -> Any:
    @F.udf("string")
    def item_of(xml: str) -> str | None:
        from xml.etree import ElementTree

        return ElementTree.fromstring(xml).findtext("item")

    return f.orders.select("id", item_of("xml"))


VALUES: Final = (
    Limit(
        "`rand()`, `randn()`, `uuid()`, `shuffle()`: they give other values when rows are "
        "processed again after a failure",
        "Put the value into the rows before they enter the log. Or take one that depends on the "
        "row: `pmod(xxhash64(id), 1000) / 1000` for a number, `sha2(to_json(struct(*)), 256)` for "
        "an id.",
        ("rand with a seed", "randn", "uuid"),
        "SELECT id, pmod(xxhash64(id), 1000) / 1000 AS r, sha2(to_json(struct(id, item)), 256) AS u"
        " FROM orders",
    ),
    Limit(
        "`sample`, `randomSplit`, `TABLESAMPLE`",
        'Choose rows by a hash: `where("pmod(xxhash64(id), 100) < 5")` is five percent, and the '
        "same rows each time.",
        ("sample with a seed", "randomSplit", "tablesample"),
        "SELECT id FROM orders WHERE pmod(xxhash64(id), 100) < 50",
    ),
    Limit(
        "`monotonically_increasing_id()`, `spark_partition_id()`: they count Spark's partitions, "
        "which do not exist here",
        "Number rows before they enter the log, or number those of a key: "
        "`row_number() OVER (PARTITION BY key ORDER BY ts)`. For buckets: `pmod(hash(key), 16)`.",
        ("monotonically_increasing_id", "spark_partition_id"),
        "SELECT id, row_number() OVER (PARTITION BY item ORDER BY ts, id) AS n, "
        "pmod(hash(item), 16) AS bucket FROM orders",
    ),
    Limit(
        "`input_file_name()`",
        "Add the name as a column when the files are written to a stream, with Spark's own engine.",
        ("input_file_name",),
    ),
)

FUNCTIONS: Final = (
    Limit(
        "a function that is not [on the list](functions.md)",
        "Compute it in Python: `F.udf`, or faster `F.pandas_udf` and `F.arrow_udf`. For "
        "aggregates, a grouped aggregate `F.pandas_udf`.",
    ),
    Limit(
        "patterns that are not constants, of `rlike`, `regexp_replace`, `split`, `date_format`, "
        "`to_timestamp`, `format_string`",
        "Choose between constants with `CASE`, or use a `F.udf` with Python's `re`.",
        works="SELECT id, CASE item WHEN 'pen' THEN note RLIKE 'a+' ELSE note RLIKE 'o' END AS x "
        "FROM orders",
    ),
    Limit(
        "the rarest parts of patterns: in regular expressions what engines differ about, like "
        "`(a*)*`; `%e` in `format_string`; letters like `G` and `z` in date patterns",
        "Say it otherwise, or compute it in Python.",
    ),
    Limit(
        "`from_xml`, `xpath`",
        "Parse it in Python, with `xml.etree` in a `F.udf`.",
        ("from_xml",),
        _xml_in_python,
    ),
    Limit(
        "`aes_encrypt`, `aes_decrypt`",
        "Call your cryptography library in a `F.pandas_udf`. Take care that it answers the same "
        "for the same row: no random vector.",
        ("aes_encrypt and aes_decrypt",),
    ),
    Limit(
        "collations (`COLLATE`)",
        "Compare what is equal for you: `lower(a) = lower(b)`.",
        ("collate",),
        "SELECT id FROM orders WHERE lower(note) = lower('FIRST ORDER, PLEASE WRAP')",
    ),
    Limit(
        "times of day (`TIME`): Spark 4.3 refuses them in streaming queries",
        "Keep seconds since midnight: `hour(ts) * 3600 + minute(ts) * 60 + second(ts)`, or a text "
        "like `date_format(ts, 'HH:mm:ss')`.",
        ("times of day",),
        "SELECT id, date_format(ts, 'HH:mm:ss') < '23:00:00' AS x FROM orders",
    ),
    Limit(
        "HLL, theta and KLL sketches",
        "`approx_count_distinct` counts exactly here; `percentile_approx` keeps little, and "
        "`percentile` is exact. Sketches that you exchange with others need Spark's own engine.",
        ("hll_sketch_estimate", "theta_sketch_estimate", "kll quantile"),
        "SELECT item, approx_count_distinct(customer) AS n, percentile(price, 0.5) AS p FROM orders"
        " GROUP BY item",
    ),
    Limit(
        "`approx_top_k`",
        "Count, and take the first by `row_number()`: exact, and kept up to date.",
        ("approx_top_k",),
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY n DESC, customer) "
        "AS r FROM (SELECT item, customer, count(*) AS n FROM orders GROUP BY ALL)) WHERE r <= 2",
    ),
    Limit(
        "`to_variant_object`",
        "Go through JSON: `parse_json(to_json(s))`.",
        ("to_variant_object",),
        "SELECT id, variant_get(parse_json(to_json(struct(id, item))), '$.id', 'int') AS x "
        "FROM orders",
    ),
    Limit(
        "results with columns that are variants",
        "Take out what you need: `variant_get(v, '$.a', 'int')`, or `to_json(v)`.",
    ),
    Limit(
        "results with columns that are year-month or calendar intervals",
        "Take numbers out of them (`extract(MONTH FROM i)`), or use day-time intervals.",
    ),
)

SHAPES: Final = (
    Limit(
        "`orderBy` and `limit` of a stream in update or append mode",
        'Start it with `mode="complete"`; or sort and limit when you read the result. The first n '
        "of a group, kept up to date: `row_number() OVER (...) <= n`.",
        ("orderBy of a stream", "limit of a stream"),
        "SELECT id FROM orders QUALIFY row_number() OVER (PARTITION BY item ORDER BY id) <= 2",
    ),
    Limit(
        "`sortWithinPartitions`",
        "Leave it out: rows of a result have no order.",
        ("sortWithinPartitions",),
    ),
    Limit(
        "`observe`",
        "Compute its figures in a query of their own: `penstock.start(df.agg(...))`.",
        ("observe",),
        "SELECT count(*) AS n, max(price) AS top FROM orders",
    ),
    Limit(
        "an aggregation in append mode without a watermark: it would never be final",
        'Use `mode="update"`, or group by a window of an event time with a watermark.',
        ("append of an aggregate without a watermark",),
        "SELECT item, count(*) AS n FROM orders GROUP BY item",
    ),
    Limit(
        "a subquery that reads a stream: `IN`, `EXISTS` or a scalar. Spark refuses it",
        "Join instead: `LEFT SEMI JOIN` for `IN` and `EXISTS`, `LEFT ANTI JOIN` for their "
        "opposites, a `CROSS JOIN` with the aggregate for a scalar.",
        ("in a subquery over a stream", "scalar subquery over a stream"),
        "SELECT o.id, m.top FROM orders o LEFT SEMI JOIN payments p ON o.id = p.order_id "
        "CROSS JOIN (SELECT max(paid) AS top FROM payments) m",
    ),
)

AROUND: Final = (
    Limit(
        "`penstock.start` over a source of Spark's own: files, Kafka, rate, sockets",
        "Bring the rows into a stream with Spark's own engine, "
        '`source.writeStream.format("penstock")`, and start the query over that stream. '
        "[Micro-batches and batches](spark.md) has the details.",
        ("rate source", "files as a source"),
    ),
    Limit(
        "`show()`, `count()`, `collect()` of a streaming DataFrame: Spark refuses them",
        "Start the query and look at `query.result()`, or read the stream as a batch: "
        '`spark.read.format("penstock").option("stream", name).option("log", log.target).load()'
        ".show()`.",
        ("show() of a streaming DataFrame",),
    ),
    Limit(
        "Spark Connect, Scala and Java",
        "Use PySpark in classic mode: make the session without `remote()`.",
    ),
    Limit(
        "`spark.sql.legacy.timeParserPolicy`, `spark.sql.mapKeyDedupPolicy` and "
        "`spark.sql.icu.caseMappings.enabled` with other values than Spark's defaults",
        "Set them back: `spark.conf.unset(name)`.",
    ),
    Limit(
        "a query whose plan has changed, under its old name",
        'Another name and another `to=`, or `on_change="restart_from_earliest"`. See '
        "[queries](queries.md#start-stop-start-again).",
    ),
)

TABLES: Final[dict[str, tuple[Limit, ...]]] = {
    "Values that are not a function of the row": VALUES,
    "Functions and types": FUNCTIONS,
    "Shapes of queries": SHAPES,
    "Around a query": AROUND,
}
_HEAD: Final = """# Limits

What Penstock refuses, and what to do instead. A refusal comes before anything starts, as
`penstock.Unsupported`, with every reason at once, and each reason says what to do. What runs gives
Spark's results; the few places where they may differ are in
[decision 0010](decisions/0010-where-we-differ-from-spark.md).

Two ways out always exist. Spark's own engine runs on the same streams, in micro-batches
([how](spark.md)). And what no function here does, a Python function can do ([queries](queries.md)).

The lists below come from a survey of {count} constructs that people use in PySpark. It runs each of
them, and compares the result with batch Spark (`make survey`). {refused} of them are refused, and
all of these are in the tables. `make soak` checks that, and runs what the right column says to do.
"""


def limits() -> Iterable[Limit]:
    for table in TABLES.values():
        yield from table


def refused_constructs() -> list[str]:
    """Names of constructs, in the page's order."""
    return [name for limit in limits() for name in limit.constructs]


def remedies() -> Group:
    """What the page says to do, as constructs of their own."""
    return tuple(
        Construct(f"instead of {limit.refused}", limit.works)
        for limit in limits()
        if limit.works is not None
    )


def page(count: int) -> str:
    """The page, for a survey of so many constructs."""
    parts = [_HEAD.format(count=count, refused=len(refused_constructs()))]
    for title, table in TABLES.items():
        lines = [f"| {limit.refused} | {limit.instead} |" for limit in table]
        parts.append("\n".join([f"## {title}\n", "| refused | instead |", "|---|---|", *lines, ""]))
    return "\n".join(parts)
