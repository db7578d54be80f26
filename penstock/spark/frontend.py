"""From a user's DataFrame to a query that can run: ask Catalyst, translate, refuse, cut.

The optimized plan is made with the session's own optimizer from the analyzed plan, so no setting of
the user's is touched and Structured Streaming's own restrictions do not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.connector.classic import check_frame
from penstock.errors import BadRequest
from penstock.ops.judges import JUDGES
from penstock.ops.kept_in_memory import told_in_memory
from penstock.ops.partial import buffer_columns
from penstock.plan import nodes as n
from penstock.plan.checks import check_changes, check_keys, check_statics, check_variants
from penstock.plan.explain import explain as explain_query
from penstock.plan.modes import check_mode
from penstock.plan.refusals import Refusals
from penstock.plan.rewrites import rewrite
from penstock.plan.rewrites.aim import Aim, fold_nothing
from penstock.plan.stages import Query, cut
from penstock.plan.translation import translate
from penstock.runtime.spec import count_tasks, join_stages
from penstock.spark.failures import optimize
from penstock.spark.present import keep_present
from penstock.spark.sizes import read_size
from penstock.spark.walker import Walker


@dataclass(frozen=True, slots=True)
class Planned:
    """A query, and how to get the rows of its static inputs."""

    query: Query
    statics: dict[int, Callable[[], pa.Table]]

    def static_rows(self) -> dict[int, pa.Table]:
        """The rows of all static inputs, computed by Spark now."""
        return {id: rows() for id, rows in self.statics.items()}


def explain(
    df: Any,
    *,
    mode: n.Mode = "update",
    workers: int | None = None,
    state_memory: int | str | None = None,
) -> str:
    """How Penstock would run a streaming DataFrame: stages, keys, state, modes, in plain text.

    Given a number of workers, it also says how many tasks each stage gets (if the streams have as
    many lanes), and which stages run in one task. Given `state_memory`, as `start` takes it, it
    also says what of the state stays in memory all the same. Raises Unsupported with every reason
    if it would not run.
    """
    if workers is not None and (type(workers) is not int or workers < 1):
        raise BadRequest(f"workers={workers!r}: give a whole number, at least 1")
    if state_memory is not None:
        read_size("state_memory", state_memory)
    query = plan(df, mode=mode).query
    tasks = None if workers is None else join_stages(query, count_tasks(query, workers))
    told = "" if state_memory is None else f"\n{told_in_memory(query)}\n"
    return explain_query(query, tasks) + told


_MODES: Final = ("append", "update", "complete")
#: Session settings that change what expressions mean and are not in the plan, and the value that
#: our functions follow.
_SETTINGS: Final = {
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.json.enablePartialResults": "true",
}


def _check_settings(spark: Any, refusals: Refusals) -> None:
    for name, followed in _SETTINGS.items():
        value = spark.conf.get(name)
        if value.upper() != followed.upper():
            refusals.add(
                "the session", f"{name} is {value}", f"set it to {followed}, which is the default"
            )


def plan(df: Any, *, mode: n.Mode = "update") -> Planned:
    """The query of a streaming DataFrame. Raises Unsupported with every reason against it."""
    check_frame(df)
    if mode not in _MODES:
        raise BadRequest(f"mode {mode!r}: use {', '.join(_MODES[:-1])} or {_MODES[-1]}")
    spark = df.sparkSession
    analyzed = df._jdf.queryExecution().analyzed()
    refusals = Refusals()
    analyzed = keep_present(spark, analyzed, refusals)
    _check_settings(spark, refusals)
    tree = Walker(spark).read(optimize(spark, analyzed, refusals))
    if not tree.is_streaming:
        refusals.add(
            "the query", "it reads no stream", "use spark.readStream, or run it as a batch query"
        )
    translated = translate(tree, JUDGES, refusals)
    buffers = fold_nothing if refusals.reasons else buffer_columns
    root = rewrite(translated.root, Aim(mode, buffers))
    check_mode(root, mode, refusals)
    check_changes(root, refusals)
    check_statics(root, refusals)
    check_keys(root, refusals)
    check_variants(root, refusals)
    refusals.check()
    return Planned(cut(root, mode, translated.names), translated.statics)
