"""What tests of whole queries share: a Spark with a core for each of two workers, and one more.

Tables of the runs under fire are shown at the end, also when all went well.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded_server import stop_server

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES = pytest.StashKey[list[str]]()

#: As BRIEF_JAVA of tests/conftest.py: only the pace of Java depends on it.
BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark hands these to the Java of every program that a test starts, which lives for seconds: the
# driver, what finds out how to start it, and the master and workers of a standalone cluster.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, BRIEF_JAVA)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all of them, started by the first test that asks for it."""
    from pyspark.sql import SparkSession

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    # Sources and sinks in Python run with what Spark's own process was told: not `python3`.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[3]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Small queries, each run once: to optimize their code takes longer than it wins.
        .config("spark.driver.extraJavaOptions", BRIEF_JAVA)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    session = penstock.tuned(builder).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Log]:
    """One log for the tests of a file, each with streams of its own names."""
    directory = tmp_path_factory.mktemp("engine") / "log"
    yield from open_log(directory)


@pytest.fixture
def own_log(tmp_path: Path) -> Iterator[penstock.Log]:
    """A log for tests that trim it, kill its server or damage its files."""
    yield from open_log(tmp_path / "log")


def open_log(directory: Path) -> Iterator[penstock.Log]:
    with penstock.connect(directory) as opened:
        yield opened
    stop_server(directory)


@pytest.fixture(scope="session")
def tables(request: pytest.FixtureRequest) -> list[str]:
    """What is put here is printed in the end."""
    found: list[str] = []
    request.config.stash[_TABLES] = found
    return found


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for table in config.stash.get(_TABLES, []):
        terminalreporter.write_line(table)
