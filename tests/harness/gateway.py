"""Names of Java's classes, asked for once: py4j asks Java for each part of each name, each time.

For a part that is a package, Java looks for a class of that name in every one of Spark's 280 jars,
a millisecond's work, before it says so. Law: only what a name stands for is remembered, a package,
a class or a static method. Values are asked for anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def remember_names() -> None:
    """From now on. Only once all that is imported under short names has been."""
    from py4j import java_gateway as py4j

    names = (py4j.JavaPackage, py4j.JavaClass, py4j.JavaMember)
    for kind in (py4j.JVMView, py4j.JavaPackage, py4j.JavaClass):
        kind.__getattr__ = _remembering(kind.__getattr__, names)


def _remembering(
    ask: Callable[[Any, str], Any], names: tuple[type, ...]
) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        answer = ask(self, name)
        if isinstance(answer, names):
            self.__dict__[name] = answer  # where Python looks before it asks again
        return answer

    return answer
