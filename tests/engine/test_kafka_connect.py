"""Kafka Connect with Debezium, from a real PostgreSQL through the gateway into a stream, where a
real-time query keeps what the table has.

A long run (`make soak`), since the jars come from Maven: tests/jvm/connect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.http_gateway import ForkedGateway
from harness.maven import java_ways, running_java, write_properties
from harness.ports import free_ports
from harness.postgres import PostgresServer, postgres_server
from harness.waiting import wait_until
from pyspark.sql import functions as F
from small_queries import running

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.log.serving.directory import Address

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("interpreted")]

#: What docs/gateway.md has to copy.
WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "1000",
}
DEBEZIUM = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "table.include.list": "public.orders",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "1",
}
FLAT = {
    "transforms": "flat",
    "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.flat.delete.tombstone.handling.mode": "rewrite",
    "transforms.flat.add.fields": "op",
    "topic.creation.default.penstock.columns": (
        "id LONG, customer STRING, amount LONG, __op STRING, __deleted STRING"
    ),
}
CHANGES = 300


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server("wal_level=logical") as server:
        yield server


def change(database: PostgresServer, draw: random.Random, count: int) -> None:
    """Inserts, updates and deletes."""
    for _ in range(count):
        found = database.run("SELECT id FROM orders ORDER BY random() LIMIT 1")
        customer, amount = f"customer {draw.randrange(5)}", draw.randrange(1000)
        kind = draw.randrange(4) if found else 0
        if kind < 2:
            database.run("INSERT INTO orders (customer, amount) VALUES (%s, %s)", customer, amount)
        elif kind == 2:
            database.run(
                "UPDATE orders SET customer = %s, amount = %s WHERE id = %s",
                customer, amount, found[0][0],
            )  # fmt: skip
        else:
            database.run("DELETE FROM orders WHERE id = %s", found[0][0])


def counts(frame: Any) -> Any:
    """What the table has, by customer, from Debezium's changes as they are: each takes away what
    a row was, and adds what it is."""

    def side(name: str, sign: int) -> Any:
        customer = F.get_json_object("text", f"$.{name}.customer")
        amount = F.get_json_object("text", f"$.{name}.amount").cast("long")
        return F.struct(
            customer.alias("customer"), (amount * sign).alias("amount"), F.lit(sign).alias("one")
        )

    changes = frame.where("value IS NOT NULL").select(F.col("value").cast("string").alias("text"))
    sides = changes.select(F.explode(F.array(side("before", -1), side("after", 1))).alias("side"))
    known = sides.select("side.*").where("customer IS NOT NULL")
    return known.groupBy("customer").agg(F.sum("one").alias("n"), F.sum("amount").alias("total"))


def flat_counts(frame: Any) -> Any:
    """How many rows the table has, from flat changes."""
    sign = F.expr("CASE WHEN __op IN ('c', 'r') THEN 1 WHEN __op = 'd' THEN -1 ELSE 0 END")
    return frame.groupBy().agg(F.sum(sign).alias("n"), F.count("*").alias("changes"))


def test_a_query_has_what_the_table_has(
    spark: Any, log: penstock.Log, database: PostgresServer, tmp_path: Path
) -> None:
    draw = random.Random(21)
    database.run(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY, "
        "customer TEXT NOT NULL, amount BIGINT NOT NULL)"
    )
    database.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    change(database, draw, CHANGES)

    token = (Path(log.target) / "token").read_text().strip()
    (port,) = free_ports(1)
    config = GatewayConfig(target=log.target, port=0, kafka_port=port)
    gateway = ForkedGateway(config)
    try:
        ways = java_ways(Address("127.0.0.1", port, False), token)
        said = tmp_path / "connect.log"
        with running_java(
            "connect", "org.apache.kafka.connect.cli.ConnectStandalone",
            *files(tmp_path, ways, database), log=said, options=("-Dpenstock.level=info",),
        ):  # fmt: skip
            streams = ("shop.public.orders", "flat.public.orders")
            try:
                wait_until(lambda: {*streams} <= {each.name for each in log.streams()}, seconds=120)
            except AssertionError:
                raise AssertionError(said.read_text()[-8000:]) from None
            whole, flat = (log.stream(each) for each in streams)
            with (
                running(counts(whole.df(spark)), to="by_customer", workers=1) as query,
                running(flat_counts(flat.df(spark)), to="flat_counts", workers=1) as second,
            ):
                for _ in range(3):
                    change(database, draw, CHANGES // 2)
                    # What it writes idempotently is there once, whatever was under way.
                    gateway.kill()
                    gateway = ForkedGateway(config)
                    change(database, draw, CHANGES // 2)
                    wait_until(lambda: is_equal(query, second, database), seconds=120)
    finally:
        gateway.kill()
    kinds = {row["__op"] for row in flat.read().to_pylist()}
    assert kinds == {"r", "c", "u", "d"}
    rows = whole.read().to_pylist()
    tombstones = [row for row in rows if row["value"] is None]
    deletes = [row for row in rows if row["value"] and b'"op":"d"' in row["value"]]
    assert tombstones and len(tombstones) == len(deletes)
    assert all(row["key"].startswith(b'{"id":') for row in rows)


def is_equal(query: Any, second: Any, database: PostgresServer) -> bool:
    query.processAllAvailable()
    second.processAllAvailable()
    table = database.run("SELECT customer, count(*), sum(amount) FROM orders GROUP BY customer")
    found = [tuple(row.values()) for row in query.result().to_pylist()]
    live = [row for row in found if row[1]]
    (flat,) = second.result().to_pylist()
    return sorted(live) == sorted((a, b, int(c)) for a, b, c in table) and flat["n"] == sum(
        row[1] for row in table
    )


def files(directory: Path, ways: dict[str, object], database: PostgresServer) -> list[Path]:
    """The worker's configuration, and a connector's: changes as they are, and flat."""
    # Of a worker, of what writes for it, and of what makes topics for it.
    all_ways = {
        f"{who}{name}": value for name, value in ways.items() for who in ("", "producer.", "admin.")
    }
    worker = {
        **WORKER,
        **all_ways,
        "offset.storage.file.filename": directory / "offsets",
        "listeners": "HTTP://127.0.0.1:0",
    }
    place = {
        "database.hostname": "127.0.0.1",
        "database.port": database.port,
        "database.user": "penstock",
        "database.password": database.password,
        "database.dbname": "tests",
    }

    def connector(name: str, **more: object) -> Path:
        own = {"name": name, "topic.prefix": name, "slot.name": name, "publication.name": name}
        return write_properties(directory / f"{name}.properties", DEBEZIUM | place | own | more)

    return [
        write_properties(directory / "worker.properties", worker),
        connector("shop"),
        connector("flat", **FLAT),
    ]
