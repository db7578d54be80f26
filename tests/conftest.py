"""What every test shares: one Spark session, how servers start, profiles, loops, soak tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from balance import configure, sort_by_duration
from harness.async_tests import run_async_test
from harness.garbage import collected_once
from harness.gateway import remember_names
from harness.java import brief_java, hurry_java
from harness.warm_starts import warm_starts
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from harness.postgres import PostgresServer
    from harness.redis import RedisServer
    from pyspark.sql import SparkSession

# Processes that tests start find `harness` and `simulation`, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Sources and sinks in Python run with what Spark's own process was told: not `python3`.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

# Of a shell, what runs in the background ignores Ctrl-C, and so would all that tests start: some of
# them end it by that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Slow machines are no news, and tests that build large inputs say so themselves.
_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]

hurry_java()

# The default run is the same on every machine and every day; a soak run looks for news.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=_CALM)
settings.register_profile(
    "soak", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_CALM
)
settings.load_profile("soak" if os.environ.get("PENSTOCK_SOAK") == "1" else "default")


def pytest_configure(config: pytest.Config) -> None:
    configure(config)
    if os.environ.get("PENSTOCK_STATE"):
        from harness.rooms import use_asked_room

        use_asked_room()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what Spark answered, if that was asked for; let go of what was made for good.

    Extensions that look for their objects in the end, as DuckDB's does, would miss them.
    """
    gc.unfreeze()
    if "harness.answers" in sys.modules:  # where nobody asked, Arrow is not needed either
        from harness.answers import ANSWERS

        ANSWERS.close()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with collected_once():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `soak` run only if `-m` names them; the longest files come first."""
    sort_by_duration(items)
    if "soak" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async_test(pyfuncitem)


@pytest.fixture(scope="session", autouse=True)
def servers_start_at_once() -> Iterator[None]:
    """Processes that tests start; not those that a program of theirs starts."""
    with warm_starts():
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark per process of tests, started by the first test that asks for it.

    It has a core for each of two workers of a query, and one more. Java is a hard requirement:
    without it these tests fail, they are not skipped.
    """
    from pyspark.sql import SparkSession  # only here: it takes a second, and few tests need it

    import penstock

    # Tests ask for failures; to print the Java stack of each would take longer than to compare it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = (
        SparkSession.builder.master("local[3]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", brief_java())
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    session = penstock.tuned(builder).getOrCreate()
    remember_names()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL per process of tests, started by the first test that asks for it."""
    from harness.postgres import postgres_server  # only here: few tests need it

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One Redis per process of tests, started by the first test that asks for it."""
    from harness.redis import redis_server  # only here: few tests need it

    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Spark without generated code, whose compilation takes longer than a small query runs.

    For tests of operators, not of functions.
    """
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)
