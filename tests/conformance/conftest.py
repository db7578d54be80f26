"""Every test of a log runs on a fresh log of each implementation."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from log_implementations import IMPLEMENTATIONS


@pytest.fixture(params=IMPLEMENTATIONS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Any]:
    return IMPLEMENTATIONS[request.param](tmp_path)
