"""Python in a query: a class that makes rows of a line of text, and pandas over each group of them.

The class is one of Spark's UDTFs, unchanged: a line may become any number of rows. The function
gets all rows of a service as a DataFrame of pandas; when rows are added, its answer is replaced.

    python examples/parsed_lines.py
"""

import tempfile
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udtf

import penstock

LINES = "service string, line string"


@udtf(returnType="name string, millis double")
class Timings:
    """The timings in a line such as `query=12 render=3.5`; other words are none."""

    def eval(self, line: str) -> Iterator[tuple[str, float]]:
        for word in line.split():
            name, _, value = word.partition("=")
            if value.replace(".", "", 1).isdigit():
                yield name, float(value)


def slowest(rows: pd.DataFrame) -> pd.DataFrame:
    """The slowest step of a service, and what share of all its time it takes."""
    by_name = rows.groupby("name").millis.sum()
    share = by_name.max() / by_name.sum()
    return pd.DataFrame(
        {"service": [rows.service.iloc[0]], "step": [by_name.idxmax()], "share": [share]}
    )


def summary(lines: DataFrame) -> DataFrame:
    timings = lines.lateralJoin(Timings(col("line").outer()))
    return timings.groupBy("service").applyInPandas(
        slowest, "service string, step string, share double"
    )


def main() -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.log.level", "ERROR").getOrCreate()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        penstock.connect(directory) as log,
    ):
        lines = log.create_stream("lines", LINES)
        query = penstock.start(
            summary(lines.df(spark)), to="slowest", name="slowest", workers=2, log=log
        )
        lines.append({"service": "shop", "line": "GET /cart query=30 render=10"})
        lines.append({"service": "mail", "line": "sent to=ann connect=5 send=15"})
        query.processAllAvailable()
        show("at first", query)
        lines.append({"service": "shop", "line": "GET / render=40"})
        query.processAllAvailable()
        query.stop()
        show("after another line", query)


def show(when: str, query: penstock.StreamingQuery) -> None:
    print(when)
    for row in sorted(query.result().to_pylist(), key=lambda row: row["service"]):
        print(f"{row['service']}: {row['step']} takes {row['share']:.0%}")


if __name__ == "__main__":
    main()
