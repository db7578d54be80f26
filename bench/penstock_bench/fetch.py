"""Programs of others, fetched to run beside ours: commands that say what they do, jars by Maven.

Law: a directory of jars has what its pom.xml says and nothing older; a command that failed raises
what it said last.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import Unavailable

#: Lines of what a command said that an error message shows.
_LAST_LINES: Final = 15


def copy_jars(pom: Path, directory: Path, say: Callable[[str], None], *, owner: str) -> None:
    """What the pom depends on at run time. Raises Unavailable if Maven fails."""
    # Jars of an older version beside the newer ones would be found first, or not: none stays.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    maven = ["mvn", "--batch-mode", "--no-transfer-progress", "--file", str(pom)]
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    run_command([*maven, *copy, f"-DoutputDirectory={directory}"], say, owner=owner)


def run_command(command: Sequence[str], say: Callable[[str], None], *, owner: str) -> None:
    """Raises Unavailable, with what it said last, if it fails."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip())
                say(line.rstrip())
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code:
        raise Unavailable(f"{owner} was not installed: {' / '.join(last)}")
