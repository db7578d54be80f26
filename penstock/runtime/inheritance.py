"""The state that a task begins with when others ran its virtual nodes before: theirs, cut to its.

Each predecessor's state is built by itself, of the rows that the heir owns: what one of them
evicted says nothing about the others' rows. Then they are put together. State is kept by stage and
operator, so it does not matter in which tasks a stage ran before.

Law (I11): what an heir begins with is the union of its predecessors' states at their last markers,
restricted to its virtual nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.ops.chain import Chain
from penstock.protocol.markers import Marker, Origin
from penstock.protocol.names import parse_task
from penstock.runtime.spec import QuerySpec
from penstock.state.api import Change
from penstock.state.memory import MemoryState
from penstock.state.room import Room


class Predecessor:
    """A task that has an heir: what the heir needs of its state, as a StateCopy builds it."""

    def __init__(
        self, spec: QuerySpec, origin: Origin, wanted: frozenset[int], room: Room | None = None
    ) -> None:
        self._spec = spec
        self._heirs = wanted
        self._nodes = nodes = origin.nodes & wanted
        self.task = parse_task(origin.task)
        self.stages = origin.stages
        self.state = MemoryState(nodes, room)
        Chain([spec.query.stages[id] for id in origin.stages], self.state, spec.statics)

    @property
    def wanted(self) -> Collection[int]:
        """The virtual nodes that count."""
        return self._nodes

    def restored(self, changes: Sequence[Change], size: int) -> None:
        self.state.apply(changes, self._nodes)

    def passed(self, marker: Marker) -> None:
        """It is on its way to a marker that is long past."""

    def predecessor(self, origin: Origin) -> Predecessor:
        """One of its own, for the same heir.

        With all that the heir may need of it: others may have had more of what it left than this
        one, which takes in rows of its own virtual nodes alone.
        """
        return Predecessor(self._spec, origin, self._heirs, self.state.room)


@dataclass(slots=True)
class Left:
    """The single values that a predecessor leaves, by the names that an heir has for them."""

    #: The stages that ran in it.
    stages: Sequence[int]
    values: dict[str, int] = field(default_factory=dict)

    def take(self, change: Change, stages: Sequence[int]) -> Change | None:
        """A change of the predecessor as one of an heir with these stages; None: it is none.

        A value is kept here: what it is for the heir, all predecessors decide.
        """
        name = _renamed(change.name, self.stages, stages)
        if name is None:
            return None
        if change.kind == "set":
            self.values[name] = change.rows.column(0)[0].as_py()
            return None
        return Change(name, change.kind, change.rows.replace_schema_metadata(None))


def inherited(
    state: MemoryState, stages: Sequence[int], predecessors: Sequence[Predecessor]
) -> Iterator[Change]:
    """What is to be applied to the state of an heir in which these stages run."""
    left = [Left(one.stages) for one in predecessors]
    for one, values in zip(predecessors, left, strict=True):
        for change in one.state.freeze():
            taken = values.take(change, stages)
            if taken is not None:
                yield taken
    yield from decided(state, stages, left)


def decided(state: MemoryState, stages: Sequence[int], left: Sequence[Left]) -> Iterator[Change]:
    """The single values of an heir of all who left these."""
    for name in sorted({name for one in left for name in one.values}):
        found = [one.values[name] for one in left if name in one.values]
        if state.is_largest(name):
            yield _set(name, max(found))
        elif len(found) == sum(_has(name, one.stages, stages) for one in left):
            yield _set(name, min(found))


def _set(name: str, value: int) -> Change:
    return Change(name, "set", pa.record_batch([pa.array([value], pa.int64())], names=["value"]))


def _renamed(name: str, was: Sequence[int], stages: Sequence[int]) -> str | None:
    """Where the heir keeps what a predecessor kept there (ops/chain.py); None: nowhere."""
    stage, rest = _stage_of(name, was)
    if stage not in stages:
        return None
    return rest if stage == stages[-1] else f"stage-{stage}/{rest}"


def _has(name: str, was: Sequence[int], stages: Sequence[int]) -> bool:
    """Whether a predecessor ran the stage of an heir's part."""
    return _stage_of(name, stages)[0] in was


def _stage_of(name: str, stages: Sequence[int]) -> tuple[int, str]:
    """The stage of a part, and its name within it."""
    for stage in stages[:-1]:
        prefix = f"stage-{stage}/"
        if name.startswith(prefix):
            return stage, name.removeprefix(prefix)
    return stages[-1], name
