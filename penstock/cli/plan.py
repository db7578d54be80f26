"""`penstock plan explain`: how a query would run, or every reason why it would not.

Starts a small local Spark to plan with; nothing is run and no log is needed.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import echo, json_option, show_json
from penstock.errors import BadRequest

if TYPE_CHECKING:
    from penstock.plan.nodes import Mode


@click.group()
def plan() -> None:
    """Look at queries before they run."""


@plan.command("explain")
@click.argument("source", required=False)
@click.option("--sql", help="A query over the streams named by --stream.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="NAME=COLUMNS",
    help="A stream that the SQL reads, e.g. 'bids=auction long, price long, ts timestamp'.",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "update", "complete"]),
    default="update",
    show_default=True,
    help="How the result is written.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Say how many tasks each stage gets, and which stages run in one.",
)
@json_option
def plan_explain(
    source: str | None,
    sql: str | None,
    streams: tuple[str, ...],
    mode: Mode,
    workers: int | None,
    as_json: bool,
) -> None:
    """Say how a query would run: its stages, streams, keys, state and modes.

    SOURCE is FILE.py:FUNCTION, a function from a SparkSession to a streaming DataFrame. A query
    that cannot run is refused with every reason, and exit code 3.

    \b
    Examples:
      penstock plan explain pipeline.py:hot_items --mode append
      penstock plan explain pipeline.py:hot_items --workers 2
      penstock plan explain --stream 'bids=auction long, price long' \\
        --sql 'SELECT auction, max(price) FROM bids GROUP BY auction'
    """
    if (source is None) == (sql is None):
        raise click.UsageError("give either FILE.py:FUNCTION or --sql")
    from penstock.plan.explain import explain, explain_json
    from penstock.runtime.spec import count_tasks, join_stages
    from penstock.spark.frontend import plan as plan_query
    from penstock.spark.session import local_session

    with local_session("penstock plan") as spark, tempfile.TemporaryDirectory() as nowhere:
        if sql is not None:
            for stream in streams:
                _declare(spark, stream, Path(nowhere))
            df = spark.sql(sql)
        else:
            assert source is not None
            df = _call(source, spark)
        query = plan_query(df, mode=mode).query
    tasks = None if workers is None else join_stages(query, count_tasks(query, workers))
    if as_json:
        show_json(explain_json(query, tasks))
    else:
        echo(explain(query, tasks), nl=False)


@plan.command("functions")
@json_option
def plan_functions(as_json: bool) -> None:
    """List the functions that queries may use, as the page docs/functions.md.

    \b
    Examples:
      penstock plan functions
      penstock plan functions --json
    """
    from penstock.ops.catalogue import catalogue, catalogue_markdown

    if as_json:
        show_json(catalogue())
    else:
        echo(catalogue_markdown(), nl=False)


def _declare(spark: Any, stream: str, directory: Path) -> None:
    """A view of the stream: planned like any source, never read."""
    name, equals, columns = stream.partition("=")
    if not equals:
        raise click.UsageError(f"--stream {stream!r}: write NAME=COLUMNS")
    path = directory / name
    path.mkdir()
    reader = spark.readStream.format("parquet").option("stream", name).schema(columns)
    reader.load(str(path)).createOrReplaceTempView(name)


def _call(source: str, spark: Any) -> Any:
    path, colon, name = source.rpartition(":")
    if not colon:
        raise click.UsageError(f"{source!r}: write FILE.py:FUNCTION")
    if not Path(path).is_file():
        raise BadRequest(f"there is no file {path}")
    found = runpy.run_path(path).get(name)
    if not callable(found):
        raise BadRequest(f"{path} has no function {name}")
    return found(spark)
