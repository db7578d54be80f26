"""Which payloads are held since a marker, and when they are not."""

from __future__ import annotations

import pytest

from penstock.runtime import trail
from penstock.runtime.trail import BEGINNING, Trail


def test_what_was_committed_between_two_markers_is_given_in_order() -> None:
    held = Trail(10)
    held.add(20, [b"a", b"b"])
    held.add(30, [])
    held.add(40, [b"c"])

    assert held.between(10, 40) == [b"a", b"b", b"c"]
    assert held.between(10, 30) == [b"a", b"b"]
    assert held.between(20, 40) == [b"c"]
    assert held.between(9, 40) is None, "nothing is known of what was before"
    assert Trail(BEGINNING).between(BEGINNING, 5) == []


def test_what_is_durable_is_forgotten() -> None:
    held = Trail(BEGINNING)
    held.add(20, [b"a"])
    held.add(40, [b"c"])

    held.forget(20)

    assert held.between(20, 40) == [b"c"]
    assert held.between(BEGINNING, 40) is None


def test_too_much_is_not_held_and_the_log_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "TRAIL_BYTES_MAX", 10)
    held = Trail(0)
    held.add(20, [b"12345"])
    held.add(30, [b"123456"])

    assert held.between(0, 30) is None
    held.add(40, [b"9"])
    assert held.between(30, 40) == [b"9"]
