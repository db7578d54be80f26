"""`penstock state show` over a log and checkpoints that real tasks have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedded_server import stop_server
from harness.waiting import until
from test_task_shell import at_work, keys, make, register

import penstock
from penstock.cli.main import cli
from penstock.runtime import checkpoints
from penstock.runtime.spec import QuerySpec, Settings
from penstock.stream.stream import Stream


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    stop_server(tmp_path / "log")


def run(log: penstock.Log, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["state", "show", *arguments, "--dir", str(log.target)])


async def work(directory: Path, spec: QuerySpec, source: Stream, rows: Any) -> None:
    """Rows are counted, in a checkpoint and after it."""
    async with at_work(directory, spec) as (_, tasks, _):
        for more in rows:
            before = tasks[-1].core.checkpoint_lsn
            source.append(more)
            await until(lambda before=before: tasks[-1].core.checkpoint_lsn != before, seconds=60)


async def test_sizes_files_and_one_key_are_shown(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    settings = Settings(checkpoints=str(tmp_path / "ckpt"), checkpoint_interval_ms=1)
    log, source, spec = make(directory, settings)
    register(log, spec)
    await work(directory, spec, source, [keys(0, 1_000), keys(0, 10), keys(5, 6)])
    # What comes now is in no checkpoint.
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 10**9)
    async with at_work(directory, spec) as (_, tasks, _):
        source.append(keys(5, 7))
        last = tasks[-1]
        await until(lambda: last.last_marker is not None and last.last_marker.rows_in == 1_013)

    shown = run(log, spec.name, "--json")
    told = json.loads(shown.stdout)["tasks"][-1]
    table = run(log, spec.name, "--nodes")

    assert table.exit_code == 0 and "RESTORE READS" in table.stdout, table.output
    assert "rows by virtual node: 0: " in table.stdout
    assert told["problem"] is None and told["change_entries"] > 0
    assert told["restore_bytes"] == sum(line["bytes"] for line in told["increments"]) > 10_000
    assert len(told["nodes"]) == 64
    (part,) = (one for one in told["parts"] if one["kind"] == "table")
    assert part["rows"] == sum(told["nodes"].values()) >= 1_000
    (line,) = json.loads(run(log, spec.name, "--key", "5", "--json").stdout)
    assert (line["task"], line["weight"]) == (told["task"], 1)
    counted = json.loads(line["text"])
    assert [counted.pop(name) for name in list(counted)[:1]] == [5]
    assert 4 in counted.values(), f"{counted}: in the increments, and once after them"
    assert "nothing is kept for 77777" in run(log, spec.name, "--key", "77777").stdout
    wrong = run(log, spec.name, "--key", '{"nobody": 1}')
    assert wrong.exit_code != 0 and "is no key of query" in wrong.output
    log.close()


async def test_checkpoints_that_are_gone_are_told(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    settings = Settings(checkpoints=str(tmp_path / "ckpt"), checkpoint_interval_ms=1)
    log, source, spec = make(directory, settings)
    register(log, spec)
    await work(directory, spec, source, [keys(0, 100)])
    for path in (tmp_path / "ckpt").rglob("*.manifest"):
        path.unlink()

    told = json.loads(run(log, spec.name, "--json").stdout)["tasks"][-1]
    key = run(log, spec.name, "--key", "5")

    assert "cannot be read" in told["problem"] and told["increments"] == []
    assert told["change_bytes"] > 0, "a restore reads all changes"
    assert key.exit_code != 0 and "no checkpoint that can be read" in key.output
    log.close()


def test_of_a_query_that_keeps_nothing_there_is_nothing(directory: Path) -> None:
    log, _, spec = make(directory, Settings())
    register(log, spec)

    assert json.loads(run(log, spec.name, "--json").stdout) == {"query": spec.name, "tasks": []}
    assert run(log, "nobody").exit_code != 0
    log.close()
