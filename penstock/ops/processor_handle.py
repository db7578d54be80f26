"""The handle that a StatefulProcessor is given: pyspark's own interfaces over our tables.

The user's processor gets a StatefulProcessorHandle, ValueState, ListState and MapState, and cannot
tell them from Spark's. Values are kept as java_values.py makes them, which is what Spark would have
kept of them: a value of another type than declared is null.

Time to live is in processing time, per value, per element of a list, per entry of a map. A value
whose time is over is not shown any more, and is deleted some time later. Timers expire by time, and
at one time in ascending order of their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.streaming.stateful_processor_api_client import _load_numpy, _normalize_state_value
from pyspark.sql.types import Row, StructType

from penstock.errors import EvaluationFailed
from penstock.ops.java_values import from_python, stored_type
from penstock.ops.processor_state import VALUE, PerEntry, PerKey, Round, order_of
from penstock.plan.nodes import TimeMode
from penstock.state.api import State, Table
from penstock.state.keys import key_objects
from penstock.stream.ddl import parse_ddl

_EXPIRES: Final = "expires_ms"


class Handle(StatefulProcessorHandle):
    """The state variables and timers of one processor in one task."""

    def __init__(self, state: State, round: Round, time_mode: TimeMode) -> None:
        self._state = state
        self._round = round
        self._time_mode = time_mode
        self._variables: dict[str, _Variable] = {}
        self._is_open = True
        self.timers = Timers(self._table("timers", pa.int64(), pa.int64()), round)

    def close_variables(self) -> None:
        """Called after init: from here on, no state variable can be declared."""
        self._is_open = False

    def flush(self) -> None:
        """The round has ended."""
        for variable in self._variables.values():
            variable.kept.flush()
        self.timers.flush()

    def sweep(self, now_ms: int) -> None:
        """Delete expired values. Called often, it looks at the tables only now and then."""
        self._round.now_ms = now_ms
        for variable in self._variables.values():
            variable.sweep(now_ms)

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        cell = self._cell(schema, ttlDurationMs)
        table = self._declare(stateName, "value", None, cell.type)
        return self._add(stateName, _Value(cell, PerKey(table, self._round)))

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        cell = self._cell(schema, ttlDurationMs)
        table = self._declare(stateName, "list", None, pa.list_(cell.type))
        return self._add(stateName, _List(cell, PerKey(table, self._round)))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        key, cell = Codec(userKeySchema), self._cell(valueSchema, ttlDurationMs)
        table = self._declare(stateName, "map", key.type, cell.type)
        return self._add(stateName, _Map(key, cell, PerEntry(table, self._round, key.type)))

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a variable. One that only earlier versions declared is forgotten anyway."""
        variable = self._variables.get(stateName)
        if variable is not None:
            variable.kept.sweep(lambda value: False)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers()
        self.timers.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers()
        self.timers.remove(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        self._check_timers()
        return iter(self.timers.of_key())

    def _check_timers(self) -> None:
        if self._time_mode == "none":
            raise ValueError("timers need timeMode ProcessingTime or EventTime")

    def _cell(self, schema: StructType | str, ttl_ms: int | None) -> _Cell:
        if ttl_ms is not None and self._time_mode != "processingtime":
            raise ValueError("a time to live needs timeMode ProcessingTime")
        if ttl_ms is not None and ttl_ms <= 0:
            raise ValueError("a time to live must be positive")
        return _Cell(Codec(schema), ttl_ms, self._round)

    def _declare(
        self, name: str, kind: str, entry: pa.DataType | None, value: pa.DataType
    ) -> Table:
        if not self._is_open:
            raise ValueError("state variables can be declared in init only")
        if name in self._variables:
            raise ValueError(f"state variable {name} is declared twice")
        return self._table(f"{kind}-{name}", entry, value)

    def _table(self, name: str, entry: pa.DataType | None, value: pa.DataType) -> Table:
        keys = self._round.schema
        if entry is not None:
            keys = keys.append(pa.field("entry", entry))
        return self._state.table(name, keys, {VALUE: value}, self._round.placed)

    def _add(self, name: str, variable: Any) -> Any:
        self._variables[name] = variable
        return variable


class Codec:
    """Values of one declared schema: as the user has them, and as they are kept."""

    def __init__(self, schema: StructType | str) -> None:
        arrow = (
            parse_ddl(schema)
            if isinstance(schema, str)
            else to_arrow_schema(schema, timezone="UTC")
        )
        kind = pa.struct(list(arrow))
        self.type = stored_type(kind)
        self._spark = from_arrow_schema(arrow) if isinstance(schema, str) else schema
        self._keep = from_python(kind)
        self._show = _shown(self.type)
        _load_numpy()

    def keep(self, value: Iterable[object]) -> object:
        plain = tuple(map(_normalize_state_value, value))
        try:
            return self._keep(self._spark.toInternal(plain))
        except EvaluationFailed as error:  # to the processor it is an error of its call
            raise ValueError(str(error)) from error

    def show(self, kept: object) -> Row:
        return self._spark.fromInternal(self._show(kept))


def _shown(kind: pa.DataType) -> Callable[[Any], Any]:
    """From kept values to Spark's internal ones: tuples for structs, dictionaries for maps."""
    if pt.is_struct(kind):
        fields = [(field.name, _shown(field.type)) for field in kind.fields]
        return lambda kept: (
            None if kept is None else tuple(show(kept[name]) for name, show in fields)
        )
    if pt.is_list(kind):
        element = _shown(kind.value_type)
        return lambda kept: None if kept is None else [element(item) for item in kept]
    if pt.is_map(kind):
        key, item = _shown(kind.key_type), _shown(kind.item_type)
        return lambda kept: None if kept is None else {key(k): item(v) for k, v in kept}
    return lambda kept: kept


class _Cell:
    """A kept value, and when it expires if the variable has a time to live."""

    def __init__(self, codec: Codec, ttl_ms: int | None, round: Round) -> None:
        self._codec = codec
        self.ttl_ms = ttl_ms
        self._round = round
        self.type = codec.type
        if ttl_ms is not None:
            self.type = pa.struct([(VALUE, codec.type), (_EXPIRES, pa.int64())])

    def keep(self, value: Iterable[object]) -> object:
        kept = self._codec.keep(value)
        if self.ttl_ms is None:
            return kept
        return {VALUE: kept, _EXPIRES: self._round.now_ms + self.ttl_ms}

    def is_alive(self, kept: Any) -> bool:
        return kept is not None and (self.ttl_ms is None or self._round.now_ms < kept[_EXPIRES])

    def show(self, kept: Any) -> Row:
        return self._codec.show(kept if self.ttl_ms is None else kept[VALUE])


class _Variable:
    """What all state variables have: where their values are kept, and for how long."""

    def __init__(self, cell: _Cell, kept: PerKey | PerEntry) -> None:
        self._cell = cell
        self.kept = kept
        self._swept_ms: int | None = None

    def sweep(self, now_ms: int) -> None:
        """Looks at the whole table, but at most once per time to live."""
        ttl_ms = self._cell.ttl_ms
        if ttl_ms is None or (self._swept_ms is not None and now_ms - self._swept_ms < ttl_ms):
            return
        self._swept_ms = now_ms
        self.kept.sweep(self._is_alive)

    def _is_alive(self, kept: Any) -> bool:
        return self._cell.is_alive(kept)


class _Value(_Variable, ValueState):
    """One value per key."""

    kept: PerKey

    def exists(self) -> bool:
        return self._cell.is_alive(self.kept.read())

    def get(self) -> tuple[Any, ...] | None:
        kept = self.kept.read()
        return tuple(self._cell.show(kept)) if self._cell.is_alive(kept) else None

    def update(self, newValue: tuple[Any, ...]) -> None:
        self.kept.write(self._cell.keep(newValue))

    def clear(self) -> None:
        self.kept.write(None)


class _List(_Variable, ListState):
    """A list of values per key; an empty one does not exist."""

    kept: PerKey

    def _alive(self) -> list[Any]:
        return [item for item in self.kept.read() or () if self._cell.is_alive(item)]

    def _is_alive(self, kept: Any) -> bool:
        return any(map(self._cell.is_alive, kept))

    def exists(self) -> bool:
        return bool(self._alive())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._cell.show(item)) for item in self._alive()])

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self.kept.write(self._keep(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self.kept.write([*self._alive(), self._cell.keep(newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self.kept.write([*self._alive(), *self._keep(newState)])

    def _keep(self, values: list[tuple[Any, ...]]) -> list[object]:
        kept = [self._cell.keep(value) for value in values]
        if not kept:
            raise ValueError("an empty list cannot be kept: call clear() instead")
        return kept

    def clear(self) -> None:
        self.kept.write(None)


class _Map(_Variable, MapState):
    """A map per key, one table row per entry."""

    kept: PerEntry

    def __init__(self, key: Codec, cell: _Cell, kept: PerEntry) -> None:
        super().__init__(cell, kept)
        self._key = key

    def _find(self, key: tuple[Any, ...]) -> Any:
        (kept,) = self.kept.read([self._key.keep(key)])
        return kept if self._cell.is_alive(kept) else None

    def _pairs(self) -> list[tuple[Any, Any]]:
        entries = self.kept.entries()
        pairs = zip(entries, self.kept.read(entries), strict=True)
        return [(entry, value) for entry, value in pairs if self._cell.is_alive(value)]

    def exists(self) -> bool:
        return bool(self._pairs())

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        kept = self._find(key)
        return None if kept is None else self._cell.show(kept)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._find(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self.kept.write(self._key.keep(key), self._cell.keep(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter(
            [
                (tuple(self._key.show(entry)), tuple(self._cell.show(value)))
                for entry, value in self._pairs()
            ]
        )

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self.kept.write(self._key.keep(key), None)

    def clear(self) -> None:
        for entry in self.kept.entries():
            self.kept.write(entry, None)


class Timers:
    """Times at which keys want to be woken; in processing time or in event time."""

    def __init__(self, table: Table, round: Round) -> None:
        self._table = table
        self._entries = PerEntry(table, round, pa.int64())
        #: No timer expires before it, as long as the table has as many rows as it had then.
        self._earliest_ms: int | None = None
        self._counted = -1

    def add(self, time_ms: int) -> None:
        self._entries.write(time_ms, time_ms)
        self._counted = -1

    def remove(self, time_ms: int) -> None:
        self._entries.write(time_ms, None)
        self._counted = -1

    def flush(self) -> None:
        """The round has ended."""
        self._entries.flush()

    def of_key(self) -> list[int]:
        """The timers of the current key, in order."""
        return self._entries.entries()

    def expired(self, now_ms: int) -> tuple[list[pa.Array], list[int]]:
        """The keys of timers that expired by now, and their times; earlier ones first."""
        if self._counted == len(self._table) and (
            self._earliest_ms is None or self._earliest_ms > now_ms
        ):
            return [], []
        slots = self._table.slots()
        times = self._table.read(VALUE, slots).astype(np.int64)
        later = times[times > now_ms]
        self._earliest_ms = int(later.min()) if len(later) else None
        self._counted = len(self._table)
        due = np.flatnonzero(times <= now_ms)
        if not len(due):
            return [], []
        *keys, _ = self._table.keys(slots[due])
        objects = key_objects(keys, len(due))
        due_ms = times[due].tolist()
        order = sorted(range(len(due)), key=lambda i: (due_ms[i], order_of(objects[i])))
        places = pa.array(order, pa.int64())
        return [key.take(places) for key in keys], [due_ms[i] for i in order]
