"""`penstock.deliver` to targets in other processes, which are killed and started again."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget, file_rows
from harness.remote_targets import PROTOCOLS, TargetProcess
from harness.waiting import wait_until

import penstock
from penstock.delivery.registration import list_deliveries
from penstock.errors import BadConfig, BadRequest
from penstock.state.keys import hash_columns, virtual_nodes

SHARDS = 4
KEYS = 40


def shard_of(key: int) -> int:
    (node,) = virtual_nodes(hash_columns([pa.array([key], pa.int64())], 1))
    return int(node) % SHARDS


def rows_of(path: Path) -> list[tuple[int, int]]:
    return [(row["k"], row["n"]) for row in map(json.loads, file_rows(path)[0])]


def position_of(path: Path) -> int:
    """Of a file that may not be there, or not have its tables yet."""
    try:
        return file_rows(path)[1]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize(
    "protocol",
    [pytest.param(one, marks=pytest.mark.soak) if one == "grpc" else one for one in PROTOCOLS],
)
def test_hosts_that_are_killed_lose_and_repeat_nothing(
    module_log: penstock.Log, protocol: str, tmp_path: Path
) -> None:
    """Two hosts with two targets each; random kills while rows come in order."""
    stream = module_log.create_stream(f"killed_{protocol}", "k long, n long")
    paths = [tmp_path / f"{number}.db" for number in range(SHARDS)]
    chance = random.Random(protocol)
    appended: list[tuple[int, int]] = []
    done = threading.Event()

    def append() -> None:
        for number in range(200):
            some = [(chance.randrange(KEYS), number) for _ in range(5)]
            stream.append([{"k": key, "n": n} for key, n in some])
            appended.extend(some)
        done.set()

    with (
        TargetProcess(protocol, paths[:2], tmp_path, "a") as first,
        TargetProcess(protocol, paths[2:], tmp_path, "b") as second,
        penstock.deliver(
            stream, [*first.uris, *second.uris], key="k", name=f"killed-{protocol}"
        ) as delivery,
    ):
        appending = threading.Thread(target=append)
        appending.start()
        for kill in range(6):
            host, path = ((first, paths[0]), (second, paths[2]))[kill % 2]
            before = position_of(path)
            wait_until(lambda path=path, at=before: done.is_set() or position_of(path) > at)
            host.kill()
            host.start()
        appending.join()
        delivery.processAllAvailable(120)
        status = delivery.status()

    assert [one["problem"] for one in status["targets"]] == [None] * SHARDS
    for shard, path in enumerate(paths):
        assert rows_of(path) == [one for one in appended if shard_of(one[0]) == shard]
    for host in (first, second):
        assert "Traceback" not in host.output()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_host_that_is_away_does_not_keep_others_waiting(
    module_log: penstock.Log, protocol: str, tmp_path: Path
) -> None:
    """Also where some shards are inside of the player."""
    stream = module_log.create_stream(f"away_{protocol}", "k long, n long")
    local = MemoryTarget()
    with TargetProcess(protocol, [tmp_path / "0.db"], tmp_path, "a") as host:
        with penstock.deliver(
            stream, [host.uris[0], local], key="k", name=f"away-{protocol}"
        ) as delivery:
            delivery.processAllAvailable(60)
            host.kill()
            stream.append([{"k": key, "n": key} for key in range(20)])
            wait_until(lambda: local.rows)
            wait_until(lambda: delivery.status()["targets"][0]["problem"])
            problem = delivery.status()["targets"][0]["problem"]
            host.start()
            delivery.processAllAvailable(60)
        assert host.stop() == 0
        assert "Traceback" not in host.output()

    assert f"127.0.0.1:{host.port}" in problem
    assert len(local.rows) + len(rows_of(tmp_path / "0.db")) == 20


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("target://elsewhere:7075/0", "elsewhere is not this machine: give ?tls_ca=FILE"),
        ("target://127.0.0.1:7075/x", "is no address of a target like target://host:7075/0"),
        ("grpc://127.0.0.1:7076/0?window=3", "there is no option window"),
        ("grpc://127.0.0.1:x/0", "is no address of a target"),
        ("target://me:secret@127.0.0.1/0", "a token is not part of an address"),
        ("target://127.0.0.1/0?token_file=/nowhere/token", "cannot read the token file"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_is_started(
    module_log: penstock.Log, to: str, words: str
) -> None:
    stream = module_log.create_stream("addresses", "k long")

    with pytest.raises(BadConfig, match=re.escape(words)):
        penstock.deliver(stream, to)
    assert not [one for one, _ in list_deliveries(module_log.client) if one.stream == "addresses"]


def test_a_target_that_is_given_twice_is_refused(module_log: penstock.Log) -> None:
    stream = module_log.create_stream("addresses", "k long")

    with pytest.raises(BadRequest, match=r"127\.0\.0\.1:7075/1 is given twice"):
        penstock.deliver(stream, ["target://127.0.0.1/1", "target://127.0.0.1:7075/1"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_move_between_hosts(module_log: penstock.Log, protocol: str, tmp_path: Path) -> None:
    """From two targets to one of them and one elsewhere, which is killed while they come."""
    stream = module_log.create_stream(f"moved_{protocol}", "k long, _weight long NOT NULL")
    paths = [tmp_path / f"{number}.db" for number in range(3)]
    stream.append([{"k": key, "_weight": 1} for key in range(KEYS)])
    with (
        TargetProcess(protocol, paths[:2], tmp_path, "a") as first,
        TargetProcess(protocol, paths[2:], tmp_path, "b") as second,
        penstock.deliver(stream, first.uris, key="k", name=f"moved-{protocol}") as delivery,
    ):
        delivery.processAllAvailable(60)
        second.kill()
        delivery.reshard([first.uris[1], *second.uris])
        stream.append({"k": 0, "_weight": -1})
        second.start()
        delivery.processAllAvailable(60)

    left: list[Counter[int]] = []
    for path in paths:
        found: Counter[int] = Counter()
        for row in map(json.loads, file_rows(path)[0]):
            found[row["k"]] += row["_weight"]
        left.append(Counter({key: count for key, count in found.items() if count}))
    assert left[0] == {}
    assert left[1] + left[2] == dict.fromkeys(range(1, KEYS), 1)
    assert left[1] and left[2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_target_that_was_left_and_is_given_again_is_opened_when_it_has_given_its_rows_away(
    module_log: penstock.Log, protocol: str, tmp_path: Path
) -> None:
    """It stopped, and rows that had left the others for it were nowhere."""
    stream = module_log.create_stream(f"again_{protocol}", "k long, _weight long NOT NULL")
    paths = [tmp_path / f"{number}.db" for number in range(2)]
    stream.append([{"k": key, "_weight": 1} for key in range(KEYS)])
    with (
        TargetProcess(protocol, paths, tmp_path, "a") as host,
        penstock.deliver(stream, host.uris, key="k", name=f"again-{protocol}") as delivery,
    ):
        delivery.processAllAvailable(60)
        delivery.reshard(host.uris[:1])
        delivery.reshard(host.uris)
        delivery.processAllAvailable(60)

        assert [one["state"] for one in delivery.status()["targets"]][1] == "retired"
