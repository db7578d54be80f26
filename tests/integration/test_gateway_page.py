"""docs/gateway.md: every example is run, in its order, against a real gateway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from harness.http_gateway import gateway_thread

import penstock
from penstock.gateway.config import GatewayConfig

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_examples_do_what_the_page_says(own_log: penstock.Log, tmp_path: Path) -> None:
    with gateway_thread(GatewayConfig(target=own_log.target, port=0)) as listening:
        here = f"http://127.0.0.1:{listening.port}"
        shell = "\n".join(blocks("sh")).replace("http://127.0.0.1:8080", here)
        shell = shell.replace("curl ", "curl --silent --show-error --fail-with-body ")
        python = "\n".join(blocks("python")).replace("http://127.0.0.1:8080", here)
        environment = {**os.environ, "PENSTOCK_DIR": own_log.target}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", shell],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        ran = subprocess.run(
            [sys.executable, "-c", python], env=environment, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr.decode()

    answers = [line for line in done.stdout.splitlines() if '"duplicate"' in line]
    assert [json.loads(line)["duplicate"] for line in answers] == [False, False, False, True]
    assert json.loads(answers[-1])["next"] == "till-7:1"
    assert 'data: {"auction":1,"price":250.0,"ts":"2026-11-15T08:00:00.000000Z"}' in done.stdout
    assert (tmp_path / "bids.arrows").stat().st_size > 100
    rows = own_log.stream("bids").read().to_pylist()
    assert [row["auction"] for row in rows] == [1, 2, 3, 4, 5, 0, 1, 2]
