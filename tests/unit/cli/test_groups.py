"""Commands that are loaded when they run: which they are, and what is not loaded for others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from penstock_bench.cli.bench import bench
from penstock_bench.cli.nexmark import nexmark

from penstock.cli.groups import LazyGroup
from penstock.cli.main import cli

#: They take longer to import than most commands run.
HEAVY = ("pyspark", "pandas", "pyarrow")
LIGHT = (
    *("", "log", "log serve", "log status", "log trim", "log verify", "log forget"),
    *("query list", "query status", "query stop", "query remove", "demo"),
    *("cluster", "cluster up", "cluster node", "cluster proxy", "cluster status"),
    *("cluster verify", "cluster decommission"),
)
SERVERS = ("penstock.log.server", "penstock.log.node", "penstock.log.proxy")
PROGRAM = """
import importlib, json, sys
from click.testing import CliRunner
from penstock.cli.main import cli
asked = json.loads(sys.argv[1])
codes = [CliRunner().invoke(cli, [*one.split(), "--help"]).exit_code for one in asked["commands"]]
for name in asked["modules"]:
    importlib.import_module(f"{name}.__main__")
print(json.dumps([codes, [name for name in asked["heavy"] if name in sys.modules]]))
"""


def test_servers_and_commands_without_rows_load_neither_arrow_nor_pandas_nor_spark() -> None:
    asked = {"commands": LIGHT, "modules": SERVERS, "heavy": HEAVY}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == [[0] * len(LIGHT), []]


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
