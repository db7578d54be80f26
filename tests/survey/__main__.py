"""`python -m survey`: what runs of 400 constructs, as a table or as JSON; see `make survey`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import warnings
from collections import Counter
from typing import Any

from survey.groups import GROUPS
from survey.limits import page
from survey.run import Outcome, survey


def main() -> int:
    """Print the survey; the exit code says whether something is wrong."""
    parser = argparse.ArgumentParser(prog="survey", description=__doc__)
    parser.add_argument("--json", action="store_true", help="outcomes as JSON")
    parser.add_argument("--limits", action="store_true", help="print docs/limits.md")
    parser.add_argument("--group", help="only groups whose name contains this")
    parser.add_argument("--all", action="store_true", help="name what runs, too")
    options = parser.parse_args()
    if options.limits:
        print(page(sum(map(len, GROUPS.values()))), end="")
        return 0
    wanted = (options.group or "").lower()
    groups = {name: group for name, group in GROUPS.items() if wanted in name.lower()}
    spark = _session()
    try:
        outcomes = survey(spark, groups)
    finally:
        spark.stop()
    if options.json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1))
    else:
        print(table(outcomes, names_all=options.all))
    return int(any(outcome.kind in ("WRONG", "fails") for outcome in outcomes))


def table(outcomes: list[Outcome], *, names_all: bool = False) -> str:
    """A line per group, under it what does not run and why."""
    lines = []
    for group in dict.fromkeys(outcome.group for outcome in outcomes):
        ones = [outcome for outcome in outcomes if outcome.group == group]
        runs = sum(outcome.kind == "runs" for outcome in ones)
        lines.append(f"{group}: {runs} of {len(ones)}")
        for outcome in ones:
            if outcome.kind != "runs":
                lines.append(f"  {outcome.kind:8} {outcome.name}: {outcome.reason}")
                if outcome.remedy:
                    lines.append(f"           instead: {outcome.remedy}")
            elif names_all:
                lines.append(f"  {outcome.kind:8} {outcome.name}")
    kinds = Counter(outcome.kind for outcome in outcomes)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    compared = sum(outcome.is_compared for outcome in outcomes)
    lines.append(f"{len(outcomes)} constructs: {counted}; {compared} compared with batch Spark")
    return "\n".join(lines)


def _session() -> Any:
    from pyspark.sql import SparkSession

    import penstock

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    builder = (
        SparkSession.builder.master("local[3]")
        .appName("penstock-survey")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    )
    return penstock.tuned(builder).getOrCreate()


if __name__ == "__main__":
    sys.exit(main())
