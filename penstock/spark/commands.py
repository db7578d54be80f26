"""Python functions out of the commands that pyspark made of them, in the driver that made them.

A command is a pickle. Spark ships one above 1 MiB as a broadcast, and the broadcast variables of a
function beside it. All of them are files of this driver, written by it for this plan: nothing that
comes from a log, a checkpoint or another program is ever unpickled here.

A broadcast variable becomes part of the function: the query ships it to its workers by value, in a
broadcast of its own (jobs.py), so it may be destroyed once the query runs.
"""

from __future__ import annotations

from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.core.broadcast import Broadcast, _broadcastRegistry
from pyspark.serializers import CPickleSerializer

T = TypeVar("T")


class Held(Broadcast[T]):
    """A broadcast variable whose value is at hand; to the user's function, a Broadcast."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._path = None  # type: ignore[assignment]
        self._jbroadcast = None

    def __reduce__(self) -> Any:
        return Held, (self._value,)


def load_pickle(pickled: bytes) -> Any:
    """What a worker of this driver made for this plan."""
    return CPickleSerializer().loads(bytes(pickled))


def load_command(context: Any, command: bytes, variables: Any) -> Any:
    """What the command is a pickle of; None if a broadcast variable of it was destroyed."""
    try:
        held = {each.id(): _hold(context, each) for each in variables}
    except Py4JJavaError:  # what Java says of a destroyed one
        return None
    before = {id: _broadcastRegistry[id] for id in held if id in _broadcastRegistry}
    _broadcastRegistry.update(held)
    try:
        loaded = CPickleSerializer().loads(bytes(command))
        return CPickleSerializer().loads(loaded.value) if isinstance(loaded, Held) else loaded
    finally:
        for id in held:
            del _broadcastRegistry[id]
        _broadcastRegistry.update(before)


def _hold(context: Any, variable: Any) -> Held[Any]:
    """The value of one of Java's broadcast variables, decrypted if Spark encrypts its files."""
    python_broadcast = variable.value()
    reader = Broadcast.__new__(Broadcast)
    reader._sc = context
    reader._python_broadcast = python_broadcast
    reader._path = python_broadcast.path()
    return Held(reader.value)
