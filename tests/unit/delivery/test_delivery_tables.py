"""Tables of deliveries as documented: types, digests, and addresses of targets."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.delivery.api import Shard
from penstock.delivery.targets import open_target
from penstock.delivery.targets.columns import Database, shape_of
from penstock.delivery.targets.digests import row_digests
from penstock.errors import BadConfig, Refused
from penstock.ids import Lsn
from penstock.stream.ddl import parse_ddl, type_to_ddl
from penstock.stream.json_lines import values_to_json

DOCS = Path(__file__).parents[3] / "docs"


def documented_types() -> list[list[str]]:
    lines = (DOCS / "delivery-types.md").read_text().splitlines()
    first = lines.index("| stream | PostgreSQL | SQLite | DuckDB |") + 2
    rows = [re.findall(r"`([^`]+)`", line) for line in lines[first:]]
    return rows[: rows.index([])]


def column_of(ddl: str) -> Any:
    schema = parse_ddl(f"a {ddl}")
    (column,) = shape_of(Shard("d", 0, 1, Lsn(0), schema, False, (), "t")).columns
    return column


@pytest.mark.parametrize("row", documented_types(), ids=lambda row: row[0])
def test_a_type_is_what_the_documentation_says(row: list[str]) -> None:
    databases: list[Database] = ["postgresql", "sqlite", "duckdb"]

    assert [column_of(row[0]).sql_type(database) for database in databases] == row[1:]


def test_the_documentation_has_every_type() -> None:
    kinds = {type_to_ddl(parse_ddl(f"a {row[0]}").field(0).type) for row in documented_types()}

    assert {re.sub(r"[(<].*", "", kind) for kind in kinds} == {
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
        *("string", "binary", "date", "timestamp", "timestamp_ntz", "time"),
        *("interval day to second", "array", "map", "struct", "void"),
    }


def digests(schema: str, *rows: dict[str, object]) -> list[bytes]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=parse_ddl(schema))
    found: list[bytes] = row_digests(batch).to_pylist()
    return found


def test_a_digest_is_what_the_documentation_says() -> None:
    (digest,) = digests("b string, a bigint", {"a": 1, "b": "x"})

    assert f"the digest `{digest.hex()}`" in (DOCS / "formats.md").read_text()


def test_digests_are_equal_for_rows_that_grouping_takes_for_equal() -> None:
    nan = float("nan")
    rows = [
        {"x": 0.0, "l": [-0.0, nan]},
        {"x": -0.0, "l": [0.0, nan]},
        {"x": nan, "l": None},
        {"x": -nan, "l": None},
    ]
    first, second, third, fourth = digests("x double, l array<double>", *rows)

    assert first == second != third == fourth
    assert digests("x double, more int, l array<double>", *rows)[:1] == [first]


def test_digests_differ_wherever_a_value_moves() -> None:
    rows = [
        {"a": "x", "b": "yz"},
        {"a": "xy", "b": "z"},
        {"a": "xyz", "b": None},
        {"a": None, "b": "xyz"},
        {"a": None, "b": None},
        {"a": "", "b": None},
        {"a": "", "b": ""},
    ]

    assert len(set(digests("a string, b string", *rows))) == len(rows)


def test_digests_of_a_slice_are_those_of_its_rows() -> None:
    """Every type, from somewhere in the middle of its buffers."""
    schema = parse_ddl(
        "a boolean, b tinyint, c float, d decimal(20,2), e string, f binary, g date, "
        "h timestamp, i time, j interval day to second, k struct<x: int>, l void"
    )
    empty = dict.fromkeys(schema.names)
    rows = [empty, {**empty, "a": True, "e": "x", "k": {"x": 1}}, empty, {**empty, "b": 5}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)

    assert row_digests(batch.slice(1, 2)).to_pylist() == row_digests(batch).to_pylist()[1:3]


def test_values_as_json_have_one_zero_where_it_is_asked_for() -> None:
    column = pa.array(
        [{"x": [-0.0, 1e300]}, None], parse_ddl("a struct<x: array<double>>").types[0]
    )

    assert values_to_json(column) == ['{"x":[-0.0,1e+300]}', None]
    assert values_to_json(column, one_zero=True) == ['{"x":[0.0,1e+300]}', None]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sqlite:///results.db", "SqliteTarget('results.db')"),
        ("sqlite:////var/results.db", "SqliteTarget('/var/results.db')"),
        ("duckdb:///results.duckdb", "DuckdbTarget('results.duckdb')"),
        ("postgresql://me:pass word@host/db", "PostgresTarget('postgresql://***@host/db')"),
        ("postgres://host/db", "PostgresTarget('postgres://host/db')"),
    ],
)
def test_an_address_names_its_target(uri: str, shown: str) -> None:
    assert repr(open_target(uri)) == shown


@pytest.mark.parametrize(
    "uri", ["mysql://me:hunter2@host/db", "results.db", "sqlite://", "sqlite:///", "duckdb://x"]
)
def test_what_is_no_address_is_refused_with_examples(uri: str) -> None:
    with pytest.raises(BadConfig, match=":///file") as caught:
        open_target(uri)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "module"), [("postgresql", "psycopg"), ("duckdb", "duckdb")])
def test_a_package_that_is_missing_is_named_with_the_command(
    scheme: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.delivery.targets.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    extra = {"postgresql": "postgres"}.get(scheme, scheme)

    with pytest.raises(Refused, match=re.escape(f"pip install 'penstock[{extra}]'")):
        open_target(f"{scheme}:///x")


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    shard = Shard("d", 0, 1, Lsn(0), parse_ddl("a int"), False, (), "t")
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(Refused, match="there is no directory"):
            open_target(f"{scheme}:///{tmp_path}/no/file").open(shard, 1)


@pytest.mark.parametrize(
    "uri", ["sqlite://me:sesame@host/x", "duckdb://me:sesame@host/x", "mysql://me:sesame@host/x"]
)
def test_an_address_that_is_none_is_refused_without_its_secrets(uri: str) -> None:
    with pytest.raises(BadConfig, match=r"://\*\*\*@host/x") as caught:
        open_target(uri)

    assert "sesame" not in str(caught.value)
