"""Rows between stages: what was encoded comes back; other bytes are refused or safe to read."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from engine_samples import Wired, count_by, scan, spec_of

from penstock.errors import BadFormat
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import Delta
from penstock.ops.payloads import WEIGHT, decode_delta, encode_delta
from penstock.protocol.names import node_tag
from penstock.stream.batches import ARRAY_LENGTH_MAX

TEXT_MAP = pa.map_(pa.string(), pa.int64())
SAMPLE = pa.record_batch(
    {
        "k": pa.array([1, None, 3, 4]),
        "s": ["a", None, "ccc", "ä" * 20],
        "l": [[1, 2], [], None, [3]],
        "r": [{"b": b"x"}, {"b": b"yy"}, None, {"b": None}],
        "m": pa.array([[("p", 1)], [], None, [("q", 2), ("r", None)]], TEXT_MAP),
    }
)
WEIGHTS = np.array([1, -1, 2, 1])


def lying(kind: pa.DataType, *children: pa.Array, data: bytes | None = b"ab") -> pa.Array:
    """Two values whose offsets are 0, 65535, 2: the last one is right."""
    offsets = pa.py_buffer(np.array([0, 65535, 2], np.int32))
    buffers = [None, offsets, *([pa.py_buffer(data)] if data is not None else [])]
    return pa.Array.from_buffers(kind, 2, buffers, children=list(children))


TWO = pa.array([1, 2])
COUNTED_WRONG = pa.Array.from_buffers(
    pa.int64(), 2, [pa.py_buffer(b"\x00"), pa.py_buffer(bytes(16))], null_count=1
)


@pytest.mark.parametrize(
    "column",
    [
        lying(pa.string()),
        lying(pa.binary()),
        lying(pa.list_(pa.int64()), TWO, data=None),
        pa.StructArray.from_arrays([lying(pa.string())], names=["s"]),
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), lying(pa.string())),
        pa.array([b"\xff\xfe", b""]).view(pa.string()),
        COUNTED_WRONG,
    ],
    ids=["text", "binary", "list", "in a struct", "in a list", "not utf8", "count of nulls"],
)
@pytest.mark.parametrize("changing", [False, True])
def test_bytes_that_lie_are_refused(column: pa.Array, changing: bool) -> None:
    batch = pa.record_batch([column], names=["c"])
    payload = encode_delta(
        Delta(batch, np.ones(2, np.int64) if changing else None), changing=changing
    )

    with pytest.raises(BadFormat):
        decode_delta(payload, batch.schema, changing=changing)


def message(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    found: bytes = reader.read_next_message().serialize().to_pybytes()
    return found


def test_bytes_that_we_never_write_are_refused() -> None:
    """Compressed buffers can unfold to any size; older metadata can say so elsewhere."""
    zeros = pa.record_batch({"k": np.zeros(100_000, np.int64)})
    packed = message(zeros, pa.ipc.IpcWriteOptions(compression="zstd"))
    old = message(zeros, pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))
    older = encode_delta(Delta(zeros), changing=False)[4:]

    for payload, words in [
        (packed, "compressed buffers"),
        (old, "metadata of version 4"),
        (older, "not a message of Arrow 0.15"),
    ]:
        with pytest.raises(BadFormat, match=words):
            decode_delta(payload, zeros.schema, changing=False)


def test_a_few_bytes_cannot_claim_endless_rows() -> None:
    endless = pa.record_batch({"v": pa.nulls(ARRAY_LENGTH_MAX + 1)})

    with pytest.raises(BadFormat, match="rows between stages, limit"):
        decode_delta(endless.serialize().to_pybytes(), endless.schema, changing=False)


def test_rows_without_weights_are_refused() -> None:
    batch = pa.record_batch(
        [TWO, pa.array([1, None])], schema=pa.schema([("k", pa.int64()), WEIGHT])
    )

    with pytest.raises(BadFormat, match="without their weights"):
        decode_delta(batch.serialize().to_pybytes(), batch.schema.remove(1), changing=True)


def test_a_task_names_the_stage_and_the_lsn_of_what_it_cannot_read() -> None:
    wired = Wired(spec_of(count_by(scan(), 0)))
    tags = tuple(node_tag("q", 1, 0, node) for node in range(64))
    wired.append("somebody", 1, [NewEntry(b"what is this", tags, Kind.DATA, rows=1)])

    with pytest.raises(BadFormat, match=r"stage 0, LSN \d+: not a "):
        wired.settle()


def use(delta: Delta) -> None:
    """What operators do with rows: look at each, pick some, join text."""
    batch = delta.batch
    for place in range(batch.num_columns):
        column = batch.column(place)
        column.to_pylist()
        column.take(pa.array(np.arange(len(column))[::-1].copy()))
    pc.binary_join_element_wise(batch.column("s"), pc.utf8_upper(batch.column("s")), "-")


def read_mutants(seed: int, count: int) -> None:
    """Mutated payloads are refused, or their rows can be used; runs in a process of its own."""
    rng = random.Random(seed)
    payload = encode_delta(Delta(SAMPLE, WEIGHTS), changing=True)
    refused = 0
    for _ in range(count):
        mutant = bytearray(payload)
        for _ in range(rng.randrange(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.choice(
                [0, 1, 127, 128, 255, rng.randrange(256)]
            )
        if rng.random() < 0.05:
            del mutant[rng.randrange(len(mutant)) :]
        try:
            delta = decode_delta(bytes(mutant), SAMPLE.schema, changing=True)
        except BadFormat:
            refused += 1
            continue
        use(delta)
    assert refused > count / 4, f"{refused} of {count} refused"


def test_mutated_bytes_are_refused_or_safe_to_read() -> None:
    """In another process, because what it looks for ends one."""
    code = "import test_payloads; test_payloads.read_mutants(seed=5, count=4000)"
    here = str(Path(__file__).parent)
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({here!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert found.returncode == 0, f"exit {found.returncode}: {found.stderr[-2000:]}"


def test_a_delta_comes_back_from_its_payload() -> None:
    for weights in (None, WEIGHTS):
        changing = weights is not None
        payload = encode_delta(Delta(SAMPLE, weights), changing=changing)

        delta = decode_delta(memoryview(payload), SAMPLE.schema, changing=changing)

        assert delta.batch.equals(SAMPLE)
        assert delta.all_weights().tolist() == (WEIGHTS if changing else np.ones(4)).tolist()
