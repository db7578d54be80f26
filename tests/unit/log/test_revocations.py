"""Which tokens were revoked, as who follows a log learns it: a snapshot and what comes after."""

from __future__ import annotations

from penstock.ids import Lsn
from penstock.log.core.owners import revoked_key
from penstock.log.core.revocations import Revocations
from penstock.log.core.state import LogState, encode_snapshot
from penstock.log.group_format import Body, decode_body, encode_body, meta_entry
from penstock.log.records import NewEntry, SetKey, Value

MARK = 7


def pieces(*ids: str, size: int = 50) -> list[memoryview]:
    state = LogState(metadata={revoked_key(id): Value(b"{}", Lsn(0)) for id in ids})
    state.metadata["stream/bids"] = Value(b"x" * 100, Lsn(0))
    data = memoryview(encode_snapshot(state, log_mark=MARK))
    return [data[at : at + size] for at in range(0, len(data), size)]


def show(revocations: Revocations, parts: list[memoryview], *, first: int = 0) -> None:
    for part, piece in enumerate(parts):
        if part >= first:
            revocations.take_snapshot(piece, part, len(parts), log_mark=MARK)


def group(*sets: SetKey) -> Body:
    entries = [NewEntry(b"row", ("s/bids",)), meta_entry(sets)]
    return decode_body(encode_body(producer="p", instance=1, first_seq=0, entries=entries))


def test_nobody_knows_before_a_whole_snapshot_was_seen() -> None:
    revocations = Revocations()
    assert revocations.is_revoked("a") is None
    revocations.take_group(group(SetKey(revoked_key("a"), b"{}")))
    assert revocations.is_revoked("a") is None
    parts = pieces("a")
    assert len(parts) > 3
    show(revocations, parts, first=1)
    assert revocations.is_revoked("a") is None, "its beginning was not seen"
    revocations.take_snapshot(parts[0], 0, len(parts), log_mark=MARK)  # its writer died
    show(revocations, parts)
    assert revocations.is_revoked("a") is True and revocations.is_revoked("b") is False


def test_what_follows_is_added_and_taken_back() -> None:
    revocations = Revocations()
    show(revocations, pieces("a"))
    revocations.take_group(group(SetKey("stream/x", b"{}"), SetKey(revoked_key("b"), b"{}")))
    revocations.take_group(group(SetKey(revoked_key("a"), None)))
    assert [revocations.is_revoked(id) for id in "abc"] == [False, True, False]
    show(revocations, pieces("c"))
    assert revocations.is_revoked("c") is False, "a later snapshot says nothing new"


def test_after_a_gap_the_next_snapshot_counts() -> None:
    revocations = Revocations()
    show(revocations, pieces("a"))
    revocations.forget()
    assert revocations.is_revoked("a") is None
    show(revocations, pieces("b"))
    assert revocations.is_revoked("a") is False and revocations.is_revoked("b") is True
