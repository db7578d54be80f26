"""Hand-made mutants of the log: each is one mistake that somebody could have made.

Owns the list; test_mutants.py lets the simulated world loose on every one. A mutant changes the
real code by monkeypatch for as long as a test lasts. Some only show under a certain kind of fault:
they name the `swarm` that their worlds are narrowed to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from harness.disk import Odds
from mutant_hunt import Mutant
from simulation.log.swarm import Fault

from penstock.errors import GuardFailed
from penstock.limits import PREAUTH_CONNECTIONS_MAX
from penstock.log.client.appender_core import AppenderCore
from penstock.log.client.client import AsyncLog
from penstock.log.core import sequencer as sequencer_module
from penstock.log.core.sequencer import Answer, OrderedGroup, Sequencer, Write
from penstock.log.core.sessions import Sessions
from penstock.log.core.state import LogState
from penstock.log.core.tails import Deliver, DurableGroup, Subscription, Tails
from penstock.log.group_format import Body
from penstock.log.record_format import RECORD_HEADER_BYTES, RecordHeader, encode_header
from penstock.log.records import Appended, Guard
from penstock.log.server import server as server_module
from penstock.log.server.owner import LogOwner
from penstock.log.serving.arrivals import Arrivals
from penstock.log.serving.listener import Listener
from penstock.log.storage import log_storage, manifest, recover
from penstock.log.storage.disk import Disk
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.segment_file import SegmentEnd, segment_name

# ---- the sequencer


def answers_before_fsync(patch: pytest.MonkeyPatch) -> None:
    def take_answers(self: Sequencer) -> list[Answer]:
        ready = [answer for _, answer in self._answers]
        self._answers.clear()
        return ready

    patch.setattr(Sequencer, "take_answers", take_answers)


def refusals_before_their_grounds_are_durable(patch: pytest.MonkeyPatch) -> None:
    def answer_soon(self: Sequencer, cause: object, outcome: Any) -> None:
        self._answers.appendleft((self.durable_lsn, Answer(cause, outcome)))

    patch.setattr(Sequencer, "_answer_soon", answer_soon)


def guards_see_durable_state_only(patch: pytest.MonkeyPatch) -> None:
    original_init, original_written = Sequencer.__init__, Sequencer.written
    original_decide = Sequencer._decide

    def init(self: Any, state: LogState, **options: Any) -> None:
        original_init(self, state, **options)
        self.durable_state = state.copy()

    def written(self: Any, write: Write) -> None:
        original_written(self, write)
        for group in write.groups:
            self.durable_state.apply(group.body, first_lsn=group.first_lsn, time_ms=group.time_ms)

    def decide(self: Any, body: Body, guards: Sequence[Guard]) -> Any:
        outcome = original_decide(self, body, ())
        if outcome is None:
            check_guards(self.durable_state, guards)
        return outcome

    patch.setattr(Sequencer, "__init__", init)
    patch.setattr(Sequencer, "written", written)
    patch.setattr(Sequencer, "_decide", decide)


def guards_come_before_duplicates(patch: pytest.MonkeyPatch) -> None:
    original = Sequencer._decide

    def decide(self: Sequencer, body: Body, guards: Sequence[Guard]) -> Any:
        check_guards(self.state, guards)
        return original(self, body, guards)

    patch.setattr(Sequencer, "_decide", decide)


def check_guards(state: LogState, guards: Sequence[Guard]) -> None:
    for guard in guards:
        value = state.metadata.get(guard.key)
        if (None if value is None else value.data) != guard.expected:
            raise GuardFailed(f"metadata {guard.key}")


def gaps_are_let_in(patch: pytest.MonkeyPatch) -> None:
    original = sequencer_module.decide_seq

    def decide_seq(body: Body, known: Any) -> Any:
        if known is not None and body.instance == known.instance:
            if body.first_seq > known.next_seq:
                return None
        return original(body, known)

    patch.setattr(sequencer_module, "decide_seq", decide_seq)


def duplicates_are_appended_again(patch: pytest.MonkeyPatch) -> None:
    original = sequencer_module.decide_seq

    def decide_seq(body: Body, known: Any) -> Any:
        outcome = original(body, known)
        return None if isinstance(outcome, Appended) else outcome

    patch.setattr(sequencer_module, "decide_seq", decide_seq)


def instances_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    original = sequencer_module.decide_seq

    def decide_seq(body: Body, known: Any) -> Any:
        if known is not None and body.first_seq == known.next_seq:
            return None
        return original(body, known)

    patch.setattr(sequencer_module, "decide_seq", decide_seq)


def claims_of_rivals_are_taken_for_retries(patch: pytest.MonkeyPatch) -> None:
    original = sequencer_module.decide_claim

    def decide_claim(body: Body, known: Any) -> Any:
        if known is not None and body.instance == known.instance:
            return Appended(known.claim_lsn, 1, duplicate=True)
        return original(body, known)

    patch.setattr(sequencer_module, "decide_claim", decide_claim)


def append_times_follow_the_clock_back(patch: pytest.MonkeyPatch) -> None:
    original = Sequencer.append

    def append(self: Sequencer, *arguments: Any, **options: Any) -> None:
        self.state.time_ms = 0
        original(self, *arguments, **options)

    patch.setattr(Sequencer, "append", append)


def reads_of_metadata_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    def ask(self: Sequencer, cause: object) -> None:
        outcome = Appended(self.state.next_lsn, 0)
        self._answers.appendleft((self.durable_lsn, Answer(cause, outcome)))

    patch.setattr(Sequencer, "ask", ask)


def a_clock_set_back_holds_up_writes(patch: pytest.MonkeyPatch) -> None:
    original = Sequencer.take_write

    def take_write(self: Sequencer, now_ms: int) -> Write | None:
        self._asked_ms = 0
        return original(self, now_ms)

    patch.setattr(Sequencer, "take_write", take_write)


# ---- state and snapshots


def producers_are_forgotten_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    def forget(recovered: recover.RecoveredLog) -> None:
        recovered.state.producers.clear()

    _after_recovery(patch, forget)


def the_last_seq_is_forgotten_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    def forget(recovered: recover.RecoveredLog) -> None:
        producers = recovered.state.producers
        for name, known in list(producers.items()):
            if known.recent:
                *older, last = known.recent
                producers[name] = known._replace(recent_bytes=b"")
                for group in older:
                    producers.append(name, group)
                producers[name] = producers[name]._replace(next_seq=last.first_seq)

    _after_recovery(patch, forget)


def the_open_segment_gets_no_tag_index(patch: pytest.MonkeyPatch) -> None:
    def forget(recovered: recover.RecoveredLog) -> None:
        recovered.index._postings.clear()

    _after_recovery(patch, forget)


def _after_recovery(
    patch: pytest.MonkeyPatch, spoil: Callable[[recover.RecoveredLog], None]
) -> None:
    original = server_module.recover

    def spoiled(disk: Disk, store: Any) -> recover.RecoveredLog:
        recovered = original(disk, store)
        spoil(recovered)
        return recovered

    patch.setattr(server_module, "recover", spoiled)


def snapshots_share_the_producers_of_the_living_state(patch: pytest.MonkeyPatch) -> None:
    def copy(self: LogState) -> LogState:
        return LogState(self.next_lsn, self.time_ms, dict(self.metadata), self.producers)

    patch.setattr(LogState, "copy", copy)


# ---- files


def a_torn_tail_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    def make_durable(file: Any, end: SegmentEnd) -> None:
        file.sync()

    patch.setattr(recover, "_make_durable", make_durable)


def recovery_trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    def make_durable(file: Any, end: SegmentEnd) -> None:
        file.truncate(end.bytes)
        file.sync()

    patch.setattr(recover, "_make_durable", make_durable)


def recovery_does_not_check_payloads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Body, "check_payloads", lambda self: None)


def an_fsync_error_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = LogStorage._write_groups

    class Forgiving:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def sync(self) -> None:
            try:
                self._file.sync()
            except OSError:
                pass

    def write_groups(self: Any, ordered: Any, durable_lsn: Any) -> Any:
        if not isinstance(self._file, Forgiving):
            self._file = Forgiving(self._file)
        return original(self, ordered, durable_lsn)

    patch.setattr(LogStorage, "_write_groups", write_groups)


def a_rename_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    def replace_file(disk: Disk, name: str, data: bytes) -> None:
        temporary = name + ".new"
        if disk.exists(temporary):
            disk.remove(temporary)
        file = disk.create(temporary)
        file.write_at(0, data)
        file.sync()
        file.close()
        disk.rename(temporary, name)

    patch.setattr(manifest, "replace_file", replace_file)
    patch.setattr(log_storage, "replace_file", replace_file)


def a_new_segment_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = log_storage.create_segment

    def create_segment(disk: Disk, *arguments: Any, **options: Any) -> Any:
        return original(_Unsynced(disk), *arguments, **options)

    patch.setattr(log_storage, "create_segment", create_segment)


class _Unsynced:
    """A disk whose directory is not synced when somebody asks for it."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_dir(self) -> None:
        """Nothing: this is the mistake."""


def a_trim_removes_one_segment_too_many(patch: pytest.MonkeyPatch) -> None:
    original = LogStorage.trim

    def trim(self: LogStorage, lsn: int) -> Any:
        point = original(self, lsn)
        first, *rest = self.manifest.segments
        if len(rest) > 1 and first.base_lsn < point and first.local:
            with self._lock:
                self._change(self.manifest.next(segments=rest))
            self._disk.remove(segment_name(first.id))
        return point

    patch.setattr(LogStorage, "trim", trim)


# ---- readers


def readers_are_fed_before_fsync(patch: pytest.MonkeyPatch) -> None:
    original, original_durable = LogOwner._take_write, Tails.durable

    def take_write(self: LogOwner) -> Write | None:
        write = original(self)
        if write is not None:
            groups = [_undurable(self.storage, group) for group in write.groups]
            self.perform(original_durable(self.tails, groups, self.now_ms()))
        return write

    def durable(self: Tails, groups: Sequence[DurableGroup], now_ms: int) -> Any:
        fresh = [group for group in groups if group.header.first_lsn >= self._tail]
        return original_durable(self, fresh, now_ms)

    patch.setattr(LogOwner, "_take_write", take_write)
    patch.setattr(Tails, "durable", durable)


def _undurable(storage: LogStorage, group: OrderedGroup) -> DurableGroup:
    held = storage.manifest
    header = RecordHeader(
        RECORD_HEADER_BYTES + len(group.body.data),
        group.body.table_crc,
        group.first_lsn,
        held.epoch,
        held.segments[-1].id,
        group.time_ms,
        storage.durable_lsn,
        held.log_mark,
    )
    return DurableGroup(header, group.body, (encode_header(header), group.body.data))


def a_reader_without_credit_skips_an_entry(patch: pytest.MonkeyPatch) -> None:
    original = Tails._leave_live

    def leave_live(self: Tails, subscription: Subscription) -> None:
        if subscription.live and subscription.credit <= 0:
            subscription.next_lsn += 1
        original(self, subscription)

    patch.setattr(Tails, "_leave_live", leave_live)


def progress_is_told_too_early(patch: pytest.MonkeyPatch) -> None:
    original = Tails._deliver

    def deliver(self: Tails, subscription: Subscription, records: Any, now_ms: int) -> Deliver:
        effect = original(self, subscription, records, now_ms)
        ahead = min(self._tail, subscription.end)
        return replace(effect, looked_up_to=max(effect.looked_up_to, ahead))

    patch.setattr(Tails, "_deliver", deliver)


# ---- clients


def dead_connections_are_still_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sessions, "open", lambda self, session, connection: None)


def groups_are_made_anew_when_sent_again(patch: pytest.MonkeyPatch) -> None:
    def disconnected(self: AppenderCore) -> None:
        if self._groups:
            self.next_seq = min(self._groups)
            parts = [part for group in self._groups.values() for part in group.parts]
            self._waiting.extendleft(reversed(parts))
            self._groups.clear()

    patch.setattr(AppenderCore, "disconnected", disconnected)


def a_silent_server_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    async def until_ended(self: AsyncLog, connection: Any, pulse_seconds: float) -> Any:
        return await connection.closed

    patch.setattr(AsyncLog, "_until_ended", until_ended)


def silent_sockets_take_all_descriptors(patch: pytest.MonkeyPatch) -> None:
    def admit(self: Listener, arrival: Any, peer: str) -> bool:
        self._waiting.add(peer, arrival)
        return len(self._waiting) <= PREAUTH_CONNECTIONS_MAX

    patch.setattr(Listener, "admit", admit)


def who_waits_keeps_newcomers_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Arrivals, "choose", lambda self: None)


LATE = {"mean_ms": {Fault.LATE: 60}, "unlucky": "anon0", "anonymous": 2, "timeout_ms": 3000}
HALF_OPEN = {"mean_ms": {Fault.HALF_OPEN: 400}}
CROWD = {"mean_ms": {Fault.CROWD: 60}, "zombies": 2}
CLOCK = {"mean_ms": {Fault.CLOCK: 100}}
BAD_DISK = {"mean_ms": {Fault.FSYNC: 150, Fault.POWER_CUT: 300}}
TORN = {
    "mean_ms": {Fault.POWER_CUT: 150},
    "sector_bytes": 256,
    "odds": Odds(lost=0.05, torn=0.9),
    "fsync_us_max": 100_000,
    "inline_bytes": -1,
}
CRASHES = {"mean_ms": {Fault.CRASH_POINT: 100}, "trimmers": 1, "segment_bytes": 300}

MUTANTS = (
    Mutant("answers before fsync", answers_before_fsync),
    Mutant(
        "refusals before their grounds are durable",
        refusals_before_their_grounds_are_durable,
    ),
    Mutant("guards see durable state only", guards_see_durable_state_only),
    Mutant("guards come before duplicates", guards_come_before_duplicates),
    Mutant("gaps are let in", gaps_are_let_in),
    Mutant("duplicates are appended again", duplicates_are_appended_again),
    Mutant("instances are not fenced", instances_are_not_fenced),
    Mutant("claims of rivals are taken for retries", claims_of_rivals_are_taken_for_retries),
    Mutant("append times follow the clock back", append_times_follow_the_clock_back),
    Mutant("reads of metadata do not wait", reads_of_metadata_do_not_wait),
    Mutant("a clock set back holds up writes", a_clock_set_back_holds_up_writes, swarm=CLOCK),
    Mutant("producers are forgotten after a restart", producers_are_forgotten_after_a_restart),
    Mutant("the last seq is forgotten after a restart", the_last_seq_is_forgotten_after_a_restart),
    Mutant("the open segment gets no tag index", the_open_segment_gets_no_tag_index),
    Mutant(
        "snapshots share living producers",
        snapshots_share_the_producers_of_the_living_state,
    ),
    Mutant("a torn tail is not cut", a_torn_tail_is_not_cut),
    Mutant("recovery trusts the page cache", recovery_trusts_the_page_cache),
    Mutant("recovery does not check payloads", recovery_does_not_check_payloads, swarm=TORN),
    Mutant("an fsync error is ignored", an_fsync_error_is_ignored, swarm=BAD_DISK),
    Mutant("a rename is not synced", a_rename_is_not_synced),
    Mutant("a new segment is not synced", a_new_segment_is_not_synced, swarm=CRASHES),
    Mutant("a trim removes one segment too many", a_trim_removes_one_segment_too_many),
    Mutant("readers are fed before fsync", readers_are_fed_before_fsync),
    Mutant("a reader without credit skips an entry", a_reader_without_credit_skips_an_entry),
    Mutant("progress is told too early", progress_is_told_too_early),
    Mutant("dead connections are still heard", dead_connections_are_still_heard, swarm=LATE),
    Mutant("groups are made anew when sent again", groups_are_made_anew_when_sent_again),
    Mutant("a silent server is not asked", a_silent_server_is_not_asked, swarm=HALF_OPEN),
    Mutant("silent sockets take all descriptors", silent_sockets_take_all_descriptors, swarm=CROWD),
    Mutant("who waits keeps newcomers out", who_waits_keeps_newcomers_out, swarm=CROWD),
)
