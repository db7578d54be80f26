from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import BadFormat, BadRequest, TooLarge
from penstock.stream.ddl import parse_ddl, to_ddl
from penstock.stream.schema import decode_schema, describe_difference, encode_schema, normalise


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.binary(5), "binary"),
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time(6)"),
        (pa.time64("us"), "time(6)"),
        (pa.duration("ns"), "interval day to second"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ns", tz="Europe/Prague"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "bigint"),
        (pa.decimal32(5, 2), "decimal(5,2)"),
        (pa.decimal64(12, 2), "decimal(12,2)"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.decimal128(5, -2), "decimal(7,0)"),
        (pa.decimal128(2, 4), "decimal(4,4)"),
        (pa.large_list(pa.uint8()), "array<smallint>"),
        (pa.list_(pa.int8(), 3), "array<tinyint>"),
        (pa.list_view(pa.int8()), "array<tinyint>"),
        (pa.large_list_view(pa.int8()), "array<tinyint>"),
        (pa.list_(pa.field("item", pa.int8(), nullable=False)), "array<tinyint NOT NULL>"),
        (pa.map_(pa.large_string(), pa.uint8(), keys_sorted=True), "map<string,smallint>"),
        (pa.struct([("a", pa.list_(pa.large_string()))]), "struct<a: array<string>>"),
        (pa.null(), "void"),
    ],
)
def test_arrow_variants_become_sparks_own_type(given: pa.DataType, expected: str) -> None:
    schema = normalise(pa.schema([pa.field("c", given)]))

    assert to_ddl(schema) == f"c {expected}"
    assert schema.equals(parse_ddl(f"c {expected}"), check_metadata=True)


@pytest.mark.parametrize(
    "given",
    [
        pa.month_day_nano_interval(),
        pa.decimal256(39, 2),
        pa.decimal128(38, -1),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.uuid(),
    ],
)
def test_types_that_spark_lacks_are_refused_naming_column_and_type(given: pa.DataType) -> None:
    with pytest.raises(BadRequest) as caught:
        normalise(pa.schema([("outer", pa.struct([("inner", pa.list_(given))]))]))

    assert str(caught.value).startswith("column outer.inner[]: Spark has no type for arrow type")
    assert str(given) in str(caught.value)


def test_ddl_text_is_accepted_as_a_schema() -> None:
    assert normalise("a int").equals(parse_ddl("a int"))


def test_metadata_is_dropped_except_comments_of_ours_and_of_spark() -> None:
    spark = {b"SPARK::metadata::json": b'{"comment": "theirs", "x": 1}'}
    fields = [
        pa.field("a", pa.int8(), metadata={b"comment": b"ours", b"other": b"x"}),
        pa.field("b", pa.int8(), metadata=spark),
        pa.field("c", pa.int8(), metadata={b"SPARK::metadata::json": b"{"}),
    ]

    schema = normalise(pa.schema(fields, metadata={b"pandas": b"{}"}))

    assert schema.metadata is None
    assert [field.metadata for field in schema] == [
        {b"comment": b"ours"},
        {b"comment": b"theirs"},
        None,
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema([("a", pa.int8()), ("A", pa.int8())]), "differ at most in case"),
        (
            pa.schema([("s", pa.struct([("a", pa.int8()), ("A", pa.int8())]))]),
            "column s: columns a",
        ),
        (pa.schema([("", pa.int8())]), "needs a name"),
        (42, "got int"),
    ],
)
def test_schemas_that_spark_could_not_use_are_refused(schema: object, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        normalise(schema)


def test_a_schema_nested_too_deep_is_refused() -> None:
    deep = pa.int8()
    for _ in range(40):
        deep = pa.list_(deep)

    with pytest.raises(BadRequest, match="levels of nesting"):
        normalise(pa.schema([("a", deep)]))


def test_the_deepest_ddl_can_be_registered() -> None:
    schema = parse_ddl("a " + "array<" * 32 + "int" + ">" * 32)

    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


def test_a_schema_beyond_a_metadata_value_is_too_large() -> None:
    with pytest.raises(TooLarge, match="4000 columns"):
        encode_schema(parse_ddl(", ".join(f"{'c' * 60}{i} int" for i in range(4000))))


def test_bytes_that_encode_schema_does_not_write_are_damaged() -> None:
    encoded = encode_schema(parse_ddl("a int"))
    foreign = pa.schema([("a", pa.large_string())]).serialize().to_pybytes()
    batch = pa.record_batch({"a": [1]}).serialize().to_pybytes()

    for wrong in (b"", encoded[:-1], encoded + b"x", foreign, batch, b"\xff" * 64):
        with pytest.raises(BadFormat):
            decode_schema(wrong)


@pytest.mark.parametrize(
    ("expected", "given", "difference"),
    [
        ("a int", "a int COMMENT 'x'", ""),
        ("a int, b int", "a int", "column b: missing, expected int"),
        ("a int", "a int, b string", "column b: extra, got string"),
        ("a bigint", "a decimal(5,2)", "column a: expected bigint, got decimal(5,2)"),
        ("a int", "a int NOT NULL", "column a: expected nullable, got NOT NULL"),
        ("a int, b int", "b int, a int", "columns: expected order a, b, got b, a"),
        (
            "s struct<x: array<int>, y: int>",
            "s struct<y: int, x: array<string>>",
            "column s.x[]: expected int, got string; columns of s: expected order x, y, got y, x",
        ),
        ("m map<int,int>", "m map<string,int>", "column m.key: expected int, got string"),
        (
            "a int, b int",
            "a string",
            "column a: expected int, got string; column b: missing, expected int",
        ),
    ],
)
def test_differences_are_told_column_by_column(expected: str, given: str, difference: str) -> None:
    assert describe_difference(parse_ddl(expected), parse_ddl(given)) == difference


def test_a_difference_to_a_foreign_type_is_told_in_arrows_words() -> None:
    given = pa.schema([("a", pa.uint8())])

    assert describe_difference(parse_ddl("a int"), given) == "column a: expected int, got uint8"
