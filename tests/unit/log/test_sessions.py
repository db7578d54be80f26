"""Which connection speaks for a client: its newest."""

from __future__ import annotations

from penstock.log.core.sessions import Sessions


def test_the_newest_connection_of_a_session_silences_the_one_before() -> None:
    sessions: Sessions[str] = Sessions()

    assert sessions.open("s", "first") is None
    assert sessions.open("t", "other") is None, "sessions have nothing to do with each other"
    assert sessions.open("s", "second") == "first"
    sessions.close("s", "first")  # an old one that ends late
    assert sessions.open("s", "third") == "second"
    sessions.close("s", "third")
    assert sessions.open("s", "fourth") is None, "it was forgotten"


def test_connections_without_a_session_have_nothing_to_do_with_each_other() -> None:
    sessions: Sessions[str] = Sessions()

    assert sessions.open("", "first") is None
    assert sessions.open("", "second") is None
