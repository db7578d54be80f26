"""bin/ensure: what set-up does about programs that pip cannot install, on a made-up machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "grep", "env", "ln")


@dataclass
class Machine:
    """A path with only a few tools on it, and fakes that write down how they were called."""

    place: Path

    def __post_init__(self) -> None:
        for name in TOOLS:
            path = shutil.which(name)
            assert path is not None
            (self.place / name).symlink_to(path)

    def add(self, name: str, script: str) -> None:
        path = self.place / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def add_java(self, version: str) -> None:
        self.add("java", f"echo 'openjdk version \"{version}\"' >&2")

    def add_user(self, uid: int) -> None:
        self.add("id", f"echo {uid}")

    def add_apt(self, *, installs: str, package: str) -> None:
        """An apt-get that knows one package, which brings one command."""
        (self.place / "packaged").mkdir()
        self.add(f"packaged/{installs}", "echo 'openjdk version \"17.0.1\"' >&2")
        self.add(
            "apt-get",
            f"""echo "apt-get $*" >> {self.place}/calls
            case "$*" in
                update*) ;;
                *{package}) ln -s {self.place}/packaged/{installs} {self.place} ;;
                *) exit 100 ;;
            esac""",
        )

    def calls(self) -> list[str]:
        path = self.place / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def ensure(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "bin/ensure"), *arguments],
            env={"PATH": str(self.place), **environment},
            capture_output=True,
            text=True,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_java_that_is_there_needs_nothing(machine: Machine) -> None:
    machine.add_java("21.0.2")

    done = machine.ensure("java")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_an_old_java_does_not_count(machine: Machine, version: str) -> None:
    machine.add_java(version)

    assert machine.ensure("java").returncode == 1


@pytest.mark.parametrize(
    ("command", "package", "asked"),
    [
        ("java", "openjdk-17-jre-headless", ["java"]),
        ("java", "openjdk-21-jre-headless", ["java"]),
        ("redis-server", "redis-server", ["redis-server", "redis-server"]),
    ],
    ids=["java 17", "java 21 where there is no 17", "a server"],
)
def test_root_installs_what_is_missing_and_says_so(
    machine: Machine, command: str, package: str, asked: list[str]
) -> None:
    machine.add_user(0)
    machine.add_apt(installs=command, package=package)

    done = machine.ensure(*asked)

    assert done.returncode == 0, done.stderr
    assert f"installing the Debian package {package}" in done.stderr
    assert machine.calls()[0].split()[1] == "update" and machine.calls()[-1].endswith(package)
    assert (machine.place / command).exists()


def test_sudo_without_a_password_will_do(machine: Machine) -> None:
    machine.add_user(1000)
    machine.add_apt(installs="java", package="openjdk-17-jre-headless")
    machine.add("sudo", f'echo "sudo $*" >> "{machine.place}/calls"; [ "$1" = -n ] || exec "$@"')

    assert machine.ensure("java").returncode == 0
    assert any(call.startswith("sudo env") for call in machine.calls())


def test_sudo_that_asks_for_a_password_is_not_used(machine: Machine) -> None:
    machine.add_user(1000)
    machine.add_apt(installs="java", package="openjdk-17-jre-headless")
    machine.add("sudo", "exit 1")

    done = machine.ensure("java")

    assert (done.returncode, machine.calls()) == (1, [])
    for command in ("apt-get install", "dnf install", "apk add", "pacman -S", "brew install"):
        assert command in done.stderr
    assert "openjdk@17" in done.stderr


def test_an_installation_that_fails_prints_the_commands(machine: Machine) -> None:
    machine.add_user(0)
    machine.add_apt(installs="java", package="nothing-that-is-asked-for")

    done = machine.ensure("java")

    assert done.returncode == 1
    assert "apt-get could not install it" in done.stderr and "dnf install" in done.stderr


def test_a_java_home_that_is_too_old_is_named_and_nothing_is_installed(machine: Machine) -> None:
    machine.add_java("17.0.1")
    machine.add_user(0)
    machine.add_apt(installs="java", package="openjdk-17-jre-headless")

    done = machine.ensure("java", JAVA_HOME="/opt/java-8")

    assert (done.returncode, machine.calls()) == (1, [])
    assert "JAVA_HOME is /opt/java-8" in done.stderr


def test_a_server_may_be_named_by_where_it_lies(machine: Machine) -> None:
    (machine.place / "15").mkdir()
    machine.add("15/initdb", "exit 0")

    assert machine.ensure(f"{machine.place}/*/initdb", "postgresql").returncode == 0
    assert machine.ensure(f"{machine.place}/*/pg_ctl", "postgresql").returncode == 1


def test_postgresql_is_there_if_its_programs_are_on_the_path(machine: Machine) -> None:
    machine.add("initdb", "exit 0")

    done = machine.ensure("postgresql")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_what_is_optional_may_be_missing_but_not_in_ci(
    machine: Machine, ci: str, code: int
) -> None:
    done = machine.ensure("--optional", "chromium", "chromium", CI=ci)

    assert done.returncode == code
    assert "sudo apt-get install chromium" in done.stderr


def test_wrong_usage_is_told(machine: Machine) -> None:
    assert machine.ensure("redis-server").returncode == 2


def test_make_asks_for_java_before_it_uses_spark() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert "java:\n\t@bin/ensure java\n" in makefile
    for target in ("demo", "$(VENV)/spark-classes.jsa"):
        line = next(line for line in makefile.splitlines() if line.startswith(f"{target}:"))
        assert " java" in line, target
    assert "\ntest: $(VENV)/spark-classes.jsa " in makefile
