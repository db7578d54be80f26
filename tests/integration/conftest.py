"""What tests of real servers share: logs for a file or a test, and a ZooKeeper for clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_server import stop_server

import penstock
from penstock.log.meta.zookeeper_server import ZooKeeperServer

_namespaces = itertools.count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def metadata(zookeeper: ZooKeeperServer) -> str:
    """The address of a cluster of the test's own, which has nothing in it yet."""
    return f"penstock://{zookeeper.hosts}/test{next(_namespaces)}"


@pytest.fixture(scope="module")
def module_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Log]:
    """One log for the tests of a file, each with streams of its own names."""
    directory = tmp_path_factory.mktemp("connector") / "log"
    with penstock.connect(directory) as opened:
        yield opened
    stop_server(directory)


@pytest.fixture
def own_log(tmp_path: Path) -> Iterator[penstock.Log]:
    """For tests that trim it or kill its server."""
    with penstock.connect(tmp_path / "log") as opened:
        yield opened
    stop_server(tmp_path / "log")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stream of the test's own."""
    return str(request.node.originalname)[5:100]
