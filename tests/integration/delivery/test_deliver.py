"""Deliveries over a real log server: what arrives, and what is said when it does not."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget
from harness.files import token_file
from harness.waiting import wait_until

import penstock
from penstock.delivery.registration import list_deliveries, remove_delivery
from penstock.delivery.target_queue import QUIET_LSNS
from penstock.errors import BadRequest, BadRow, Forbidden, PlanChanged, Refused, Unavailable
from penstock.ids import Lsn
from penstock.log.core.rights import allow_caveat
from penstock.log.records import NewEntry
from penstock.log.serving.directory import read_token
from penstock.protocol.deliveries import Delivered, RegisteredDelivery
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.stream.positions import Position
from penstock.stream.stream import Stream
from penstock.wire.token import make_token

SCHEMA = "k long, v string"


@pytest.fixture
def source(module_log: penstock.Log, name: str) -> Stream:
    return module_log.create_stream(name, SCHEMA)


def append(stream: Stream, *keys: int) -> None:
    for key in keys:
        stream.append({"k": key, "v": f"v{key}"})


def keys_of(*targets: MemoryTarget) -> list[int]:
    return [row["k"] for target in targets for row in target.rows]


def raises(error: Exception) -> Callable[..., None]:
    def fault(*_: object) -> None:
        raise error

    return fault


def registered(log: penstock.Log, name: str) -> tuple[RegisteredDelivery, Delivered | None] | None:
    """What the log knows of a delivery."""
    return {one.name: (one, ack) for one, ack in list_deliveries(log.client)}.get(name)


def last_ack(log: penstock.Log, name: str) -> Delivered:
    found = registered(log, name)
    assert found is not None and found[1] is not None
    return found[1]


def test_every_row_arrives_once_in_the_shard_of_its_key(source: Stream, name: str) -> None:
    targets = [MemoryTarget() for _ in range(3)]
    append(source, *range(20))

    with penstock.deliver(source, targets, key="k", name=name) as delivery:
        delivery.processAllAvailable()
        first = [keys_of(target) for target in targets]
        append(source, *range(20))
        delivery.processAllAvailable()

    assert sorted(keys_of(*targets)) == sorted([*range(20)] * 2)
    assert all(first), "keys are spread"
    for target, keys in zip(targets, first, strict=True):
        assert keys_of(target) == keys + keys
        assert target.shard is not None
        assert (target.shard.count, target.shard.key, target.shard.table) == (3, ("k",), name)
    assert not delivery.isActive
    assert delivery.exception() is None


def test_started_again_it_goes_on_where_the_targets_are(source: Stream, name: str) -> None:
    target = MemoryTarget()
    for part in range(3):
        append(source, 10 * part, 10 * part + 1)
        with penstock.deliver(source, target, name=name) as delivery:
            assert delivery.name == name
            delivery.processAllAvailable()
            assert keys_of(target) == [
                10 * one + more for one in range(part + 1) for more in (0, 1)
            ]

    assert target.term == 3


def test_what_is_not_there_yet_is_delivered_when_it_comes(source: Stream, name: str) -> None:
    target = MemoryTarget()
    with penstock.deliver(source, target, name=name) as delivery:
        delivery.processAllAvailable()
        append(source, 1)
        wait_until(lambda: delivery.status()["targets"][0]["rows"] == 1)
        status = delivery.status()

    assert keys_of(target) == [1]
    assert status["is_active"]
    assert status["targets"][0]["state"] == "on the tail"


def test_a_target_that_fails_in_the_middle_misses_and_repeats_nothing(
    source: Stream, name: str
) -> None:
    """Before and after it has applied a batch: then the ack is lost."""
    target = MemoryTarget()
    target.before += [raises(Unavailable("down")), raises(ConnectionError("reset"))]
    target.after += [raises(Unavailable("the answer is lost"))] * 3
    append(source, *range(5))

    with penstock.deliver(source, target, name=name) as delivery:
        for key in range(5, 15):
            append(source, key)
            delivery.processAllAvailable()
        assert delivery.status()["targets"][0]["problem"] is None

    assert keys_of(target) == [*range(15)]
    assert target.opens == 6


def test_a_target_that_was_restored_from_a_backup_gets_what_it_lost(
    source: Stream, name: str
) -> None:
    target, other = MemoryTarget(), MemoryTarget()
    with penstock.deliver(source, [target, other], key="k", name=name) as delivery:
        append(source, *range(10))
        delivery.processAllAvailable()
        backup = target.backup()
        append(source, *range(10, 20))
        delivery.processAllAvailable()
        target.restore(backup)
        append(source, *range(20, 30))
        delivery.processAllAvailable()

    assert sorted(keys_of(target, other)) == [*range(30)]
    assert keys_of(target) == sorted(keys_of(target))


def test_a_target_that_hangs_delays_nobody_and_catches_up_later(
    source: Stream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is bounded: what it cannot hold it reads from the log by itself."""
    monkeypatch.setattr("penstock.delivery.player.QUEUES_BYTES", 0)
    monkeypatch.setattr("penstock.delivery.player.QUEUE_BYTES_MIN", 20_000)
    hanging, other = MemoryTarget(), MemoryTarget()
    hanging.runs.clear()
    rows = [{"k": key, "v": "x" * 100} for key in range(20)]

    with penstock.deliver(source, [hanging, other], key="k", name=name) as delivery:
        for _ in range(50):
            source.append(rows)
        share = sum(shard_of(key, 2) == 1 for key in range(20))
        wait_until(lambda: len(other.rows) == 50 * share)
        status = delivery.status()["targets"]
        assert status[0]["queued_bytes"] < 40_000
        assert status[0]["state"] == "catching up"
        assert status[1]["state"] == "on the tail"
        assert delivery.lag.records > 0
        hanging.runs.set()
        delivery.processAllAvailable()
        assert [one["state"] for one in delivery.status()["targets"]] == ["on the tail"] * 2

    assert keys_of(hanging) == [key for key in range(20) if shard_of(key, 2) == 0] * 50


def shard_of(key: int, shards: int) -> int:
    (node,) = virtual_nodes(hash_columns([pa.array([key], pa.int64())], 1))
    return int(node) % shards


def test_a_refused_target_stops_and_the_others_go_on(source: Stream, name: str) -> None:
    bad, good = MemoryTarget(), MemoryTarget()
    bad.before.append(raises(Refused("no such role: ask for one")))

    with penstock.deliver(source, [bad, good], key="k", name=name) as delivery:
        append(source, *range(10))
        with pytest.raises(Refused, match="no such role"):
            delivery.processAllAvailable()
        append(source, *range(10, 20))
        wait_until(lambda: sorted(keys_of(good))[-1:] and max(keys_of(good)) >= 10)
        status = delivery.status()
        assert delivery.isActive
        assert "1 stopped" in status["message"]
        assert status["targets"][0]["state"] == "stopped"
        assert status["targets"][0]["problem"] == "no such role: ask for one"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", status["targets"][0]["since"])

    assert isinstance(delivery.exception(), Refused)


def test_with_no_target_left_it_ends_with_the_cause(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    """Its last word says why; but one that never began is as if it had not been asked for."""
    target = MemoryTarget()
    with penstock.deliver(source, target, name=name) as delivery:
        delivery.processAllAvailable()
    target.at_open = raises(Refused("wrong password"))

    delivery = penstock.deliver(source, target, name=name)

    with pytest.raises(Refused, match="wrong password"):
        delivery.awaitTermination(30)
    assert not delivery.isActive
    assert "wrong password" in delivery.status()["message"]
    delivery.stop()
    ack = last_ack(module_log, name)
    assert (ack.is_running, ack.error) == (False, "wrong password")

    another = penstock.deliver(source, target, name=f"{name}-2")
    with pytest.raises(Refused, match="wrong password"):
        another.awaitTermination(30)
    another.stop()
    assert registered(module_log, f"{name}-2") is None


def test_a_bad_row_stops_its_target_and_names_lsn_and_row(source: Stream, name: str) -> None:
    target = MemoryTarget()
    source.append([{"k": key, "v": "x"} for key in range(3)])
    lsn = source.append([{"k": key, "v": "x"} for key in range(3, 6)]).first_lsn
    target.before.append(raises(BadRow("value is too long for column v", row=4)))

    words = f"row 1 of LSN {lsn} .*too long for column v.*dead_letter"
    delivery = penstock.deliver(source, target, name=name)
    with pytest.raises(BadRow, match=words):
        delivery.processAllAvailable()
    delivery.stop()

    assert target.rows == []


class PickyTarget(MemoryTarget):
    """Refuses every row with a negative key."""

    def apply(self, batch: Any) -> Any:
        for row, key in enumerate(batch.rows["k"].to_pylist()):
            if key < 0:
                raise BadRow(f"k={key} is negative", row=row)
        return super().apply(batch)


def test_bad_rows_are_set_aside_once_and_the_rest_goes_on(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    target = PickyTarget()
    source.append([{"k": key, "v": "x"} for key in (0, -1, 1)])
    second = source.append([{"k": key, "v": "x"} for key in (2, -2, -3)]).first_lsn
    backup = target.backup()

    dead = f"{name}_dead"
    with penstock.deliver(source, target, name=name, dead_letter=dead) as delivery:
        delivery.processAllAvailable()
        target.restore(backup)
        append(source, 3)
        delivery.processAllAvailable()
    target.restore(backup)
    with penstock.deliver(source, target, name=name, dead_letter=dead) as delivery:
        delivery.processAllAvailable()
        assert "penstock_deliver_dead_letters_total 0" in delivery.metrics()

    assert keys_of(target) == [0, 1, 2, 3]
    letters = module_log.stream(dead).read().to_pylist()
    assert [letter["message"] for letter in letters] == [
        "k=-1 is negative", "k=-2 is negative", "k=-3 is negative",
    ]  # fmt: skip
    assert letters[1]["lsn"] == second
    assert letters[1]["row"] == '{"k": -2, "v": "x"}'
    assert letters[1]["origin"] == name
    assert letters[1]["task"] == f"deliver/{name}/0"


def test_the_end_waits_for_what_is_in_flight(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    target = MemoryTarget()
    target.runs.clear()
    delivery = penstock.deliver(source, target, name=name)
    append(source, 1)
    wait_until(lambda: delivery.status()["targets"][0]["in_flight"] == 1)

    delivery._thread.stop(30)
    assert delivery.awaitTermination(0.2) is False
    target.runs.set()
    assert delivery.awaitTermination(30) is True
    delivery.stop()

    assert keys_of(target) == [1]
    ack = last_ack(module_log, name)
    assert (ack.is_running, ack.positions) == (False, [target.position])


def test_a_target_that_hangs_does_not_keep_it_from_ending(
    source: Stream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.player.CLOSE_SECONDS", 0.2)
    target = MemoryTarget()
    target.runs.clear()
    delivery = penstock.deliver(source, target, name=name)
    append(source, 1)
    wait_until(lambda: delivery.status()["targets"][0]["in_flight"] == 1)

    delivery.stop(timeout=0.1)

    assert not delivery.isActive
    with pytest.raises(Refused, match="was stopped"):
        delivery.processAllAvailable()
    target.runs.set()


def test_a_wait_that_takes_too_long_says_what_is_going_on(source: Stream, name: str) -> None:
    target = MemoryTarget()
    target.at_open = raises(Unavailable("nobody there"))
    with penstock.deliver(source, target, name=name) as delivery:
        wait_until(lambda: delivery.status()["targets"][0]["problem"])
        with pytest.raises(TimeoutError, match="1 in trouble"):
            delivery.processAllAvailable(timeout=0.3)


def test_a_quiet_log_stays_quiet(module_log: penstock.Log, source: Stream, name: str) -> None:
    """Neither acks nor positions of quiet shards keep each other moving."""
    targets = [MemoryTarget(), MemoryTarget()]
    with penstock.deliver(source, targets, key="k", name=name) as delivery:
        append(source, 1)
        delivery.processAllAvailable()
        wait_until(
            lambda: last_ack(module_log, name).positions == [one.position for one in targets]
        )
        before = module_log.bounds().tail
        with pytest.raises(AssertionError, match="in vain"):
            wait_until(lambda: module_log.bounds().tail > before + 2, seconds=2.5)
        transactions = sum(len(target.transactions) for target in targets)

    assert transactions < 10


def test_the_position_of_a_quiet_shard_follows_the_others(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    targets = [MemoryTarget(), MemoryTarget()]
    with penstock.deliver(source, targets, key="k", name=name) as delivery:
        delivery.processAllAvailable()
        transactions = [len(target.transactions) for target in targets]
        append(source, *[1] * 30)
        wait_until(lambda: len(keys_of(*targets)) == 30)
        end = max(one.position or 0 for one in targets)
        wait_until(lambda: min(one.position or 0 for one in targets) >= end)

    quiet = 1 - shard_of(1, 2)
    assert targets[quiet].rows == []
    assert len(targets[quiet].transactions) - transactions[quiet] <= 5


def test_entries_of_others_move_positions_when_they_are_many(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    target = MemoryTarget()
    with penstock.deliver(source, target, name=name) as delivery:
        delivery.processAllAvailable()
        position = target.position or 0
        module_log.client.append([NewEntry(b"", ("others",))] * QUIET_LSNS)
        wait_until(lambda: (target.position or 0) >= position + QUIET_LSNS)

    assert target.rows == []
    assert delivery.exception() is None


# ---- refused before anything is started


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "nope"}, "has no nope"),
        ({"key": ["k", "k"]}, "twice"),
        ({"name": "a/b"}, "delivery name 'a/b'"),
        ({"table": ""}, "table=''"),
        ({"start": "yesterday"}, "is no position"),
    ],
)
def test_what_makes_no_sense_is_refused(
    module_log: penstock.Log, options: dict[str, Any], words: str
) -> None:
    stream = module_log.create_stream("refusals", SCHEMA)

    with pytest.raises(BadRequest, match=re.escape(words)):
        penstock.deliver(stream, MemoryTarget(), **options)
    assert not [one for one, _ in list_deliveries(module_log.client) if one.stream == "refusals"]


@pytest.mark.parametrize(("to", "words"), [([], "at least one"), ([3], "to=3"), (None, "to=None")])
def test_what_is_no_target_is_refused(module_log: penstock.Log, to: Any, words: str) -> None:
    stream = module_log.create_stream("refusals", SCHEMA)

    with pytest.raises(BadRequest, match=words):
        penstock.deliver(stream, to)


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(BadRequest, match="'bids' is neither a stream nor a query"):
        penstock.deliver("bids", MemoryTarget())  # type: ignore[arg-type]


def test_a_name_that_delivers_otherwise_is_refused_in_words(source: Stream, name: str) -> None:
    with penstock.deliver(source, MemoryTarget(), key="k", name=name):
        pass

    targets = [MemoryTarget(), MemoryTarget()]
    with pytest.raises(PlanChanged) as caught:
        penstock.deliver(source, targets, key="v", name=name, table="t")

    for part in (
        "key was k, is v", f"table was {name}, is t", "targets was 1, is 2", "another name",
    ):  # fmt: skip
        assert part in str(caught.value)


def test_a_stream_that_takes_rows_back_is_delivered_from_its_beginning(
    own_log: penstock.Log,
) -> None:
    stream = own_log.create_stream("changing", f"{SCHEMA}, _weight long NOT NULL")
    stream.append([{"k": 1, "v": "a", "_weight": 1}, {"k": 1, "v": "a", "_weight": -1}])
    target = MemoryTarget()

    with pytest.raises(BadRequest, match="takes rows back"):
        penstock.deliver(stream, target, start="latest")
    with penstock.deliver(stream, target, key="k") as delivery:
        delivery.processAllAvailable()
    assert [row["_weight"] for row in target.rows] == [1, -1]
    assert target.shard is not None
    assert target.shard.changing
    assert target.shard.schema.names == ["k", "v"]

    own_log.trim("latest")
    with pytest.raises(penstock.Trimmed, match="takes rows back"):
        penstock.deliver(stream, MemoryTarget(), name="another")


def test_a_trim_while_the_start_is_looked_for_does_not_cut_what_takes_rows_back(
    own_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = own_log.create_stream("changing", f"{SCHEMA}, _weight long NOT NULL")
    stream.append({"k": 1, "v": "a", "_weight": 1})
    resolve = Stream.resolve

    def trim_and_resolve(stream: Stream, position: Position) -> Lsn:
        own_log.trim("latest")
        return resolve(stream, position)

    monkeypatch.setattr(Stream, "resolve", trim_and_resolve)
    with pytest.raises(penstock.Trimmed, match="takes rows back"):
        penstock.deliver(stream, MemoryTarget(), key="k")


def test_it_ends_where_its_stream_begins_anew(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    """Its query was restarted: rows from before are no more, and nothing takes them back."""
    target, other = MemoryTarget(), MemoryTarget()
    append(source, 1)
    with penstock.deliver(source, target, name=name) as delivery:
        delivery.processAllAvailable()
        target.runs.clear()  # so that it has not seen the end when rows come after it
        append(source, 2)
        module_log.restart_stream(name)
        append(module_log.stream(name), 3)
        target.runs.set()
        with pytest.raises(PlanChanged, match="begins anew at LSN"):
            delivery.awaitTermination(30)

    assert keys_of(target) in ([1], [1, 2])
    with pytest.raises(PlanChanged, match="remove the delivery, empty its table"):
        penstock.deliver(source, target, name=name)
    remove_delivery(module_log.client, name)
    with penstock.deliver(source, other, name=name) as delivery:
        delivery.processAllAvailable()
    assert keys_of(other) == [3]


def test_a_removed_delivery_ends_and_may_be_made_otherwise(
    module_log: penstock.Log, source: Stream, name: str
) -> None:
    target = MemoryTarget()
    delivery = penstock.deliver(source, target, name=name)
    delivery.processAllAvailable()

    remove_delivery(module_log.client, name)

    with pytest.raises(penstock.NotFound, match="was removed"):
        delivery.awaitTermination(30)
    assert registered(module_log, name) is None
    with pytest.raises(penstock.NotFound, match="no delivery"):
        remove_delivery(module_log.client, name)
    with penstock.deliver(source, target, name=name, key="v"):
        pass


def test_one_of_the_same_name_does_not_take_positions_of_a_removed_one(
    module_log: penstock.Log, source: Stream, name: str, tmp_path: Path
) -> None:
    """They say nothing of another stream, and the table has rows of the removed one."""
    other = module_log.create_stream(f"{name}_other", SCHEMA)
    append(other, 1)
    append(source, 7)
    uri = f"sqlite:///{tmp_path}/table.db"
    with penstock.deliver(source, uri, key="k", name=name, table="t") as delivery:
        delivery.processAllAvailable()
    remove_delivery(module_log.client, name)

    delivery = penstock.deliver(other, uri, key="k", name=name, table="t")
    with pytest.raises(Refused, match="is of another delivery of this name"):
        delivery.awaitTermination(30)
    with closing(sqlite3.connect(tmp_path / "table.db")) as database:
        database.executescript("DELETE FROM t; DELETE FROM penstock_positions")
        with penstock.deliver(other, uri, key="k", name=name, table="t") as delivery:
            delivery.processAllAvailable()
        assert database.execute("SELECT * FROM t").fetchall() == [(1, "v1")]


def test_a_process_that_was_forked_stops_nothing_and_waits_for_nothing(
    source: Stream, name: str
) -> None:
    """Threads stay behind: what `atexit` runs there must not wait for them."""
    target = MemoryTarget()
    with penstock.deliver(source, target, name=name) as delivery:
        delivery.processAllAvailable()
        child = os.fork()
        if not child:
            delivery.stop()
            os._exit(0)
        try:
            wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        append(source, 1)
        delivery.processAllAvailable()

    assert keys_of(target) == [1]


def test_a_second_player_fences_the_first(source: Stream, name: str) -> None:
    target = MemoryTarget()
    first = penstock.deliver(source, target, name=name)
    first.processAllAvailable()

    with penstock.deliver(source, target, name=name) as second:
        with pytest.raises(penstock.Fenced, match="another player of delivery"):
            first.awaitTermination(30)
        append(source, 1)
        second.processAllAvailable()
        with pytest.raises(penstock.Fenced):
            first.processAllAvailable()

    assert keys_of(target) == [1]


def test_a_delivery_runs_with_the_rights_to_it(
    module_log: penstock.Log, source: Stream, name: str, tmp_path: Path
) -> None:
    """Registered, played, acknowledged, with a row set aside; and no other delivery touched."""
    root = read_token(Path(module_log.target) / "token")
    rights = [f"deliver:{name}", f"read:{name}", f"append:{name}_dead"]
    token_file(tmp_path / "token", make_token(root, "00000000000000dd", [allow_caveat(rights)]))
    target, append_rows = MemoryTarget(), module_log.stream(name)
    append(append_rows, 1, 2)
    with penstock.connect(module_log.target, token_file=tmp_path / "token") as log:
        stream, dead = log.stream(name), f"{name}_dead"
        with penstock.deliver(stream, target, name=name, dead_letter=dead) as delivery:
            delivery.processAllAvailable()
            append(append_rows, 3)
            delivery.processAllAvailable()
        assert keys_of(target) == [1, 2, 3]
        with pytest.raises(Forbidden, match="other"):
            penstock.deliver(stream, MemoryTarget(), name="other")
    assert last_ack(module_log, name).positions[0] is not None
