"""A stand for a delivery under fire: a log server, databases, players, and what is seen of tables.

Owns the real processes and their lives. The log server is a process at a fixed port, PostgreSQL
the machine's own, a player is `penstock deliver` (fire_player.py). Meanwhile the result goes on
changing, and tables are looked at: rows and position in one transaction of the database.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import fire_player
from changing_result import COLUMNS, QUERY, ChangingResult, oracle_of
from delivered_tables import (
    Database,
    Look,
    Oracle,
    PostgresDatabase,
    Row,
    Sample,
    SqliteDatabase,
    problems_of,
)
from harness.postgres import PostgresServer
from harness.server_process import ServerProcess, free_port
from harness.waiting import wait_until

import penstock

NAME = "under_fire"
TABLE = "hot"
#: Between two commits of the result.
COMMIT_SECONDS = 0.01
#: How long harm waits for something to have been delivered.
PROGRESS_SECONDS = 10.0
#: Until tables have everything, once nothing is killed any more.
SETTLE_SECONDS = 120.0


class Stand:
    """One delivery, all its processes, and all that was seen. Make one with `stand`."""

    def __init__(
        self,
        server: ServerProcess,
        port: int,
        postgres: PostgresServer,
        databases: list[Database],
        *,
        keyed: bool,
        mutant: str | None,
        late: float,
        seed: int,
    ) -> None:
        self._server = server
        self._port = port
        self._postgres = postgres
        self.databases = databases
        self.keyed = keyed
        self._look_at = Look(NAME, TABLE, COLUMNS, is_counted=not keyed)
        self._mutant = mutant
        self._late = late
        self.random = random.Random(seed)
        self._address = f"penstock://127.0.0.1:{port}"
        token_file = server.data_dir / "token"
        # By its address: by its directory we would start a server when it is killed.
        self.log = penstock.connect(self._address, token_file=token_file, timeout=120.0)
        self.result = ChangingResult(self.log, seed)
        self.players: list[BaseProcess] = []
        self.errors = server.data_dir / "players"
        self.samples: list[Sample] = []
        #: What a player is started with.
        self.targets: Callable[[], list[str]] = lambda: [one.uri for one in databases]
        self.left: Callable[[], list[str]] = list
        #: The position of the foremost table, as last seen.
        self.foremost: Callable[[], int] = self._position
        #: Harm beside that of the methods.
        self.actions: dict[str, Callable[[], None]] = {}
        self.kills: Counter[str] = Counter()
        self._over = threading.Event()
        self._is_quiet = threading.Event()
        self._failures: list[BaseException] = []

    # ---- players

    def start_player(self) -> BaseProcess:
        key = [] if self.keyed else ["--key", ""]
        to = [part for uri in self.targets() for part in ("--to", uri)]
        to += [part for uri in self.left() for part in ("--leaving", uri)]
        arguments = [
            "--query", QUERY, *key, *to, "--name", NAME, "--table", TABLE, "--json",
            "--connect", self._address,
            "--token-file", str(self._server.data_dir / "token"), "--timeout", "60",
        ]  # fmt: skip
        process = fire_player.start(arguments, self.errors, self._mutant, self._late)
        self.players.append(process)
        return process

    def keep_a_player(self) -> None:
        """Start one if none runs: others may have ended because a newer one was there."""
        if not any(player.is_alive() for player in self.players):
            self.start_player()

    # ---- kills

    def kill_player(self) -> None:
        for player in self.players:
            player.kill()
        for player in self.players:
            player.join()
        self.start_player()

    def add_a_rival(self) -> None:
        """Start another: the first one ends, with what it has under way."""
        self.start_player()

    def add_a_zombie(self) -> None:
        """Pause the player, let another go on in its place, and wake it."""
        old = next((player for player in self.players if player.is_alive()), None)
        if old is not None and old.pid is not None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(old.pid, signal.SIGSTOP)
                self.start_player()
                self.pause(1.0)
                os.kill(old.pid, signal.SIGCONT)

    def end_backends(self) -> None:
        """pg_terminate_backend for some of those that serve the player."""
        backends = self._postgres.backends()
        for backend in self.random.sample(backends, self.random.randint(0, len(backends))):
            self._postgres.run("SELECT pg_terminate_backend(%s)", backend)

    def kill_server(self) -> None:
        self._server.kill()
        self.pause(0.2)
        serve(self._server, self._port)

    def restart_postgres(self) -> None:
        self._postgres.restart()

    def pause(self, seconds: float) -> None:
        time.sleep(self.random.uniform(0, seconds))

    def burn(self, seconds: float, actions: dict[str, int]) -> None:
        """Do harm for so long, by the names of methods and how often each is drawn."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._failures:
            (action,) = self.random.choices(list(actions), list(actions.values()))
            self.actions.get(action, getattr(self, action, None))()  # type: ignore[misc]
            self.kills[action] += 1
            self.keep_a_player()
            if self.random.random() < 0.7:
                self.await_progress()
            self.pause(0.3)

    def await_progress(self) -> None:
        """Until some table has moved on: a start takes as long as the machine is busy."""
        before = self.foremost()
        deadline = time.monotonic() + PROGRESS_SECONDS
        while self.foremost() == before and time.monotonic() < deadline:
            self.keep_a_player()
            time.sleep(0.01)

    def _position(self) -> int:
        return max((sample.position for sample in self.samples[-50:]), default=0)

    # ---- work and looks

    def _change(self) -> None:
        while not self._is_quiet.is_set():
            self.result.commit()
            self._over.wait(COMMIT_SECONDS)

    def _look(self) -> None:
        chance = random.Random(self.random.random())
        while not self._over.is_set():
            self.look(chance.randrange(len(self.databases)))
            self._over.wait(chance.uniform(0, 0.01))

    def look(self, shard: int) -> Sample | None:
        sample = self.databases[shard].sample(self._look_at, shard)
        if sample is not None:
            self.samples.append(sample)
        return sample

    def _run(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded, name=work.__name__, daemon=True)
        thread.start()
        return thread

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The result changes, and tables are looked at; afterwards neither."""
        changing, looking = self._run(self._change), self._run(self._look)
        try:
            yield
        finally:
            self._is_quiet.set()
            changing.join(180)
            self._over.set()
            looking.join(180)
        if self._failures:
            raise self._failures[0]

    def problems(self) -> list[str]:
        """What was wrong so far."""
        return problems_of(self.samples, self._oracle())

    def _oracle(self) -> Oracle:
        return oracle_of(self.result.commits, len(self.databases), keyed=self.keyed)

    def settle(self) -> None:
        """Until every table has the whole result, seen once more for each."""
        self.keep_a_player()
        oracle = self._oracle()
        end = self.result.commits[-1].lsn + 1
        for shard in range(len(self.databases)):
            whole = oracle.table_at(shard, end)

            def is_whole(shard: int = shard, whole: Counter[Row] = whole) -> bool:
                self.keep_a_player()
                sample = self.look(shard)
                return sample is not None and sample.table == whole

            wait_until(is_whole, f"shard {shard} stays behind", seconds=SETTLE_SECONDS)


def serve(server: ServerProcess, port: int) -> None:
    """Start it at its port: clients find it again."""
    server.launch(["--port", str(port)])
    server.wait_ready()


@contextmanager
def stand(
    place: Path,
    postgres: PostgresServer,
    *,
    keyed: bool,
    seed: int,
    mutant: str | None = None,
    late: float = 0.02,
) -> Iterator[Stand]:
    """Two schemas, a database of its own, and a file. `late`: the share of batches that are."""
    number = random.SystemRandom().randrange(2**32)
    schemas = [f"fire_{number}_{schema}" for schema in range(2)]
    for schema in schemas:
        postgres.run(f"CREATE SCHEMA {schema}")
    postgres.run(f"CREATE DATABASE fire_{number}")
    own = postgres.uri().replace("/tests?", f"/fire_{number}?")
    databases: list[Database] = [
        *(PostgresDatabase(postgres.uri(schema)) for schema in schemas),
        PostgresDatabase(own),
        SqliteDatabase(place / "fire.db"),
    ]
    port = free_port()
    with ExitStack() as stack:
        server = ServerProcess(place / "log")
        serve(server, port)
        stack.enter_context(server)
        made = Stand(
            server, port, postgres, databases, keyed=keyed, mutant=mutant, late=late, seed=seed
        )
        stack.callback(made.log.close)
        stack.callback(made.result.close)
        stack.enter_context(fire_player.ended_at_last(made.players))
        for database in databases:
            stack.callback(database.close)
        yield made
