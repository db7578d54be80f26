"""What a process of the log asks of the system."""

from __future__ import annotations

import subprocess
import sys

from penstock.limits import MIB

ASK = "from penstock.log.serving.process import memory_peak_bytes; print(memory_peak_bytes())"


def test_the_peak_of_memory_is_not_that_of_whoever_started_the_process() -> None:
    starter = (
        "import subprocess, sys; large = bytearray(b'x') * (256 << 20); "
        f"subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    )

    done = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True)

    assert MIB < int(done.stdout) < 128 * MIB, done.stderr
