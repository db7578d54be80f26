"""The fast path of from_json gives the answer of the exact path, whatever the texts are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.functions.from_json import JsonReader
from penstock.ops.functions.json_shapes import ShapeReader, Texts, shape_of
from penstock.plan.exprs import Call, Column

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
TYPES = [
    pa.int64(),
    pa.int32(),
    pa.int16(),
    pa.float64(),
    pa.string(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    POINT,
    pa.list_(pa.field("element", pa.int64())),
    pa.list_(pa.field("element", POINT)),
]
NAMES = ["a", "b", "é", 'q"', "r", "_corrupt_record"]
#: What stands for a value, right and wrong, as it is written.
ODD = [
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "1.0",
    "1e2",
    "1.5",
    "1e400",
    "2147483648",
    "9223372036854775808",
    "01",
    ".5",
    "5.",
    "NaN",
    "-INF",
    "true",
    "tru",
    "null",
    "nul",
    '""',
    '"x"',
    '"NaN"',
    '"\\u0041"',
    '"\\ud800"',
    '"\\q"',
    '"2024-01-02"',
    '"2024-02-30"',
    '"2024-01-02T03:04:05"',
    '"2024-01-02T03:04:05Z"',
    '"2024-01-02T03:04:05.5"',
    '"2024-02-30T03:04:05"',
    '"2024"',
    '"24:00"',
    "{}",
    "[]",
    "[1]",
    "[1,2]",
    "[null]",
    '[1,"x"]',
    '{"x":1}',
    '{"x":1,"y":"z"}',
    '{"x":"bad"}',
    '{"x":1,"x":2}',
    '[{"x":1},{"x":1.5}]',
    "'x'",
    '"é😀"',
    '"unclosed',
]
ODD.remove('"24:00"')  # a time of the day on which it is read: refused while running
VALUES = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
).map(json.dumps)
BLANK = st.sampled_from(["", "", "", " ", "\n", "\t"])


@st.composite
def objects(draw: Any) -> str:
    fields = draw(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=4))
    printed = [f"{draw(BLANK)}{json.dumps(name)}:{value}" for name, value in fields]
    return "{" + ",".join(printed) + "}"


@st.composite
def texts(draw: Any) -> str | None:
    """Objects, some of them cut off, doubled, wrapped, or followed by something."""
    text = draw(objects())
    change = draw(st.sampled_from(["", "", "", "cut", "tail", "double", "array", "close", "null"]))
    if change == "cut":
        return str(text[: draw(st.integers(0, len(text)))])
    if change == "null":
        return None
    changes = {
        "tail": f"{text} x",
        "double": text + text,
        "array": f"[{text}]",
        "close": text + '} {"r":{"a":7}',
    }
    return changes.get(change, text)


@st.composite
def structs(draw: Any) -> pa.DataType:
    names = draw(st.lists(st.sampled_from(NAMES[:-1]), min_size=1, max_size=4, unique=True))
    fields = [pa.field(name, draw(st.sampled_from(TYPES))) for name in names]
    if draw(st.booleans()):
        fields.append(pa.field("_corrupt_record", pa.string()))
    return pa.struct(fields)


def counted(type: pa.DataType) -> pa.DataType:
    """The same with integers for dates and times, of which Python knows too few."""
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(counted(field.type)) for field in type])
    if pa.types.is_temporal(type):
        return pa.int32() if pa.types.is_date32(type) else pa.int64()
    return type


def shown(array: pa.Array) -> str:
    return repr(array.cast(counted(array.type)).to_pylist())


def call_to(type: pa.DataType) -> Call:
    options = (("options", ()), ("timeZoneId", "UTC"))
    return Call("JsonToStructs", (Column("j", pa.string()),), type, options)


@given(structs(), st.lists(texts(), max_size=12), st.integers(0, 3))
def test_both_paths_agree(type: pa.DataType, rows: list[str | None], skipped: int) -> None:
    reader = JsonReader(call_to(type))
    array = pa.array(rows, pa.string()).slice(skipped)
    fast, exact = reader.read(array), reader.read_exactly(array)
    fast.validate(full=True)
    assert shown(fast) == shown(exact)


def test_right_texts_take_the_fast_path() -> None:
    """Else the law above would hold of nothing."""
    type = pa.struct([("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
    fast = JsonReader(call_to(type))._fast
    assert fast is not None
    right = ['{"a":1,"b":"x","t":"2024-01-02T03:04:05Z"}', '{"b":null}', '{"more":[1]}', "{}"]
    wrong = ['{"a":1.0}', '{"a":"x"}', '{"b":5}', "[]", '{"a":1', '{"b":"\\u0041"}', None]
    _, answered = fast.read(pa.array(right))
    assert answered.all()
    for text in wrong:
        _, answered = fast.read(pa.array([*right[:2], text, *right[2:]], pa.string()))
        assert answered.tolist() == [True, True, False, True, True], text


PLAIN = st.sampled_from(
    r"""
    0 1 -1 -0 12 007 1.5 -2.25 0.5 .5 5. 1.2.3 1-2 --1 - 1e2 123456789012345678 40000
    1234567890123456789 null true false tru "x" "" "é" "a,b" "null" "1" "2024-01-02" "2024-13-02"
    "2024-1-2" "2024-01-02T03:04:05Z" "2024-01-02T03:04:05.123456" "2024-01-02T03:04:05.1234567Z"
    "2024-02-30T03:04:05" "2024-01-02T03:04+00" "2024-01-02T03:04:05." "0001-01-01T00:00:00"
    "2024-01-02T24:00:00" "Z" {} [1] "{" "\n" 1"2 "3,"b":4
    """.strip().split()
)


@st.composite
def shaped(draw: Any) -> list[str]:
    """Texts of one shape, or nearly so: mostly the first ones of the values, sometimes others."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    colon, comma = draw(st.sampled_from([(":", ","), (": ", ", "), (" :", " , ")]))
    choices = [draw(st.lists(PLAIN, min_size=1, max_size=3)) for _ in names]
    rows = []
    for number in range(draw(st.integers(16, 40))):
        values = [choice[number % len(choice)] for choice in choices]
        if draw(st.booleans()):
            values[draw(st.integers(0, len(values) - 1))] = draw(PLAIN)
        fields = [f"{json.dumps(n)}{colon}{v}" for n, v in zip(names, values, strict=True)]
        rows.append("{" + comma.join(fields) + "}" + draw(st.sampled_from(["", "", "", " ", "x"])))
    return rows


@given(structs(), shaped())
def test_both_paths_agree_on_texts_of_one_shape(type: pa.DataType, rows: list[str]) -> None:
    reader = JsonReader(call_to(type))
    fast, exact = (read(pa.array(rows)) for read in (reader.read, reader.read_exactly))
    fast.validate(full=True)
    assert shown(fast) == shown(exact)


def test_texts_of_one_shape_need_no_parser() -> None:
    """Nor if some have another shape, a null, or an odd value: only these are left."""
    type = pa.struct([("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
    right = ['{"a": 1, "b": "x", "t": "2024-01-02T03:04:05Z"}', '{"a": -25, "b": "", "t": null}']
    rows = [*right * 10, '{"a": 1.5, "b": "x", "t": "2024-01-02T03:04:05Z"}', '{"a": 1}']
    texts = Texts(pa.array(rows))
    shape = shape_of(rows[0])
    assert shape is not None
    part = ShapeReader(shape, type).read(texts, np.arange(len(rows)))
    assert part is not None
    assert part[0].tolist() == list(range(0, 20, 2))
