"""Hypothesis strategies for entries, groups and damaged bytes."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.limits import PRODUCER_BYTES_MAX, TAG_BYTES_MAX
from penstock.log.records import Kind, NewEntry, SetKey

PRINTABLE = st.characters(exclude_categories=["C", "Z"])
#: Few tags, so that entries share them; and some that nobody expects.
TAGS = st.sampled_from(["a", "b", "c", "T/1a", "é", "標"]) | st.text(
    PRINTABLE, min_size=1, max_size=8
).filter(lambda tag: len(tag.encode()) <= TAG_BYTES_MAX and tag.isprintable())
PRODUCERS = st.text(min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and len(name.encode()) <= PRODUCER_BYTES_MAX
)
ENTRIES = st.builds(
    NewEntry,
    payload=st.binary(max_size=60),
    tags=st.lists(TAGS, max_size=4, unique=True).map(tuple),
    kind=st.sampled_from([Kind.DATA, Kind.MARKER, Kind.CHANGE]),
    rows=st.integers(0, 2**32 - 1),
)
GROUPS = st.lists(ENTRIES, min_size=1, max_size=8)
SETS = st.lists(
    st.builds(
        SetKey, st.text(PRINTABLE, min_size=1, max_size=6), st.none() | st.binary(max_size=9)
    ),
    max_size=5,
    unique_by=lambda change: change.key,
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Other bytes, near the given ones: changed, cut, stretched or moved."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(result) - 1, 0)))
        match draw(st.sampled_from(["flip", "set", "number", "cut", "insert", "repeat"])):
            case "flip" if result:
                result[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if result:
                result[at] = draw(st.integers(0, 255))
            case "number":
                number = draw(st.sampled_from([0, 1, 2**16 - 1, 10**9, 2**31 - 1, 2**32 - 1]))
                result[at : at + 4] = number.to_bytes(4, "little")
            case "cut":
                del result[at : at + draw(st.integers(1, 40))]
            case "insert":
                result[at:at] = draw(st.binary(min_size=1, max_size=40))
            case _:
                result[at:at] = result[at : at + 40]
    return bytes(result)
