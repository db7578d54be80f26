"""What a coordinator and its workers say to each other, as control entries of the log. Pure.

    worker       Hello     I am here, in this slot
                 Beat      I am alive; my tasks stand like this
                 Ended     a task of mine has stopped by itself, and why
                 Yielded   a task of mine has stopped, as it was told to
                 Goodbye   I am going, all my tasks have stopped
    coordinator  Assign    who runs what, as which instance, who keeps copies, the layout, and who
                           makes ready for which task of the next one; all of it, each time
                 Yield     commit what this task has done and stop it: it moves
                 Pulse     I am alive; the query stands like this
                 Leave     this worker is wanted no more
                 Finish    stop after the commit that is on its way
    anybody      Stop      please stop the query
                 Move      please run this task in that worker
                 Rescale   please run with so many workers
                 Balance   please let hot virtual nodes go to tasks that have less to do

Law: nothing rests on these being fast or read once: workers obey the newest Assign, and what a
worker may write is decided by its task's claim alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Final

from penstock.errors import BadFormat


@dataclass(frozen=True, slots=True)
class Hello:
    """`worker` is new with every attempt of Spark to run the slot."""

    worker: str
    slot: int
    host: str
    pid: int
    #: Larger with every attempt of Spark to run the slot, in one run of the query.
    attempt: int = 0
    #: What fails as a whole: workers of one executor say the same.
    executor: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    worker: str
    #: By task: what task.py reports.
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: By task of which it keeps a copy: what standby.py reports.
    standbys: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: By task of the next layout that it makes ready for, the same.
    successors: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    worker: str
    task: str
    instance: int
    #: Whether another instance may do better: the cause was not in the data or the code.
    is_retryable: bool
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Yielded:
    worker: str
    task: str
    instance: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    worker: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs, and as which instance."""

    worker: str
    instance: int


@dataclass(frozen=True, slots=True)
class Assign:
    number: int
    #: By task: (worker, instance).
    tasks: dict[str, list[Any]]
    #: By task: the workers that keep a copy of its state.
    standbys: dict[str, list[str]] = field(default_factory=dict)
    #: Which tasks have which virtual nodes (layout.py); empty: as the query was registered.
    layout: dict[str, Any] = field(default_factory=dict)
    #: The layout to come, and by task of it the worker that makes ready to run it; empty: none is.
    next_layout: dict[str, Any] = field(default_factory=dict)
    successors: dict[str, str] = field(default_factory=dict)

    def places(self) -> dict[str, Place]:
        return {
            task: Place(str(who), int(instance)) for task, (who, instance) in self.tasks.items()
        }


@dataclass(frozen=True, slots=True)
class Yield:
    task: str
    instance: int


@dataclass(frozen=True, slots=True)
class Pulse:
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The worker stops and says goodbye; it has no tasks any more."""

    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The workers stop and say goodbye."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request; the coordinator answers it with Finish."""

    who: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A request; the coordinator makes the worker a standby first, if it is none."""

    task: str
    worker: str
    who: str = ""


@dataclass(frozen=True, slots=True)
class Rescale:
    """A request; the coordinator starts or ends workers, and changes the layout."""

    workers: int
    who: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """A request; the coordinator changes the layout if that helps, and says why if not."""

    who: str = ""


Message = (
    Hello | Beat | Ended | Yielded | Goodbye | Assign | Yield | Pulse | Leave | Finish
    | Stop | Move | Rescale | Balance
)  # fmt: skip

_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__.lower(): kind
    for kind in (
        Hello, Beat, Ended, Yielded, Goodbye, Assign, Yield, Pulse, Leave, Finish,
        Stop, Move, Rescale, Balance,
    )
}  # fmt: skip


_PLAIN: Final[dict[str, type]] = {"str": str, "int": int, "bool": bool}


def encode_message(message: Message) -> bytes:
    values: dict[str, Any] = {"kind": type(message).__name__.lower()}
    values |= {field.name: getattr(message, field.name) for field in fields(message)}
    return json.dumps(values, separators=(",", ":")).encode()


def decode_message(payload: bytes) -> Message | None:
    """None for a kind that this version does not know: a newer one may speak of more."""
    try:
        values: Any = json.loads(payload)
        kind = _KINDS.get(values.pop("kind"))
        if kind is None:
            return None
        names = {field.name for field in fields(kind)}
        message: Message = kind(**{name: value for name, value in values.items() if name in names})
        _check(message)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"bytes that are no control message: {error}") from error
    return message


def _check(message: Message) -> None:
    """What is read later has the types that are promised."""
    for expected in fields(message):
        value = getattr(message, expected.name)
        is_none_allowed = expected.name == "progress"
        if type(value) is not _PLAIN.get(str(expected.type), dict) and not (
            is_none_allowed and value is None
        ):
            raise TypeError(f"{expected.name} is {value!r}")
    match message:
        case Beat(tasks=tasks, standbys=standbys, successors=copies):
            reports = (*tasks.values(), *standbys.values(), *copies.values())
            is_right = all(type(report) is dict for report in reports)
        case Assign(tasks=tasks, standbys=standbys, successors=successors):
            is_right = all([type(part) for part in place] == [str, int] for place in tasks.values())
            is_right &= all(
                type(workers) is list and all(type(worker) is str for worker in workers)
                for workers in standbys.values()
            )
            is_right &= all(type(worker) is str for worker in successors.values())
        case _:
            is_right = True
    if not is_right:
        raise TypeError("tasks of another shape")
