from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import BadRequest
from penstock.stream.ddl import parse_ddl, to_ddl, type_to_ddl

TYPES = [
    ("boolean", pa.bool_()),
    ("tinyint", pa.int8()),
    ("BYTE", pa.int8()),
    ("smallint", pa.int16()),
    ("short", pa.int16()),
    ("int", pa.int32()),
    ("Integer", pa.int32()),
    ("bigint", pa.int64()),
    ("long", pa.int64()),
    ("float", pa.float32()),
    ("real", pa.float32()),
    ("double", pa.float64()),
    ("decimal", pa.decimal128(10, 0)),
    ("dec(5)", pa.decimal128(5, 0)),
    ("numeric(38, 18)", pa.decimal128(38, 18)),
    ("string", pa.string()),
    ("string collate UTF8_BINARY", pa.string()),
    ("char(3)", pa.string()),
    ("varchar(10)", pa.string()),
    ("binary", pa.binary()),
    ("date", pa.date32()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestamp_ltz", pa.timestamp("us", tz="UTC")),
    ("timestamp_ntz", pa.timestamp("us")),
    ("timestamp without time zone", pa.timestamp("us")),
    ("time", pa.time64("ns")),
    ("time(3)", pa.time64("ns")),
    ("interval day to second", pa.duration("us")),
    ("interval hour", pa.duration("us")),
    ("void", pa.null()),
    ("array<int>", pa.list_(pa.field("element", pa.int32()))),
    ("array<int NOT NULL>", pa.list_(pa.field("element", pa.int32(), nullable=False))),
    ("struct<>", pa.struct([])),
]


@pytest.mark.parametrize(("text", "arrow_type"), TYPES)
def test_each_type_name_gives_the_arrow_type_that_spark_uses(
    text: str, arrow_type: pa.DataType
) -> None:
    schema = parse_ddl(f"a {text}")

    assert schema.field("a").type.equals(arrow_type, check_metadata=True)
    assert parse_ddl(to_ddl(schema)).equals(schema, check_metadata=True)


def test_children_of_lists_and_maps_have_the_names_and_nullability_of_spark() -> None:
    nested = parse_ddl("m map<string, array<struct<q: int NOT NULL, r string>>>").field("m").type

    assert (nested.key_field.name, nested.key_field.nullable) == ("key", False)
    assert (nested.item_field.name, nested.item_field.nullable) == ("value", True)
    element = nested.item_type.value_field
    assert (element.name, element.nullable) == ("element", True)
    assert [(field.name, field.nullable) for field in element.type] == [("q", False), ("r", True)]


def test_columns_may_be_bare_or_inside_a_struct_with_or_without_colons() -> None:
    texts = [
        "a int, b string",
        "a: int, b: string",
        "struct<a:int,b:string>",
        "STRUCT<a int, b string>",
    ]

    assert len({to_ddl(parse_ddl(text)) for text in texts}) == 1


def test_not_null_and_comment_are_kept_nested_too() -> None:
    schema = parse_ddl("a int NOT NULL COMMENT 'it''s \\'x\\'', s struct<b: int COMMENT \"in\">")

    assert not schema.field("a").nullable
    assert schema.field("a").metadata == {b"comment": b"it's 'x'"}
    assert schema.field("s").type.field("b").metadata == {b"comment": b"in"}


def test_comments_unescape_as_in_spark() -> None:
    def comment(literal: str) -> str:
        return parse_ddl(f"a int COMMENT {literal}").field("a").metadata[b"comment"].decode()

    assert comment(r"'a\tb\\n\%'") == "a\tb\\n\\%"
    assert comment(r"'\u00e9\101'") == "éA"
    assert comment(r"r'a\tb'") == r"a\tb"
    assert comment("'a' 'b'") == "ab"


def test_quoted_names_hold_anything_and_print_quoted_again() -> None:
    schema = parse_ddl("`a``b c` int, `ünï` int, select int")

    assert schema.names == ["a`b c", "ünï", "select"]
    assert to_ddl(schema) == "`a``b c` int, `ünï` int, select int"


def test_sql_comments_and_line_breaks_are_space() -> None:
    assert parse_ddl("a int, -- the key\n /* more */ b int").names == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1: expected a column name, got the end"),
        ("struct<>", "at least one column"),
        ("a", "at character 2: expected a type, got the end"),
        ("a strin", "character 3: expected a type, got 'strin' (did you mean string?)"),
        ("a int b", "character 7: expected ',' or the end, got 'b'"),
        ("a int,", "character 7: expected a column name"),
        ("a array<int", "character 12: expected '>'"),
        ("a map<int>", "character 10: expected ','"),
        ("a decimal(39,1)", "a number from 0 to 38, got '39'"),
        ("a decimal(4,5)", "scale <= precision"),
        ("a decimal(0)", "1 <= precision"),
        ("a varchar", "a length in parentheses"),
        ("a time(7)", "a number from 0 to 6"),
        ("a int(3)", "no parameters after int"),
        ("a interval year to month", "only day-time intervals"),
        ("a interval second to day", "a unit finer than SECOND"),
        ("a string collate unicode", "the only collation carried"),
        ("a variant", "a type that a stream can carry"),
        ("a int not", "expected NULL"),
        ("a int comment 5", "the comment in quotes"),
        ("a void NOT NULL", "void has none"),
        ("a map<void,int>", "void has none"),
        ("a `x", "character 3: cannot read an unclosed quote"),
        ("a int; drop", "cannot read ';'"),
        ("é int", "with backticks"),
        ("5 int", "expected a column name, got '5'"),
        ("`` int", "needs a name"),
        ("a int, b int, A long", "columns a and A differ at most in case"),
        ("a int, a int", "differ at most in case"),
        ("s struct<x:int,X:int>", "columns x and X differ at most in case"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "at most 32 levels"),
    ],
)
def test_bad_text_is_refused_with_position_and_expectation(text: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_ddl(text)

    assert message in str(caught.value)


def test_types_print_in_one_spelling() -> None:
    text = "struct<a: array<map<string,decimal(5,2) NOT NULL>>, b: interval day to second>"

    assert type_to_ddl(parse_ddl(f"x {text}").field("x").type) == text


def test_arrow_types_without_ddl_are_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="uint8"):
        to_ddl(pa.schema([("a", pa.uint8())]))
