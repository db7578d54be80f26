"""The edges of `penstock.log.api.Log`: retries, ranges, names, limits and ends, for every log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from refusals import refused

from penstock.errors import (
    BadRequest,
    GuardFailed,
    SeqMismatch,
    TooLarge,
    Unavailable,
)
from penstock.limits import (
    GROUP_BYTES_MAX,
    GROUP_ENTRIES_MAX,
    GUARDS_MAX,
    KEY_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    PRODUCER_RECENT_GROUPS,
    SUBSCRIPTION_TAGS_MAX,
    VALUE_BYTES_MAX,
)
from penstock.log.api import Bounds
from penstock.log.group_format import decode_sets
from penstock.log.records import Appended, Entry, Guard, Kind, NewEntry, SetKey


def data(text: str, *tags: str) -> NewEntry:
    return NewEntry(text.encode(), tags)


def rewind(appender: Any, entries: int) -> None:
    """Make the appender send what it sent so many entries ago once more: a lost ack."""
    core = getattr(appender, "core", appender)
    core.next_seq -= entries


async def data_entries(log: Any, **range: int) -> list[Entry]:
    """Claims and retirements are an implementation's own business."""
    return [entry for entry in await log.read(**range) if entry.kind is not Kind.CONTROL]


# ---- idempotent producers


async def test_a_retry_returns_the_first_lsns_and_appends_nothing(log: Any) -> None:
    appender = await log.appender("p")
    first = await appender.append([data("1", "a"), data("2", "a")])
    before = await log.bounds()

    rewind(appender, 2)
    again = await appender.append([data("1", "a"), data("2", "a")])

    assert again == Appended(first.first_lsn, 2, duplicate=True)
    assert await log.bounds() == before
    assert appender.next_seq == 2


async def test_a_retry_older_than_the_producer_table_finds_its_group_in_the_log(log: Any) -> None:
    appender = await log.appender("p")
    count = PRODUCER_RECENT_GROUPS + 10
    done = [await appender.append([data(str(n), "a")]) for n in range(count)]

    rewind(appender, count)
    again = [await appender.append([data(str(n), "a")]) for n in range(count)]

    assert [each.first_lsn for each in again] == [each.first_lsn for each in done]
    assert all(each.duplicate for each in again)


async def test_a_seq_used_for_another_group_is_no_retry(log: Any) -> None:
    appender = await log.appender("p")
    await appender.append([data("1"), data("2")])

    rewind(appender, 2)

    await refused(SeqMismatch, appender.append([data("1"), data("2"), data("3")]))


async def test_a_retry_by_the_next_instance_returns_what_the_older_one_appended(log: Any) -> None:
    """The program died before it learnt the answer; its successor asks again."""
    older = await log.appender("p")
    first = await older.append([data("1", "a")])
    newer = await log.appender("p")
    assert newer.next_seq == 1

    rewind(newer, 1)
    again = await newer.append([data("1", "a")])

    assert again == Appended(first.first_lsn, 1, duplicate=True)


async def test_a_failed_guard_costs_the_producer_nothing(log: Any) -> None:
    appender = await log.appender("p")
    for _ in range(3):
        await refused(
            GuardFailed, appender.append([data("no", "a")], guards=[Guard("k", b"never")])
        )
    done = await appender.append([data("yes", "a")])

    (entry,) = await log.read(["a"])

    assert (entry.lsn, entry.seq) == (done.first_lsn, 0)


# ---- groups


async def test_groups_of_many_writers_are_never_mixed(log: Any) -> None:
    """Impeller 3.2: an append is atomic; a group's LSNs are one run."""

    async def write(name: str) -> None:
        appender = await log.appender(name)
        for number in range(20):
            await appender.append([data(f"{name} {number} {part}") for part in range(3)])

    await asyncio.gather(*(write(f"w{n}") for n in range(6)))

    texts = [entry.payload.decode() for entry in await data_entries(log)]
    groups = [texts[at : at + 3] for at in range(0, len(texts), 3)]
    for three in groups:
        name, number, _ = three[0].split()
        assert three == [f"{name} {number} {part}" for part in range(3)]
    for name in (f"w{n}" for n in range(6)):
        numbers = [int(three[0].split()[1]) for three in groups if three[0].startswith(name)]
        assert numbers == list(range(20))


async def test_every_kind_and_row_count_comes_back(log: Any) -> None:
    kinds = [Kind.DATA, Kind.MARKER, Kind.CHANGE, Kind.CONTROL]
    done = await log.append([NewEntry(b"x", ("a",), kind, 2**32 - 1) for kind in kinds])

    entries = await log.read(["a"], start=done.first_lsn)

    assert [(entry.kind, entry.rows) for entry in entries] == [(k, 2**32 - 1) for k in kinds]


async def test_a_set_is_an_entry_under_the_tag_of_its_key(log: Any) -> None:
    sets = [SetKey("k", b"v"), SetKey("j", None)]
    done = await log.append([data("x")], sets=sets)

    (entry,) = await log.read(["m/k"])

    assert (entry.lsn, entry.kind) == (done.first_lsn + 1, Kind.META)
    assert entry.tags == ("m/k", "m/j")
    assert decode_sets(entry.payload) == sets


async def test_a_reader_of_nearly_all_of_the_largest_group_gets_it(log: Any) -> None:
    """What is cut out of a group needs more bytes per entry than the group itself."""
    count = GROUP_ENTRIES_MAX
    size = (GROUP_BYTES_MAX - 500 - 22 * count) // count
    wanted = [NewEntry(bytes(size), ("a",))] * (count - 1)
    async with log.tail(["a"], start=0) as reader:
        await log.append([*wanted, NewEntry(b"", ("b",))])
        found = 0
        async for batch in reader:
            found += len(batch.entries)
            if found == count - 1:
                break
    assert len(await log.read(["a"])) == count - 1


# ---- ranges


async def test_a_read_gives_what_is_there_now_even_if_its_end_is_not(log: Any) -> None:
    await log.append([data("x", "a")])
    tail = (await log.bounds()).tail

    assert len(await log.read(["a"], end=tail + 100)) == 1
    assert await log.read(start=tail) == []
    assert await log.read(start=tail + 5) == []
    assert await log.read(start=tail + 5, end=tail + 9) == []
    assert await log.read(start=tail, end=0) == []


async def test_a_range_may_begin_and_end_inside_groups(log: Any) -> None:
    for group in range(3):
        await log.append([data(f"{group}.{part}", "a", "bc"[part % 2]) for part in range(4)])
    everything = await log.read()
    first, last = everything[0].lsn, everything[-1].lsn

    for start in range(first, last + 2):
        for end in range(start, last + 2):
            inside = [entry for entry in everything if start <= entry.lsn < end]
            assert await log.read(start=start, end=end) == inside
            wanted = [entry for entry in inside if "b" in entry.tags]
            assert await log.read(["b"], start=start, end=end) == wanted


@pytest.mark.parametrize("lsn", [-1, 2**63, 2**70])
async def test_a_position_that_cannot_be_is_refused(log: Any, lsn: int) -> None:
    await refused(
        BadRequest,
        log.read(start=lsn),
        log.read(end=lsn),
        log.read_last("a", end=lsn),
        log.trim(lsn),
        log.find_time(lsn),
    )
    assert await log.bounds() == Bounds(0, 0)
    await log.append([data("still works")])


async def test_a_tail_of_no_tags_or_too_many_is_refused(log: Any) -> None:
    for tags in ([], [str(n) for n in range(SUBSCRIPTION_TAGS_MAX + 1)]):
        await refused(TooLarge, anext(log.tail(tags, start=0)))
    await log.append([data("x", "7")])
    assert len(await log.read([str(n) for n in range(SUBSCRIPTION_TAGS_MAX)])) == 1


async def test_a_tail_named_twice_by_a_tag_gives_each_entry_once(log: Any) -> None:
    await log.append([data("x", "a", "b")])

    assert len(await log.read(["a", "b", "a"])) == 1


async def test_progress_reaches_the_tail_and_never_goes_back(log: Any) -> None:
    async with log.tail(["a"], start=0) as reader:
        for number in range(30):
            await log.append([data(str(number), "ab"[number % 2])])
        tail = (await log.bounds()).tail
        looked, found = 0, []
        async for batch in reader:
            assert looked <= batch.looked_up_to
            assert all(looked <= entry.lsn < batch.looked_up_to for entry in batch.entries)
            looked = batch.looked_up_to
            found += [int(entry.payload) for entry in batch.entries]
            if looked == tail:
                break
    assert found == list(range(0, 30, 2))


# ---- names


@pytest.mark.parametrize("name", ["é", "標本/1", "😀", "T/1a", "a b", "m/k", "'\"<>%"])
async def test_any_printable_name_is_a_tag_a_key_and_a_producer(log: Any, name: str) -> None:
    appender = await log.appender(name)
    await appender.append([data("x", name)], sets=[SetKey(name, b"v")])

    (entry,) = await log.read([name])

    assert (entry.producer, entry.tags) == (name, (name,))
    assert (await log.read_last(name)).lsn == entry.lsn
    assert (await log.get(name)).data == b"v"
    assert list(await log.list_metadata(name)) == [name]


async def test_names_that_share_a_prefix_are_kept_apart(log: Any) -> None:
    await log.append([data("1", "a")], sets=[SetKey("k", b"1")])
    await log.append([data("2", "ab")], sets=[SetKey("k2", b"2")])

    assert [entry.payload for entry in await log.read(["a"])] == [b"1"]
    assert (await log.get("k")).data == b"1"
    assert list(await log.list_metadata()) == ["k", "k2"]
    assert list(await log.list_metadata("k2")) == ["k2"]
    assert await log.list_metadata("x") == {}


# ---- limits


async def test_what_is_beyond_a_limit_is_refused_and_the_producer_goes_on(log: Any) -> None:
    key = "k" * KEY_BYTES_MAX
    too_large: list[dict[str, Any]] = [
        {"guards": [Guard(str(n), None) for n in range(GUARDS_MAX + 1)]},
        {"guards": [Guard(key + "k", None)]},
        {"guards": [Guard("", None)]},
        {"sets": [SetKey(key + "k", b"")]},
        {"sets": [SetKey("k", bytes(VALUE_BYTES_MAX + 1))]},
    ]
    appender = await log.appender("p")
    for each in too_large:
        await refused(TooLarge, appender.append([data("x", "a")], **each))
    await refused(BadRequest, appender.append([NewEntry(b"", rows=-1)]))
    assert await log.read(["a"]) == []

    await appender.append([data("x")], sets=[SetKey(key, bytes(VALUE_BYTES_MAX))])

    assert len((await log.get(key)).data) == VALUE_BYTES_MAX
    assert appender.next_seq == 2


async def test_a_producer_name_that_is_too_long_is_refused(log: Any) -> None:
    await log.appender("p" * PRODUCER_BYTES_MAX)
    await refused(TooLarge, log.appender("p" * (PRODUCER_BYTES_MAX + 1)))


async def test_a_key_that_cannot_be_is_refused_by_every_question(log: Any) -> None:
    for key in ("", "k" * (KEY_BYTES_MAX + 1)):
        await refused(TooLarge, log.get(key), log.compare_and_set(key, expected=None, value=b""))
    await refused(BadRequest, log.compare_and_set("a\nb", expected=None, value=b""))
    assert await log.list_metadata() == {}


# ---- ends


async def test_closing_a_reader_ends_whoever_waits_for_it(log: Any) -> None:
    reader = log.tail(["a"], start=0)
    waiting = asyncio.ensure_future(collect(reader))
    await asyncio.sleep(0)

    await reader.close()
    await reader.close()

    assert await waiting == []
    await log.append([data("x", "a")])


async def collect(reader: Any) -> list[Entry]:
    return [entry async for batch in reader for entry in batch.entries]


async def test_a_closed_producer_takes_nothing_more(log: Any) -> None:
    appender = await log.appender("p")
    await appender.append([data("x", "a")])
    await appender.close()

    await refused(Unavailable, appender.append([data("y", "a")]))
    assert len(await log.read(["a"])) == 1


async def test_a_closed_log_answers_nobody(log: Any) -> None:
    await log.append([data("x", "a")])
    reader = log.tail(["z"], start=0)
    waiting = asyncio.ensure_future(collect(reader))
    await asyncio.sleep(0)

    await log.close()
    await log.close()

    await refused(Unavailable, waiting, log.append([data("y", "a")]), anext(log.tail(start=0)))
