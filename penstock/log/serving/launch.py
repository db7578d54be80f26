"""Start a server of ours, `python -m <module>`, as a process of its own.

Owns what such a process inherits: our environment and import path, no input, a file for what it
says, and a session of its own, so that Ctrl-C in the program that starts it does not end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start_module(
    module: str, options: Sequence[str], output: Path, *, cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Start it; what it says is added to `output`."""
    with open(output, "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )
