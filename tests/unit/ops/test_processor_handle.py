"""A processor's state variables against plain dictionaries, restored between any two rounds."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.ops.processor_handle import Handle
from penstock.ops.processor_state import Round
from penstock.state.memory import MemoryState

SCHEMA = pa.schema([("k", pa.string()), ("g", pa.int64())])
NAMES = [("a", 1), ("a", None), (None, 1), ("b", 2), ("", 0)]
ENTRIES = [(1, "x"), (1, None), (None, "x"), (-5, ""), (7, "ü")]


class _Processor:
    """A handle, and what a processor would declare with it."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.round = Round(SCHEMA, (0,))
        self.handle = Handle(self.state, self.round, "processingtime")
        self.value = self.handle.getValueState("value", "n bigint, s string")
        self.list = self.handle.getListState("list", "n bigint")
        self.map = self.handle.getMapState("map", "n bigint, s string", "n bigint")


class _Model:
    """What one key should have."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.list: list[tuple[int]] = []
        self.map: dict[tuple[Any, ...], tuple[int]] = {}
        self.timers: set[int] = set()


def _change(rng: random.Random, processor: _Processor, model: _Model) -> None:
    n = rng.randrange(100)
    match rng.randrange(10):
        case 0:
            processor.value.update((n, None))
            model.value = (n, None)
        case 1:
            processor.value.clear()
            model.value = None
        case 2:
            processor.list.put([(n,), (n + 1,)])
            model.list = [(n,), (n + 1,)]
        case 3:
            processor.list.appendValue((n,))
            model.list = [*model.list, (n,)]
        case 4:
            processor.list.clear()
            model.list = []
        case 5 | 6:
            entry = rng.choice(ENTRIES)
            processor.map.updateValue(entry, (n,))
            model.map[entry] = (n,)
        case 7:
            entry = rng.choice(ENTRIES)
            processor.map.removeKey(entry)
            model.map.pop(entry, None)
        case 8:
            processor.handle.registerTimer(n)
            model.timers.add(n)
        case 9 if rng.random() < 0.3:
            processor.map.clear()
            model.map = {}
        case _:
            processor.handle.deleteTimer(n)
            model.timers.discard(n)


def _check(processor: _Processor, model: _Model) -> None:
    assert processor.value.get() == model.value
    assert processor.value.exists() == (model.value is not None)
    assert list(processor.list.get()) == model.list
    assert dict(processor.map.iterator()) == model.map
    assert sorted(map(repr, processor.map.keys())) == sorted(map(repr, model.map))
    for entry in ENTRIES:
        assert processor.map.containsKey(entry) == (entry in model.map)
    assert list(processor.handle.listTimers()) == sorted(model.timers)


def _restored(processor: _Processor, history: list[Any], *, by_changes: bool) -> _Processor:
    history.append(processor.state.take_changes())
    other = _Processor()
    if by_changes:
        for changes in history:
            for of_node in changes.values():
                other.state.apply(of_node)
    else:
        other.state.restore(processor.state.snapshot())
    return other


@pytest.mark.parametrize("seed", range(6))
def test_state_variables_are_dictionaries_that_survive(seed: int) -> None:
    rng = random.Random(seed)
    processor, models = _Processor(), {name: _Model() for name in NAMES}
    history: list[Any] = []
    for _ in range(30):
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        keys = [
            pa.array([name[0] for name in names], pa.string()),
            pa.array([name[1] for name in names], pa.int64()),
        ]
        processor.round.begin(keys, now_ms=0)
        for place, name in enumerate(names):
            processor.round.place = place
            _check(processor, models[name])
            for _ in range(rng.randrange(6)):
                _change(rng, processor, models[name])
            _check(processor, models[name])
        processor.handle.flush()
        if rng.random() < 0.5:
            processor = _restored(processor, history, by_changes=rng.random() < 0.5)


def test_timers_expire_in_order_of_time_then_key() -> None:
    processor = _Processor()
    keys = [pa.array(["b", "a"]), pa.array([1, 1], pa.int64())]
    processor.round.begin(keys, now_ms=0)
    for place, times in enumerate([(20, 10, 99), (20,)]):
        processor.round.place = place
        for time_ms in times:
            processor.handle.registerTimer(time_ms)
    processor.handle.flush()

    names, times_ms = processor.handle.timers.expired(20)
    assert (names[0].to_pylist(), times_ms) == (["b", "a", "b"], [10, 20, 20])
    assert processor.handle.timers.expired(9) == ([], [])


def test_keys_of_a_map_come_in_order() -> None:
    processor = _Processor()
    processor.round.begin([pa.array(["a"]), pa.array([1], pa.int64())], now_ms=0)
    for entry in ENTRIES:
        processor.map.updateValue(entry, (0,))

    assert list(processor.map.keys()) == [(None, "x"), (-5, ""), (1, None), (1, "x"), (7, "ü")]
