"""PostgreSQL as it really is: answers get lost, servers hang, and addresses hold secrets."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import psycopg
import pytest
from harness.postgres import PostgresServer
from harness.tcp_proxy import Fault, TcpProxy, Way
from harness.waiting import wait_until
from target_databases import Postgres
from target_samples import batch_of, expected, shard_of, table_of

from penstock.delivery.api import Shard
from penstock.delivery.targets import open_target, postgres_connection
from penstock.delivery.targets.postgres import PostgresTarget
from penstock.errors import (
    BadConfig,
    BadRequest,
    BadRow,
    Refused,
    SchemaMismatch,
    Unauthorized,
    Unavailable,
)
from penstock.ids import Lsn
from penstock.log.serving.directory import Address
from penstock.stream.ddl import parse_ddl

NUMBERS = itertools.count()
SHARD = shard_of(changing=False, key=())
ROW = (1, "a", 0.5)


@pytest.fixture
def database(postgres: PostgresServer) -> Postgres:
    return Postgres(postgres, f"own_{next(NUMBERS)}")


# -- connections


async def test_an_answer_that_is_lost_leaves_the_position_to_tell(postgres: PostgresServer) -> None:
    """The statement is committed, but nobody hears of it."""
    shard = replace(SHARD, table="lost_answer", delivery="lost answer")
    async with TcpProxy(lambda: Address("127.0.0.1", postgres.port)) as proxy:
        uri = postgres.tcp_uri().replace(f":{postgres.port}/", f":{proxy.address.port}/")
        with closing(open_target(uri)) as target:
            await asyncio.to_thread(target.open, shard, 1)
            proxy.arm(Way.TO_CLIENT, Fault(cut_after=0, reset=False))
            batch = batch_of(shard, 10, 20, [ROW])
            with pytest.raises(Unavailable):
                await asyncio.to_thread(target.apply, batch)
    with closing(open_target(postgres.uri())) as target:
        position = target.open(shard, 1)
        assert target.apply(batch) == 20

    assert position == 20
    assert postgres.run("SELECT auction FROM lost_answer") == [(1,)]


def test_a_server_that_hangs_is_unavailable(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "_GRACE_SECONDS", 0.2)
    target = PostgresTarget(database.uri, answer_seconds=0.5)
    target.open(SHARD, 1)
    (backend,) = database.server.backends()
    os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match="no answer for"):
            target.apply(batch_of(SHARD, 10, 20, [ROW]))
        target.close()
    finally:
        os.kill(backend, signal.SIGCONT)

    wait_until(lambda: not database.server.backends())
    assert target.open(SHARD, 1) in (10, 20)
    target.close()


def test_a_lock_that_is_not_given_back_is_unavailable(database: Postgres) -> None:
    with closing(PostgresTarget(database.uri, answer_seconds=0.3)) as target:
        target.open(SHARD, 1)
        with psycopg.connect(database.uri) as other:
            other.execute("LOCK TABLE results")
            with pytest.raises(Unavailable, match="statement timeout"):
                target.apply(batch_of(SHARD, 10, 20, [ROW]))
        assert target.apply(batch_of(SHARD, 10, 20, [ROW])) == 20


WRONG = {
    "a wrong password": (lambda server: server.tcp_uri("wrong secret"), Unauthorized),
    "a database that is not there": (lambda server: server.tcp_uri(database="nope"), Refused),
    "a port where nobody listens": (
        lambda server: server.tcp_uri().replace(str(server.port), "1"),
        Unavailable,
    ),
    "an option that does not exist": (
        lambda server: server.tcp_uri() + "?no_such_option=secret",
        BadConfig,
    ),
    "a schema that is not there": (lambda server: server.uri("nowhere"), Refused),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_an_address_is_told_without_its_secrets(
    postgres: PostgresServer, case: str
) -> None:
    make_uri, kind = WRONG[case]
    target = open_target(make_uri(postgres))
    with pytest.raises(kind) as caught:
        target.open(SHARD, 1)

    assert type(caught.value) is kind
    told = f"{caught.value} {caught.value!r} {target!r} {caught.value.__cause__}"
    for secret in ("sesame", "secret", "%40"):
        assert secret not in told
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_user_who_may_do_nothing_is_told_so(database: Postgres) -> None:
    database.server.run("DO $$ BEGIN CREATE USER guest; EXCEPTION WHEN others THEN END $$")
    with closing(open_target(database.server.uri(database.schema, user="guest"))) as target:
        with pytest.raises(Refused, match="search path names no schema"):
            target.open(SHARD, 1)
        with pytest.raises(Refused, match="permission denied"):
            target.open(replace(SHARD, table=f"{database.schema}.results"), 1)


def test_answers_are_durable_whatever_the_server_was_told(database: Postgres) -> None:
    levels = {}
    for level in ("off", "local", "on"):
        uri = database.uri + quote(f" -csynchronous_commit={level}")
        with closing(PostgresTarget(uri)) as target:
            target.open(SHARD, 1)
            assert target._connection is not None
            levels[level] = target._connection.ask("SHOW synchronous_commit")[0][0]

    assert levels == {"off": "on", "local": "local", "on": "on"}


# -- concurrency


@pytest.mark.parametrize("level", [r"repeatable\ read", "serializable"])
def test_rivals_in_a_database_with_another_isolation_apply_each_batch_once(
    database: Postgres, level: str
) -> None:
    uri = database.uri + quote(f" -cdefault_transaction_isolation={level}")
    problems: list[BaseException] = []

    def play() -> None:
        try:
            with closing(open_target(uri)) as target:
                position = patiently(lambda: target.open(SHARD, 1))
                while position < 40:
                    batch = batch_of(SHARD, position, position + 1, [(position, "x", 0.0)])
                    position = patiently(partial(target.apply, batch))
        except BaseException as error:
            problems.append(error)

    rivals = [threading.Thread(target=play) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()

    assert problems == []
    assert table_of(database, SHARD) == expected(SHARD, [(n, "x", 0.0) for n in range(10, 40)])


def patiently(attempt: Callable[[], Lsn]) -> Lsn:
    for _ in range(1000):
        try:
            return attempt()
        except Unavailable:
            continue
    raise AssertionError("never available")


def test_a_rival_that_waits_for_the_lock_looks_again(database: Postgres) -> None:
    """1. A moves the position and waits. 2. B's statement begins, and waits for A. 3. A commits."""
    with closing(open_target(database.uri)) as target:
        target.open(SHARD, 1)
        answers = []
        with psycopg.connect(database.uri) as rival:
            rival.execute("UPDATE penstock_positions SET position = 20")
            rival.execute("INSERT INTO results VALUES (7, 'rival', 0)")
            thread = threading.Thread(
                target=lambda: answers.append(target.apply(batch_of(SHARD, 10, 20, [ROW])))
            )
            thread.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: database.server.run(waiting) == [(1,)])
            rival.commit()
            thread.join()

    assert answers == [20]
    assert table_of(database, SHARD) == expected(SHARD, [(7, "rival", 0.0)])


# -- tables and rows


def test_a_table_of_another_schema_has_its_position_beside_it(database: Postgres) -> None:
    shard = replace(SHARD, table=f"{database.schema}.results")
    with closing(open_target(database.server.uri())) as target:
        assert target.open(shard, 1) == 10
        assert target.apply(batch_of(shard, 10, 20, [ROW])) == 20

    assert database.stored(SHARD) == (20, 1)
    assert table_of(database, SHARD) == expected(SHARD, [ROW])


def test_names_that_the_server_would_cut_are_refused(database: Postgres) -> None:
    long = "ä" * 32
    with closing(open_target(database.uri)) as target:
        for shard in (replace(SHARD, table=long), shard_of(parse_ddl(f"`{long}` int"), key=())):
            with pytest.raises(BadRequest, match="at most 63 bytes"):
                target.open(shard, 1)


def test_text_with_a_nul_is_named_whether_it_comes_goes_or_is_json(database: Postgres) -> None:
    schema = parse_ddl("name string, tags array<string>")
    shard = shard_of(schema, key=("name",))
    bad = {
        "row 1, column name": [(1, "fine", None), (1, "a\0b", None)],
        "row 0, column name": [(-1, "\0", None), (1, "fine", None)],
        "row 1, column tags": [(1, "a", ["\\u0000"]), (1, "b", ["\\", "\0"])],
    }
    with closing(open_target(database.uri)) as target:
        target.open(shard, 1)
        for words, rows in bad.items():
            with pytest.raises(BadRow, match=f"{words}: has a NUL character") as caught:
                target.apply(batch_of(shard, 10, 20, rows))
            assert f"row {caught.value.row}," in words
    assert database.stored(shard) == (10, 1)


def test_a_key_too_long_for_an_index_is_found(database: Postgres) -> None:
    shard = shard_of(parse_ddl("name string, number int"), key=("name",), changing=False)
    noise = "".join(chr(0x4E00 + number * 37 % 20000) for number in range(5000))
    with closing(open_target(database.uri)) as target:
        target.open(shard, 1)
        with pytest.raises(BadRow, match="row 1 in LSNs 10 to 20: index row") as caught:
            target.apply(batch_of(shard, 10, 20, [("a", 1), (noise, 2), ("b", 3)]))
    assert caught.value.row == 1
    assert table_of(database, shard) == []


def test_a_column_that_vanishes_while_rows_come_is_a_mismatch(database: Postgres) -> None:
    with closing(open_target(database.uri)) as target:
        target.open(SHARD, 1)
        database.run("ALTER TABLE results DROP COLUMN price")
        with pytest.raises(SchemaMismatch, match="price"):
            target.apply(batch_of(SHARD, 10, 20, [ROW]))
    assert database.stored(SHARD) == (10, 1)


def test_a_key_that_may_be_null_needs_an_index_that_knows_nulls(database: Postgres) -> None:
    shard: Shard = shard_of(parse_ddl("name string, number int"), key=("name",))
    database.run("CREATE TABLE results (name text UNIQUE, number integer)")
    with closing(open_target(database.uri)) as target:
        with pytest.raises(SchemaMismatch, match="NULLS NOT DISTINCT") as caught:
            target.open(shard, 1)
        database.run(str(caught.value).rpartition(": ")[2])
        assert target.open(shard, 1) == 10


def test_wider_types_of_a_users_table_are_taken(database: Postgres) -> None:
    database.run("CREATE TABLE results (a bigint, b double precision, c varchar, d numeric(10,2))")
    schema = parse_ddl("a tinyint, b float, c string, d decimal(10,2)")
    shard = shard_of(schema, key=(), changing=False)
    with closing(open_target(database.uri)) as target:
        target.open(shard, 1)
        target.apply(batch_of(shard, 10, 20, [(-128, 0.5, "x", None)]))

    assert database.run("SELECT * FROM results") == [(-128, 0.5, "x", None)]
