"""Logs of real servers for tests of the connector's source: one for a file, or one for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_server import stop_server

import penstock


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
