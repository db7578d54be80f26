"""Frames that are nearly right, at every listener: no crash, hang, growth or traceback.

Goal: I19. Method: each listener is a process; seeds are drawn, and the number of frames is counted.
`make soak` sends a million to each (FUZZ_FRAMES says another number).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from fuzzed_listeners import LISTENERS, Listener
from harness.waiting import wait_until

SLICE = 1_500
MILLION = int(os.environ.get("FUZZ_FRAMES", "1000000"))
#: After the first tenth, when caches are full and code is loaded.
GROWTH_BYTES_MAX = 48 << 20
#: Of a log whose data grows: what it keeps of each frame that was taken (producers, keys, tags).
BYTES_PER_FRAME_MAX = 32


def run(listener: Listener, seed: int, frames: int) -> str:
    """Send so many; what came of it, in a line."""
    draw = random.Random(seed)
    began = time.monotonic()
    warm = 0
    while listener.frames < frames:
        listener.fuzz(draw)
        if not warm and listener.frames >= frames // 10:
            warm = listener.memory_bytes
    # What ended with its connection is let go of soon after.
    most = warm + GROWTH_BYTES_MAX + BYTES_PER_FRAME_MAX * frames
    wait_until(lambda: listener.memory_bytes <= most, f"{listener.name} grows")
    grown = (listener.memory_bytes - warm) / (1 << 20)
    said = listener.said.read_text(errors="replace")
    assert "Traceback" not in said, said[-5000:]
    return (
        f"{listener.name}: seed {seed}, {listener.frames} frames, {listener.connections} "
        f"connections, {time.monotonic() - began:.0f} s, grown by {grown:.1f} MiB"
    )


@pytest.mark.parametrize("name", ["log server", "proxy", "deliveries"])
def test_some_mutated_frames_do_no_harm(name: str, tmp_path: Path) -> None:
    """The gateway's have slices of their own (test_gateway_hostile.py, test_kafka_hostile.py)."""
    with LISTENERS[name](tmp_path) as listener:
        run(listener, 21, SLICE)


@pytest.mark.soak
@pytest.mark.parametrize("name", LISTENERS)
def test_a_million_mutated_frames_do_no_harm(name: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"{name}: seed {seed}")
    with LISTENERS[name](tmp_path) as listener:
        print(run(listener, seed, MILLION))
