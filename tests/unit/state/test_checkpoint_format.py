"""The bytes of a checkpoint: whole, by virtual node, and damaged in every way."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from state_actions import ACTIONS, contents, do, make_store

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.state import checkpoint_format
from penstock.state.api import Change
from penstock.state.checkpoint_format import (
    CheckpointMeta,
    ReadAt,
    encode_checkpoint,
    mark_partition,
    read_checkpoint,
    read_meta,
    seal_of,
)
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.state.memory import MemoryState

_META = CheckpointMeta(task="q.1/0/2", marker_lsn=77, instance=3, fingerprint="abc")


def _reader(data: bytes) -> ReadAt:
    return lambda start, count: data[start : start + count]


def _read(data: bytes, **options: Any) -> list[Change]:
    return read_checkpoint(_reader(data), len(data), **options)[1]


def _encode(changes: Any, meta: CheckpointMeta = _META) -> tuple[bytes, int]:
    pieces = list(encode_checkpoint(meta, changes))
    return b"".join(pieces), seal_of(pieces[-1])


def _numbers(count: int) -> Change:
    rows = pa.record_batch({"k": np.arange(count), "v": np.arange(count) * 2})
    return mark_partition(Change("op/t", "put", rows), [0])


@settings(max_examples=80)
@given(actions=ACTIONS)
def test_what_was_read_does_what_was_frozen(actions: list[Any]) -> None:
    store = make_store()
    for number, action in enumerate(actions):
        do(store, action, number)

    data, seal = _encode(store.state.freeze())

    copy, halves = make_store(), make_store()
    copy.state.apply(_read(data, seal=seal))
    assert contents(copy) == contents(store)
    for half in (range(0, VIRTUAL_NODES, 2), range(1, VIRTUAL_NODES, 2)):
        halves.state.apply(_read(data, nodes=half))
    assert contents(halves) == contents(store)


def test_the_file_says_what_it_is_a_checkpoint_of() -> None:
    data, _ = _encode([_numbers(10)])

    meta = read_meta(_reader(data), len(data))

    assert (meta.task, meta.marker_lsn, meta.instance) == ("q.1/0/2", 77, 3)
    assert (meta.fingerprint, meta.rows, meta.virtual_nodes) == ("abc", 10, VIRTUAL_NODES)


def test_a_state_of_nothing_has_a_checkpoint_too() -> None:
    data, seal = _encode(MemoryState().freeze())

    assert _read(data, seal=seal) == []


def test_a_virtual_node_is_read_without_most_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_format, "SECTION_BYTES", 4096)
    count = 20_000
    value = Change("op/v", "set", pa.record_batch({"value": [5]}))
    data, seal = _encode([_numbers(count), value])
    homes = virtual_nodes(hash_columns([pa.array(np.arange(count))], count))
    fetched = []

    def read_at(start: int, size: int) -> bytes:
        fetched.append(size)
        return data[start : start + size]

    _, (rows, own) = read_checkpoint(read_at, len(data), seal=seal, nodes={5})

    assert rows.rows.column("k").to_pylist() == np.flatnonzero(homes == 5).tolist()
    assert (own.name, own.rows.to_pylist()) == ("op/v", [{"value": 5}])
    sections = fetched[3:]  # after trailer, footer and header
    assert sum(sections) < len(data) / 15


def test_sections_of_a_part_become_one_change_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_format, "SECTION_BYTES", 4096)
    data, _ = _encode([_numbers(5000), _numbers(300)])

    (change,) = _read(data)

    assert change.rows.num_rows == 5300
    assert change.rows.schema.metadata is None
    monkeypatch.setattr(checkpoint_format, "JOINED_BYTES_MAX", 20_000)
    pieces = _read(data)
    assert len(pieces) == 5
    assert sum(piece.rows.num_rows for piece in pieces) == 5300


def test_rows_that_lie_are_damage_even_with_checksums_that_match() -> None:
    offsets = pa.py_buffer(np.array([0, 65535, 2], np.int32))
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    data, seal = _encode([Change("op/v", "set", pa.record_batch({"value": text}))])

    with pytest.raises(BadFormat):
        _read(data, seal=seal)


def test_every_cut_is_damage() -> None:
    data, seal = _encode([_numbers(20)])
    for end in range(len(data)):
        with pytest.raises(Damaged):
            _read(data[:end])
        with pytest.raises(Damaged):
            _read(data[: end - 1] + b"\0" * (len(data) - end + 1), seal=seal)  # unwritten blocks
    with pytest.raises(Damaged):
        _read(data + b"\0")


def test_every_bit_flip_is_damage() -> None:
    """All bytes of a small file, and sampled ones of one with many sections."""
    small, _ = _encode([_numbers(20)])
    large, _ = _encode([_numbers(200_000), Change("v", "set", pa.record_batch({"value": [5]}))])
    rng = random.Random(4)
    places = [(small, place) for place in range(len(small))]
    places += [(large, rng.randrange(len(large))) for _ in range(100)]
    places += [(large, len(large) - 1 - rng.randrange(2000)) for _ in range(100)]
    for data, place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        with pytest.raises((ChecksumMismatch, BadFormat)):
            _read(bytes(damaged))


def test_a_whole_file_that_is_another_one_is_refused() -> None:
    _, seal = _encode([_numbers(20)])
    other, other_seal = _encode([_numbers(21)])

    assert seal != other_seal
    with pytest.raises(ChecksumMismatch, match="another checkpoint"):
        _read(other, seal=seal)


def test_rows_placed_on_another_number_of_virtual_nodes_are_not_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_format, "VIRTUAL_NODES", VIRTUAL_NODES * 2)
    data, seal = _encode([_numbers(20)])
    monkeypatch.undo()

    assert len(_read(data, seal=seal)) == 1
    with pytest.raises(BadFormat, match="virtual nodes, here are"):
        _read(data, nodes={1})


def test_the_same_state_gives_the_same_bytes() -> None:
    assert _encode([_numbers(100)]) == _encode([_numbers(100)])


def test_ranges_that_cannot_be_are_not_cut_out() -> None:
    """A footer with a right checksum and wrong ranges: Arrow would read beyond its arrays."""
    data, _ = _encode([_numbers(20)])
    footer_at, count = struct.unpack_from("<QQ", data, len(data) - 32)
    footer = json.loads(data[footer_at : footer_at + count])
    starts = footer["sections"][0]["starts"]
    for wrong in (
        starts[::-1],
        [*starts[:-1], 21],
        [1, *starts[1:]],
        starts[1:],
        [-1, *starts[1:]],
    ):
        footer["sections"][0]["starts"] = wrong
        text = json.dumps(footer).encode()
        fields = struct.pack("<QQI", footer_at, len(text), crc32c(text))
        forged = data[:footer_at] + text + fields + struct.pack("<I", crc32c(fields)) + data[-8:]
        with pytest.raises(BadFormat, match="out of order"):
            _read(forged, nodes={1})
