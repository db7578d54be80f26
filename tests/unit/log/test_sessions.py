"""Which connection speaks for a client: its newest."""

from __future__ import annotations

from penstock.log.core.sessions import Sessions


def test_the_newest_connection_of_a_session_silences_the_one_before() -> None:
    sessions: Sessions[str] = Sessions()

    assert sessions.open("s", "first") is None
    assert sessions.open("s", "second") == "first"
    assert sessions.open("s", "third") == "second"


def test_sessions_have_nothing_to_do_with_each_other() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.open("s", "first")

    assert sessions.open("t", "other") is None


def test_connections_without_a_session_have_nothing_to_do_with_each_other() -> None:
    sessions: Sessions[str] = Sessions()

    assert sessions.open("", "first") is None
    assert sessions.open("", "second") is None


def test_an_old_connection_that_ends_late_leaves_the_newest_in_place() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.open("s", "first")
    sessions.open("s", "second")

    sessions.close("s", "first")

    assert sessions.open("s", "third") == "second"


def test_a_session_whose_last_connection_ended_is_forgotten() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.open("s", "first")

    sessions.close("s", "first")

    assert sessions.open("s", "second") is None
