"""The Python of README and of the guides runs as it stands.

README's blocks are programs of their own. Those of a guide are one program, run here with the
session that all tests of this process share.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from embedded_server import end_log

import penstock

ROOT = Path(__file__).parents[2]
#: Guides, and something that each of them prints.
GUIDES = {
    "quickstart.md": "180 {'p50'",
    "queries.md": "uuid()",
    "event-time.md": "[{'party': 'green', 'count': 2}]",
    "testing.md": "",
}


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", blocks(ROOT / "README.md"))
def test_an_example_of_the_readme_runs(text: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", text.replace("/tmp/penstock-readme", str(log))],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "PYSPARK" not in name},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    print(done.stdout, done.stderr, sep="\n-- stderr\n")  # pytest shows it if anything is wrong
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "[Stage" not in done.stderr, "bars of stages that never end"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][-3:] == ["auction", "bids", "highest"]
    assert len(rows) == 16, "five windows of three auctions are final, the sixth is open"
    end_log(log)


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_runs_from_top_to_bottom(
    name: str, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(blocks(ROOT / "docs" / name)).replace("/tmp/penstock-", f"{tmp_path}/")

    try:
        exec(compile(text, name, "exec"), {"__name__": name})
    finally:  # the session is that of other tests, too, whose output is compared
        queries = penstock.queries(spark)
        for listener in list(queries._listeners):
            queries.removeListener(listener)

    said = capsys.readouterr()
    print(said.out, said.err, sep="\n-- stderr\n")  # pytest shows it if anything is wrong
    assert GUIDES[name] in said.out
    for log in tmp_path.iterdir():
        if (log / "server.json").exists():
            end_log(log)
