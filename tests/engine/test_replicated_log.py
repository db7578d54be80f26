"""A query in real time and a batch on a replicated log whose owner and a node are killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness.waiting import wait_until

import penstock
from penstock.log.local_cluster import ClusterProcess, LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = ["the", "log", "is", "the", "truth", "the", "rest", "is", "a", "cache"]


def owner_of(cluster: LocalCluster, log: penstock.Log) -> ClusterProcess:
    """The proxy that this client's appends go to."""
    status = json.loads(log.client.run(lambda client: client.status()))
    return next(p for p in cluster.proxies.values() if p.pid == status["pid"])


def test_a_query_on_a_cluster_survives_its_owner_and_a_node(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.start(nodes=3, proxies=2)
        token_file = str(cluster.token_file)
        with penstock.connect(cluster.address, token_file=token_file) as log:
            words = log.create_stream("words", "word string")
            query = penstock.start(
                words.df(spark).groupBy("word").count(),
                to="counts",
                name="word-count",
                log=log,
                workers=1,
                checkpoints=str(tmp_path / "checkpoints"),
            )
            appended: Counter[str] = Counter()

            def append(times: int) -> None:
                for _ in range(times):
                    words.append([{"word": word} for word in WORDS])
                    appended.update(WORDS)

            def is_counted() -> bool:
                rows = query.result().to_pylist()
                return {row["word"]: row["count"] for row in rows} == appended

            append(20)
            wait_until(is_counted, seconds=60)
            owner_of(cluster, log).kill()
            append(20)
            wait_until(is_counted, seconds=60)
            cluster.nodes["n1"].kill()
            append(20)
            wait_until(is_counted, seconds=60)
            query.stop()

            batch = (
                spark.read.format("penstock")
                .option("log", cluster.address)
                .option("tokenFile", token_file)
                .option("stream", "words")
                .load()
            )
            assert {
                row["word"]: row["count"] for row in batch.groupBy("word").count().collect()
            } == (appended)
