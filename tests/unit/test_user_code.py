"""What a Python function in a plan is known by: its code, and all that the code refers to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import harness.user_code
import pytest
from harness.user_code import _read
from pyspark import cloudpickle

import penstock.errors


def function(called: Callable[..., Any], kind: str = "PythonUDF", shared: int = 0) -> Any:
    """A node of a plan, as Spark would have it."""
    command = SimpleNamespace(unsafeArray=lambda: cloudpickle.dumps((called, "int")))
    variables = SimpleNamespace(isEmpty=lambda: not shared)
    held = SimpleNamespace(command=lambda: command, broadcastVars=lambda: variables)
    return SimpleNamespace(nodeName=lambda: kind, func=lambda: held)


def added(number: int) -> Callable[[int], int]:
    return lambda value: value + number


def test_the_same_code_is_the_same_and_what_it_refers_to_counts() -> None:
    assert _read(function(added(1))) == _read(function(added(1)))
    assert _read(function(added(1))) != _read(function(added(2)))
    assert _read(function(lambda value: value)) != _read(function(lambda value: -value))


def test_a_class_is_the_same_though_its_pickle_has_a_number_that_was_drawn() -> None:
    def made() -> type:
        class Counter:
            def count(self) -> int:
                return 3

        return Counter

    assert cloudpickle.dumps(made()) != cloudpickle.dumps(made())
    assert _read(function(made())) == _read(function(made()))


def test_where_the_checkout_is_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(root: str) -> str | None:
        called = added(1)
        called.__code__ = called.__code__.replace(co_filename=f"{root}/tests/test_x.py")
        monkeypatch.setattr(harness.user_code, "_ROOT", root)
        return _read(function(called))

    assert placed("/short") == placed("/much/longer" * 30) is not None


def test_code_that_cannot_be_known_is_not() -> None:
    assert _read(function(lambda value: penstock.errors.Unsupported(value))) is None
    assert _read(function(added(1), shared=1)) is None
    assert _read(function(added(1), kind="PythonUDXF")) is None
