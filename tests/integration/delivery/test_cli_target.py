"""`penstock target serve`: targets in a process of their own, as a user starts them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytest.importorskip("penstock.delivery.targets")
COMMAND = [sys.executable, "-m", "penstock.cli.main", "target", "serve"]


@pytest.mark.parametrize("options", [[], ["--grpc"]], ids=["frames", "grpc"])
def test_databases_beside_a_host_get_their_rows(
    module_log: penstock.Log, options: list[str], tmp_path: Path
) -> None:
    stream = module_log.create_stream(f"served{len(options)}", "k long NOT NULL, v string")
    stream.append([{"k": key, "v": f"v{key}"} for key in range(20)])
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    command = [*COMMAND, *options, "--json", "--port", "0", "--token-file", str(tmp_path / "token")]
    for path in paths:
        command += ["--to", f"sqlite:///{path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        to = [f"{uri}?token_file={said['token_file']}" for uri in said["targets"]]
        with penstock.deliver(stream, to, key="k", table="t", name=stream.name) as delivery:
            delivery.processAllAvailable(60)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    found = []
    for path in paths:
        with sqlite3.connect(path) as database:
            found += database.execute("SELECT k, v FROM t").fetchall()
        database.close()
    assert sorted(found) == [(key, f"v{key}") for key in range(20)]


def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path) -> None:
    for options, code, words in (
        (["--to", "nonsense://x"], 3, "is no target"),
        (["--to", "sqlite:///a.db", "--host", "0.0.0.0"], 3, "needs TLS"),
        ([], 2, "Missing option '--to'"),
    ):
        done = subprocess.run(
            [*COMMAND, *options, "--token-file", str(tmp_path / "token")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_the_function_is_found_where_it_is_documented() -> None:
    from penstock.delivery import serve_targets

    with pytest.raises(penstock.Refused, match="at least one target"):
        serve_targets([], token_file="token")
