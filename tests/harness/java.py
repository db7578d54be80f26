"""How Java is run by tests: Spark for many small queries, each run once, in programs of some
seconds; ZooKeeper for one cluster after the other.

Java's code is compiled once and quickly, since to optimize it takes longer than it wins. Spark's
classes come from an archive, if `make test` has made one (this file, run as a program): to read and
check them all takes a good half of a short program's time. Spark's Python comes from the installed
package: where its home has it as a zip file, every Python that Spark starts takes most of a second
to compile it. ZooKeeper's classes have an archive, too. Only the pace of either depends on any of
this, no result does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock.log.meta.zookeeper_server import ZooKeeperServer

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
#: Spark's home without the zip files of its Python.
HOME: Final = Path(sys.prefix) / "spark-home"
ZOOKEEPER_ARCHIVE: Final = Path(sys.prefix) / "zookeeper-classes.jsa"
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def brief_java() -> str:
    """The options. An archive that does not fit this Java is not used, without a word."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return _BRIEF
    return f"{_BRIEF} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def hurry_java() -> None:
    """Spark hands the options to the Java of every program that a test starts: the driver, what
    finds out how to start it, and the master and workers of a standalone cluster. ZooKeeper has
    them from us."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, brief_java())
    if HOME.exists():
        os.environ.setdefault("SPARK_HOME", str(HOME))
    if ZOOKEEPER_ARCHIVE.exists():
        options = (f"-XX:SharedArchiveFile={ZOOKEEPER_ARCHIVE}", "-Xlog:disable")
        ZooKeeperServer.java_options = (*ZooKeeperServer.java_options, *options)


def make_home() -> None:
    """What a home of Spark's needs, from PySpark's own package."""
    import pyspark

    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        (HOME / name).unlink(missing_ok=True)
        (HOME / name).symlink_to(Path(pyspark.__file__).parent / name)


def main() -> None:
    """Make the home, the archive of what a few queries of all kinds need, and ZooKeeper's."""
    make_home()
    make_zookeeper_archive()
    ARCHIVE.unlink(missing_ok=True)
    made = ARCHIVE.with_suffix(".new")
    options = f"{_BRIEF} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    os.environ |= {"SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_HOME"] = str(HOME)  # an archive is for one list of files
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("classes")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": options,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    for generated in ("true", "false"):
        spark.conf.set("spark.sql.codegen.wholeStage", generated)
        _run_queries(spark)
    spark.stop()
    java.stdin.close()
    java.wait()
    if made.exists():
        made.rename(ARCHIVE)
    else:
        print("no archive of Spark's classes could be made: tests take longer without")


def make_zookeeper_archive() -> None:
    """Of what a server needs that a client has asked for something."""
    from kazoo.client import KazooClient  # type: ignore[import-untyped]

    ZOOKEEPER_ARCHIVE.unlink(missing_ok=True)
    made = ZOOKEEPER_ARCHIVE.with_suffix(".new")
    before = ZooKeeperServer.java_options
    ZooKeeperServer.java_options = (*before, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable")
    with TemporaryDirectory() as directory, ZooKeeperServer(Path(directory)) as server:
        client = KazooClient(server.hosts)
        client.start()
        client.create("/a", b"a", ephemeral=True)
        client.set("/a", b"b")
        client.get_children("/", watch=print)
        client.stop()
        client.close()
        server.signal(signal.SIGTERM)
        for _ in range(600):  # it writes the archive; `stop` has less patience
            if not server.is_running:
                break
            time.sleep(0.1)
    ZooKeeperServer.java_options = before
    if made.exists():
        made.rename(ZOOKEEPER_ARCHIVE)


def _run_queries(spark: Any) -> None:
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    numbers = pa.table({"k": [1, 2, 3] * 10, "v": list(range(30)), "s": ["a b", "c", "d"] * 10})
    rows = spark.createDataFrame(numbers).withColumn("ts", F.timestamp_seconds("v"))
    counted = rows.groupBy("k", F.window("ts", "10 seconds")).agg(
        F.sum("v"), F.avg("v"), F.countDistinct("s"), F.collect_list("v"), F.max_by("s", "v")
    )
    ranked = rows.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("v")))
    joined = rows.join(counted.select("k", "window"), "k", "left").where("v > 3 OR window IS NULL")
    texts = rows.select(
        F.regexp_replace("s", "a", "b"), F.split("s", " "), F.date_format("ts", "yyyy"),
        F.expr("CAST(v AS DECIMAL(10, 2)) * 3"), F.struct("k", "v"), F.to_json(F.struct("k")),
    )  # fmt: skip
    doubled = rows.select(F.udf(lambda v: v * 2, "long")("v"))
    for frame in (counted, ranked, joined, texts, doubled, rows.union(rows).distinct()):
        frame.toArrow()
        frame._jdf.queryExecution().optimizedPlan().toJSON()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    timed = source.withWatermark("timestamp", "1 second").groupBy(
        F.window("timestamp", "5 seconds")
    )
    query = timed.count().writeStream.format("memory").queryName("q").outputMode("update").start()
    query.awaitTermination(3)
    query.stop()


if __name__ == "__main__":
    main()
