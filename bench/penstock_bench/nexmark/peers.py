"""Peers: other stream processors, each a program of its own that is told what to run.

A peer is a directory of `bench/peers` beside the source tree, with a `peer.toml`; the package never
imports anything from there. Its program runs in its own virtual environment, or, if it needs no
packages of its own, in this Python; commands and answers are JSON, one per line (the contract is
`bench/peers/README.md`). Owns finding, installing, starting, asking and ending them. Law: whatever
a peer does, dying, hanging and nonsense included, ends in an error that names it, and `close`
leaves no process of it behind.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from penstock.errors import BadConfig, DeadlineExceeded, NotFound, Refused, Unavailable
from penstock_bench.fetch import copy_jars, run_command
from penstock_bench.nexmark.processes import descendants

#: Who brings the events: a stream of the log that the peer reads, or the peer itself on `feed`.
Events = Literal["log", "own"]

_SOURCE_TREE: Final = Path(__file__).resolve().parents[3]
#: How long a peer may take to end by itself, and then to die.
_END_SECONDS: Final = 15.0
#: Lines of standard error that an error message shows.
_LAST_LINES: Final = 15
_FIELDS: Final = {
    "summary": str,
    "program": str,
    "variants": list,
    "events": str,
    "requirements": str,
    "pom": str,
    "needs": list,
}
_OPTIONAL: Final = ("requirements", "pom", "needs")


class PeerRefused(Refused):
    """The peer cannot run this query; the message is its reason."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """What `peer.toml` says. The name is that of the directory."""

    name: str
    directory: Path
    summary: str
    program: Path
    variants: tuple[str, ...]
    events: Events
    #: None: it runs in this Python.
    requirements: Path | None = None
    #: Maven's file: what it depends on at run time is copied to `jars`.
    pom: Path | None = None
    #: Commands that must be on the path.
    needs: tuple[str, ...] = ()

    @property
    def environment(self) -> Path:
        return self.directory / ".venv"

    @property
    def jars(self) -> Path:
        return self.environment / "jars"

    @property
    def python(self) -> Path:
        if self.requirements is None:
            return Path(sys.executable)
        return self.environment / "bin" / "python"

    @property
    def is_installable(self) -> bool:
        """Whether it needs anything of its own."""
        return self.requirements is not None or self.pom is not None

    @property
    def missing(self) -> str | None:
        """What keeps it from running, and what to do about it; None: nothing."""
        absent = [command for command in self.needs if shutil.which(command) is None]
        if absent:
            return f"{', '.join(absent)} is not on the path: install it first"
        if not self.is_installable or _stamp(self).exists():
            return None
        return f"not installed: penstock nexmark peers install {self.name}"


def peers_directory() -> Path:
    """Where the peers are. Raises NotFound if the package was installed without its source tree."""
    directory = _SOURCE_TREE / "bench" / "peers"
    if not directory.is_dir():
        raise NotFound(
            f"no peers: {directory} does not exist; they are not part of the installed package: "
            "run `pip install -e ./bench` in a checkout of Penstock"
        )
    return directory


def find_peers(directory: Path | None = None) -> dict[str, PeerSpec]:
    """All peers by name, installed or not."""
    root = peers_directory() if directory is None else directory
    files = sorted(root.glob("*/peer.toml"))
    return {file.parent.name: read_spec(file) for file in files}


def find_peer(name: str, directory: Path | None = None) -> PeerSpec:
    peers = find_peers(directory)
    if name not in peers:
        raise NotFound(f"no peer {name!r}: there are {', '.join(peers) or 'none'}")
    return peers[name]


def read_spec(file: Path) -> PeerSpec:
    """Parse and check a `peer.toml`; raises BadConfig with every problem."""
    try:
        settings = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{file}: {error}") from None
    problems = [f"{name}: no such setting" for name in settings if name not in _FIELDS]
    for name, kind in _FIELDS.items():
        if name not in settings:
            problems += [] if name in _OPTIONAL else [f"{name}: missing"]
        elif not isinstance(settings[name], kind):
            problems.append(f"{name}: {settings[name]!r} is not a {kind.__name__}")
    if settings.get("events") not in ("log", "own"):
        problems.append(f"events: {settings.get('events')!r} is neither 'log' nor 'own'")
    for name in ("program", "requirements", "pom"):
        path = settings.get(name)
        if isinstance(path, str) and not (file.parent / path).is_file():
            problems.append(f"{name}: {path} is not there")
    if problems:
        raise BadConfig(f"{file}: {'; '.join(problems)}")
    requirements, pom = settings.get("requirements"), settings.get("pom")
    return PeerSpec(
        name=file.parent.name,
        directory=file.parent,
        summary=settings["summary"],
        program=file.parent / settings["program"],
        variants=tuple(settings["variants"]),
        events=settings["events"],
        requirements=None if requirements is None else file.parent / requirements,
        pom=None if pom is None else file.parent / pom,
        needs=tuple(settings.get("needs", ())),
    )


# ---- installing


def _stamp(spec: PeerSpec) -> Path:
    """There once everything was installed: an environment alone may be half of one."""
    return spec.environment / ".installed"


def install(spec: PeerSpec, say: Callable[[str], None]) -> None:
    """Make the peer's environment, saying what pip and Maven say. Again: brings it up to date.

    Raises Unavailable if a command fails, NotFound if a command that it needs is not there.
    """
    absent = [command for command in spec.needs if shutil.which(command) is None]
    if absent:
        raise NotFound(f"{spec.name} needs {', '.join(absent)} on the path: install that first")
    if not spec.is_installable:
        say(f"{spec.name} needs nothing of its own")
        return
    _stamp(spec).unlink(missing_ok=True)
    if spec.requirements is not None:
        _install_packages(spec, say)
    if spec.pom is not None:
        copy_jars(spec.pom, spec.jars, say, owner=spec.name)
    _stamp(spec).touch()


def _install_packages(spec: PeerSpec, say: Callable[[str], None]) -> None:
    if not spec.python.exists():
        say(f"making {spec.environment}")
        venv = [sys.executable, "-m", "venv", str(spec.environment)]
        run_command(venv, say, owner=spec.name)
    pip = [str(spec.python), "-m", "pip", "install", "--disable-pip-version-check"]
    packages = [*pip, "--progress-bar", "off", "-r", str(spec.requirements)]
    run_command(packages, say, owner=spec.name)


# ---- running


class Peer:
    """A peer's program, as the harness holds it: one command at a time."""

    def __init__(self, spec: PeerSpec) -> None:
        if spec.missing is not None:
            raise NotFound(f"{spec.name}: {spec.missing}")
        self.spec = spec
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._answers: queue.Queue[str | None] = queue.Queue()
        # A session of its own: its process group can be ended as a whole, and a Ctrl-C at the
        # terminal reaches the harness alone, which then ends it in order.
        self._process = subprocess.Popen(
            [str(spec.python), str(spec.program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._threads = [
            self._reading(self._process.stdout, self._answers.put, self._answers),
            self._reading(self._process.stderr, self._last.append, None),
        ]

    def _reading(
        self, pipe: IO[str] | None, take: Callable[[str], object], ending: queue.Queue[Any] | None
    ) -> threading.Thread:
        def read() -> None:
            assert pipe is not None
            try:
                for line in pipe:
                    take(line.rstrip("\n"))
            except ValueError:
                pass  # closed under us
            if ending is not None:
                ending.put(None)

        thread = threading.Thread(target=read, name=f"peer-{self.spec.name}", daemon=True)
        thread.start()
        return thread

    @property
    def pids(self) -> list[int]:
        """The program and all that it started and that still runs."""
        return [self._process.pid, *descendants(self._process.pid)]

    def ask(self, do: str, timeout: float, **command: Any) -> dict[str, Any]:
        """Have it done, and its figures.

        Raises PeerRefused if it cannot, Unavailable if it failed, died or answered nonsense,
        DeadlineExceeded if it does not answer in time; after the last two it should be closed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._died() from None
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineExceeded(
                f"{self.spec.name} did not answer {do!r} within {timeout:g} s{self._told()}"
            ) from None
        if line is None:
            raise self._died()
        return self._understood(do, line)

    def _understood(self, do: str, line: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict) or not (answer.get("ok") is True or "error" in answer):
            shown = line if len(line) <= 200 else line[:200] + "…"
            raise Unavailable(f"{self.spec.name} answered {do!r} with nonsense: {shown!r}")
        if answer.get("refused"):
            raise PeerRefused(str(answer["error"]))
        if "error" in answer:
            raise Unavailable(f"{self.spec.name} failed at {do!r}: {answer['error']}")
        return answer

    def check(self) -> None:
        """Raise if the program has died."""
        if self._process.poll() is not None:
            raise self._died()

    def _died(self) -> Unavailable:
        try:
            code: int | str = self._process.wait(2)
        except subprocess.TimeoutExpired:
            code = "none yet"
        for thread in self._threads:
            thread.join(1)  # what it said last is still in the pipe
        return Unavailable(f"{self.spec.name} died, exit code {code}{self._told()}")

    def _told(self) -> str:
        return "; it said last:\n" + "\n".join(self._last) if self._last else ""

    def close(self) -> None:
        """End it and all that it started. Idempotent."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except OSError:
            pass  # it died before
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # killed below
        self._kill_group()
        self._process.wait(_END_SECONDS)
        for thread in self._threads:
            thread.join(1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _kill_group(self) -> None:
        """Also when the program has ended: what it started may not have."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty
