"""A server that tests start at once is the process that a user's program starts, in all they see.

Method: everything here is asked of both ways to start one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from harness.waiting import wait_until
from harness.warm_starts import cold_starts, warm_starts

from penstock.log.serving import launch
from penstock.log.serving.directory import is_locked, read_address

STARTS = {"warm": warm_starts, "cold": cold_starts}


@pytest.fixture(params=STARTS)
def started_so(request: pytest.FixtureRequest) -> Iterator[None]:
    starts: AbstractContextManager[None] = STARTS[request.param]()
    with starts:
        yield


def start(directory: Path, *options: str) -> subprocess.Popen[bytes]:
    flags = ["--data-dir", str(directory / "data"), *options]
    return launch.start_module("penstock.log.server", flags, directory / "said", cwd="/")


def test_a_server_has_a_session_of_its_own_and_no_input(tmp_path: Path, started_so: None) -> None:
    process = start(tmp_path)
    wait_until(lambda: read_address(tmp_path / "data") is not None, "it does not listen")
    place = Path(f"/proc/{process.pid}")

    assert os.getsid(process.pid) == process.pid
    assert os.readlink(place / "cwd") == "/"
    assert [os.readlink(place / "fd" / str(number)) for number in range(3)] == [
        os.devnull,
        *[str(tmp_path / "said")] * 2,
    ]
    limits, ours = (place / "limits").read_text(), Path("/proc/self/limits").read_text()
    assert limits.splitlines()[1] == ours.splitlines()[1]
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert (process.wait(30), process.poll()) == (0, 0)
    assert "serving host=127.0.0.1" in (tmp_path / "said").read_text()
    process.kill()  # nobody is hit


def test_a_killed_server_tells_so_and_holds_nothing(tmp_path: Path, started_so: None) -> None:
    process = start(tmp_path)
    wait_until(lambda: is_locked(tmp_path / "data"), "it does not start")

    process.send_signal(signal.SIGKILL)

    assert process.wait() == -signal.SIGKILL
    assert not is_locked(tmp_path / "data")


def test_a_server_that_cannot_start_says_why(tmp_path: Path, started_so: None) -> None:
    (tmp_path / "data").write_text("no directory")
    assert start(tmp_path).wait(30) == 70
    assert start(tmp_path, "--no-such-option").wait(30) == 2

    said = (tmp_path / "said").read_text()
    assert "penstock: " in said and "unrecognized arguments: --no-such-option" in said


def test_the_environment_is_that_of_now(
    tmp_path: Path, started_so: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the mask of new files."""
    monkeypatch.setenv("COLUMNS", "200")  # how wide a help may be
    before = os.umask(0o027)
    try:
        start(tmp_path, "--help").wait(30)
    finally:
        os.umask(before)

    usage = (tmp_path / "said").read_text().splitlines()[0]
    assert usage.endswith("[--segment-bytes SEGMENT_BYTES]")
    assert (tmp_path / "said").stat().st_mode & 0o777 == 0o640
