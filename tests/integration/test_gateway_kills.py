"""Gateways and the log server die at random while producers send again: nothing is lost, doubled
or put in another order.
"""

from __future__ import annotations

import functools
import http.client
import json
import random
import threading
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from embedded_server import kill_server
from harness.http_gateway import ForkedGateway, HttpClient
from harness.soak import fresh_seeds
from harness.waiting import wait_until

import penstock
from penstock.gateway.config import GatewayConfig

PRODUCERS = 4


class Doors:
    """Two gateways, each replaced when it dies."""

    def __init__(self, config: GatewayConfig, token: str) -> None:
        self._config = config
        self._token = token
        self._gateways = [ForkedGateway(config) for _ in range(2)]

    def client(self, which: int) -> HttpClient:
        return HttpClient(self._gateways[which].address, self._token)

    def replace(self, which: int) -> None:
        old = self._gateways[which]
        old.kill()
        self._gateways[which] = ForkedGateway(self._config)

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.kill()


class Producer(threading.Thread):
    """Sends rows 0, 1, 2, … in requests of a few, each until it is answered, wherever."""

    def __init__(self, doors: Doors, name: str, seed: int, done: threading.Event) -> None:
        super().__init__(name=name)
        self._doors = doors
        self._random = random.Random(seed)
        self._done = done
        self.sent = 0
        self.retries = 0
        self.duplicates = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            key = f"{self.name}:0"
            while not self._done.is_set():
                count = self._random.randint(1, 3)
                rows = [{"p": self.name, "n": self.sent + at} for at in range(count)]
                key = self._send(rows, key)
                self.sent += count
        except BaseException as error:
            self.error = error

    def _send(self, rows: list[dict[str, object]], key: str) -> str:
        while True:
            try:
                client = self._doors.client(self._random.randrange(2))
                answer = client.append("s", rows, key)
            except (OSError, http.client.HTTPException):
                self.retries += 1
                time.sleep(0.01)
                continue
            if answer.status >= 500:
                self.retries += 1
                time.sleep(0.01)
                continue
            assert answer.status == 200, answer.body
            self.duplicates += answer.json["duplicate"]
            return str(answer.json["next"])


def has_rows(stream: penstock.Stream, count: int) -> bool:
    return stream.read().num_rows == count


def run_kills(log: penstock.Log, seed: int, *, kills: int, lanes: int = 4) -> tuple[int, int]:
    """How many requests were sent again, and how many of these had been appended."""
    draw = random.Random(seed)
    log.create_stream("s", "p string, n long", lanes=lanes)
    token = (Path(log.target) / "token").read_text().strip()
    doors = Doors(GatewayConfig(target=log.target, port=0), token)
    done = threading.Event()
    producers = [Producer(doors, f"p{at}", draw.randrange(2**32), done) for at in range(PRODUCERS)]
    try:
        for producer in producers:
            producer.start()
        for number in range(kills):
            time.sleep(draw.uniform(0.05, 0.4))
            if number % 8 == 7:
                kill_server(Path(log.target))
            else:
                doors.replace(draw.randrange(2))
        time.sleep(0.3)
        done.set()
        for producer in producers:
            producer.join(60)
            assert not producer.is_alive()
            assert producer.error is None, producer.error
    finally:
        done.set()
        doors.close()
    found: dict[str, list[int]] = defaultdict(list)
    for row in log.stream("s").read().to_pylist():
        found[row["p"]].append(row["n"])
    assert found == {each.name: list(range(each.sent)) for each in producers}
    return sum(each.retries for each in producers), sum(each.duplicates for each in producers)


def test_kills_lose_double_and_reorder_nothing(own_log: penstock.Log) -> None:
    retries, _ = run_kills(own_log, 21, kills=16)

    assert retries, "the kills met nobody: the test says nothing"


def test_a_gateway_that_dies_between_append_and_answer_doubles_nothing(
    own_log: penstock.Log,
) -> None:
    stream = own_log.create_stream("s", "p string, n long")
    token = (Path(own_log.target) / "token").read_text().strip()
    doors = Doors(GatewayConfig(target=own_log.target, port=0), token)
    try:
        for number in range(3):
            which = number % 2
            rows: list[dict[str, object]] = [{"p": "p", "n": number}]
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            headers["Idempotency-Key"] = f"p:{number}"
            with closing(doors.client(which).connection()) as connection:
                connection.request("POST", "/v1/streams/s/rows", json.dumps(rows), headers)
                wait_until(functools.partial(has_rows, stream, number + 1))
                doors.replace(which)  # whatever it answered, nobody has read it
            again = doors.client(1 - which).append("s", rows, f"p:{number}").json
            assert again["duplicate"] is True and again["next"] == f"p:{number + 1}"
    finally:
        doors.close()
    assert [row["n"] for row in stream.read().to_pylist()] == [0, 1, 2]


@pytest.mark.soak
def test_many_kills_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    for seed in fresh_seeds():
        with penstock.connect(tmp_path / str(seed)) as log:
            run_kills(log, seed, kills=100, lanes=random.Random(seed).randint(1, 16))
