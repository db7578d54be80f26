"""Requests of a dead connection that arrive after their client has sent everything again.

Found by the world: nothing in a late copy tells it from a new request once the first copy was
refused, or its producer has retired. Each scenario is played twice: as it is, and with the rule of
core/sessions.py broken, to show that the schedule bites.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from simulation.kernel import Connection
from simulation.log.clients import Client
from simulation.log.swarm import Swarm
from simulation.log.world import World

from penstock.errors import GuardFailed
from penstock.log.core.sessions import Sessions
from penstock.log.records import Guard, NewEntry, SetKey


class Stage:
    """A server, some clients, and connections that are held and let go by hand."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.server.start()
        world.until(lambda: world.server.is_up)

    def start(self, client: Client, work: Coroutine[Any, Any, Any]) -> Any:
        """Something that a client does; a task."""
        return client.process.create_task(work)

    def play(self, client: Client, work: Coroutine[Any, Any, Any]) -> Any:
        """Something that a client does, to its end."""
        return self.finish(self.start(client, work))

    def finish(self, task: Any) -> Any:
        self.world.until(task.done)
        return task.result()

    def connection(self, client: Client) -> Connection:
        return next(
            each for each in self.world.network.connections.values() if each.client == client.name
        )

    def hold(self, client: Client) -> Connection:
        """From now on nothing that the client sends arrives."""
        connection = self.connection(client)
        connection.hold()
        return connection

    def replace(self, client: Client, old: Connection) -> None:
        """The client gives the connection up and has another one."""
        old.side_ended()
        client.process.call_soon(old.client_end.lost, ConnectionResetError("given up"))
        welcomes = self.world.counts["message Welcome"]
        self.world.until(lambda: self.world.counts["message Welcome"] > welcomes)

    def let_go(self, old: Connection) -> None:
        """What was held arrives after all, unless the server hears this connection no more."""
        assert old.to_server.in_flight == 1
        old.release()
        self.world.scheduler.run_for(1.0)

    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.world.read_final().entries]


@pytest.fixture(params=["as it is", "mutant"])
def is_mutant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "mutant":
        monkeypatch.setattr(Sessions, "open", lambda self, session, connection: None)
    return bool(request.param == "mutant")


@pytest.fixture
def stage(is_mutant: bool) -> Iterator[Stage]:
    world = World(1, swarm=Swarm())
    with world.running():
        yield Stage(world)


def test_a_late_claim_does_not_open_a_retired_producer_to_late_data(
    stage: Stage, is_mutant: bool
) -> None:
    """1. The claim hangs, is sent again, answered. 2. So is the data. 3. The producer retires.
    4. The first claim arrives, then the first data."""
    client = stage.world.client("client")
    log = stage.play(client, client.log())
    opening = stage.start(client, log.appender())
    stage.world.until(lambda: stage.world.counts["message Producer"] == 1)
    first = stage.hold(client)
    stage.world.scheduler.run_for(0.01)
    stage.replace(client, first)
    appender = stage.finish(opening)

    second = stage.hold(client)
    appending = stage.start(client, appender.append([NewEntry(b"data")]))
    stage.world.scheduler.run_for(0.01)
    stage.replace(client, second)
    stage.finish(appending)
    stage.play(client, appender.close())
    stage.let_go(first)
    stage.let_go(second)

    assert stage.payloads().count(b"data") == (2 if is_mutant else 1)


def test_a_late_copy_of_a_refused_group_is_not_let_in_when_its_guard_holds_again(
    stage: Stage, is_mutant: bool
) -> None:
    """1. A guarded group hangs, is sent again, refused. 2. Its guard comes to hold. 3. The first
    copy arrives, before the next group under the same seq."""
    holder, client = stage.world.client("holder"), stage.world.client("client")
    locks = stage.play(holder, holder.open("holder"))
    appender = stage.play(client, client.open("client"))
    stage.play(holder, locks.append([], sets=[SetKey("lock", b"held")]))

    old = stage.hold(client)
    guard = [Guard("lock", None)]
    guarded = stage.start(client, appender.append([NewEntry(b"refused")], guards=guard))
    stage.world.scheduler.run_for(0.01)
    stage.replace(client, old)
    with pytest.raises(GuardFailed):
        stage.finish(guarded)
    stage.play(holder, locks.append([], sets=[SetKey("lock", None)]))
    stage.let_go(old)
    later = stage.play(client, appender.append([NewEntry(b"accepted")]))

    payloads = stage.payloads()
    assert (b"refused" in payloads) == is_mutant
    assert (payloads[later.first_lsn] == b"accepted") == (not is_mutant)
