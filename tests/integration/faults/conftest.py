"""Servers as processes of their own, for tests that do something to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.server_process import ServerProcess

from penstock.limits import SEGMENT_BYTES_MIN


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that fills segment after segment: they are as small as can be."""
    with ServerProcess(tmp_path / "data", segment_bytes=SEGMENT_BYTES_MIN) as server:
        yield server
