"""Other targets again and again, in PostgreSQL and SQLite, while players and servers are killed.

Goal: at every moment each table is what its shards have at the positions that are stored beside it,
no row is in two of them behind a cut, and in the end all together are the whole result. Method: the
stand of delivery_fire.py, with `penstock delivery reshard` between its kills; the judge
(resharded_tables.py) folds what was committed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from changing_result import COLUMNS
from delivered_tables import COUNT
from delivery_fire import NAME, TABLE, Stand, stand
from harness.soak import fresh_seeds
from harness.waiting import wait_until
from psycopg import Error as PostgresError
from psycopg import IsolationLevel, connect
from resharded_tables import Judge, Sample, look_at_sqlite, sample_of

from penstock.config import masked_uri
from penstock.delivery.registration import list_deliveries, live_targets
from penstock.delivery.resharding import reshard
from penstock.errors import BadRequest, Retryable
from penstock.protocol.deliveries import RegisteredDelivery

if TYPE_CHECKING:
    from harness.postgres import PostgresServer

FIRE_SECONDS = 8.0
SOAK_SECONDS_EACH = 60.0
ACTIONS = {
    "kill_player": 6,
    "end_backends": 4,
    "kill_server": 2,
    "add_a_zombie": 2,
    "add_a_rival": 2,
    "restart_postgres": 1,
    "other_targets": 8,
}


class Changing:
    """A stand whose delivery gets other targets, and what is seen of its tables."""

    def __init__(self, run: Stand) -> None:
        self._run = run
        self._random = random.Random(run.random.random())
        # Of two schemas in one database, what is registered of their addresses is the same.
        self._all = [database.uri for database in run.databases[1:]]
        self.samples: list[Sample] = []
        self.cuts = 0
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def targets(self) -> list[str]:
        """Those of now, in the order of a start."""
        found = self._registered()
        return self._all[:2] if found is None else self._whole(live_targets(found))

    def left(self) -> list[str]:
        """Those that some shard had that has nothing any more."""
        found = self._registered()
        if found is None:
            return []
        live = found.layout.live
        uris = {uri for shard, uri in enumerate(found.targets) if shard not in live}
        return self._whole(sorted(uris))

    def _registered(self) -> RegisteredDelivery | None:
        known = list_deliveries(self._run.log.client)
        return next((one for one, _ in known if one.name == NAME), None)

    def _whole(self, registered: Sequence[str]) -> list[str]:
        """As they were given, of what is registered of them."""
        known = {masked_uri(uri): uri for uri in self._all}
        return [known[masked_uri(uri)] for uri in registered]

    def other_targets(self) -> None:
        wanted = self._random.sample(self._all, self._random.randint(1, len(self._all)))
        try:
            reshard(self._run.log.client, NAME, wanted)
            self.cuts += 1
        except (BadRequest, Retryable):
            pass  # the same as before, or the server was just killed

    # ---- looks

    def foremost(self) -> int:
        """The position of the foremost table, as last seen."""
        return max((max(one.positions.values()) for one in self.samples[-50:]), default=0)

    def begin(self) -> None:
        self._looking.start()

    def end(self) -> None:
        self._over.set()
        self._looking.join(60)

    def _look(self) -> None:
        while not self._over.is_set():
            sample = self.look(self._random.choice(self._all))
            if sample is not None and sample.positions:
                self.samples.append(sample)
            self._over.wait(self._random.uniform(0, 0.01))

    def look(self, uri: str) -> Sample | None:
        if uri.startswith("sqlite"):
            path = Path(uri.removeprefix("sqlite:///"))
            is_counted = not self._run.keyed
            return look_at_sqlite(path, NAME, TABLE, COLUMNS, is_counted=is_counted)
        try:
            return self._look_at_postgres(uri)
        except PostgresError:
            return None

    def _look_at_postgres(self, uri: str) -> Sample:
        count = "1" if self._run.keyed else COUNT
        with connect(uri, application_name="onlooker") as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            positions: list[Any] = connection.execute(
                "SELECT shard, position FROM penstock_positions WHERE delivery = %s", [NAME]
            ).fetchall()
            asked = f"SELECT {', '.join(COLUMNS)}, {count} FROM {TABLE}"
            return sample_of(positions, connection.execute(asked.encode()).fetchall())

    # ---- the judge

    def judge(self) -> Judge:
        found = self._registered()
        assert found is not None
        return Judge(self._run.result.commits, found.layout, keyed=self._run.keyed)

    def is_whole(self) -> bool:
        self._run.keep_a_player()
        together: Counter[Any] = Counter()
        for uri in self._all:
            sample = self.look(uri)
            together += Counter() if sample is None else sample.table
        return together == self.judge().whole()

    def check(self) -> None:
        judge = self.judge()
        problems = [problem for one in self.samples if (problem := judge.problem(one)) is not None]
        said = self._run.errors.read_text()[-2000:] if self._run.errors.exists() else ""
        assert not problems, f"{len(problems)} of {len(self.samples)}: {problems[0]}\n{said}"


def burn(place: Path, postgres: PostgresServer, *, keyed: bool, seed: int, seconds: float) -> None:
    with stand(place, postgres, keyed=keyed, seed=seed) as run:
        changing = Changing(run)
        run.targets, run.left = changing.targets, changing.left
        run.foremost = changing.foremost
        run.actions["other_targets"] = changing.other_targets
        run.start_player()
        wait_until(lambda: changing.look(changing.targets()[0]) is not None, seconds=60)
        changing.begin()
        with run.at_work():
            run.burn(seconds, ACTIONS)
        wait_until(changing.is_whole, "rows are missing, or in two tables", seconds=120)
        changing.end()
        changing.check()
        print(
            f"{dict(run.kills)}, {changing.cuts} cuts, {len(changing.samples)} looks, "
            f"{len(run.result.commits)} commits"
        )
        assert changing.cuts >= 3
        assert sum(run.kills.values()) >= 8


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "multiset"])
def test_rows_are_in_one_table_whatever_is_killed(
    tmp_path: Path, postgres: PostgresServer, keyed: bool
) -> None:
    burn(tmp_path, postgres, keyed=keyed, seed=5, seconds=FIRE_SECONDS)


@pytest.mark.soak
def test_rows_are_in_one_table_through_many_kills(tmp_path: Path, postgres: PostgresServer) -> None:
    for number, seed in enumerate(fresh_seeds()):
        place = tmp_path / str(number)
        place.mkdir()
        keyed = bool(number % 2)
        burn(place, postgres, keyed=keyed, seed=seed, seconds=SOAK_SECONDS_EACH)
