"""What Python functions in a plan of Spark's are known by: what Spark hands to its workers.

That is a pickle of the function with all that it refers to, by value if it is of a test, and by
name if it is of a library, whose version then counts. Law: code that a plan has but does not show,
or that refers by name to code of this repository, is not known. Where the checkout is does not
count, nor do numbers that cloudpickle draws.
"""

from __future__ import annotations

import pickletools
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_ROOT: Final = str(Path(__file__).parents[2])
_LIBRARIES: Final = ("numpy", "pandas", "pyarrow", "protobuf")
_OURS: Final = ("penstock", "penstock_bench", "harness")
#: Nodes that call one function each, and what a function is.
_CALLS: Final = re.compile(r"\w*(InPandas|InArrow|TransformWithState\w*)")
_DRAWN: Final = re.compile(r"\b[0-9a-f]{32}\b")


def code_of(plan: Any) -> bytes | None:
    """All code in a plan, or None if it cannot be known."""
    told = [platform.python_version(), *(version(name) for name in _LIBRARIES)]
    for node in _walk(plan):
        functions = [
            inner
            for expression in _seq(node.expressions())
            for inner in _walk(expression)
            if inner.nodeName().startswith("PythonUD")
        ]
        if _CALLS.fullmatch(node.nodeName()) and not functions:
            return None
        for function in functions:
            read = _read(function)
            if read is None:
                return None
            told.append(read)
    return "\0".join(told).encode()


def _read(function: Any) -> str | None:
    if function.nodeName() not in ("PythonUDF", "PythonUDAF", "PythonUDTF"):
        return None
    if not function.func().broadcastVars().isEmpty():
        return None
    parts = []
    for opcode, argument, _ in pickletools.genops(bytes(function.func().command().unsafeArray())):
        name = opcode.name.removeprefix("SHORT_")
        if name == "FRAME":  # how long; like SHORT, this depends on where the checkout is
            continue
        if isinstance(argument, str):
            if argument.partition(".")[0] in _OURS:
                return None
            argument = _DRAWN.sub("", argument.replace(_ROOT, ""))
        parts.append(f"{name} {argument!r}")
    return "\n".join(parts)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _seq(node.children()):
        yield from _walk(child)


def _seq(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.length())]
