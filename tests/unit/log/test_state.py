"""Metadata and producers as a fold over the log, and the snapshot that stands in for it."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from crc32c import crc32c
from sample_groups import LOG_MARK, claim, group, retire

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.ids import Lsn
from penstock.limits import PRODUCER_RECENT_GROUPS
from penstock.log.core.producers import AppendedGroup, Producers, ProducerState
from penstock.log.core.state import LogState, claim_nonce, decode_snapshot, encode_snapshot
from penstock.log.group_format import Body
from penstock.log.records import SetKey, Value


def folded(*bodies: Body) -> LogState:
    state = LogState()
    for at, body in enumerate(bodies):
        state.apply(body, first_lsn=state.next_lsn, time_ms=1000 + at)
    return state


def sample() -> LogState:
    return folded(
        claim("p"),
        claim("é", instance=4, nonce=2**64 - 1),
        group("p", sets=[SetKey("k", b"v"), SetKey("empty", b"")]),
        group("é", instance=4, entries=3),
        group("p", seq=2, sets=[SetKey("ключ", bytes(range(256)))]),
    )


def resealed(data: bytes) -> bytes:
    """The same bytes with a CRC that fits them."""
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


def test_the_fold_of_a_story_is_known_field_by_field() -> None:
    state = folded(
        claim("p", instance=3, nonce=9),
        group("p", instance=3, entries=2, sets=[SetKey("k", b"1")]),
        group("p", instance=3, seq=3, entries=[], sets=[SetKey("k", b"2"), SetKey("j", b"")]),
    )

    producers = Producers()
    producers["p"] = ProducerState(instance=3, next_seq=0, claim_lsn=Lsn(0), claim_nonce=9)
    first, second = AppendedGroup(0, 3, 3, Lsn(1)), AppendedGroup(3, 1, 3, Lsn(4))
    producers.append("p", first)
    producers.append("p", second)
    assert (producers["p"].next_seq, producers["p"].recent) == (4, [first, second])
    assert state == LogState(
        Lsn(5), 1002, {"k": Value(b"2", Lsn(4)), "j": Value(b"", Lsn(4))}, producers
    )


def test_a_claim_takes_no_seq_and_keeps_what_the_old_instance_wrote() -> None:
    state = folded(claim(), group(entries=2), claim(instance=2, nonce=8))

    known = state.producers["p"]

    assert (known.instance, known.next_seq, known.claim_lsn, known.claim_nonce) == (2, 2, 3, 8)
    assert known.recent == [AppendedGroup(0, 2, 1, Lsn(1))]


def test_a_retired_producer_leaves_nothing() -> None:
    assert folded(claim(), group(), retire(seq=1)).producers == {}


def test_only_the_newest_groups_of_a_producer_are_remembered() -> None:
    bodies = [group(seq=seq) for seq in range(PRODUCER_RECENT_GROUPS + 3)]

    known = folded(claim(), *bodies).producers["p"]

    assert [recent.first_seq for recent in known.recent] == list(range(3, 35))
    assert known.next_seq == 35


def test_removing_a_key_that_is_not_there_is_no_error() -> None:
    assert folded(claim(), group(sets=[SetKey("k", None)])).metadata == {}


def test_groups_are_taken_in_order_only() -> None:
    state = folded(claim())

    with pytest.raises(AssertionError):
        state.apply(group(), first_lsn=5, time_ms=2000)
    with pytest.raises(AssertionError):
        state.apply(group(), first_lsn=1, time_ms=10)


def test_a_copy_does_not_change_with_the_original() -> None:
    state = sample()
    copy = state.copy()
    bytes_before = encode_snapshot(copy, log_mark=LOG_MARK)

    state.apply(
        group("p", seq=4, sets=[SetKey("k", b"changed")]), first_lsn=state.next_lsn, time_ms=9999
    )
    state.apply(claim("new"), first_lsn=state.next_lsn, time_ms=9999)

    assert copy == sample()
    assert encode_snapshot(copy, log_mark=LOG_MARK) == bytes_before


def test_a_short_nonce_is_still_a_number() -> None:
    assert claim_nonce(retire()) == 0


def test_a_decoded_snapshot_goes_on_like_the_state_itself() -> None:
    """Rule 6: a snapshot is a shortcut for the fold, never more."""
    more = [group("p", seq=4 + n, sets=[SetKey("k", bytes([n]))]) for n in range(0, 80, 2)]
    direct, restored = (
        sample(),
        decode_snapshot(encode_snapshot(sample(), log_mark=1), log_mark=1),
    )

    for state in (direct, restored):
        for body in more:
            state.apply(body, first_lsn=state.next_lsn, time_ms=5000)

    assert direct == restored


def test_a_snapshot_of_another_log_is_refused() -> None:
    data = encode_snapshot(sample(), log_mark=LOG_MARK)

    with pytest.raises(BadFormat, match="another log"):
        decode_snapshot(data, log_mark=LOG_MARK + 1)
    with pytest.raises(ChecksumMismatch):
        decode_snapshot(data[:-1] + b"\xff", log_mark=LOG_MARK)


@pytest.mark.parametrize(
    ("at", "value"),
    [(40, 0), (40, 2**32 - 1), (44, 0), (44, 10**9), (48, 0xFFFF), (50, 0xFFFFFFFF)],
    ids=["no keys", "keys", "no producers", "producers", "name", "value"],
)
def test_a_snapshot_with_a_count_that_cannot_be_is_noticed_behind_a_good_crc(
    at: int, value: int
) -> None:
    data = bytearray(encode_snapshot(sample(), log_mark=LOG_MARK))
    form = "<H" if at == 48 else "<I"
    struct.pack_into(form, data, at, value)

    with pytest.raises(Damaged):
        decode_snapshot(resealed(bytes(data)), log_mark=LOG_MARK)


def test_a_snapshot_with_a_name_that_is_no_text_is_noticed_behind_a_good_crc() -> None:
    data = bytearray(encode_snapshot(sample(), log_mark=LOG_MARK))
    data[data.index("ключ".encode())] = 0xFF

    with pytest.raises(Damaged):
        decode_snapshot(resealed(bytes(data)), log_mark=LOG_MARK)


def test_very_many_producers_are_small_and_copied_at_once() -> None:
    """Clients that die do not retire: their producers stay, and each must cost little."""
    count = 2_000
    bodies = [claim(f"anon-{number:032x}", nonce=2**63 + number) for number in range(count)]
    bodies += [group(f"anon-{number:032x}") for number in range(count)]

    def measure() -> tuple[int, int]:
        tracemalloc.start()
        try:
            state = folded(*bodies)
            held = tracemalloc.get_traced_memory()[0]
            copy = state.copy()
            copied = tracemalloc.get_traced_memory()[0] - held
        finally:
            tracemalloc.stop()
        assert len(copy.producers) == count
        return held, copied

    # Threads that other tests left in this process may take memory, too, now and then.
    held, copied = map(min, zip(*(measure() for _ in range(3)), strict=True))
    print(f"{held / count:.0f} bytes a producer, {copied / count:.0f} of its copy")
    assert held / count < 400
    assert copied / count < 150


def calls_of(function: Callable[[], object]) -> int:
    """How many functions it calls, ours and Python's own."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_roll_takes_no_step_for_each_of_very_many_producers() -> None:
    """The copy is made between two appends, on a cluster the bytes as well: a table of 200,000 is
    one copy of references and one join, whatever each producer is.
    """
    state = LogState()
    for number in range(200_000):
        name = f"anon-{number:032x}"
        state.producers[name] = ProducerState(1, 0, Lsn(number), number)

    copied = calls_of(state.copy)
    encoded = calls_of(lambda: encode_snapshot(state, log_mark=LOG_MARK))

    assert copied < 20 and encoded < 20
    name = f"anon-{7:032x}"
    copy = state.copy()
    assert copy.producers._encoded[name] is state.producers._encoded[name]
    state.producers.append(name, AppendedGroup(0, 1, 1, Lsn(9)))
    assert copy.producers[name].next_seq == 0
