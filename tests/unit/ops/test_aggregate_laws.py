"""The laws of aggregates/api.py, for every function: chunking changes nothing, rows come undone."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.ops import aggregates
from penstock.ops.aggregates.api import AGGREGATES, Accumulator, Buffers
from penstock.plan.exprs import Column, Literal
from penstock.plan.nodes import AggregateCall

aggregates.load()
_GROUPS = 4
_INT, _FLOAT, _TEXT = pa.int64(), pa.float64(), pa.string()
_DECIMAL, _PAIR = pa.decimal128(10, 2), pa.struct([("p", pa.int64()), ("q", pa.string())])
_VALUES: dict[pa.DataType, list[Any]] = {
    _INT: [None, -(2**40), -1, 0, 7, 2**40],
    _FLOAT: [None, -0.0, 0.1, 1e9, -3.3, float("nan"), float("inf")],
    _TEXT: [None, "", "a", "ä", "𝄞"],
    _DECIMAL: [None, Decimal("1.10"), Decimal("-99999999.99")],
    _PAIR: [None, {"p": 1, "q": None}, {"p": None, "q": "x"}, {"p": 1, "q": "y"}],
}


def _call(name: str, *types: pa.DataType, result: pa.DataType = _FLOAT, **options: Any) -> Any:
    args = tuple(Column(f"c{place}", kind) for place, kind in enumerate(types))
    return AggregateCall(name, args, result, options=tuple(options.items()))


def _with(call: AggregateCall, *constants: pa.Scalar) -> AggregateCall:
    args = call.args + tuple(Literal(value) for value in constants)
    return AggregateCall(call.function, args, call.type, options=call.options)


_HALF, _COMMA = pa.scalar(0.5), pa.scalar(",")
_NUMBERS = ("VariancePop", "StddevSamp", "RegrReplacement", "Skewness", "Kurtosis")
_LINES = ("CovPopulation", "CovSample", "Corr", "RegrR2", "RegrSlope", "RegrIntercept", "RegrSXY")
CALLS = [
    _call("Count", _INT, _TEXT, result=_INT),
    *(_call("Sum", kind, result=kind) for kind in (_INT, _FLOAT)),
    _call("Sum", _DECIMAL, result=pa.decimal128(20, 2)),
    *(_call("Average", kind) for kind in (_INT, _FLOAT)),
    *(_call(name, kind, result=kind) for name in ("Min", "Max") for kind in _VALUES),
    *(_call(name, _PAIR, result=_PAIR, ignoreNulls=True) for name in ("First", "Last")),
    *(_call(name, _TEXT, _PAIR, result=_TEXT) for name in ("MaxBy", "MinBy")),
    _with(_call("MaxMinByK", _TEXT, _FLOAT, result=pa.list_(_TEXT), reverse=False), pa.scalar(2)),
    *(_call(name, _INT, result=_INT) for name in ("bit_and", "bit_or", "bit_xor")),
    _call("CollectList", _PAIR, result=pa.list_(_PAIR), ignoreNulls=False),
    _with(_call("ListAgg", _TEXT, result=_TEXT), _COMMA),
    *(_call("Mode", kind, result=kind) for kind in (_INT, _FLOAT, _TEXT)),
    *(
        _with(_call(name, kind), _HALF)
        for name in ("Percentile", "PercentileDisc")
        for kind in (_INT, _FLOAT)
    ),
    *(_call(name, _FLOAT) for name in _NUMBERS),
    *(_call(name, _FLOAT, _INT) for name in _LINES),
]


def _rows(call: AggregateCall, count: int, rng: random.Random) -> list[pa.Array]:
    """Random arguments; constants are repeated."""
    columns = []
    for arg in call.args:
        if isinstance(arg, Literal):
            columns.append(pa.repeat(arg.value, count))
        else:
            columns.append(pa.array(rng.choices(_VALUES[arg.type], k=count), arg.type))
    return columns


def _fold(accumulator: Accumulator, args: list[pa.Array], groups: Any, cuts: list[int]) -> Buffers:
    """The buffers after rows came in pieces, each merged behind what was kept."""
    kept = accumulator.lift([arg.slice(0, 0) for arg in args], 0)
    kept = accumulator.merge(kept, np.zeros(0, np.int64), _GROUPS)
    for start, end in zip([0, *cuts], [*cuts, len(groups)], strict=True):
        lifted = accumulator.lift([arg.slice(start, end - start) for arg in args], end - start)
        together = [np.concatenate(pair) for pair in zip(kept, lifted, strict=True)]
        own = np.concatenate([np.arange(_GROUPS), groups[start:end]])
        kept = [_stored(part, kind) for part, kind in _typed(accumulator, together, own)]
    return kept


def _typed(accumulator: Accumulator, buffers: Buffers, groups: Any) -> list[tuple[Any, Any]]:
    merged = accumulator.merge(buffers, groups, _GROUPS)
    return list(zip(merged, accumulator.columns.values(), strict=True))


def _stored(part: Any, kind: pa.DataType) -> Any:
    """Through Arrow and back, as a snapshot does; the types must fit."""
    if part.dtype != object:
        assert pa.array(part, kind) is not None
        return part
    return np.fromiter(pa.array(part.tolist(), kind).to_pylist(), object, len(part))


def _name(call: AggregateCall) -> str:
    return "-".join([call.function, *(str(arg.type) for arg in call.args[:2])])


@pytest.mark.parametrize("call", CALLS, ids=_name)
def test_any_chunking_gives_the_same_bits(call: AggregateCall) -> None:
    accumulator = AGGREGATES[call.function].build(call)
    rng = random.Random(_name(call))
    for _ in range(8):
        count = rng.randrange(40)
        args = _rows(call, count, rng)
        groups = np.array([rng.randrange(_GROUPS - 1) for _ in range(count)], np.int64)
        whole = accumulator.finish(_fold(accumulator, args, groups, []))
        assert whole.type == call.type
        cuts = sorted(rng.randint(0, count) for _ in range(4))
        pieces = accumulator.finish(_fold(accumulator, args, groups, cuts))
        assert repr(pieces.to_pylist()) == repr(whole.to_pylist())


@pytest.mark.parametrize("call", CALLS, ids=_name)
def test_a_row_that_is_taken_back_was_never_there(call: AggregateCall) -> None:
    accumulator = AGGREGATES[call.function].build(call)
    rng = random.Random(_name(call))
    args = _rows(call, 30, rng)
    lifted = accumulator.lift(args, 30)
    inverted = accumulator.invert(lifted)
    if inverted is None:
        return
    groups = np.array([rng.randrange(_GROUPS) for _ in range(30)], np.int64)
    taken = np.arange(10, 20)
    rest = np.r_[0:10, 20:30]
    both = [np.concatenate([a, b[taken]]) for a, b in zip(lifted, inverted, strict=True)]
    after = accumulator.merge(both, np.concatenate([groups, groups[taken]]), _GROUPS)
    never = accumulator.merge([part[rest] for part in lifted], groups[rest], _GROUPS)
    assert repr(accumulator.finish(after).to_pylist()) == repr(
        accumulator.finish(never).to_pylist()
    )
