"""What every log does: one suite for all implementations of `penstock.log.api.Log`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from refusals import refused

from penstock.errors import (
    BadRequest,
    GuardFailed,
    SeqGap,
    StaleInstance,
    TooLarge,
    Trimmed,
)
from penstock.limits import ENTRY_TAGS_MAX, PAYLOAD_BYTES_MAX, TAG_BYTES_MAX
from penstock.log.api import Bounds
from penstock.log.records import Flush, Guard, Kind, NewEntry, SetKey, Value


def data(text: str, *tags: str) -> NewEntry:
    return NewEntry(text.encode(), tags, Kind.DATA, 1)


def payloads(entries: list[Any]) -> list[str]:
    return [entry.payload.decode() for entry in entries if entry.kind is Kind.DATA]


async def first_batches(reader: Any, count: int) -> list[str]:
    found: list[str] = []
    async for batch in reader:
        found += payloads(batch.entries)
        if len(found) >= count:
            break
    return found


async def test_an_empty_log_has_nothing_and_starts_at_zero(log: Any) -> None:
    assert await log.bounds() == Bounds(0, 0)
    assert await log.read() == []
    assert await log.read_last("a") is None
    assert await log.find_time(0) == 0
    assert await log.get("k") is None
    assert await log.list_metadata() == {}


async def test_a_group_is_contiguous_and_carries_everything_it_was_given(log: Any) -> None:
    appender = await log.appender("p")
    done = await appender.append([data("x", "a", "b"), data("y", "ü"), NewEntry(b"")])

    first, second, third = await log.read(start=done.first_lsn)

    assert (done.count, done.duplicate) == (3, False)
    assert [e.lsn - done.first_lsn for e in (first, second, third)] == [0, 1, 2]
    assert (first.payload, first.tags, first.kind, first.rows) == (
        b"x",
        ("a", "b"),
        Kind.DATA,
        1,
    )
    assert (second.tags, third.tags, third.payload) == (("ü",), (), b"")
    assert (first.producer, first.instance, first.seq, third.seq) == ("p", 1, 0, 2)
    assert first.time_ms == third.time_ms > 0


async def test_a_read_by_tags_is_a_filter_of_the_whole_log_each_entry_once(log: Any) -> None:
    for number in range(300):
        tags = [f"m{number % 3}", "all", *(["rare"] if number % 97 == 0 else [])]
        await log.append([data(str(number), *tags), data(f"n{number}", "noise")])
    everything = await log.read()

    for tags in (["m1"], ["rare"], ["m0", "rare"], ["all", "m2", "rare"], ["nobody"]):
        expected = [e for e in everything if set(e.tags) & set(tags)]
        assert await log.read(tags) == expected
        middle = everything[len(everything) // 2].lsn
        assert await log.read(tags, start=middle, end=middle + 100) == [
            e for e in expected if middle <= e.lsn < middle + 100
        ]


async def test_a_tail_follows_several_tags_from_the_past_into_the_future(log: Any) -> None:
    await log.append([data("1", "a"), data("no", "c"), data("2", "b")])
    async with log.tail(["a", "b"], start=0) as reader:
        assert await first_batches(reader, 2) == ["1", "2"]
        await log.append([data("3", "a", "b"), data("no", "c")])
        await log.append([data("4", "b")])
        assert await first_batches(reader, 2) == ["3", "4"]


async def test_a_tail_may_start_above_the_tail_and_ends_where_it_was_told(log: Any) -> None:
    await log.append([data("below", "a")])
    tail = (await log.bounds()).tail
    async with log.tail(["a"], start=tail + 1, end=tail + 3) as reader:
        await log.append([data(str(number), "a") for number in range(5)])
        found = [entry.lsn async for batch in reader for entry in batch.entries]
    assert found == [tail + 1, tail + 2]


async def test_a_quiet_reader_learns_how_far_was_looked(log: Any) -> None:
    async with log.tail(["quiet"], start=0) as reader:
        await log.append([data("x", "loud")])
        tail = (await log.bounds()).tail
        looked = 0
        async for batch in reader:
            assert batch.entries == []
            assert batch.looked_up_to >= looked
            looked = batch.looked_up_to
            if looked >= tail:
                break


async def test_a_reader_that_stalls_stops_nobody_and_misses_nothing(log: Any) -> None:
    big = "x" * 200_000
    async with log.tail(["a"], start=0) as stalled, log.tail(["a"], start=0) as quick:
        expected = []
        for number in range(60):  # 12 MB, three times the credit
            await log.append([data(f"{number}{big}", "a")])
            expected.append(f"{number}{big}")
            assert await first_batches(quick, 1) == [expected[-1]]
        assert await first_batches(stalled, 60) == expected


async def test_a_guard_decides_and_a_set_changes_in_the_same_step(log: Any) -> None:
    await log.append([data("1", "a")], guards=[Guard("k", None)], sets=[SetKey("k", b"v")])
    with pytest.raises(GuardFailed, match="k"):
        await log.append([data("2", "a")], guards=[Guard("k", None)])
    guards = [Guard("k", b"v"), Guard("other", b"")]
    await refused(
        GuardFailed, log.append([data("3", "a")], guards=guards, sets=[SetKey("k", b"w")])
    )
    done = await log.append([data("4", "a")], guards=[Guard("k", b"v")])

    assert payloads(await log.read(["a"])) == ["1", "4"]
    found = await log.get("k")
    assert (found.data, found.lsn < done.first_lsn) == (b"v", True)
    assert payloads([await log.read_last("a")]) == ["4"]


async def test_compare_and_set_has_one_winner_and_a_removed_key_is_absent(log: Any) -> None:
    tries = [
        log.compare_and_set("k", expected=None, value=str(number).encode()) for number in range(10)
    ]
    done = await asyncio.gather(*tries, return_exceptions=True)

    assert sum(isinstance(outcome, int) for outcome in done) == 1
    assert sum(isinstance(outcome, GuardFailed) for outcome in done) == 9
    value = await log.get("k")
    await log.compare_and_set("k", expected=value.data, value=None)
    assert await log.get("k") is None
    await log.compare_and_set("k", expected=None, value=b"")
    assert (await log.get("k")).data == b""


async def test_a_watch_sees_every_value_of_its_key_in_order(log: Any) -> None:
    first = await log.compare_and_set("k", expected=None, value=b"1")
    await log.compare_and_set("kk", expected=None, value=b"other")
    await log.compare_and_set("k", expected=b"1", value=None)
    last = await log.compare_and_set("k", expected=None, value=b"2")

    found = []
    watching = log.watch("k", start=0)
    async for value in watching:
        found.append(value)
        if len(found) == 3:
            break
    await watching.aclose()

    assert found == [Value(b"1", first), None, Value(b"2", last)]
    assert list(await log.list_metadata("k")) == ["k", "kk"]


async def test_a_producer_goes_on_where_it_stopped_and_fences_its_older_instance(log: Any) -> None:
    older = await log.appender("p")
    await older.append([data("1", "a"), data("2", "a")])
    newer = await log.appender("p")

    assert (newer.instance, newer.next_seq) == (older.instance + 1, 2)
    await refused(StaleInstance, older.append([data("zombie", "a")]))
    await newer.append([data("3", "a")])
    entries = await log.read(["a"])
    assert payloads(entries) == ["1", "2", "3"]
    assert [entry.seq for entry in entries] == [0, 1, 2]


async def test_what_is_refused_leaves_the_log_as_it_was(log: Any) -> None:
    await log.append([data("x", "a")])
    before = await log.bounds()

    for entries, error in (
        ([NewEntry(bytes(PAYLOAD_BYTES_MAX + 1))], TooLarge),
        ([data("x", *(f"t{n}" for n in range(ENTRY_TAGS_MAX + 1)))], TooLarge),
        ([data("x", "t" * (TAG_BYTES_MAX + 1))], TooLarge),
        ([data("x", "")], TooLarge),
        ([data("x", "a\nb")], BadRequest),
        ([data("x", "a", "a")], BadRequest),
        ([], TooLarge),
        ([NewEntry(bytes(PAYLOAD_BYTES_MAX))] * 5, TooLarge),
    ):
        await refused(error, log.append(entries))
    await refused(BadRequest, log.append([], sets=[SetKey("k", b"1"), SetKey("k", b"2")]))

    assert await log.bounds() == before
    await log.append([NewEntry(bytes(PAYLOAD_BYTES_MAX), ("a",))])


async def test_trim_gives_up_a_prefix_for_good(log: Any) -> None:
    for number in range(200):
        await log.append([data(str(number) + "x" * 1000, "a")])
    everything = await log.read(["a"])
    cut = everything[120].lsn

    assert await log.trim(cut) == cut
    assert await log.trim(cut - 50) == cut
    assert (await log.bounds()).trim_point == cut
    assert await log.read(["a"], start=cut) == everything[120:]
    await refused(Trimmed, log.read(["a"], start=cut - 1))
    await refused(BadRequest, log.trim((await log.bounds()).tail + 1))
    assert (await log.find_time(0)) == cut
    assert (await log.read_last("a")).lsn == everything[-1].lsn


async def test_a_position_is_found_by_time(log: Any) -> None:
    for number in range(20):
        await log.append([data(str(number), "a")])
        await asyncio.sleep(0.002)
    entries = await log.read(["a"])

    for entry in entries:
        found = await log.find_time(entry.time_ms)
        assert found <= entry.lsn
        assert all(e.time_ms < entry.time_ms for e in entries if e.lsn < found)
    assert await log.find_time(entries[-1].time_ms + 1) == (await log.bounds()).tail


async def test_read_last_is_the_newest_below_the_end(log: Any) -> None:
    lsns = [(await log.append([data(str(n), "a"), data("", "b")])).first_lsn for n in range(50)]

    assert (await log.read_last("a")).lsn == lsns[-1]
    assert (await log.read_last("a", end=lsns[-1])).lsn == lsns[-2]
    assert await log.read_last("a", end=lsns[0]) is None
    assert await log.read_last("nobody") is None


async def test_a_group_that_may_wait_is_appended_all_the_same(log: Any) -> None:
    done = await asyncio.gather(
        *(log.append([data(str(n), "a")], flush=Flush(delay_ms=20)) for n in range(10))
    )

    assert len({outcome.first_lsn for outcome in done}) == 10
    assert sorted(payloads(await log.read(["a"]))) == sorted(str(n) for n in range(10))


async def test_a_closed_anonymous_producer_leaves_nothing_that_goes_on(log: Any) -> None:
    appender = await log.appender()
    await appender.append([data("x", "a")])
    await appender.close()
    await appender.close()

    again = await log.appender(appender.producer)

    assert (again.instance, again.next_seq) == (1, 0), "it was forgotten"


async def test_seqs_have_no_gaps_even_if_a_client_skips_one(log: Any) -> None:
    appender = await log.appender("p")
    core = getattr(appender, "core", appender)
    core.next_seq += 5

    await refused(SeqGap, appender.append([data("x", "a")]))
    assert await log.read(["a"]) == []
