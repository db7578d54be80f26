"""What tests of whole queries share: logs of real servers.

Tables of the runs under fire are shown at the end, also when all went well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_server import end_log

import penstock

_TABLES = pytest.StashKey[list[str]]()


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
    end_log(directory)


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
