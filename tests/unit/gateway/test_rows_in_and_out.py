from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from penstock.errors import BadRow, TooLarge
from penstock.gateway import appending, bodies
from penstock.gateway.replies import (
    ArrowWriter,
    CsvWriter,
    NdjsonWriter,
    heartbeat_event,
    problem_event,
    rows_event,
)
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.stream.batches import ARRAY_LENGTH_MAX
from penstock.stream.ddl import parse_ddl
from penstock.stream.registration import Registration
from penstock.stream.rows import to_batches

SCHEMA = parse_ddl(
    "i int, f double, s string, b boolean, d date, t timestamp, m decimal(5,2), x binary, "
    "a array<int>, v void, k map<string,int>"
)
ROWS: list[dict[str, Any]] = [
    {
        "i": 1, "f": 0.5, "s": 'a "q", b\n', "b": True, "d": date(2026, 11, 15),
        "t": datetime(2026, 11, 15, 8, tzinfo=UTC), "m": Decimal("1.50"), "x": b"\x00\xff",
        "a": [1, None], "k": {"z": 1},
    },
    {"s": ""},
    {},
]  # fmt: skip
(BATCH,) = to_batches(ROWS, SCHEMA)
ENTRY = Entry(
    lsn=Lsn(7), kind=Kind.DATA, tags=("s/x",), payload=b"", time_ms=1_700_000_000_123,
    producer="x/p", instance=1, seq=0, rows=3,
)  # fmt: skip


def test_csv_tells_null_from_empty_and_says_what_json_says() -> None:
    writer = CsvWriter(SCHEMA)
    text = writer.begin() + writer.rows(ENTRY, BATCH) + writer.end()

    assert text.decode() == (
        '"i","f","s","b","d","t","m","x","a","v","k"\n'
        '1,0.5,"a ""q"", b\n",true,"2026-11-15","2026-11-15T08:00:00.000000Z","1.50","AP8=",'
        '"[1,null]",,"{""z"":1}"\n'
        ',,"",,,,,,,,\n'
        ",,,,,,,,,,\n"
    )
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    assert pyarrow.csv.read_csv(io.BytesIO(text), parse_options=options).num_rows == 3


def test_arrow_is_a_stream_that_any_reader_takes() -> None:
    writer = ArrowWriter(SCHEMA)
    stream = writer.begin() + writer.rows(ENTRY, BATCH) + writer.rows(ENTRY, BATCH) + writer.end()

    assert pa.ipc.open_stream(stream).read_all() == pa.Table.from_batches([BATCH, BATCH])
    assert bodies.decode_arrow(stream, SCHEMA) == [BATCH, BATCH]


def test_ndjson_is_read_back_and_an_envelope_says_where() -> None:
    text = NdjsonWriter().rows(ENTRY, BATCH)
    assert bodies.decode_ndjson(text, SCHEMA) == [BATCH]

    first = json.loads(NdjsonWriter(envelope=True).rows(ENTRY, BATCH).split(b"\n")[0])
    assert first["lsn"] == 7 and first["producer"] == "x/p" and first["row"]["i"] == 1
    assert first["time"] == "2023-11-14T22:13:20.123Z"


def test_an_event_is_one_entry_and_no_text_can_end_it() -> None:
    (batch,) = to_batches([{"s": "a\n\nid: 9\u2028"}, {"s": "\r"}], parse_ddl("s string"))

    event = rows_event(batch, 8).decode()

    assert event == ('id: 8\nevent: rows\ndata: {"s":"a\\n\\nid: 9\\u2028"}\ndata: {"s":"\\r"}\n\n')
    assert heartbeat_event(8) == b":\nid: 8\n\n"
    assert problem_event(b"{}") == b"event: problem\ndata: {}\n\n"


def arrow_of(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"a": pa.array(["x"]).dictionary_encode()}), "write it as a plain column"),
        (
            pa.table({"a": pa.RunEndEncodedArray.from_arrays([100], pa.array([1]))}),
            "write it as a plain column",
        ),
        (pa.table({"a": pa.array(["x"], pa.string_view())}), "write it as a plain column"),
        (pa.table({"a": ["x"]}), "row 0, column a: expected int, got string"),
        (pa.table({"z": [1]}), "row 0, column z: unknown column"),
    ],
)
def test_foreign_arrow_is_checked(table: pa.Table, message: str) -> None:
    with pytest.raises(BadRow, match=message):
        bodies.decode_arrow(arrow_of(table), parse_ddl("a int"))


def test_few_bytes_do_not_become_many() -> None:
    schema = parse_ddl("a int")
    many = bodies.ROWS_MAX + 1
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pytest.raises(BadRow, match="without compression"):
        bodies.decode_arrow(arrow_of(pa.table({"a": [1]}), packed), schema)
    refused: list[tuple[Callable[..., object], bytes]] = [
        (bodies.decode_arrow, arrow_of(pa.table({"a": pa.nulls(many)}))),
        (bodies.decode_json_array, b"[" + b"{}," * bodies.ROWS_MAX + b"{}]"),
        (bodies.decode_json_array, b"[" + b"{}," * bodies.ROWS_MAX + b'{"a": 1}, nonsense'),
        (bodies.decode_ndjson, b"{}\n" * many),
    ]
    for decode, body in refused[:2] + refused[3:]:
        with pytest.raises(TooLarge, match=f"over {bodies.ROWS_MAX} rows"):
            decode(body, schema)
    wide = parse_ddl(", ".join(f"c{at} int" for at in range(1000)))
    with pytest.raises(TooLarge, match="over 4000 rows"):
        bodies.decode_json_array(b"[" + b"{}," * 4000 + b"{}]", wide)


def test_few_bytes_of_nested_columns_do_not_become_many() -> None:
    fields = ", ".join(f"f{at}: bigint" for at in range(999))
    nested = parse_ddl(f"a struct<{fields}>")
    with pytest.raises(TooLarge, match="over 4000 rows"):
        bodies.decode_json_array(b"[" + b"{}," * 4000 + b"{}]", nested)
    listed = parse_ddl(f"a array<struct<{fields}>>")
    for element in (b"{}", b"null"):
        row = b'{"a": [' + (element + b",") * 20_000 + element + b"]}"
        for decode in (bodies.decode_json_array, bodies.decode_ndjson):
            with pytest.raises(TooLarge, match="lists of up to"):
                decode(row, listed)
    assert bodies.decode_json_array(b'{"a": [{}, null]}', listed)[0].num_rows == 1

    nulls = pa.nulls(ARRAY_LENGTH_MAX // 2 - 1)  # their elements take no bytes
    column = pa.ListArray.from_arrays(pa.array([0, len(nulls)], pa.int32()), nulls)
    once = pa.table({"a": column})
    assert bodies.decode_arrow(arrow_of(once), parse_ddl("a array<bigint>"))[0].num_rows == 1
    with pytest.raises(TooLarge, match="elements, limit"):
        bodies.decode_arrow(arrow_of(pa.concat_tables([once] * 3)), parse_ddl("a array<bigint>"))


def test_rows_beyond_a_group_are_refused_before_they_are_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = ", ".join(f"f{at}: bigint" for at in range(400))
    schema = parse_ddl(f"a struct<{fields}>")
    batches = bodies.decode_json_array(b"[" + b"{}," * 9000 + b"{}]", schema)
    monkeypatch.setattr(appending, "make_groups", lambda *_, **__: pytest.fail("encoded"))
    with pytest.raises(TooLarge, match="more than one group"):
        appending.one_group(Registration("s", schema, 0), batches, 0)


def test_a_message_of_no_type_is_refused_and_does_not_end_the_process() -> None:
    whole = arrow_of(pa.table({"a": pa.array([1], pa.int32())}))
    assert whole[20:24] == b"\x05\x00\x08\x00"  # the first message's type, and where its schema is
    for end in (22, 24):
        with pytest.raises(BadRow, match="begins with a unknown"):
            bodies.decode_arrow(whole[:20] + bytes(end - 20) + whole[end:], parse_ddl("a int"))


def test_names_that_are_no_text_are_refused() -> None:
    nested = pa.array([{"nnnn": 1}])
    for table in (pa.table({"nnnn": [1]}), pa.table({"a": nested})):
        body = arrow_of(table).replace(b"nnnn", b"\xff\xff\xff\xff")
        with pytest.raises(BadRow, match="not an Arrow IPC stream"):
            bodies.decode_arrow(body, parse_ddl("a struct<nnnn: bigint>"))


@pytest.mark.parametrize("ddl", ["a float", "a double"])
def test_half_floats_are_taken(ddl: str) -> None:
    halves = pa.table({"a": pa.array([0.5, None, float("nan")], pa.float32()).cast(pa.float16())})
    (batch,) = bodies.decode_arrow(arrow_of(halves), parse_ddl(ddl))
    assert str(batch.column(0).to_pylist()) == "[0.5, None, nan]"


@pytest.mark.parametrize("cut", [0, 1, 8, 30, 200, -1, -9])
def test_cut_and_flipped_arrow_is_refused_or_harmless(cut: int) -> None:
    whole = arrow_of(pa.table({"a": pa.array([1, 2, 3], pa.int32())}))
    schema = parse_ddl("a int")
    for body in (whole[:cut], whole[:cut] + bytes([whole[cut] ^ 0xFF]) + whole[cut:][1:]):
        try:
            bodies.decode_arrow(body, schema)
        except (BadRow, TooLarge):
            pass
