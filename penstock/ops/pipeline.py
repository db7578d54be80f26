"""One stage at work in one task: a tree of operators, fed at its leaves.

Rows pushed into a leaf flow to the root before push returns. Watermarks move when `advance` is
called, children before parents, and what an operator emits because time passed flows on before its
parent is told of that time: a window closed below is counted above before the one above closes.

Rows that fail in an operator which looks at each by itself can be set aside, if somebody wants to
hear of them: the others go on. A row that is taken back fails as it did when it was given, and goes
the same way, so what is shown is what it would be had the row never been made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.ops.api import END_MS, START_MS, Delta, OnLate, Operator, ignore_late, no_clock
from penstock.ops.bad_rows import set_bad_rows_aside
from penstock.ops.build import build_operator
from penstock.ops.narrow import build_narrow
from penstock.ops.watermarks import WatermarkOperator
from penstock.plan import nodes as n
from penstock.plan.changes import is_static
from penstock.plan.nodes import StageInput
from penstock.plan.stages import required_keys
from penstock.state.api import State, Value

#: Told of a row that was set aside, and of its error.
OnBad = Callable[[Delta, Exception], None]
_ROW_BY_ROW = (
    n.Project,
    n.Filter,
    n.Expand,
    n.Generate,
    n.PythonEval,
    n.MapBatches,
    n.TableFunction,
)


@dataclass(slots=True)
class _Place:
    """An operator in the tree."""

    node: n.Node
    operator: Operator | None
    parent: _Place | None
    port: int
    children: list[_Place] = field(default_factory=list)
    #: The children that a stream feeds.
    streams: list[_Place] = field(default_factory=list)
    #: The operator, if it tells the time; and whether it does anything when time passes.
    clock: WatermarkOperator | None = None
    minds_time: bool = False
    #: How much later than its input's its output's time is.
    lag_ms: int = 0
    watermark_ms: int | None = None
    #: The last watermark that the operator was told, if it keeps anything: survives a restart.
    told: Value | None = None
    #: Whether no stream below has had rows for so long that none of them holds back time.
    is_idle: bool = False


class Pipeline:
    """The operators of one stage in one task."""

    def __init__(
        self,
        root: n.Node,
        state: State,
        statics: Mapping[int, pa.Table],
        on_late: OnLate = ignore_late,
        now_ms: Callable[[], int] = no_clock,
        on_bad: OnBad | None = None,
    ) -> None:
        self._on_bad = on_bad
        self._state = state
        self._statics = statics
        self._on_late = on_late
        self._now_ms = now_ms
        self._out: list[Delta] = []
        self._count = 0
        #: The leaves that are streams, from left to right.
        self._leaves: list[_Place] = []
        self._clocks: list[WatermarkOperator] = []
        self._root = self._build(root, None, 0)
        #: What the stage's output may still bring; None if nothing in it tells the time.
        self.watermark_ms: int | None = None
        #: Whether all of its leaves have stepped aside.
        self.is_idle = False
        #: Whether its time is that of its leaves alone; and what was told of them last.
        self._only_told = not any(_tells(place) for place in _walk(self._root))
        self._told: tuple[list[int | None], frozenset[int]] | None = None

    def _build(self, node: n.Node, parent: _Place | None, port: int) -> _Place:
        place = _Place(node, None, parent, port)
        id, self._count = self._count, self._count + 1
        if isinstance(node, n.Scan | StageInput):
            self._leaves.append(place)
            return place
        state = self._state.within(str(id))
        below = node.children
        if isinstance(node, n.Project) and isinstance(node.child, n.Filter):
            place.operator = build_narrow(node, node.child)
        if place.operator is not None:
            # The filter is in it; it has its number all the same, since state is named by them.
            self._count += 1
            below = below[0].children
        else:
            place.operator = build_operator(node, state, self._statics, self._on_late, self._now_ms)
        place.minds_time = _minds_time(place.operator)
        if isinstance(place.operator, WatermarkOperator):
            place.clock = place.operator
            self._clocks.append(place.operator)
        if isinstance(node, n.Join):
            place.lag_ms = node.lag_ms
        if required_keys(node) is not None:
            place.told = state.value("watermark_ms")
        place.children = [self._build(child, place, index) for index, child in enumerate(below)]
        place.streams = [child for child in place.children if not is_static(child.node)]
        return place

    def start(self) -> list[Delta]:
        """The stage's output before any input, such as a count of 0; once in a query's life.

        Parents first: a child's output changes what its parent has shown already.
        """
        self._out = []
        self._start(self._root)
        for clock in self._clocks:
            clock.settle(is_done=True)
        return self._out

    def _start(self, place: _Place) -> None:
        if place.operator is not None:
            self._send(place, place.operator.on_start())
        shows_static = isinstance(place.node, n.Union) or is_static(place.node)
        for child in place.children:
            if shows_static or not is_static(child.node):  # others have a static table at hand
                self._start(child)

    def push(self, leaf: int, delta: Delta) -> list[Delta]:
        """Rows for a leaf, by its position in Stage.inputs; returns the stage's output.

        If it fails, these rows have not moved time.
        """
        self._out = []
        is_done = False
        try:
            self._send(self._leaves[leaf], [delta])
            is_done = True
        finally:
            for clock in self._clocks:
                clock.settle(is_done=is_done)
        return self._out

    def _send(self, place: _Place, deltas: list[Delta]) -> None:
        if not deltas:
            return
        parent = place.parent
        if parent is None:
            self._out += deltas
            return
        for delta in deltas:
            if len(delta):
                self._send(parent, self._apply(parent, place.port, delta))

    def _apply(self, place: _Place, port: int, delta: Delta) -> list[Delta]:
        operator = place.operator
        assert operator is not None
        try:
            return operator.on_batch(port, delta)
        except Exception:
            if self._on_bad is None or not isinstance(place.node, _ROW_BY_ROW):
                raise
        good, bad = set_bad_rows_aside(delta, lambda rows: operator.on_batch(port, rows))
        for row, error in bad:
            self._on_bad(row, error)
        return operator.on_batch(port, good) if len(good) else []

    def advance(
        self, watermarks: Mapping[int, int | None], idle: frozenset[int] = frozenset()
    ) -> list[Delta]:
        """Time passed at the leaves (None: this leaf says nothing of time); returns the output.

        Idle leaves step aside: the others' time counts, and the latest if all are idle. When one
        speaks again, or after a restart, time does not go back, and rows that are older are late.
        """
        self._out = []
        told = [watermarks.get(position) for position, _ in enumerate(self._leaves)], idle
        if self._only_told and told == self._told:
            return self._out
        self._told = told
        for position, leaf in enumerate(self._leaves):
            leaf.watermark_ms = watermarks.get(position)
            leaf.is_idle = position in idle
        self._advance(self._root)
        self.watermark_ms = _output_ms(self._root)
        self.is_idle = self._root.is_idle
        return self._out

    def _advance(self, place: _Place) -> None:
        if place.operator is None:
            return
        for child in place.children:
            self._advance(child)
        if len(place.streams) == 1:
            (child,) = place.streams
            place.is_idle, watermark = child.is_idle, _output_ms(child)
        else:
            place.is_idle = bool(place.streams) and all(child.is_idle for child in place.streams)
            watermark = _input_ms(place)
        if place.clock is not None:
            place.watermark_ms = place.clock.advance(watermark)
            return
        if place.watermark_ms is None and place.told is not None:
            both = (watermark, place.told.get())
            watermark = max((ms for ms in both if ms is not None), default=None)
        before = place.watermark_ms
        if watermark is not None and (before is None or watermark > before):
            place.watermark_ms = watermark
            if watermark != START_MS:
                if place.told is not None:
                    place.told.set(watermark)
                if place.minds_time:
                    self._send(place, place.operator.on_watermark(watermark))
        if place.minds_time:
            self._send(place, place.operator.on_time())


def _walk(place: _Place) -> Iterator[_Place]:
    yield place
    for child in place.children:
        yield from _walk(child)


def _tells(place: _Place) -> bool:
    """Whether the operator may have something to say when its inputs' time has not moved."""
    operator = place.operator
    if operator is None:
        return False
    return isinstance(operator, WatermarkOperator) or type(operator).on_time is not Operator.on_time


def _minds_time(operator: Operator) -> bool:
    kind = type(operator)
    return not (kind.on_watermark is Operator.on_watermark and kind.on_time is Operator.on_time)


def _input_ms(place: _Place) -> int | None:
    """The time of all inputs together: that of the slowest which has not stepped aside.

    If all have, none holds the others back, and the latest time that one of them told counts.
    Otherwise a time that is told just as its stream falls silent would wait for a row that may
    never come.
    """
    awake = [child for child in place.streams if not child.is_idle]
    times = [ms for child in awake or place.streams if (ms := _output_ms(child)) is not None]
    return (min if awake else max)(times, default=None)


def _output_ms(place: _Place) -> int | None:
    """No row at or below this event time comes out of the place any more."""
    watermark = place.watermark_ms
    if not place.lag_ms or watermark is None or watermark in (START_MS, END_MS):
        return watermark
    return watermark - place.lag_ms
