"""`penstock plan …` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from penstock.cli.main import cli

BIDS = "bids=auction long, price long, ts timestamp"
COUNT = "SELECT auction, count(*) AS c FROM bids GROUP BY auction"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *args])


def test_a_query_in_sql_is_explained(spark: Any) -> None:
    result = run("explain", "--stream", BIDS, "--sql", COUNT)
    assert result.exit_code == 0, result.output
    assert result.output == (
        "update mode, 2 stages, reads bids\n"
        "\n"
        "stage 0: writes a keyed stream, by auction, 64 virtual nodes, append-only\n"
        "  project      auction\n"
        "    scan         bids [auction]\n"
        "\n"
        "stage 1: writes the result, changing\n"
        "  project      auction, Count as c\n"
        "    aggregate    by auction: count(1); emits changes\n"
        "                 keeps one row per key, forever\n"
        "      read         the keyed stream of stage 0\n"
        "\n"
        "result: auction bigint, c bigint\n"
    )


def test_json_says_the_same_by_name(spark: Any) -> None:
    result = run("explain", "--stream", BIDS, "--sql", COUNT, "--json")
    found = json.loads(result.output)
    assert found["streams"] == ["bids"]
    assert found["columns"] == {"auction": "bigint", "c": "bigint"}
    assert [stage["keys"] for stage in found["stages"]] == [["auction"], None]


def test_a_function_in_a_file_is_explained(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "pipeline.py"
    source.write_text(
        "def large(spark):\n"
        f"    bids = spark.readStream.format('parquet').option('stream', 'bids')\n"
        f"    return bids.schema('price long').load({str(tmp_path)!r}).where('price > 100')\n"
    )
    result = run("explain", f"{source}:large", "--mode", "append")
    assert result.exit_code == 0, result.output
    assert "append mode, 1 stage, reads bids" in result.output
    assert "filter       (isnotnull(price) and (price > 100))" in result.output


def test_a_refused_query_tells_every_reason_and_exits_with_3(spark: Any) -> None:
    sql = "SELECT auction, rand() AS r, uuid() AS u FROM bids"
    result = run("explain", "--stream", BIDS, "--sql", sql)
    assert result.exit_code == 3
    assert "for 2 reasons" in result.stderr
    as_json = run("explain", "--stream", BIDS, "--sql", sql, "--json")
    assert as_json.exit_code == 3
    found = json.loads(as_json.stderr)
    assert found["error"] == "Unsupported"
    assert len(found["reasons"]) == 2
    assert {"node", "problem", "remedy"} == set(found["reasons"][0])


def test_wrong_usage_is_told(spark: Any) -> None:
    assert run("explain").exit_code == 2
    assert run("explain", "x.py:f", "--sql", "SELECT 1").exit_code == 2
    assert run("explain", "--stream", "bids", "--sql", "SELECT 1").exit_code == 2
    assert run("explain", "no-such-file.py:f").exit_code == 3
    assert run("explain", "--mode", "sometimes", "--sql", "SELECT 1").exit_code == 2


def test_functions_are_listed() -> None:
    found = json.loads(run("functions", "--json").output)
    assert "upper" in found["functions"]
    assert "sum" in found["aggregate functions"]
    assert "row_number" in found["window functions"]
    assert "explode" in found["generators"]
