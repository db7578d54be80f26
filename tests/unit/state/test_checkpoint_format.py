"""The bytes of a checkpoint: whole, by virtual node, and damaged in every way."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from state_actions import ACTIONS, TAKE, contents, do, make_store

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.state import checkpoint_format
from penstock.state.api import Change
from penstock.state.checkpoint_format import (
    CheckpointMeta,
    ReadAt,
    encode_checkpoint,
    open_checkpoint,
    read_checkpoint,
    seal_of,
)
from penstock.state.fold import find_places, merge_changes
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.state.memory import MemoryState
from penstock.state.parts import ROW_SET, TABLE, VALUE, Part, Parts

_META = CheckpointMeta(task="q.1/0/2", marker_lsn=77, instance=3, fingerprint="abc")


def _reader(data: bytes) -> ReadAt:
    return lambda start, count: data[start : start + count]


def _read(data: bytes, **options: Any) -> list[Change]:
    return read_checkpoint(_reader(data), len(data), **options)[1]


def _encode(
    changes: Any, meta: CheckpointMeta = _META, parts: Parts | None = None
) -> tuple[bytes, int]:
    told = _parts(changes) if parts is None else parts
    pieces = list(encode_checkpoint(meta, told, changes))
    return b"".join(pieces), seal_of(pieces[-1])


def _numbers(count: int) -> Change:
    rows = pa.record_batch({"k": np.arange(count), "v": np.arange(count) * 2})
    return Change("op/t", "put", rows)


def _parts(changes: Any) -> dict[str, Part]:
    """Of changes: every table is placed by its first column, as are row sets."""
    kinds = {"set": VALUE, "put": TABLE, "delete": TABLE, "add": ROW_SET, "evict": ROW_SET}
    parts = {}
    for change in changes:
        key = () if change.kind == "set" else (0,)
        parts[change.name] = Part(kinds[change.kind], change.rows.schema, key, key)
    return parts


@settings(max_examples=80)
@given(actions=ACTIONS)
def test_what_was_read_does_what_was_frozen(actions: list[Any]) -> None:
    store = make_store()
    for number, action in enumerate(actions):
        do(store, action, number)

    data, seal = _encode(store.state.freeze(), parts=store.state.parts())

    copy, halves = make_store(), make_store()
    copy.state.apply(_read(data, seal=seal))
    assert contents(copy) == contents(store)
    for half in (range(0, VIRTUAL_NODES, 2), range(1, VIRTUAL_NODES, 2)):
        halves.state.apply(_read(data, nodes=half))
    assert contents(halves) == contents(store)


def test_the_file_says_what_it_is_a_checkpoint_of() -> None:
    data, _ = _encode([_numbers(10)])

    meta = open_checkpoint(_reader(data), len(data)).meta

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

    assert sorted(rows.rows.column("k").to_pylist()) == np.flatnonzero(homes == 5).tolist()
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
            open_checkpoint(_reader(bytes(damaged)), len(data)).check()


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


#: A file of version 1, compressed: a table, a row set with a row to be taken away, a value.
_VERSION_1 = (
    "eNqtVd1OE0EU3lLAiqj4EyTEGDIxXh3tzu5Ou20kcbaWYAgGEgkBJGRtl1IpW7JdKIb03jfw1sfQC+99BF/Bp9Az"
    "u9NlO7amiX5Je86ZnXPO983M7mxU1mhG07Q6/i5J6HaOSZkctcNnNK/nDQLkxA2OveCg1fFJmepAmn4ndP2ahxGQ"
    "w6bf8ILToOmHmHaI04N2t0PKhgnkvBmEZ27rwG/XPRwqWL0lxC/EF+x1X4sxq81r09qUlkNvVgxkJ7UFNC8ycoI2"
    "g/GsNokzZjB6i7+5VL7ApDYanxX7t/EJpa42JL4r7TWl93VpbySsY9yUNittX9YtaeekzSXrMYg70k5Ley/FVWBK"
    "2tvSPlbq5xTe84quRaV+v+5DaZcUngsKP6LwfqKsS38dHkkr9v/7GPtva8P3vyW5ZFMcplJ+RtGt8p5QdGlKvKCc"
    "B3Xfskqe2jsj89zaYN5ESn8fH8dYh9yIdXgutWUUvqOQG8Izjf55viRHnlvHF/7dh1C8tpQa0B+qBTVSZtQ2WLFo"
    "MiCd2pF34uKkPZIXKDQ4YpPHWOO8y50GX+G8wSvRI+44nK8Lp8L5q2jgyvLYdapJ/PoNFrXRqVbiwah0lScQrnMm"
    "vIsNnNoV3kr/yZboi/1XBY+Il5PkyXrdYfUCyW89yu/G/CJsRf/L+JX7j3I3k3j9/aDcClfo7YiZ5u52y3dXRVqD"
    "v4yK1OTUseWvxPIbI+U7UbA5INfi/yi3mqzhWLvzh3yR6hg72xd0N2IxWn6M5WWyj4fUq4XNti9O6SXx3RO8uEj7"
    "NB+irOOmX8fo9EwE8WEmZbzi3FCee/kOMOFHh9/SGWUlmzE8/fJe2zOBAaVALaAMDB3w7jN1MAtgFsG0wTLBKoKF"
    "TgmYDswAhhlMMAvdIBQVdKBggKhTgCLYUAK8aEVJA6gpC9MC0CJQG2hpP7ll9R6kNQVXmtx6PaWJxpoKhpVoMgqW"
    "1GQw2zRMnRZSmrChqVA0krbmYNfzq64dL72SRtzVtu2kK2X9lTQNWiqxYkm/avqUDnRM+tHefm9O3iefpF368ZN9"
    "e/B1UXzGNipr1d+CJ4G5"
)


def test_files_of_version_1_are_read() -> None:
    data = zlib.decompress(base64.b64decode(_VERSION_1))

    found = open_checkpoint(_reader(data), len(data))

    table, rows, value = found.read()
    assert (found.meta.task, found.meta.marker_lsn, found.meta.rows) == ("hot.1/0/2", 10, 23)
    assert found.meta.base_lsn is None and found.parts == {}
    assert sorted(table.rows.to_pylist(), key=lambda row: row["k"]) == [
        {"k": k, "n": 2 * k} for k in range(20)
    ]
    assert sorted(rows.rows.to_pylist(), key=str) == [
        {"k": "a", "weight": 1},
        {"k": "c", "weight": -1},
        {"k": None, "weight": 2},
    ]
    assert (value.kind, value.rows.to_pylist()) == ("set", [{"value": 7}])
    halves = [found.read(range(first, VIRTUAL_NODES, 2)) for first in (0, 1)]
    assert sum(c.rows.num_rows for half in halves for c in half if c.kind == "put") == 20


@settings(max_examples=80)
@given(before=ACTIONS, after=ACTIONS)
def test_an_increment_read_by_halves_does_what_was_done(
    before: list[Any], after: list[Any]
) -> None:
    """With deletions and evictions, to a state that was there before."""
    store, copy = make_store(), make_store()
    for number, action in enumerate([*before, TAKE]):
        do(store, action, number)
    copy.state.apply(store.state.take_log())
    for number, action in enumerate([*after, TAKE]):
        do(store, action, 100 + number)
    parts = store.state.parts()
    merged = merge_changes(store.state.take_log(), parts)

    data, seal = _encode(merged, replace(_META, base_lsn=5), parts)

    opened = open_checkpoint(_reader(data), len(data), seal=seal)
    assert opened.parts == parts
    assert opened.meta.base_lsn == 5
    whole = make_store()
    whole.state.apply(copy.state.freeze())
    whole.state.apply(opened.read())
    assert contents(whole) == contents(store)
    for first in (0, 1):
        copy.state.apply(opened.read(range(first, VIRTUAL_NODES, 2)))
    assert contents(copy) == contents(store)


def test_what_is_surely_not_there_is_not_read() -> None:
    """Goal: to look for a few keys reads little. Method: count the bytes that are asked for."""
    data, seal = _encode([_numbers(400_000)])
    asked: list[int] = []

    def read_at(start: int, count: int) -> bytes:
        asked.append(count)
        return data[start : start + count]

    opened = open_checkpoint(read_at, len(data), seal=seal)
    part = opened.parts["op/t"]
    assert (
        opened.find("op/t", part, find_places(part, [pa.array([-1])])) == []
    )  # 0.5 % would be read
    missed = sum(asked)
    asked.clear()
    (found,) = opened.find("op/t", part, find_places(part, [pa.array([7])]))

    assert found.rows.to_pylist() == [{"k": 7, "v": 14}]
    assert missed < len(data) // 3 and sum(asked) < len(data) // 3
