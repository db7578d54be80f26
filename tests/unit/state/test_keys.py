"""The partition hash is part of the format; key objects are equal exactly where Spark groups."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.keys import (
    VIRTUAL_NODES,
    hash_columns,
    key_columns,
    key_objects,
    virtual_nodes,
)

#: Changing any of these moves rows of existing streams to other virtual nodes.
GOLDEN = [
    (pa.array([1], pa.int64()), 0x5E41AB087439611E),
    (pa.array([-1], pa.int32()), 0x5DC20AA7B2A27137),
    (pa.array(["auction"]), 0x3BF1EB0690806629),
    (pa.array([""]), 0xA706DD2F4D197E6F),
    (pa.array([None], pa.string()), 0xC450C2DE88B5970F),
    (pa.array([1.5]), 0x6A09D17EBA9BF03E),
    (pa.array([True]), 0x5E41AB087439611E),
    (pa.array([Decimal("12.34")], pa.decimal128(10, 2)), 0x31FBB8E541F38DFC),
    (pa.array([dt.date(2024, 2, 29)]), 0x2E81740D537ED9FE),
    (pa.array([[1, None, 3]], pa.list_(pa.int32())), 0x044DABCADFA50F0F),
]

_COLUMNS = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "text": (pa.string(), st.text(max_size=12)),
    "binary": (pa.binary(), st.binary(max_size=12)),
    "flag": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "decimal": (
        pa.decimal128(20, 3),
        st.decimals(min_value=-(10**16), max_value=10**16, places=3),
    ),
    "time": (pa.timestamp("us", tz="UTC"), st.integers(-(2**62), 2**62)),
    "window": (
        pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))]),
        st.fixed_dictionaries({"start": st.none() | st.integers(0, 3), "end": st.integers(0, 3)}),
    ),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=4)),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 3), "b": st.text(max_size=2)}),
    ),
}


@st.composite
def columns(draw: st.DrawFn) -> list[pa.Array]:
    """One to three columns of keys, as long as each other."""
    count = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(_COLUMNS)), min_size=1, max_size=3))
    rows = [st.lists(st.none() | _COLUMNS[k][1], min_size=count, max_size=count) for k in kinds]
    return [pa.array(draw(values), _COLUMNS[k][0]) for k, values in zip(kinds, rows, strict=True)]


@pytest.mark.parametrize(("column", "hashed"), GOLDEN)
def test_the_hash_of_a_value_never_changes(column: pa.Array, hashed: int) -> None:
    assert int(hash_columns([column], 1)[0]) == hashed


@given(columns(), st.data())
def test_equal_keys_have_equal_hashes_however_the_columns_are_sliced(
    keys: list[pa.Array], data: st.DataObject
) -> None:
    count = len(keys[0])
    start = data.draw(st.integers(0, count))
    end = data.draw(st.integers(start, count))
    whole, objects = hash_columns(keys, count).tolist(), key_objects(keys, count)
    part = [column.slice(start, end - start) for column in keys]
    assert hash_columns(part, end - start).tolist() == whole[start:end]
    assert key_objects(part, end - start) == objects[start:end]
    assert len(set(zip(objects, whole, strict=True))) == len(set(objects))


@given(columns())
def test_key_columns_are_rebuilt_from_their_objects(keys: list[pa.Array]) -> None:
    objects = key_objects(keys, len(keys[0]))
    rebuilt = key_columns(objects, [column.type for column in keys])
    assert [column.type for column in rebuilt] == [column.type for column in keys]
    assert key_objects(rebuilt, len(objects)) == objects
    assert (hash_columns(rebuilt, len(objects)) == hash_columns(keys, len(objects))).all()


def test_zeros_are_one_key_and_so_are_nans() -> None:
    column = pa.array([0.0, -0.0, math.nan, float(np.float64("nan") * -1)])
    zero, minus, nan, other = key_objects([column], 4)
    assert zero == minus
    assert nan == other
    assert zero != nan
    hashes = hash_columns([column], 4)
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]


def test_a_null_is_not_a_zero_and_not_an_empty_text() -> None:
    assert len(set(key_objects([pa.array([0, None], pa.int64())], 2))) == 2
    assert len(set(key_objects([pa.array(["", None])], 2))) == 2
    assert (
        len(set(key_objects([pa.array([{"a": None}, None], pa.struct([("a", pa.int32())]))], 2)))
        == 2
    )


def test_several_columns_are_one_key_and_their_order_counts() -> None:
    ascending, descending = pa.array([1, 2]), pa.array([2, 1])
    assert key_objects([ascending, descending], 2) == [(1, 2), (2, 1)]
    hashes = hash_columns([ascending, descending], 2)
    assert hashes[0] != hashes[1]


def test_no_columns_are_one_key() -> None:
    assert key_objects([], 3) == [(), (), ()]
    assert hash_columns([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("keys", [100_000])
def test_keys_spread_evenly_over_virtual_nodes(keys: int) -> None:
    for column in (pa.array(range(keys)), pa.array([f"user-{i}" for i in range(keys)])):
        nodes = virtual_nodes(hash_columns([column], keys))
        counts = np.bincount(nodes, minlength=VIRTUAL_NODES)
        expected = keys / VIRTUAL_NODES
        assert counts.min() > expected * 0.8
        assert counts.max() < expected * 1.2
