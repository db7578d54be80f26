"""The owner's shell in the simulation: real sequencer, tails and storage, virtual threads.

Mirrors penstock/log/server/owner.py step by step, and holds as little policy. What the real one
gives to a thread happens here at a later virtual time, so that anything may come between. One
object is one life of the process. Law: an error that no injected fault explains ends the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.errors import (
    BadRequest,
    Damaged,
    NotFound,
    PenstockError,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.core.sequencer import (
    OldDuplicate,
    SegmentLimits,
    Sequencer,
    Write,
    decide_duplicate,
)
from penstock.log.core.tails import Deliver, DurableGroup, Effect, ReadBehind, SubscriptionId, Tails
from penstock.log.group_format import Body
from penstock.log.records import Appended, Flush, Guard
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.reader import ReadPiece, find_group, read_piece
from penstock.log.storage.recover import create_log, recover
from simulation.log.machine import CrashPoint, MachineDisk, ProcessDied

if TYPE_CHECKING:
    from simulation.log.world import World

LOG_ID = b"simulated log id"
PROGRESS_MS = 10
#: How long the pool takes for a read or a piece of housekeeping.
_THREAD_US = (10, 3000)
_TICK_US = (5_000, 40_000)
_HOUSE_US = (20_000, 200_000)
#: What a slow disk multiplies the time of an fsync with.
_SLOWNESS = 50
_FLUSH_NOW_MS = 2**62

Outcome = Appended | PenstockError
Reply = Callable[[Outcome], None]


class SimOwner:
    """owner.py `LogOwner`; `died` is called once, when the process ends against its will."""

    def __init__(
        self,
        world: World,
        disk: MachineDisk,
        *,
        deliver: Callable[[Deliver], None],
        fail_subscription: Callable[[SubscriptionId, PenstockError], None],
        died: Callable[[str, bool], None],
    ) -> None:
        """Create or recover the log; whatever stops that is raised."""
        self._world = world
        self.disk = disk
        self._deliver = deliver
        self._fail_subscription = fail_subscription
        self._died = died
        self.is_alive = True
        self.is_stopping = False
        #: The next read for a subscription fails.
        self.fail_read = False
        swarm = world.swarm
        store = FileManifestStore(disk)
        if store.read() is None:
            create_log(disk, store, log_id=LOG_ID, now_ms=world.wall_ms())
        recovered = recover(disk, store)
        if recovered.torn_bytes:
            world.count("torn tail cut")
        self.storage = LogStorage(disk, store, recovered, cold=world.cold, now_ms=world.wall_ms)
        self.sequencer = Sequencer(
            recovered.state,
            limits=SegmentLimits(swarm.segment_bytes, swarm.segment_ms),
            segment_bytes=self.storage.open_bytes,
            segment_ms=self.storage.open_ms,
            write_bytes_max=swarm.write_bytes_max,
        )
        self.tails = Tails(self.sequencer.durable_lsn, progress_ms=PROGRESS_MS)
        #: When the flush timer fires; None if it is not set.
        self._timer_us: int | None = None

    def start(self) -> None:
        self.later(_TICK_US, "tick", self._tick)
        self.later(_HOUSE_US, "house", self._keep_house)

    # ---- life

    def later(self, delay_us: tuple[int, int], label: str, action: Callable[[], None]) -> None:
        """Do something later, if this process still lives then."""

        def act() -> None:
            if self.is_alive:
                action()
                self.check()

        self._world.after(self._world.random.randint(*delay_us), label, act)

    def check(self) -> None:
        if self.is_alive:
            self.sequencer.check()
            self.tails.check()

    def _pool(self, work: Callable[[], None]) -> None:
        """Something for the pool of threads; a crash point may strike in it too."""

        def act() -> None:
            try:
                work()
            except ProcessDied as death:
                self.die(f"in the pool, {death}", power_cut=death.power_cut)

        self.later(_THREAD_US, "pool", act)

    def _on_disk(self, action: Callable[[], object]) -> bool:
        """Do something whose failure ends the process; False if it did."""
        try:
            action()
            return True
        except ProcessDied as death:
            self.die(str(death), power_cut=death.power_cut)
        except (OSError, Unavailable) as error:
            self.expect(error)
            self.sequencer.write_failed()
            self.die(f"a write failed: {error}", power_cut=False)
        return False

    def expect(self, error: BaseException) -> None:
        """Only an injected fault explains a failure; anything else is found, not survived."""
        if not self.disk.sync_failed:
            raise AssertionError(f"a failure without a fault: {error!r}") from error

    def die(self, cause: str, *, power_cut: bool) -> None:
        self.is_alive = False
        self._died(cause, power_cut)

    def crash(self, *, power_cut: bool) -> None:
        """Die now; or, as often, in the middle of the next write."""
        random = self._world.random
        if random.random() < 0.5:
            point = CrashPoint(random.randint(0, 2), power_cut, done=random.random() < 0.5)
            self.disk.crash_point = point
        else:
            self.die("a fault", power_cut=power_cut)

    def stop(self, stopped: Callable[[], None]) -> None:
        """Finish what was taken, then close the files."""
        self.is_stopping = True
        self.pump(flush=True)
        if not self.is_alive:
            return
        if not self.sequencer.is_idle:
            self.later((100, 2000), "stopping", lambda: self.stop(stopped))
        elif self._on_disk(self.storage.close):
            self.is_alive = False
            stopped()

    # ---- appends

    def append(self, reply: Reply, body: Body, guards: tuple[Guard, ...], flush: Flush) -> None:
        if self.is_stopping:
            reply(Unavailable("the server is stopping"))
            return
        now_ms = self._world.wall_ms()
        self.sequencer.append(reply, body, guards=guards, flush=flush, now_ms=now_ms)

    def pump(self, *, flush: bool = False, inline: bool = True) -> None:
        now_ms = self._world.wall_ms()
        write = self.sequencer.take_write(_FLUSH_NOW_MS if flush else now_ms)
        while write is not None:
            if not inline or self._world.random.random() >= self._world.swarm.inline_odds:
                self._write_in_thread(write)
                break
            if not self._write_inline(write):
                return
            write = self.sequencer.take_write(_FLUSH_NOW_MS if flush else now_ms)
        due_ms = self.sequencer.due_ms()
        if due_ms is not None and write is None:
            self._wake_at(due_ms, now_ms)
        self._give_answers()

    def _wake_at(self, due_ms: int, now_ms: int) -> None:
        due_us = self._world.now_us + max(due_ms - now_ms, 0) * 1000
        if self._timer_us is not None and self._timer_us <= due_us:
            return
        self._timer_us = due_us
        wait_us = due_us - self._world.now_us
        self.later((wait_us, wait_us), "flush timer", lambda: self._timer_fired(due_us))

    def _timer_fired(self, due_us: int) -> None:
        if self._timer_us == due_us:
            self._timer_us = None
            self.pump()

    def _write_in_thread(self, write: Write) -> None:
        slow = self._world.now_us < self._world.slow_until_us
        fsync_us = (0, self._world.swarm.fsync_us_max * (_SLOWNESS if slow else 1))

        def work() -> None:
            groups = self._write(write)
            if groups is not None:
                self.later((0, 300), "written", lambda: self._written(write, groups))

        self.later(fsync_us, f"write {write.groups[0].first_lsn}", work)

    def _write(self, write: Write) -> list[DurableGroup] | None:
        """storage.write, in whatever thread; None if the process died of it."""
        groups: list[DurableGroup] = []
        if write.roll is not None:
            self._world.count("roll")
        if not self._on_disk(lambda: groups.extend(self.storage.write(write))):
            return None
        return groups

    def _write_inline(self, write: Write) -> bool:
        self._world.count("inline write")
        groups = self._write(write)
        if groups is None:
            return False
        self.sequencer.written(write)
        self._give_answers()
        self.perform(self.tails.durable(groups, self._world.monotonic_ms))
        return True

    def _written(self, write: Write, groups: list[DurableGroup]) -> None:
        self.sequencer.written(write)
        self.pump(inline=False)
        self.perform(self.tails.durable(groups, self._world.monotonic_ms))

    def _give_answers(self) -> None:
        for answer in self.sequencer.take_answers():
            reply = cast(Reply, answer.cause)
            outcome = answer.outcome
            if isinstance(outcome, OldDuplicate):
                self._world.count("answer old duplicate")
                self._answer_old(reply, outcome)
            else:
                reply(outcome)

    def _answer_old(self, reply: Reply, old: OldDuplicate) -> None:
        def work() -> None:
            try:
                group = find_group(self.storage, old.producer, old.first_seq)
                outcome: Outcome = decide_duplicate(old.instance, old.count, group)
            except (NotFound, Trimmed) as error:
                outcome = Unknown(str(error))
            except OSError as error:
                self.expect(error)
                outcome = Unavailable(f"the request failed: {error}")
            except Damaged:
                raise
            except PenstockError as error:
                outcome = error
            reply(outcome)

        self._pool(work)

    # ---- reads

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._deliver(effect)
            else:
                self._read_behind(effect)

    def _read_behind(self, effect: ReadBehind) -> None:
        self._world.count("read behind")

        def work() -> None:
            try:
                piece: ReadPiece | PenstockError = self._read_piece(effect)
            except (Trimmed, Unavailable) as error:
                piece = error
            except OSError as error:
                self.expect(error)
                piece = Unavailable(f"the read failed: {error}")
            self.later((0, 200), "piece read", lambda: self._piece_read(effect, piece))

        self._pool(work)

    def _read_piece(self, effect: ReadBehind) -> ReadPiece:
        if self.fail_read:
            self.fail_read = False
            self._world.count("read failed")
            raise Unavailable("the read failed: EIO")
        return read_piece(self.storage, effect.tags, effect.start, effect.end, effect.bytes_max)

    def _piece_read(self, effect: ReadBehind, piece: ReadPiece | PenstockError) -> None:
        if self.is_stopping:
            return
        if isinstance(piece, PenstockError):
            self.tails.unsubscribe(effect.id)
            self._fail_subscription(effect.id, piece)
            return
        now_ms = self._world.monotonic_ms
        self.perform(self.tails.piece_read(effect.id, piece.records, piece.looked_up_to, now_ms))

    def answer_from_files(
        self, work: Callable[[], None], failed: Callable[[PenstockError], None]
    ) -> None:
        """connection.py `_later`: a request that reads or changes files, in the pool."""

        def act() -> None:
            try:
                work()
            except (Trimmed, BadRequest) as error:
                failed(error)
            except (OSError, Unavailable) as error:
                self.expect(error)
                failed(Unavailable(f"the request failed: {error}"))

        self._pool(act)

    def trim(self, lsn: int) -> Lsn:
        if lsn > self.sequencer.durable_lsn:
            raise BadRequest(f"cannot trim at {lsn}: the tail is {self.sequencer.durable_lsn}")
        segments = len(self.storage.manifest.segments)
        point = self.storage.trim(lsn)
        if len(self.storage.manifest.segments) < segments:
            self._world.count("segment trimmed")
        return point

    # ---- time

    def _tick(self) -> None:
        if self.tails.count:
            self.perform(self.tails.tick(self._world.monotonic_ms))
        self.later(_TICK_US, "tick", self._tick)

    def _keep_house(self) -> None:
        """One piece of housekeeping at a time, so that a crash may come between any two."""
        if self.is_stopping:
            return
        if self.sequencer.is_idle and self._world.random.random() < 0.5:
            if not self._on_disk(self.storage.note):
                return
        try:
            self._clean_up()
        except ProcessDied as death:
            self.die(f"in housekeeping, {death}", power_cut=death.power_cut)
            return
        except (OSError, Unavailable) as error:
            self.expect(error)  # tried again, as the real owner does
        self.later(_HOUSE_US, "house", self._keep_house)

    def _clean_up(self) -> None:
        swarm = self._world.swarm
        for segment in self.storage.unfinished()[:1]:
            self._world.count("segment finished")
            self.storage.finish_sealed(segment)
        if swarm.ttl_ms:
            lsn = self.storage.expired_lsn(self._world.wall_ms() - swarm.ttl_ms)
            if lsn > self.storage.manifest.trim_point:
                self._world.trimmed_by_age(lsn)
                self.trim(lsn)
        if swarm.local_bytes_max is not None and self.storage.cool(swarm.local_bytes_max):
            self._world.count("segment cooled")
