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


def test_in_a_process_that_serves_no_thread_keeps_python_from_the_loop_for_long() -> None:
    serving = (
        "import asyncio, sys\n"
        "from penstock.log.serving.process import run_until_signal\n"
        "class Server:\n"
        "    descriptors_wanted = 10\n"
        "    async def run(self): print(sys.getswitchinterval())\n"
        "    def stop(self): ...\n"
        "asyncio.run(run_until_signal(Server(), []))\n"
    )

    done = subprocess.run([sys.executable, "-c", serving], capture_output=True, text=True)

    assert float(done.stdout) <= 0.0005, done.stderr
