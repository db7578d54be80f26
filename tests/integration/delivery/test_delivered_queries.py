"""NEXMark's q4 and q5 on Spark, their changing results in PostgreSQL and SQLite, through kills.

Goal: at random moments each table is the committed result at its position, and in the end it is
batch Spark's over the same events. Method: two queries and two deliveries to four shards each run
at once; players, workers of the queries, backends, PostgreSQL and the log server are killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fire_player
import numpy as np
import pyarrow as pa
import pytest
from delivered_tables import (
    Committed,
    Database,
    Look,
    Oracle,
    PostgresDatabase,
    Row,
    Sample,
    SqliteDatabase,
    problems_of,
)
from delivery_fire import serve
from harness.server_process import ServerProcess, free_port
from harness.soak import fresh_seeds
from harness.waiting import wait_until
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.queries.joins import q4
from penstock_bench.nexmark.queries.windows import q5

import penstock
from penstock.log.client.blocking import BlockingLog
from penstock.protocol.names import control_tag
from penstock.runtime.control import Hello, decode_message
from penstock.state.keys import hash_columns, virtual_nodes

if TYPE_CHECKING:
    from harness.postgres import PostgresServer

KILLS = 60
SHARDS = 4
EVENTS = 300
PARAMETERS = Parameters(seed=7, events_per_s=500)
STREAMS = {"persons": model.PERSON, "auctions": model.AUCTION, "bids": model.BID}
#: By query: how it is built, its key, and the columns of its result.
QUERIES: dict[str, tuple[Any, list[str], tuple[str, ...]]] = {
    "q4": (q4, ["category"], ("category", "final")),
    "q5": (q5, ["auction", "starttime"], ("auction", "num", "starttime", "endtime")),
}


@dataclass
class Delivered:
    """One query's result on its way."""

    name: str
    databases: list[Database]
    command: list[str]
    errors: Path
    players: list[BaseProcess] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def look(self, shard: int) -> Sample | None:
        columns = QUERIES[self.name][2]
        sample = self.databases[shard].sample(Look(self.name, self.name, columns), shard)
        if sample is not None:
            self.samples.append(sample)
        return sample

    def keep_a_player(self) -> None:
        if not any(player.is_alive() for player in self.players):
            self.players.append(fire_player.start(self.command, self.errors, None, 0.01))

    def kill_player(self) -> None:
        for player in self.players:
            player.kill()
            player.join()


class Fire:
    """Everything that runs, and ways to kill it."""

    def __init__(
        self, server: ServerProcess, port: int, postgres: PostgresServer, log: penstock.Log
    ) -> None:
        self._server = server
        self._port = port
        self._postgres = postgres
        self.log = log
        self.generator = Generator(PARAMETERS)
        self.fed = 0
        self.kills: Counter[str] = Counter()
        self.delivered: list[Delivered] = []
        self.queries: list[penstock.StreamingQuery] = []

    def feed(self) -> None:
        ids = np.arange(self.fed, self.fed + EVENTS)
        for name in STREAMS:
            self.log.stream(name).append(getattr(self.generator, name)(ids))
        self.fed += EVENTS

    def kill_something(self, chance: random.Random) -> None:
        weights = {"player": 8, "backend": 6, "worker": 4, "server": 2, "postgres": 1}
        (what,) = chance.choices(list(weights), list(weights.values()))
        self.kills[what] += 1
        match what:
            case "player":
                chance.choice(self.delivered).kill_player()
            case "backend":
                for backend in self._postgres.backends():
                    self._postgres.run("SELECT pg_terminate_backend(%s)", backend)
            case "worker":
                worker = chance.choice(self.queries).name
                with suppress(ProcessLookupError):
                    os.kill(self._last_worker(worker), signal.SIGKILL)
            case "server":
                self._server.kill()
                serve(self._server, self._port)
            case "postgres":
                self._postgres.restart()

    def _last_worker(self, query: str) -> int:
        """The process that said hello last."""
        client: BlockingLog = self.log.client
        end = client.bounds().tail
        while (entry := client.read_last(control_tag(query), end=end)) is not None:
            message = decode_message(entry.payload)
            if isinstance(message, Hello):
                return message.pid
            end = entry.lsn
        raise AssertionError(f"query {query} has no worker")

    def oracle(self, name: str) -> Oracle:
        """From the committed rows, as any reader of the stream has them."""
        commits: list[Committed] = []
        homes: dict[Row, int] = {}
        _, key, columns = QUERIES[name]
        with self.log.stream(name).tail("earliest", "latest") as batches:
            for batch in batches:
                assert batches.entry is not None
                rows = [tuple(row[column] for column in columns) for row in batch.to_pylist()]
                homes.update(zip(rows, _shards_of(batch, key), strict=True))
                weights = batch.column("_weight").to_pylist()
                changes = list(zip(rows, weights, strict=True))
                commits.append(Committed(batches.entry.lsn, changes))
        return Oracle(commits, homes, SHARDS)


def _shards_of(batch: pa.RecordBatch, key: list[str]) -> list[int]:
    columns = [batch.column(name) for name in key]
    return [int(node) % SHARDS for node in virtual_nodes(hash_columns(columns, batch.num_rows))]


@contextmanager
def fire(spark: Any, place: Path, postgres: PostgresServer) -> Iterator[Fire]:
    port = free_port()
    server = ServerProcess(place / "log")
    serve(server, port)
    address, token = f"penstock://127.0.0.1:{port}", server.data_dir / "token"
    with (
        server,
        penstock.connect(address, token_file=token, timeout=120.0) as log,
        ExitStack() as stack,
    ):
        made = Fire(server, port, postgres, log)
        for name, schema in STREAMS.items():
            log.create_stream(name, schema)
        frames = {name: log.stream(name).df(spark) for name in STREAMS}
        for name, (build, key, _) in QUERIES.items():
            frame = build(frames["persons"], frames["auctions"], frames["bids"])
            query = penstock.start(
                frame, to=name, name=name, mode="update", log=log, workers=1,
                checkpoints=str(place / "state"),
            )  # fmt: skip
            made.queries.append(query)
            stack.callback(query.stop)
            databases = _databases(place, postgres, name)
            to = [part for one in databases for part in ("--to", one.uri)]
            command = [
                "--query", name, "--key", ",".join(key), *to, "--name", name, "--json",
                "--connect", address, "--token-file", str(token), "--timeout", "60",
            ]  # fmt: skip
            delivered = Delivered(name, databases, command, place / f"players-{name}")
            stack.enter_context(fire_player.ended_at_last(delivered.players))
            for database in databases:
                stack.callback(database.close)
            made.delivered.append(delivered)
        made.feed()
        for query in made.queries:
            query.processAllAvailable()  # its worker has come
        yield made


def _databases(place: Path, postgres: PostgresServer, name: str) -> list[Database]:
    schemas = [f"{name}_{random.SystemRandom().randrange(2**32)}" for _ in range(SHARDS - 1)]
    for schema in schemas:
        postgres.run(f"CREATE SCHEMA {schema}")
    found: list[Database] = [PostgresDatabase(postgres.uri(schema)) for schema in schemas]
    return [*found, SqliteDatabase(place / f"{name}.db")]


@pytest.mark.soak
def test_results_of_nexmark_in_databases_are_those_of_batch_spark(
    spark: Any, tmp_path: Path, postgres: PostgresServer
) -> None:
    for number, seed in enumerate(fresh_seeds()):
        place = tmp_path / str(number)
        place.mkdir()
        chance = random.Random(seed)
        with fire(spark, place, postgres) as run:
            burn(run, chance)
            settle(run, spark)
            for one in run.delivered:
                problems = problems_of(one.samples, run.oracle(one.name))
                assert not problems, f"{one.name}, {len(problems)}: {problems[0]}"
            looks = sum(len(one.samples) for one in run.delivered)
            print(f"{dict(run.kills)} {looks} looks {run.fed} events")


def burn(run: Fire, chance: random.Random) -> None:
    while run.kills.total() < KILLS:
        run.feed()
        for one in run.delivered:
            one.keep_a_player()
        if chance.random() < 0.5:
            run.kill_something(chance)
        deadline = time.monotonic() + chance.uniform(0, 1.0)
        while time.monotonic() < deadline:
            one = chance.choice(run.delivered)
            one.look(chance.randrange(SHARDS))
            time.sleep(chance.uniform(0, 0.02))


def settle(run: Fire, spark: Any) -> None:
    """Until every table has everything; then it is batch Spark's."""
    ids = np.arange(run.fed)
    rows = {name: getattr(run.generator, name)(ids) for name in STREAMS}
    frames = {name: spark.createDataFrame(pa.Table.from_batches([rows[name]])) for name in STREAMS}
    for query in run.queries:
        query.processAllAvailable()
    for one in run.delivered:
        build, _, columns = QUERIES[one.name]
        batch = build(frames["persons"], frames["auctions"], frames["bids"]).toArrow()
        wanted = Counter(tuple(row[name] for name in columns) for row in batch.to_pylist())
        assert wanted

        def is_whole(one: Delivered = one, wanted: Counter[Row] = wanted) -> bool:
            one.keep_a_player()
            samples = [one.look(shard) for shard in range(SHARDS)]
            tables = [Counter() if sample is None else sample.table for sample in samples]
            return sum(tables, Counter[Row]()) == wanted

        wait_until(is_whole, f"{one.name} is not batch Spark's", seconds=180.0)
