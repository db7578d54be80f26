"""Commands that are loaded when they run: which they are, and what is not loaded for others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from embedded_server import stop_server
from penstock_bench.cli.bench import bench
from penstock_bench.cli.nexmark import nexmark

import penstock
from penstock.cli.groups import LazyGroup
from penstock.cli.main import cli

#: They take longer to import than most commands run.
HEAVY = ("pyspark", "pandas", "pyarrow", "numpy", "duckdb", "grpc", "psycopg", "pyarrow.compute")
#: Commands that are servers themselves, or read a log's files.
WITH_SERVERS = ("log serve", "log verify", "cluster proxy")
SERVERS = ("penstock.log.server", "penstock.log.node", "penstock.log.proxy")
PROGRAM = """
import importlib, json, sys
from click.testing import CliRunner
from penstock.cli.main import cli
asked = json.loads(sys.argv[1])
codes = [CliRunner().invoke(cli, one.split()).exit_code for one in asked["commands"]]
for name in asked["modules"]:
    importlib.import_module(f"{name}.__main__")
print(json.dumps([codes, [name for name in asked["heavy"] if name in sys.modules]]))
"""


def loaded(commands: Sequence[str], modules: Sequence[str] = ()) -> list[str]:
    """What is heavy and was loaded by commands that a fresh process ran, all of them well."""
    asked = {"commands": commands, "modules": modules, "heavy": HEAVY}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, heavy = json.loads(done.stdout)
    assert dict(zip(commands, codes, strict=True)) == dict.fromkeys(commands, 0)
    return list(heavy)


def test_servers_load_neither_arrow_nor_pandas_nor_spark() -> None:
    helps = [f"{path} --help" for path in WITH_SERVERS]
    assert set(loaded(helps, SERVERS)) <= {"numpy"}  # their index of tags is made of it


def test_the_helps_of_all_commands_load_nothing_heavy() -> None:
    beside = (["bench"], ["nexmark"])
    paths = [path for path in commands(cli) if path.split()[:1] not in beside]
    paths = [path for path in paths if path not in WITH_SERVERS]
    assert len(paths) > 30

    assert loaded(["--version", *(f"{path} --help" for path in paths)]) == []


def test_commands_without_rows_load_nothing_heavy(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as log:
        log.create_stream("bids", "auction long")
        lines = [
            *("stream list", "query list", "delivery list", "log status", "log forget"),
            "log trim 0",
        ]
        assert loaded([f"{line} --dir {tmp_path}" for line in lines]) == []
    stop_server(tmp_path)


def test_commands_that_show_rows_load_of_arrow_only_its_core(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as log:
        log.create_stream("bids", "auction long, at timestamp").append([{"auction": 1}])
        lines = ["stream read bids", "stream tail bids --start earliest -e"]
        # pyarrow loads NumPy itself.
        assert loaded([f"{line} --dir {tmp_path}" for line in lines]) == ["pyarrow", "numpy"]
    stop_server(tmp_path)


def commands(group: click.Command, path: str = "") -> Iterator[str]:
    """Paths of a group and of all below it."""
    yield path
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            if (command := group.get_command(context, name)) is not None:
                yield from commands(command, f"{path} {name}".strip())


def places(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, LazyGroup]]:
    if isinstance(group, LazyGroup):
        context = click.Context(group)
        for name in group.list_commands(context):
            yield " ".join((*path, name)), group
            if (command := group.get_command(context, name)) is not None:
                yield from places(command, (*path, name))


@pytest.mark.parametrize(("path", "group"), list(places(cli)))
def test_a_help_says_of_a_command_what_the_command_says_of_itself(
    path: str, group: LazyGroup
) -> None:
    context, name = click.Context(group), path.split()[-1]
    command = {"bench": bench, "nexmark": nexmark}.get(name) or group.get_command(context, name)
    assert command is not None and command.help is not None

    first = " ".join(command.help.split("\n\n")[0].split())

    assert group.summary(context, name) in (first, first.removesuffix("."))


def test_a_command_that_does_not_exist_is_wrong_usage() -> None:
    for path in (["no-such"], ["log", "no-such"], ["stream", "no-such"]):
        result = CliRunner().invoke(cli, path)
        assert (result.exit_code, "No such command" in result.output) == (2, True)
