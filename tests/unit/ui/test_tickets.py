"""A ticket signs in one page, once."""

from __future__ import annotations

from penstock.ui.tickets import TICKET_SECONDS, Ticket


def test_a_ticket_is_good_once() -> None:
    ticket = Ticket("code", "token", since=0.0)
    assert ticket.redeem("code", 1.0) == "token"
    assert ticket.redeem("code", 1.0) is None


def test_a_wrong_code_uses_it_up_so_that_nobody_can_guess() -> None:
    ticket = Ticket("code", "token", since=0.0)
    assert ticket.redeem("cöde", 1.0) is None
    assert ticket.redeem("code", 1.0) is None


def test_a_late_one_is_refused() -> None:
    assert Ticket("code", "token", since=0.0).redeem("code", TICKET_SECONDS + 1) is None
