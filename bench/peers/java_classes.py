"""A peer's own Java: compiled into its environment when a source is newer than what is there.

Standard library only, as `talk.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from talk import Refusal


def compiled(sources: Path, libraries: Path) -> Path:
    """Where the classes are; `libraries` is what they are compiled against."""
    files = sorted(sources.rglob("*.java"))
    built = Path(sys.prefix) / "peer-classes"
    stamp = built / ".built"
    if stamp.exists() and all(file.stat().st_mtime <= stamp.stat().st_mtime for file in files):
        return built
    if shutil.which("javac") is None:
        raise Refusal("no javac on the path: install a JDK, e.g. openjdk-17-jdk-headless")
    built.mkdir(parents=True, exist_ok=True)
    command = ["javac", "-nowarn", "-d", str(built), "-cp", str(libraries), *map(str, files)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.touch()
    return built
