"""Known subtle bugs as short schedules, one per pin of the list of known bugs (R07, R11, …).

Each is what a seed of the world once did, or what another system once suffered, with everything
else left out.
"""

from __future__ import annotations

from itertools import count

import pytest
from harness.disk import ALL_KEPT, ALL_LOST, SOME_LOST, Odds
from log_bench import LogBench
from sample_groups import claim, group

from penstock.errors import GuardFailed, SeqGap, StaleInstance, Unavailable
from penstock.ids import Lsn
from penstock.log.client.appender_core import AppenderCore
from penstock.log.records import Appended, Flush, Guard, NewEntry, SetKey
from penstock.log.storage.recover import snapshot_lsns, snapshot_name

EVERY_ODDS = (ALL_LOST, ALL_KEPT, SOME_LOST)


def entry(text: str, *tags: str) -> NewEntry:
    return NewEntry(text.encode(), tags)


@pytest.fixture
def bench() -> LogBench:
    """A log with producer p open, at LSN 1."""
    bench = LogBench()
    assert bench.ask(claim()) == Appended(Lsn(0), 1)
    return bench


# ---- what is not durable does not exist


def test_r07_a_reader_never_sees_what_a_power_cut_takes_back(bench: LogBench) -> None:
    bench.follow("reader")
    bench.order("append", group(entries=[entry("lost")]))
    bench.die_at(1)  # before the fsync
    write = bench.take_write()

    assert bench.dies_in(lambda: bench.storage.write(write))
    assert bench.answers() == {}
    assert [seen.lsn for seen in bench.delivered["reader"]] == [0]

    bench.cut_power(ALL_LOST)
    bench.ask(claim(instance=2))
    assert bench.ask(group(instance=2, entries=[entry("other")])) == Appended(Lsn(2), 1)
    assert b"lost" not in bench.payloads()


def test_a_guard_that_fails_on_an_undurable_value_is_not_told_before_the_value_is_safe(
    bench: LogBench,
) -> None:
    bench.order("set", group(sets=[SetKey("key", b"new")], entries=0))
    bench.order("guarded", group(seq=1, entries=[entry("guarded")]), [Guard("key", None)])

    assert bench.answers() == {}
    bench.cut_power(ALL_LOST)

    guard = [Guard("key", None)]
    assert bench.ask(group(entries=[entry("guarded")]), guard) == Appended(Lsn(1), 1)


def test_a_guard_that_fails_is_told_once_its_grounds_are_durable(bench: LogBench) -> None:
    bench.order("set", group(sets=[SetKey("key", b"new")], entries=0))
    bench.order("guarded", group(seq=1), [Guard("key", None)])

    assert bench.flush() == {"set": Appended(Lsn(1), 1), "guarded": GuardFailed}


def test_a_question_does_not_wait_for_a_neighbour_who_has_time(bench: LogBench) -> None:
    bench.sequencer.append("lazy", group(), flush=Flush(10_000), now_ms=bench.now_ms)
    assert bench.flush() == {}

    bench.sequencer.ask("question")

    assert bench.flush() == {"lazy": Appended(Lsn(1), 1), "question": Appended(Lsn(2), 0)}


def test_a_write_does_not_wait_for_a_clock_that_was_set_back(bench: LogBench) -> None:
    bench.order("first", group())
    write = bench.take_write()
    bench.order("second", group(seq=1))
    bench.now_ms -= 500

    told = bench.complete(write) | bench.flush()

    assert told == {"first": Appended(Lsn(1), 1), "second": Appended(Lsn(2), 1)}


# ---- indexes and snapshots are caches


def tagged_log() -> LogBench:
    """Several small segments, entries with and without tag t."""
    bench = LogBench(segment_bytes=300)
    bench.ask(claim())
    for seq in range(6):
        tags = ("t",) if seq % 2 else ()
        bench.ask(group(seq=seq, entries=[NewEntry(b"%d" % seq, tags)]))
    return bench


def test_r11_an_acknowledged_entry_is_found_by_its_tag_though_no_index_was_written() -> None:
    bench = tagged_log()
    assert len(bench.storage.manifest.segments) > 2
    assert not any(name.endswith(".idx") for name in bench.sim_disk.names())

    bench.cut_power(ALL_LOST)

    assert bench.payloads("t") == [b"1", b"3", b"5"]


@pytest.mark.parametrize("odds", EVERY_ODDS, ids=("lost", "kept", "some"))
def test_r12_no_crash_leaves_an_index_that_is_ahead_of_the_log(odds: Odds) -> None:
    """Every operation of a roll and of what follows it, cut before and after."""
    for after in count():
        for done in (False, True):
            bench = tagged_log()
            bench.finish_sealed()
            acked = bench.payloads("t")
            bench.die_at(after, done=done)
            bench.order("append", group(seq=6, entries=[entry("6" * 200, "t")]))
            struck = bench.dies_in(bench.flush) or bench.dies_in(bench.finish_sealed)
            if not struck:
                assert after > 10  # the roll and its aftermath were long enough to mean something
                return
            bench.cut_power(odds, seed=after)
            found = bench.payloads("t")
            assert found[: len(acked)] == acked
            assert found == [each.payload for each in bench.read() if "t" in each.tags]
            assert bench.ask(group(seq=6, entries=[entry("6" * 200, "t")])) is not None
            assert bench.payloads("t") == [*acked, b"6" * 200]


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_r18_the_producer_table_is_rebuilt_from_the_log_when_its_snapshot_is_no_use(
    damage: str,
) -> None:
    bench = tagged_log()
    bench.finish_sealed()
    for lsn in snapshot_lsns(bench.sim_disk):
        if damage == "gone":
            bench.sim_disk.remove(snapshot_name(lsn))
        else:
            bench.sim_disk.open(snapshot_name(lsn), writable=True).truncate(20)
    bench.kill()

    assert bench.ask(group(seq=5, entries=[entry("5", "t")])) == Appended(Lsn(6), 1, True)
    assert bench.ask(group(seq=6)) == Appended(Lsn(7), 1)
    assert bench.ask(group("stranger", seq=3)) is SeqGap


# ---- one effect, however often it is sent


def test_a_retry_after_a_lost_answer_gets_the_first_lsn(bench: LogBench) -> None:
    assert bench.ask(group(entries=2)) == Appended(Lsn(1), 2)

    assert bench.ask(group(entries=2)) == Appended(Lsn(1), 2, duplicate=True)
    bench.cut_power(ALL_LOST)
    assert bench.ask(group(entries=2)) == Appended(Lsn(1), 2, duplicate=True)
    assert bench.storage.durable_lsn == 3


@pytest.mark.parametrize("power_cut", [False, True], ids=("kill", "power cut"))
def test_r17_a_retry_across_a_roll_takes_effect_once(power_cut: bool) -> None:
    """The group is in the file, unacknowledged; the retry would go to the next segment."""
    bench = LogBench(segment_bytes=400)
    bench.ask(claim())
    body = group(entries=[entry("x" * 100)])
    bench.order("append", body)
    bench.die_at(0, done=True)  # written, not synced
    write = bench.take_write()
    assert bench.dies_in(lambda: bench.storage.write(write))

    if power_cut:
        bench.cut_power(ALL_LOST)
    else:
        bench.kill()

    assert bench.ask(body) == Appended(Lsn(1), 1, duplicate=not power_cut)
    assert bench.ask(group(seq=1, entries=[entry("y" * 100)])) == Appended(Lsn(2), 1)
    assert bench.payloads()[1:] == [b"x" * 100, b"y" * 100]
    assert len(bench.storage.manifest.segments) == 2


def test_r20_what_is_sent_again_is_the_same_bytes_under_the_same_seq() -> None:
    core = AppenderCore(producer="p", instance=1, next_seq=0)
    core.submit("first", [entry("first")])
    first = core.take_sends()
    core.submit("second", [entry("second")])
    core.submit("third", [entry("third")])
    later = core.take_sends()

    core.disconnected()
    core.submit("fourth", [entry("fourth")])
    again = core.take_sends()

    assert [(send.seq, send.body) for send in again[:2]] == [
        (send.seq, send.body) for send in (*first, *later)
    ]
    assert [send.seq for send in again] == [0, 1, 3]


# ---- who owns a name


def test_two_processes_that_claim_the_same_instance_do_not_both_get_it() -> None:
    bench = LogBench()
    bench.order("mine", claim(nonce=1))
    bench.order("rival's", claim(nonce=2))
    bench.order("mine again", claim(nonce=1))

    assert bench.flush() == {
        "mine": Appended(Lsn(0), 1),
        "rival's": StaleInstance,
        "mine again": Appended(Lsn(0), 1, duplicate=True),
    }


def test_a_zombie_hears_that_it_is_fenced_even_inside_a_group_of_its_successor(
    bench: LogBench,
) -> None:
    bench.ask(claim(instance=2, nonce=8))
    bench.ask(group(instance=2, entries=5))

    assert bench.ask(group(seq=0, entries=2)) is StaleInstance
    assert bench.ask(group(seq=2, entries=1)) is StaleInstance
    assert bench.ask(group(seq=5, entries=1)) is StaleInstance


def test_a_zombie_whose_group_is_in_the_log_is_told_so(bench: LogBench) -> None:
    bench.order("zombie", group(entries=2))
    bench.order("claim", claim(instance=2, nonce=8))
    bench.flush()

    assert bench.ask(group(entries=2)) == Appended(Lsn(1), 2, duplicate=True)


# ---- disks that lie


def test_r48_after_an_fsync_error_nothing_is_written_and_what_was_read_back_is_made_safe(
    bench: LogBench,
) -> None:
    bench.order("append", group(entries=[entry("unsure")]))
    bench.disk.fail_sync_after = 0
    write = bench.take_write()
    with pytest.raises(OSError, match="Input/output error"):
        bench.storage.write(write)
    with pytest.raises(Unavailable):
        bench.storage.write(write)
    bench.sequencer.write_failed()
    assert bench.flush() == {}

    bench.kill()  # the page cache shows the bytes, the disk does not have them
    assert bench.ask(group(entries=[entry("unsure")])) == Appended(Lsn(1), 1, duplicate=True)
    bench.cut_power(ALL_LOST)

    assert bench.payloads()[1:] == [b"unsure"]


@pytest.mark.parametrize("odds", EVERY_ODDS, ids=("lost", "kept", "some"))
def test_r49_a_crash_at_any_point_of_a_manifest_change_leaves_the_old_or_the_new(
    odds: Odds,
) -> None:
    """A trim is nothing but a manifest change, and the removals after it."""
    for after in count():
        for done in (False, True):
            bench = tagged_log()
            bench.finish_sealed()
            everything = bench.payloads()
            bench.die_at(after, done=done)
            if not bench.dies_in(lambda bench=bench: bench.storage.trim(4)):
                assert after > 5
                return
            bench.cut_power(odds, seed=after)
            point = bench.storage.manifest.trim_point
            assert point in (0, 4)
            assert bench.payloads() == everything[point:]
