"""Requests of a dead connection that arrive after their client has sent everything again.

Found by the world: nothing in a late copy tells it from a new request once the first copy was
refused, or its producer has retired. Each scenario is played twice: as it is, and with the rule of
core/sessions.py broken, to show that the schedule bites.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulation.log.appender import Claim, SimAppender
from simulation.log.link import Link
from simulation.log.network import Connection
from simulation.log.story import AppendOp
from simulation.log.swarm import Swarm
from simulation.log.world import World

from penstock.errors import GuardFailed, PenstockError
from penstock.log.core.sessions import Sessions
from penstock.log.records import Appended, Guard, NewEntry, SetKey


class Stage:
    """A server, some clients, and connections that are held and let go by hand."""

    def __init__(self) -> None:
        self.world = World(1, swarm=Swarm())
        self.world.server.start()

    def link(self, name: str) -> Link:
        link = Link(self.world, name)
        link.dial()
        self.world.until(lambda: link.connection is not None)
        return link

    def hold(self, link: Link) -> Connection:
        """From now on nothing that the link sends arrives."""
        assert link.connection is not None
        link.connection.to_server.hold()
        return link.connection

    def replace(self, link: Link, old: Connection) -> None:
        """The client gives the connection up and has another one."""
        old.client_notices()
        self.world.until(lambda: link.connection is not None)

    def let_go(self, old: Connection) -> None:
        """What was held arrives after all, unless the server hears this connection no more."""
        assert old.to_server.release_late() == 1 or not old.server_open
        self.world.until(lambda: self.world.now_us > old.to_server.last_us + 100_000)

    def open(self, link: Link, name: str) -> SimAppender:
        opened: list[SimAppender | PenstockError] = []
        Claim(link, name, retires=True, opened=opened.append)
        self.world.until(lambda: bool(opened))
        assert isinstance(opened[0], SimAppender)
        return opened[0]

    def settle(self, submit: Callable[[Callable[[AppendOp], None]], AppendOp]) -> AppendOp:
        op = submit(lambda _: None)
        self.world.until(lambda: op.outcome is not None)
        return op

    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.world.read_final().entries]


@pytest.fixture(params=["as it is", "mutant"])
def is_mutant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "mutant":
        monkeypatch.setattr(Sessions, "open", lambda self, session, connection: None)
    return bool(request.param == "mutant")


def test_a_late_claim_does_not_open_a_retired_producer_to_late_data(is_mutant: bool) -> None:
    """1. The claim hangs, is sent again, answered. 2. So is the data. 3. The producer retires.
    4. The first claim arrives, then the first data."""
    stage = Stage()
    link = stage.link("client")
    opened: list[SimAppender | PenstockError] = []
    Claim(link, "anon", retires=True, opened=opened.append)
    claims = stage.world.story.claims
    stage.world.until(lambda: len(claims) == 1)
    first = stage.hold(link)
    stage.replace(link, first)
    stage.world.until(lambda: bool(opened))
    appender = opened[0]
    assert isinstance(appender, SimAppender)

    second = stage.hold(link)
    op = appender.append([NewEntry(b"data")], lambda _: None)
    stage.replace(link, second)
    stage.world.until(lambda: op.outcome is not None)
    retired: list[bool] = []
    appender.close(lambda: retired.append(True))
    stage.world.until(lambda: bool(retired))
    stage.let_go(first)
    stage.let_go(second)

    assert stage.payloads().count(b"data") == (2 if is_mutant else 1)


def test_a_late_copy_of_a_refused_group_is_not_let_in_when_its_guard_holds_again(
    is_mutant: bool,
) -> None:
    """1. A guarded group hangs, is sent again, refused. 2. Its guard comes to hold. 3. The first
    copy arrives, before the next group under the same seq."""
    stage = Stage()
    holder = stage.open(stage.link("holder"), "holder")
    link = stage.link("client")
    appender = stage.open(link, "client")
    take, free = SetKey("lock", b"held"), SetKey("lock", None)
    stage.settle(lambda ended: holder.append([], ended, sets=[take]))

    old = stage.hold(link)
    guard = [Guard("lock", None)]
    op = appender.append([NewEntry(b"refused")], lambda _: None, guards=guard)
    stage.replace(link, old)
    stage.world.until(lambda: op.outcome is not None)
    assert isinstance(op.outcome, GuardFailed)
    stage.settle(lambda ended: holder.append([], ended, sets=[free]))
    stage.let_go(old)
    later = stage.settle(lambda ended: appender.append([NewEntry(b"accepted")], ended))

    assert isinstance(later.outcome, Appended)
    payloads = stage.payloads()
    assert (b"refused" in payloads) == is_mutant
    assert (payloads[later.outcome.first_lsn] == b"accepted") == (not is_mutant)
