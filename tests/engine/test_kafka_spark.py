"""Spark's own source and sink of Kafka, unchanged, through the gateway.

A long run (`make soak`), since the jars come from Maven: tests/jvm/spark. The newest that Maven has
is of Spark 4.2, here in the Spark that is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.http_gateway import gateway_thread
from harness.maven import jars, java_ways
from kafka_spark import ROWS

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.gateway.kafka.rows import KAFKA_COLUMNS
from penstock.log.serving.directory import Address

pytestmark = pytest.mark.soak


def test_it_reads_and_writes_batches_and_streams(log: penstock.Log, tmp_path: Path) -> None:
    log.create_stream("raw", KAFKA_COLUMNS, lanes=3)
    typed = log.create_stream("typed", "n long NOT NULL", lanes=1)
    token = (Path(log.target) / "token").read_text().strip()
    found: list[Address] = []
    config = GatewayConfig(target=log.target, port=0, kafka_port=0)
    with gateway_thread(config, found.append):
        given = {
            "jars": sorted(map(str, jars("spark").glob("*.jar"))),
            "ways": java_ways(found[0], token),
            "raw": "raw",
            "typed": "typed",
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        # The archive of Java's classes is of a list of jars without these.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SPARK_")
        }
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("kafka_spark.py")), json.dumps(given)],
            capture_output=True, text=True, timeout=600, env=environment,
        )  # fmt: skip
    assert not done.returncode, done.stderr[-8000:]
    told = json.loads(done.stdout.splitlines()[-1])

    assert sorted(int(key) for key, *_ in told["raw"]) == list(range(2 * ROWS))
    assert all(lane == int(key) % 3 and header == "h" for key, lane, _, header in told["raw"])
    places = [(lane, offset) for _, lane, offset, _ in told["raw"]]
    assert places == sorted(set(places))
    # Every row once, over two runs from one checkpoint, in batches smaller than what was there.
    assert sorted(told["typed"]) == list(range(2 * ROWS))
    assert sorted(row["n"] for row in typed.read().to_pylist()) == list(range(2 * ROWS))
    assert told["batches"][0] > 1
    assert told["from the first"] == 2 * ROWS and told["after the last"] == 0
