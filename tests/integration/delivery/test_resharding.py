"""Other targets for a delivery, while it runs and while it does not: who has which rows then."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from changing_result import COLUMNS, KEY, QUERY, STREAM, ChangingResult
from harness.delivery_targets import MemoryTarget
from harness.files import token_file
from harness.waiting import wait_until
from resharded_tables import Judge, look_at_sqlite

import penstock
from penstock.delivery.deliver import Delivery, ResultOf
from penstock.delivery.registration import list_deliveries
from penstock.delivery.resharding import reshard
from penstock.errors import BadRequest, PlanChanged, Refused, Trimmed
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.core.rights import allow_caveat
from penstock.log.serving.directory import read_token
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.protocol.trims import TRIM_KEY, decode_trim, encode_trim
from penstock.runtime import trim
from penstock.runtime.trim import trim_consumed
from penstock.wire.token import make_token

NAME = "moving"
TABLE = "hot"


@pytest.fixture
def result(own_log: penstock.Log) -> Iterator[ChangingResult]:
    made = ChangingResult(own_log, seed=3)
    for _ in range(30):
        made.commit()
    yield made
    made.close()


def uris(place: Path, *names: str) -> list[str]:
    return [f"sqlite:///{place / name}.db" for name in names]


def start(log: penstock.Log, to: list[Any], *, keyed: bool = True) -> Delivery:
    key = list(KEY) if keyed else []
    return penstock.deliver(ResultOf(log, QUERY), to, key=key, name=NAME, table=TABLE)


def registered(log: penstock.Log) -> RegisteredDelivery:
    return next(one for one, _ in list_deliveries(log.client) if one.name == NAME)


def check(log: penstock.Log, result: ChangingResult, place: Path, *, keyed: bool) -> None:
    """Each file is what its shards must be, and all together are the whole result."""
    judge = Judge(result.commits, registered(log).layout, keyed=keyed)
    together: Counter[tuple[Any, ...]] = Counter()
    for path in place.glob("*.db"):
        sample = look_at_sqlite(path, NAME, TABLE, COLUMNS, is_counted=not keyed)
        assert sample is not None
        assert judge.problem(sample) is None
        together += sample.table
    assert together == judge.whole()


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "multiset"])
def test_rows_move_while_it_runs(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path, keyed: bool
) -> None:
    with start(own_log, uris(tmp_path, "a", "b"), keyed=keyed) as delivery:
        for names in (["a", "b", "c"], ["a", "c"], ["d", "c", "b"], ["d"]):
            for _ in range(10):
                result.commit()
            done = delivery.reshard(uris(tmp_path, *names))
            for _ in range(10):
                result.commit()
            delivery.processAllAvailable(60)
            check(own_log, result, tmp_path, keyed=keyed)
            wait_until(lambda done=done: all(  # type: ignore[misc]
                delivery.status()["targets"][one]["state"] == "retired" for one in done.removed
            ))  # fmt: skip
    with start(own_log, uris(tmp_path, "d"), keyed=keyed) as again:
        result.commit()
        again.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=keyed)


def test_targets_are_changed_twice_before_the_player_has_read_of_the_first_change(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    with start(own_log, uris(tmp_path, "a", "b")) as delivery:
        delivery.processAllAvailable(60)
        delivery._thread._loop.call_soon_threadsafe(time.sleep, 0.5)
        delivery.reshard(uris(tmp_path, "b", "c"))
        delivery.reshard(uris(tmp_path, "c", "a"))
        result.commit()
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)


def test_rows_move_out_of_the_image_where_their_history_was_trimmed(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """A later image, which is beyond the cut, takes the place of the one that is needed."""
    with start(own_log, uris(tmp_path, "a", "b")) as delivery:
        delivery.processAllAvailable(60)
        own_log.client.trim(result.keep_image(own_log.client))
        result.commit()
    reshard(own_log.client, NAME, uris(tmp_path, "c", "b", "d"))
    cut = registered(own_log).layout.cuts[0]
    result.commit()
    trim_point = own_log.bounds().trim_point
    later = result.keep_image(own_log.client)
    assert own_log.client.run(trim_consumed) == trim_point < cut < later
    with start(own_log, uris(tmp_path, "b", "c", "d")) as delivery:
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)


def test_a_trim_that_was_told_by_mistake_holds_nobody_up(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """It would be beyond the end of the log. The next one sets it right."""
    with start(own_log, uris(tmp_path, "a")) as delivery:
        own_log.client.compare_and_set(TRIM_KEY, expected=None, value=encode_trim(Lsn(10**15)))
        delivery.reshard(uris(tmp_path, "a", "b"))
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)
    own_log.client.run(lambda log: trim._tell(log, Lsn(1)))
    told = own_log.client.get(TRIM_KEY)
    assert told is not None and decode_trim(told.data) == 1


def test_a_trim_by_hand_that_takes_what_is_to_move_is_told(
    own_log: penstock.Log, tmp_path: Path, result: ChangingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks nobody, and comes between the plan and the cut."""
    append = AsyncLog.append

    async def trim_before(log: AsyncLog, *rest: Any, **more: Any) -> Any:
        await log.trim((await log.bounds()).tail)
        return await append(log, *rest, **more)

    with start(own_log, uris(tmp_path, "a")) as delivery:
        delivery.processAllAvailable(60)
        monkeypatch.setattr(AsyncLog, "append", trim_before)
        with pytest.raises(Trimmed, match="meanwhile"):
            delivery.reshard(uris(tmp_path, "a", "b"))


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "multiset"])
def test_one_table_under_two_addresses_loses_and_doubles_nothing(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path, keyed: bool
) -> None:
    """Who takes rows has them after who gives them: otherwise it would lose them again."""
    other = f"sqlite:///{tmp_path}/./a.db"
    with start(own_log, uris(tmp_path, "a"), keyed=keyed) as delivery:
        for to in ([other], uris(tmp_path, "a", "b"), [other, *uris(tmp_path, "b")]):
            result.commit()
            delivery.reshard(to)
            result.commit()
            delivery.processAllAvailable(60)
            check(own_log, result, tmp_path, keyed=keyed)


def test_a_token_for_the_delivery_and_its_stream_is_enough(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """It shows no image of the query. Whoever has all rights names one; both cuts are passed."""
    result.keep_image(own_log.client)
    result.commit()
    root = read_token(Path(own_log.target) / "token")
    rights = [f"deliver:{NAME}", f"read:{STREAM}"]
    token_file(tmp_path / "token", make_token(root, "00000000000000dd", [allow_caveat(rights)]))
    with (
        penstock.connect(own_log.target, token_file=tmp_path / "token") as log,
        start(log, uris(tmp_path, "a", "b")) as delivery,
    ):
        delivery.reshard(uris(tmp_path, "a", "b", "c"))
        reshard(own_log.client, NAME, uris(tmp_path, "a", "c"))
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)
    images = [one.image for one in registered(own_log).past]
    assert images[0] is None and images[1] is not None


def test_targets_that_are_not_concerned_are_not_touched(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """One target is swapped for another: the third goes on while both are away."""
    there = MemoryTarget()
    with start(own_log, [there, *uris(tmp_path, "b")]) as delivery:
        delivery.processAllAvailable(60)
        connections = there.opens
        delivery.reshard([there, *uris(tmp_path / "not there yet", "c")])
        before = there.position
        for _ in range(5):
            result.commit()
        wait_until(lambda: there.position > max(before, delivery.status()["position"]))
        (_, _, new) = delivery.status()["targets"]
        assert "there is no directory" in new["problem"]

    assert there.opens == connections


def test_a_delivery_that_does_not_run_takes_its_targets_up_when_it_does(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """Also the one that it has to leave, which nobody names any more."""
    with start(own_log, uris(tmp_path, "a", "b")) as delivery:
        delivery.processAllAvailable(60)
    result.commit()

    done = reshard(own_log.client, NAME, uris(tmp_path, "a", "c"))

    assert (done.added, done.removed) == ([2], [1])
    with pytest.raises(PlanChanged, match=f"it was given other targets at LSN {done.cut}"):
        start(own_log, uris(tmp_path, "a", "b"))
    with start(own_log, uris(tmp_path, "a", "c")) as delivery:
        result.commit()
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)
        assert [one["state"] for one in delivery.status()["targets"]][1] == "retired"


def test_rows_of_before_stay_where_they_are_if_the_stream_takes_none_back(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    stream = own_log.create_stream("plain", "k long")
    for key in range(40):
        stream.append({"k": key})
    with penstock.deliver(stream, uris(tmp_path, "a", "b"), name=NAME) as delivery:
        delivery.processAllAvailable(60)
        delivery.reshard(uris(tmp_path, "b", "c"))
        for key in range(40, 80):
            stream.append({"k": key})
        delivery.processAllAvailable(60)

    keys: dict[str, list[int]] = {}
    for name in "abc":
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            keys[name] = [key for (key,) in connection.execute("SELECT k FROM plain ORDER BY 1")]
    assert sorted(key for own in keys.values() for key in own) == list(range(80))
    assert max(keys["a"]) < 40 <= min(keys["c"])


def test_a_delivery_without_a_name_of_its_own_is_found_by_the_targets_that_it_was_given(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    """Its name is made of its first target: as another delivery it would bring all rows again."""
    stream = own_log.create_stream("plain", "k long")
    for key in range(40):
        stream.append({"k": key})
    with penstock.deliver(stream, uris(tmp_path, "a")) as delivery:
        name = delivery.name
        delivery.processAllAvailable(60)
        delivery.reshard(uris(tmp_path, "b"))
        for key in range(40, 80):
            stream.append({"k": key})
        delivery.processAllAvailable(60)

    with penstock.deliver(stream, uris(tmp_path, "b")) as delivery:
        assert delivery.name == name
        delivery.processAllAvailable(60)

    with closing(sqlite3.connect(tmp_path / "b.db")) as connection:
        keys = [key for (key,) in connection.execute("SELECT k FROM plain ORDER BY 1")]
    assert keys == list(range(40, 80))


def test_an_object_that_gave_its_rows_away_is_not_given_again(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """Its shard is over: with it the registration could not be read any more, by anybody."""
    there = MemoryTarget()
    with start(own_log, [*uris(tmp_path, "a"), there]) as delivery:
        delivery.reshard(uris(tmp_path, "a"))
        delivery.processAllAvailable(60)

        with pytest.raises(BadRequest, match="shard 1 of delivery moving has given its rows away"):
            delivery.reshard([*uris(tmp_path, "a"), there])

        delivery.reshard(uris(tmp_path, "a", "b"))
        result.commit()
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)


def test_what_cannot_be_is_refused_in_words(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    stream = own_log.create_stream("plain", "k long")
    stream.append({"k": 1})
    there = MemoryTarget()
    with (
        penstock.deliver(stream, there, key="k", name="newest") as newest,
        pytest.raises(Refused, match="cannot give rows away"),
    ):
        newest.reshard([there, *uris(tmp_path, "q")])
    with start(own_log, uris(tmp_path, "a")) as delivery:
        with pytest.raises(BadRequest, match="has these targets already"):
            delivery.reshard(uris(tmp_path, "a"))
        with pytest.raises(BadRequest, match="a target is given twice"):
            delivery.reshard(uris(tmp_path, "b", "b"))
        delivery.processAllAvailable(60)
        own_log.client.trim(registered(own_log).start + 20)
        with pytest.raises(Trimmed, match="could not be read: deliver anew"):
            delivery.reshard(uris(tmp_path, "a", "b"))
        result.commit()
        delivery.processAllAvailable(60)
        check(own_log, result, tmp_path, keyed=True)
