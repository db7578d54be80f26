"""What the shipped code did, counted for the campaign, and its invariants, checked as it runs.

Nothing is changed by it, but for a read and an append that fail because the world says so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import Overloaded, StaleInstance
from penstock.log.client.appender_core import AppenderCore
from penstock.log.client.reader import AsyncReader, split_records
from penstock.log.core import sequencer as sequencer_module
from penstock.log.server import server
from penstock.log.serving import listener, served_log
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.group_commit import GroupCommit
from penstock.log.serving.log_requests import LogRequests
from penstock.log.serving.log_service import LogService
from penstock.log.serving.served_log import SequencedLog
from penstock.log.storage.log_storage import LogStorage
from penstock.wire import messages as m
from penstock.wire.errors import error_from_code
from simulation.kernel.shipped import Tap, asked, changed, overheard, tapped, told
from simulation.log.story import TrimOp

if TYPE_CHECKING:
    from simulation.log.world import World


@contextmanager
def taps(world: World) -> Iterator[None]:
    """Count into the world what happens, for as long as it runs; it hears of errors, too."""
    crowd = world.crowd
    limits = [] if crowd is None else [(listener, "descriptor_limits", crowd.descriptor_limits)]
    told_of = overheard(world.scheduler, world.server.is_foreseen)
    with tapped(_taps(world)), changed(limits), told_of:
        yield


def _taps(world: World) -> list[tuple[Any, str, Tap]]:
    count = world.count
    return [
        (m, "decode_message", _messages(world)),
        (server, "recover", told(lambda log, *_: log.torn_bytes and count("torn tail cut"))),
        (SequencedLog, "_answer_old", asked(lambda *_: count("answer old duplicate"))),
        (LogRequests, "_append", _appends(world)),
        (served_log, "read_piece", _reads(world)),
        (sequencer_module, "decide_claim", _claims(world)),
        (ServerConnection, "silence", asked(lambda _: count("connection silenced"))),
        (ServerConnection, "connection_made", _arrivals(world)),
        (GroupCommit, "_take_in", told(lambda *_: world.server.check_sent_soon())),
        (GroupCommit, "_write_inline", asked(lambda *_: count("inline write"))),
        (LogStorage, "write", asked(lambda _, write: write.roll and count("roll"))),
        (LogStorage, "finish_sealed", asked(lambda *_: count("segment finished"))),
        (LogStorage, "cool", told(lambda cooled, *_: cooled and count("segment cooled"))),
        (LogStorage, "trim", _trims(world)),
        (LogStorage, "expired_lsn", _ages(world)),
        (LogService, "after_turn", _turns),
        (AppenderCore, "give_up", _gave_up(world)),
        (AppenderCore, "take_sends", _checked_sends),
        (AsyncReader, "delivered", _credits(world)),
    ]


def _messages(world: World) -> Tap:
    """Every message is decoded once, by whom it is for."""

    def tell(message: m.Message, *_: object) -> None:
        world.count(f"message {type(message).__name__}")
        if isinstance(message, m.Failed):
            error = error_from_code(message.code, message.message)
            world.count(f"answer {type(error).__name__}")
        elif isinstance(message, m.AppendDone) and message.duplicate:
            world.count("answer duplicate")

    return told(tell)


def _arrivals(world: World) -> Tap:
    def tell(_: None, connection: ServerConnection, transport: Any) -> None:
        if world.crowd is not None:
            world.crowd.check(transport.process)

    return told(tell)


def _claims(world: World) -> Tap:
    def tap(decide_claim: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(*arguments: Any) -> Any:
            try:
                return decide_claim(*arguments)
            except StaleInstance:
                world.count("claim lost to a rival")
                raise

        return tapped

    return tap


def _appends(world: World) -> Tap:
    """An append that arrives, which is refused now and then while the server is overloaded."""

    def tap(append: Callable[..., None]) -> Callable[..., None]:
        def tapped(*arguments: Any) -> None:
            if world.is_overloaded():
                raise Overloaded("too many bytes of unanswered appends")
            append(*arguments)

        return tapped

    return tap


def _reads(world: World) -> Tap:
    """A read for a subscription, which fails if one is to fail."""

    def tap(read_piece: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(*arguments: Any) -> Any:
            world.count("read behind")
            disk = world.server.disk
            if disk.fail_read:
                disk.fail_read, disk.read_failed = False, True
                world.count("read failed")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read_piece(*arguments)

        return tapped

    return tap


def _trims(world: World) -> Tap:
    def tap(trim: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(storage: LogStorage, lsn: int) -> Any:
            segments = len(storage.manifest.segments)
            point = trim(storage, lsn)
            if len(storage.manifest.segments) < segments:
                world.count("segment trimmed")
            return point

        return tapped

    return tap


def _ages(world: World) -> Tap:
    """What is too old is given up by the server itself: that is a trim like any other."""

    def tap(expired_lsn: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(storage: LogStorage, before_ms: int) -> Any:
            lsn = expired_lsn(storage, before_ms)
            if lsn > storage.manifest.trim_point:
                world.count("trimmed by age")
                op = TrimOp("ttl", world.now_us, world.story.known_lsn, lsn=lsn)
                world.story.trims.append(op)
            return lsn

        return tapped

    return tap


def _turns(after_turn: Callable[..., None]) -> Callable[..., None]:
    """After all that arrived together, the invariants of the cores hold."""

    def tapped(service: Any) -> None:
        after_turn(service)
        owner = service.host.owner
        owner.sequencer.check()
        owner.tails.check()

    return tapped


def _gave_up(world: World) -> Tap:
    def tell(core: AppenderCore, cause: str) -> None:
        if not core.is_idle:
            world.count("gave up")

    return asked(tell)


def _checked_sends(take_sends: Callable[..., Any]) -> Callable[..., Any]:
    def tapped(core: AppenderCore) -> Any:
        sends = take_sends(core)
        core.check()
        return sends

    return tapped


def _credits(world: World) -> Tap:
    """A reader never holds more than it gave credit for, but for one record (I19)."""

    def tap(delivered: Callable[..., None]) -> Callable[..., None]:
        def tapped(reader: AsyncReader, message: m.Delivery, body: memoryview) -> None:
            delivered(reader, message, body)
            held = sum(len(data) for _, data in reader._queue)
            if body and held > world.swarm.credit_bytes:
                sizes = [header.record_bytes for header, _ in split_records(body)]
                limit = world.swarm.credit_bytes + max(sizes, default=0)
                assert held <= limit, f"{held} bytes are held, the credit is {limit}"

        return tapped

    return tap
