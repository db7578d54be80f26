"""What a user meets first: the public names, the version, and commands that are not installed."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import main
from penstock.cli.main import BENCHMARK_COMMANDS, cli

ROOT = Path(__file__).parents[2]


def test_dir_shows_the_public_names_and_nothing_private() -> None:
    names = [name for name in dir(penstock) if not name.startswith("__")]

    assert set(names) == set(penstock.__all__) - {"__version__"}
    assert "__version__" in dir(penstock)


def test_help_shows_every_public_name_with_its_signature() -> None:
    text = pydoc.render_doc(penstock, renderer=pydoc.plaintext)

    for name in penstock.__all__:
        value = getattr(penstock, name)
        if inspect.isroutine(value):
            assert f"\n    {name}(" in text, name
        elif inspect.isclass(value):
            assert f"\n    class {name}(" in text, name
    assert "Run a streaming DataFrame in real time, exactly once" in text


def test_every_public_name_says_what_it_is() -> None:
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute konnect"):
        penstock.konnect  # noqa: B018


def test_a_bare_checkout_imports_without_any_installed_package() -> None:
    """`-S`: no site-packages, so neither dependencies nor metadata of an installation."""
    code = "import penstock; print(penstock.__version__, 'connect' in dir(penstock))"

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, env={}, capture_output=True, text=True
    )

    assert done.stdout.split() == [penstock.__version__, "True"], done.stderr


@pytest.mark.parametrize("name", BENCHMARK_COMMANDS)
def test_a_benchmark_command_without_its_package_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "commands_beside", EntryPoints)

    result = CliRunner().invoke(cli, [name, "log"])

    assert result.exit_code == 2
    assert "penstock-bench" in result.output and "pip install -e ./bench" in result.output
    assert f"  {name}" not in CliRunner().invoke(cli, ["--help"]).output


@pytest.mark.parametrize("name", BENCHMARK_COMMANDS)
def test_a_benchmark_command_is_there_with_its_package(name: str) -> None:
    assert f"  {name}" in CliRunner().invoke(cli, ["--help"]).output
    assert (
        f"penstock {name}" in CliRunner().invoke(cli, [name, "--help"], prog_name="penstock").output
    )


def test_a_package_beside_that_does_not_load_breaks_no_other_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoints([EntryPoint("bench", "no_such_package:bench", main.COMMANDS_BESIDE)])
    monkeypatch.setattr(main, "commands_beside", lambda: broken)

    assert CliRunner().invoke(cli, ["log", "--help"]).exit_code == 0
    assert CliRunner().invoke(cli, ["bench", "--help"]).exit_code == 1


def test_the_version_of_the_command_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli, ["--version"], prog_name="penstock")

    assert result.output == f"penstock {penstock.__version__}\n"
