"""Where a task's time goes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from penstock.runtime import task
from penstock.runtime.meter import Meter


class Clock:
    """Seconds, and how often somebody asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


def told(meter: Meter) -> tuple[object, ...]:
    report = meter.report()
    return tuple(report[name] for name in ("busy_ms", "waiting_ms", "blocked_ms", "step_ms"))


def test_steps_are_busy_and_the_rest_is_waiting() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now = 1.0
    meter.begin()
    clock.now = 1.25
    meter.end()
    clock.now = 2.0
    assert told(meter) == (250.0, 1750.0, 0.0, None)


def test_a_commit_while_nothing_is_taken_in_is_busy_and_the_rest_of_it_back_pressured() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.block()
    clock.now = 1.0
    meter.begin()
    clock.now = 1.5
    meter.end()
    clock.now = 2.0
    meter.unblock()
    clock.now = 4.0
    assert told(meter) == (500.0, 2000.0, 1500.0, None)


def test_a_step_that_lasts_is_told_while_it_lasts() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin()
    clock.now = 12.0
    assert told(meter) == (12_000.0, 0.0, 0.0, 12_000.0)


def test_a_reading_from_another_thread_is_never_less_than_nothing() -> None:
    clock = Clock()
    clock.now = 5.0
    meter = Meter(clock)
    meter.begin()
    clock.now = 4.0  # asked before the turn, and used after it
    assert told(meter) == (0.0, 0.0, 0.0, 0.0)


def test_a_turn_asks_the_clock_once() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(100):
        meter.begin()
        meter.end()
    assert clock.asked == 201


def test_nothing_is_awaited_within_a_step() -> None:
    """Or the time of others would count as work: between begin and end no line awaits."""
    assert awaits_within_steps(Path(task.__file__).read_text()) == []


@pytest.mark.parametrize(
    "body",
    ["self.meter.begin()\n  await x()\n  self.meter.end()", "self.meter.begin()\n  return"],
)
def test_an_await_within_a_step_is_seen(body: str) -> None:
    assert awaits_within_steps(f"async def f(self):\n  {body}\n")


def awaits_within_steps(source: str) -> list[str]:
    """By lines: `begin` opens a step, `end` closes it, and `_fetch` does so around its read."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.AsyncFunctionDef) or function.name == "_fetch":
            continue
        events = []
        for node in ast.walk(function):
            if isinstance(node, ast.Await):
                name = ast.unparse(node.value)
                if not name.startswith("self._fetch("):
                    events.append((node.lineno, "await", name))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.meter.begin":
                events.append((node.lineno, "begin", ""))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.meter.end":
                events.append((node.lineno, "end", ""))
        is_open = False
        for line, what, name in sorted(events):
            if what == "await" and is_open:
                found.append(f"{function.name}:{line} awaits {name} within a step")
            is_open = what == "begin" or (is_open and what != "end")
        if is_open:
            found.append(f"{function.name} ends within a step")
    return found
