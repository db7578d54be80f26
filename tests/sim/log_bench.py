"""A log on a simulated disk, driven by hand: order, write, answer, crash, each when the test says.

Owns one life of the real sequencer, tails and storage after the other on one disk. What a server's
shell would do in threads is a call here, so that a scenario is a list of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.disk import SOME_LOST, Odds, SimDisk
from simulation.log.machine import CrashPoint, MachineDisk, ProcessDied

from penstock.ids import Lsn
from penstock.log.client.reader import decode_records
from penstock.log.core.sequencer import Answer, SegmentLimits, Sequencer, Write
from penstock.log.core.tails import Deliver, Effect, Tails
from penstock.log.group_format import Body
from penstock.log.records import Entry, Guard
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.reader import read_piece
from penstock.log.storage.recover import create_log, recover

_CREDIT = 1 << 20


class LogBench:
    """See the module's docstring."""

    def __init__(self, *, segment_bytes: int = 10**6) -> None:
        self.sim_disk = SimDisk()
        self.now_ms = 1000
        self._limits = SegmentLimits(segment_bytes, 10**9)
        #: Entries that readers were given, by subscription.
        self.delivered: dict[str, list[Entry]] = {}
        self._open()

    def _open(self) -> None:
        self.disk = MachineDisk(self.sim_disk)
        store = FileManifestStore(self.disk)
        if store.read() is None:
            create_log(self.disk, store, log_id=b"bench of the log", now_ms=self.now_ms)
        recovered = recover(self.disk, store)
        self.storage = LogStorage(self.disk, store, recovered, now_ms=lambda: self.now_ms)
        self.sequencer = Sequencer(
            recovered.state,
            limits=self._limits,
            segment_bytes=self.storage.open_bytes,
            segment_ms=self.storage.open_ms,
        )
        self.tails = Tails(self.sequencer.durable_lsn, progress_ms=10)

    # ---- appending

    def order(self, cause: str, body: Body, guards: Sequence[Guard] = ()) -> None:
        """The group is decided; nothing is written yet."""
        self.sequencer.append(cause, body, guards=guards, now_ms=self.now_ms)

    def take_write(self) -> Write:
        write = self.sequencer.take_write(self.now_ms)
        assert write is not None
        return write

    def flush(self) -> dict[str, object]:
        """Write all that is ordered; returns what was answered."""
        told: dict[str, object] = {}
        while (write := self.sequencer.take_write(self.now_ms)) is not None:
            told |= self.complete(write)
        return told | self.answers()

    def complete(self, write: Write) -> dict[str, object]:
        """Do a write that was taken; returns what was answered."""
        groups = self.storage.write(write)
        self.sequencer.written(write)
        told = self.answers()
        self._perform(self.tails.durable(groups, self.now_ms))
        return told

    def answers(self) -> dict[str, object]:
        """What may be told now, by cause; errors as their classes."""
        return {str(answer.cause): _plain(answer) for answer in self.sequencer.take_answers()}

    def ask(self, body: Body, guards: Sequence[Guard] = ()) -> object:
        """Order, write and answer one group."""
        self.order("ask", body, guards)
        return self.flush()["ask"]

    def finish_sealed(self) -> None:
        for segment in self.storage.unfinished():
            self.storage.finish_sealed(segment)

    # ---- reading

    def follow(self, name: str, tags: frozenset[str] | None = None, start: int = 0) -> None:
        self.delivered[name] = []
        self._perform(self.tails.subscribe(name, tags, start=Lsn(start), credit=_CREDIT))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                body = memoryview(b"".join(effect.records))
                self.delivered[str(effect.id)] += decode_records(body)
                continue
            piece = read_piece(
                self.storage, effect.tags, effect.start, effect.end, effect.bytes_max
            )
            more = self.tails.piece_read(effect, piece.records, piece.looked_up_to, self.now_ms)
            self._perform(more)

    def read(self, *tags: str) -> list[Entry]:
        """Everything in the files, with any of the tags if there are some."""
        entries: list[Entry] = []
        lsn: int = self.storage.manifest.trim_point
        while lsn < self.storage.durable_lsn:
            piece = read_piece(self.storage, frozenset(tags) or None, lsn, 2**62, 1000)
            entries += decode_records(memoryview(b"".join(piece.records)))
            lsn = piece.looked_up_to
        return entries

    def payloads(self, *tags: str) -> list[bytes]:
        return [entry.payload for entry in self.read(*tags)]

    # ---- dying

    def die_at(self, after: int, *, power_cut: bool = True, done: bool = False) -> None:
        """Arm a crash at the n-th changing disk operation from now."""
        self.disk.crash_point = CrashPoint(after, power_cut, done)

    def kill(self) -> None:
        """The process dies and is started again; the page cache stays."""
        self.sim_disk.kill()
        self._open()

    def cut_power(self, odds: Odds = SOME_LOST, seed: int = 0) -> None:
        """The machine dies and is started again."""
        self.sim_disk = self.sim_disk.crash(Random(seed), odds)
        self._open()

    def dies_in(self, action: object) -> bool:
        """Whether the armed crash strikes while `action` is done."""
        assert callable(action)
        try:
            action()
        except ProcessDied:
            return True
        return False


def _plain(answer: Answer) -> object:
    outcome = answer.outcome
    return type(outcome) if isinstance(outcome, Exception) else outcome
