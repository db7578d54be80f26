"""Every row of a stream is in one lane, and stays with its key; streams from before have one."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, BadRequest
from penstock.ids import Lsn
from penstock.runtime.layout import first_layout
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.stream.lanes import Lanes, check_lanes, lane_tag
from penstock.stream.registration import (
    Registration,
    decode_registration,
    encode_registration,
)

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string()), ("v", pa.int64())])


def batch_of(*keys: int) -> pa.RecordBatch:
    names = [None if key % 3 == 0 else f"name {key % 5}" for key in keys]
    return pa.RecordBatch.from_pydict(
        {"k": list(keys), "name": names, "v": list(range(len(keys)))}, schema=SCHEMA
    )


def test_entries_take_turns() -> None:
    lanes = Lanes("bids", 4)
    found = [tags for turn in range(6) for _, tags in lanes.split(batch_of(1, 2), turn)]
    assert [tags[0] for tags in found] == ["s/bids"] * 6
    assert [tags[1] for tags in found] == [lane_tag("bids", lane) for lane in (0, 1, 2, 3, 0, 1)]


def test_a_single_lane_has_no_tag_of_its_own() -> None:
    assert [tags for _, tags in Lanes("bids").split(batch_of(1, 2), 7)] == [("s/bids",)]
    assert [tags for _, tags in Lanes("bids", 1, ("k",)).split(batch_of(1, 2), 7)] == [("s/bids",)]


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=60),
    st.sampled_from((2, 3, 16, 64)),
    st.sampled_from((("k",), ("name",), ("name", "k"))),
)
def test_rows_of_one_key_are_in_one_lane_in_order(
    keys: list[int], count: int, key: tuple[str, ...]
) -> None:
    batch = batch_of(*keys)
    lane_of: dict[object, set[int]] = defaultdict(set)
    rows: list[dict[str, object]] = []
    for piece, tags in Lanes("bids", count, key).split(batch, 0):
        lane = int(tags[1].rpartition("/")[2])
        nodes = virtual_nodes(hash_columns([piece.column(name) for name in key], len(piece)))
        assert set((nodes % count).tolist()) == {lane}, "virtual nodes are those of exchanges"
        assert piece.column("v").to_pylist() == sorted(piece.column("v").to_pylist())
        for row in piece.to_pylist():
            lane_of[tuple(row[name] for name in key)].add(lane)
            rows.append(row)
    assert all(len(lanes) == 1 for lanes in lane_of.values())
    assert sorted(rows, key=lambda row: str(row["v"])) == sorted(
        batch.to_pylist(), key=lambda row: str(row["v"])
    )


@given(st.integers(1, 64), st.integers(1, 64))
def test_each_lane_is_read_by_one_task(count: int, tasks: int) -> None:
    (shares,) = first_layout([tasks]).stages
    read = [lane for share in shares for lane in Lanes("s", count).of_nodes(share.nodes)]
    assert sorted(read) == list(range(count))


def test_what_the_log_knows_of_lanes() -> None:
    plain = Registration("bids", SCHEMA, 5)
    assert b'"version": 1' in encode_registration(plain), "programs from before can read it"
    laned = Registration("bids", SCHEMA, 5, Lsn(3), lanes=16, key=("k", "name"))
    encoded = encode_registration(laned)
    assert b'"version": 2' in encoded, "programs from before must not append to it"
    for registration in (plain, laned):
        assert decode_registration("bids", encode_registration(registration)) == registration
    with pytest.raises(BadFormat):
        decode_registration("bids", encoded.replace(b'"lanes": 16', b'"lanes": 0'))
    with pytest.raises(BadFormat, match="use a newer one"):
        decode_registration("bids", encoded.replace(b'"version": 2', b'"version": 3'))


@pytest.mark.parametrize(
    ("count", "key", "said"),
    [
        (0, (), "lanes=0, 1 to 64"),
        (65, (), "lanes=65"),
        (True, (), "lanes=True"),
        (4, ("nobody",), "the key names nobody, but the columns are k, name, v"),
        (4, ("k", "k"), "twice"),
    ],
)
def test_streams_that_cannot_be_made(count: int, key: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        check_lanes("bids", SCHEMA, count, key)
