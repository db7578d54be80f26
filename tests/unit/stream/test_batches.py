from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, TooLarge
from penstock.stream.batches import ARRAY_LENGTH_MAX, decode_batch, encode_batch, split_batch
from penstock.stream.columns import QuickLook, find_misfit
from penstock.stream.ddl import parse_ddl

SCHEMA = parse_ddl("a bigint, s string")
BATCH = pa.record_batch([pa.array([1, 2, None]), pa.array(["x", None, "zz"])], schema=SCHEMA)


def compressed_payload(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message: bytes = reader.read_next_message().serialize().to_pybytes()
    return message


def test_a_payload_decodes_to_the_batch_from_bytes_and_from_a_view() -> None:
    payload = encode_batch(BATCH)

    assert decode_batch(payload, SCHEMA).equals(BATCH)
    shifted = memoryview(b"x" + payload)[1:]
    assert decode_batch(shifted, SCHEMA).equals(BATCH)


def test_a_slice_encodes_only_its_own_rows() -> None:
    long = pa.record_batch({"s": ["x" * 1000] * 100})

    assert len(encode_batch(long.slice(50, 1))) < 2000


def lying_payload() -> bytes:
    """Offsets that point outside."""
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\xff\xff\x00\x00\x02\x00\x00\x00")
    lying = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    return encode_batch(pa.RecordBatch.from_arrays([lying], names=["s"]))


PAYLOAD = encode_batch(BATCH)
LOOSE = encode_batch(pa.record_batch({"s": pa.array([{"q": 1}, {"q": None}])}))
BAD_TEXT = encode_batch(pa.record_batch({"s": pa.array([b"\xff\xfe"])}))
STRICT = "s struct<q: bigint NOT NULL>"
OURS = "a bigint, s string"


@pytest.mark.parametrize(
    ("payload", "ddl", "words"),
    [
        *((PAYLOAD[:cut], OURS, None) for cut in (0, 1, 7, 8, 50, 200, -1)),
        (PAYLOAD + b"12345678", OURS, "a message of"),
        (compressed_payload(BATCH), OURS, "compressed"),
        (SCHEMA.serialize().to_pybytes(), OURS, "but a schema"),
        (PAYLOAD, "a bigint", "but the schema has"),
        (PAYLOAD, "a bigint, s string, t string", "but the schema has"),
        (BAD_TEXT, "s string", "(?i)utf8"),
        (lying_payload(), "s string", None),
        (LOOSE, STRICT, r"row 1, column s\.q: is NOT NULL"),
    ],
    ids=[
        *(f"cut at {cut}" for cut in (0, 1, 7, 8, 50, 200, -1)),
        *("trailing bytes", "compressed", "a schema message", "fewer columns", "more columns"),
        *("not utf8", "offsets outside", "a null in a not null column"),
    ],
)
def test_what_is_no_batch_of_the_schema_is_refused(
    payload: bytes, ddl: str, words: str | None
) -> None:
    with pytest.raises(BadFormat, match=words):
        decode_batch(payload, parse_ddl(ddl))


MICROS = pa.timestamp("us", tz="UTC")
YEAR_10000 = 253_402_300_800_000_000


@pytest.mark.parametrize("kind", ["plain", "nested", "under a null"])
def test_times_outside_of_sparks_range_are_refused_unless_nobody_sees_them(kind: str) -> None:
    times = pa.array([0, YEAR_10000, 0], pa.int64()).cast(MICROS)
    inner = pa.StructArray.from_arrays(
        [times], fields=[pa.field("t", MICROS)], mask=pa.array([False, kind != "nested", False])
    )
    column = times if kind == "plain" else inner
    batch = pa.record_batch([column], names=["c"])
    payload = encode_batch(batch)

    if kind == "under a null":
        assert decode_batch(payload, batch.schema).equals(batch)
        return
    with pytest.raises(BadFormat, match=r"row 1, column c.*outside years 0001 to 9999"):
        decode_batch(payload, batch.schema)


@given(st.data())
def test_a_quick_look_never_passes_what_does_not_fit(data: st.DataObject) -> None:
    kinds = [pa.int64(), MICROS, pa.date32(), pa.struct([("t", MICROS)]), pa.duration("us")]
    field = pa.field("c", data.draw(st.sampled_from(kinds)), data.draw(st.booleans()))
    is_date = pa.types.is_date(field.type)
    far = 3_000_000 if is_date else YEAR_10000
    numbers = st.lists(st.sampled_from([0, 1, far, -far, None]), max_size=4)
    array = pa.array(data.draw(numbers), pa.int32() if is_date else pa.int64())
    if pa.types.is_struct(field.type):
        array = pa.StructArray.from_arrays([array.view(MICROS)], fields=list(field.type))
    else:
        array = array.view(field.type)
    array = array.slice(data.draw(st.integers(0, 2)))
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))

    if QuickLook(batch.schema).fits(batch):
        assert find_misfit(array, field) is None


def test_a_buffer_that_is_longer_than_its_values_is_no_error() -> None:
    """Arrow takes it; so does the quick look."""
    values = pa.py_buffer(np.array([1, 2], np.int64).tobytes() + b"abcd")
    kind = pa.timestamp("us", tz="UTC")
    array = pa.Array.from_buffers(kind, 2, [None, values])
    batch = pa.record_batch([array], schema=pa.schema([("t", kind)]))
    assert QuickLook(batch.schema).fits(batch)
    assert not QuickLook(batch.schema).fits(
        pa.record_batch([pa.array([2**62], kind)], schema=batch.schema)
    )


def test_a_few_bytes_cannot_claim_endless_voids() -> None:
    endless = pa.record_batch({"v": pa.nulls(ARRAY_LENGTH_MAX + 1)})

    with pytest.raises(TooLarge):
        encode_batch(endless)
    with pytest.raises(BadFormat, match="elements, limit"):
        decode_batch(endless.serialize().to_pybytes(), parse_ddl("v void"))
    assert len(split_batch(endless, 1000)) == 2


def test_a_split_keeps_order_and_size() -> None:
    batch = pa.record_batch({"a": list(range(1000)), "s": ["y" * (i % 50) for i in range(1000)]})

    pieces = split_batch(batch, 2000)

    assert len(pieces) > 10
    assert all(len(encode_batch(piece)) <= 2000 for piece in pieces)
    assert pa.Table.from_batches(pieces).combine_chunks().to_batches()[0].equals(batch)


def test_a_batch_that_fits_is_one_piece_and_no_rows_are_no_piece() -> None:
    assert split_batch(BATCH, 10_000) == [BATCH]
    assert split_batch(BATCH.slice(0, 0), 10_000) == []


def test_a_row_that_cannot_fit_is_named() -> None:
    batch = pa.record_batch({"s": ["a", "b", "c" * 5000, "d"]})

    with pytest.raises(TooLarge, match="row 2 takes"):
        split_batch(batch, 1000)
