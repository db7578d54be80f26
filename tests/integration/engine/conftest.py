"""Tables of the runs under fire are shown at the end, also when all went well."""

from __future__ import annotations

import pytest

_TABLES = pytest.StashKey[list[str]]()


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
