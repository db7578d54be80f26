"""One fixture runs a scenario on a fresh log of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from log_implementations import IMPLEMENTATIONS

Scenario = Callable[[Any], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=IMPLEMENTATIONS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    opener = IMPLEMENTATIONS[request.param]

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), opener(tmp_path) as log:
                await scenario(log)

        uvloop.run(main())

    return run_scenario
