"""parse_ddl against Spark's own parser and Spark's own Arrow types. Needs the `spark` fixture."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import CharType, DataType, StringType, StructField, StructType, VarcharType

from penstock.errors import BadRequest
from penstock.stream.ddl import parse_ddl, to_ddl

pytestmark = pytest.mark.usefixtures("spark")

SAME = [
    "a int",
    "a: int, b: string",
    "struct<a:int,b:string>",
    "STRUCT<a INT, b STRING NOT NULL COMMENT 'x'>",
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long",
    "a float, b real, c double, d decimal, e dec(5), f numeric(38,18), g decimal(38,38)",
    "a string, b char(3), c varchar(7), d binary, e character(2), f char(0)",
    "a date, b timestamp, c timestamp_ltz, d timestamp_ntz, e time, f time(0), g time(6)",
    "a timestamp without time zone, b time without time zone",
    "a interval day, b interval day to second, c interval hour to minute, d interval second",
    "a void, b array<void>, c struct<>, d map<string,struct<>>",
    "a array<int>, b map<string,array<map<int,double>>>, c array<array<string>>",
    "s struct<x: int NOT NULL, y string COMMENT 'deep', z: struct<w decimal(3,1)>>",
    "a int NOT NULL COMMENT 'it''s', b int COMMENT \"dq\", c int COMMENT 'a' 'b'",
    r"a int COMMENT 'tab\t \\ \' \u00e9 \101 \% \_ \q', b int COMMENT r'raw\t'",
    "`a b` int, `c``d` int, `ünï` int, `a.b` int",
    "select int, from int, struct int, array array<int>, comment int COMMENT 'c', not int NOT NULL",
    "1a int, _b int, 2020_x int",
    "a int, -- remark\n b /* inline */ string",
    "A Int, b BIGINT not null",
    "a string collate utf8_binary",
]

REFUSED = [
    "a strin",
    "a",
    "a int b",
    "a int,",
    "a array<int",
    "a map<int>",
    "a map<int int>",
    "a decimal(39,1)",
    "a decimal(4,5)",
    "a decimal(1,2,3)",
    "a varchar",
    "a int(3)",
    "a interval second to day",
    "a int not",
    "a int comment 5",
    "a int comment 'x' not null",
    "a `x",
    "5 int",
    "é int",
    "a int; b int",
]


def without_lengths(spark_type: Any) -> DataType:
    """Spark's type with string for char and varchar, which Spark itself cannot turn to Arrow."""
    if isinstance(spark_type, CharType | VarcharType):
        return StringType()
    if isinstance(spark_type, StructType):
        fields = [
            StructField(f.name, without_lengths(f.dataType), f.nullable, f.metadata)
            for f in spark_type
        ]
        return StructType(fields)
    return spark_type


def spark_schema(ddl: str) -> pa.Schema:
    parsed = StructType.fromDDL(ddl)
    return to_arrow_schema(without_lengths(parsed), timezone="UTC")  # type: ignore[arg-type]


def spark_comment(field: pa.Field) -> str | None:
    metadata = (field.metadata or {}).get(b"SPARK::metadata::json", b"{}")
    comment: str | None = json.loads(metadata).get("comment")
    return comment


@pytest.mark.parametrize("ddl", SAME)
def test_ddl_means_the_same_schema_to_spark(ddl: str) -> None:
    ours, theirs = parse_ddl(ddl), spark_schema(ddl)

    assert ours.names == theirs.names
    for our, their in zip(ours, theirs, strict=True):
        assert our.type == their.type
        assert str(our.type) == str(their.type)
        assert our.nullable == their.nullable
        comment = (our.metadata or {}).get(b"comment")
        assert (comment.decode() if comment is not None else None) == spark_comment(their)


@pytest.mark.parametrize("ddl", SAME)
def test_spark_reads_the_ddl_that_we_print(ddl: str) -> None:
    ours = parse_ddl(ddl)

    assert spark_schema(to_ddl(ours)).equals(ours, check_metadata=False)


@pytest.mark.parametrize("ddl", REFUSED)
def test_what_spark_refuses_is_refused(ddl: str) -> None:
    with pytest.raises(BadRequest):
        parse_ddl(ddl)
    with pytest.raises(PySparkException):
        StructType.fromDDL(ddl)
