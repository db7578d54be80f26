"""README's Python examples run as they stand, in a program of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from embedded_server import stop_server

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = BLOCKS[number].replace("/tmp/penstock-readme", str(log))
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "PYSPARK" not in name},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    if log.exists():
        assert "180 {'p50'" in done.stdout, "what the query took in, and how fast"
        stop_server(log)
