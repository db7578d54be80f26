"""Types as a test: mypy, strict, over everything that it is told of in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_types_are_right() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mypy"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
