"""The coordinator's decisions: who is alive, who runs what, when to give up. Pure.

Owns membership and assignment. A worker is alive from its Hello until it says goodbye, a newer
worker takes its slot (Spark starts one only after the last is lost), or PULSES_MISSED_MAX pulses of
ours were ordered since its last beat. Both are entries of one log, so an outage of the log is
nobody's death, and no clock decides.

    Hello, Beat, Goodbye, pulse ──► members ──► assign() ──► Claim ──► claimed ──► Announce(Assign)

A task that gets another place is claimed first: from then on its older instances write nothing. Its
new place is announced after that. Law: a task is announced at an instance that was claimed for it,
and for one worker only.

With replicas, other workers keep copies of each task's state (replication.py). A lost task goes on
at a copy. A task that runs and is to run elsewhere moves: its new worker becomes a standby, and
when that is ready the task is told to yield, commits what it has, and is claimed.

    Announce(Assign with standby) ──► Beat: ready ──► Yield ──► Yielded ──► Claim ──► Assign

Before the layout changes (coordinator.py), the workers that will run the next tasks make ready for
them: they keep copies of what their predecessors have. Until then nothing else changes its place.

    Announce(Assign with successors) ──► Beat: ready ──► prepared ──► succeed ──► Claim ──► Assign

A query that is suspended wants no worker: all are told to leave, commit what they have, and nothing
is placed until it is resumed. Then every task is claimed anew, as at the start of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.protocol.names import TaskId, parse_task
from penstock.runtime.assignment import assign
from penstock.runtime.control import (
    Assign,
    Beat,
    Ended,
    Finish,
    Goodbye,
    Hello,
    Leave,
    Message,
    Move,
    Place,
    Stop,
    Yield,
    Yielded,
)
from penstock.runtime.replication import Copies, place_copies
from penstock.runtime.task_report import read_copy_report, read_report

#: Pulses of the coordinator without a beat of a worker until it counts as dead: 3 s at 4 a second.
PULSES_MISSED_MAX = 12
#: Pulses after the first Hello in which the other workers are waited for.
PULSES_GATHERING = 8
#: Pulses after which an instance that ends was not killed by its first input: 10 s.
PULSES_LONG = 40
#: Moves that are told in progress reports.
MOVES_KEPT = 20
#: Pulses that a task has to yield before it is claimed all the same: 2 s.
PULSES_YIELDING = 8
#: Instances of a task in a row that ended without a commit: the query stops, its input kills it.
FUTILE_MAX = 7


@dataclass(frozen=True, slots=True)
class Claim:
    """Fence the older instances of these tasks, then say `claimed` with the new ones."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A task got another place than it had."""

    task: TaskId
    instance: int
    left: str
    to: str
    why: str
    #: When it was announced.
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Announce:
    message: Message


@dataclass(frozen=True, slots=True)
class Fail:
    """The query cannot go on; stop it with this."""

    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class StopAsked:
    who: str


Effect = Claim | Announce | Fail | StopAsked


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout to come."""

    #: Its tasks, and those of them whose state can be kept ready.
    tasks: tuple[TaskId, ...]
    copied: frozenset[TaskId]
    #: As layout.py writes it, and for how many workers it is.
    layout: dict[str, Any]
    workers: int


@dataclass(slots=True)
class Member:
    """A worker that counts as alive."""

    worker: str
    slot: int
    host: str
    pid: int
    #: How many of our pulses were ordered when it was last heard of.
    heard_at: int
    #: Spark's, as its Hello said.
    attempt: int = 0
    executor: str = ""


@dataclass(slots=True)
class _TaskState:
    place: Place | None = None
    #: Claims that were asked for and not answered yet.
    claiming: bool = False
    #: Instances in a row that ended at the same number of commits.
    futile: int = 0
    commits: int = -1
    placed_at: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    #: Where it ran last, and why it does not any more.
    left: tuple[str, str] | None = None
    #: Where it moves to while it still runs, and since when it has been asked to yield.
    target: str | None = None
    yielding_since: int | None = None
    #: By worker that keeps a copy: what it last reported of it.
    standbys: dict[str, dict[str, Any]] = field(default_factory=dict)


class CoordinatorCore:
    """One run of one query."""

    def __init__(
        self,
        tasks: Sequence[TaskId],
        workers: int,
        *,
        restarts_together: bool = False,
        replicas: int = 0,
    ) -> None:
        #: Workers that tasks are placed in: those of the first slots.
        self.wanted = workers
        #: Workers that were asked for last; they stay, whether tasks may run in them yet or not.
        self._expected = workers
        self._replicas = replicas
        #: Of the tasks, for the workers (layout.py); empty: as the query was registered.
        self.layout: dict[str, Any] = {}
        #: Workers that were told that they are wanted no more.
        self._leaving: set[str] = set()
        #: Workers whose executor is about to go: tasks leave them first, and then they leave.
        self._vacating: set[str] = set()
        #: Whether no worker is wanted.
        self.is_suspended = False
        #: Who keeps copies, as it was last announced.
        self.copies: Copies = {}
        self._plan: Plan | None = None
        #: By task of the next layout, the worker that makes ready for it, as it was last announced;
        #: and what it last reported of that.
        self.successors: dict[TaskId, str] = {}
        self._made_ready: dict[TaskId, dict[str, Any]] = {}
        #: The newest places that tasks got after another one, oldest first.
        self.moves: deque[Moved] = deque(maxlen=MOVES_KEPT)
        #: Where somebody wants a task to run.
        self._by_hand: dict[TaskId, str] = {}
        #: If one task gets another instance, all do (commit_protocol.py).
        self._restarts_together = restarts_together
        self.members: dict[str, Member] = {}
        #: Workers that counted as dead; one that beats again was only slow, and is taken back.
        self._gone: dict[str, Member] = {}
        self.tasks = {task: _TaskState() for task in tasks}
        #: Workers that ever started, by slot.
        self.hellos: dict[int, int] = {}
        self._pulses = 0
        self._gathering_since: int | None = None
        self._number = 0
        self.is_over = False

    # -- events

    def on_message(self, message: Message) -> list[Effect]:
        """A control entry that somebody else wrote, in log order."""
        if self.is_over and not isinstance(message, Beat):
            return []
        match message:
            case Hello():
                return self._on_hello(message)
            case Beat():
                return self._on_beat(message)
            case Ended():
                return self._on_ended(message)
            case Yielded():
                return self._on_yielded(message)
            case Move():
                return self._on_move(message)
            case Goodbye(worker=worker):
                effects = self._lose([worker])
                self._gone.pop(worker, None)
                return effects
            case Stop(who=who):
                return [StopAsked(who)]
            case _:
                pass
        return []

    def on_pulse(self) -> list[Effect]:
        """A pulse of ours was ordered."""
        if self.is_over:
            return []
        self._pulses += 1
        silent = [
            member.worker
            for member in self.members.values()
            if self._pulses - member.heard_at > PULSES_MISSED_MAX
        ]
        return self._lose(silent) if silent else self._place()

    def on_claimed(self, instances: dict[TaskId, int], now_ms: int | None = None) -> list[Effect]:
        """These tasks are claimed; whoever ran them before writes no more.

        The time is for people, who are told when a task moved; nothing is decided by it.
        """
        if self.is_over:
            return []
        placed = {} if self.is_suspended else self._desired()
        for task, instance in instances.items():
            state = self.tasks.get(task)
            if state is None:
                continue  # it has successors by now
            if state.place is not None and state.place.instance > instance:
                continue  # it was claimed once more for the next layout, and that was answered
            state.claiming = False
            worker = placed.get(task)
            state.place = None if worker is None else Place(worker, instance)
            if state.left is not None and worker is not None:
                left, why = state.left
                self.moves.append(Moved(task, instance, left, worker, why, now_ms))
                state.left = None
            state.report = {**state.report, "is_running": False}  # until the new instance speaks
            state.placed_at = self._pulses
            state.target = state.yielding_since = None
        return self._place() if self.is_suspended else [*self._announce(), *self._place()]

    def on_committed(self, numbers: Mapping[TaskId, int]) -> None:
        """The numbers of these tasks' last markers: whoever wrote them did not run in vain."""
        for task, number in numbers.items():
            state = self.tasks.get(task)
            if state is not None and number > state.commits:
                state.commits, state.futile = number, 0

    def on_counted(self, counts: Mapping[TaskId, Mapping[str, int]]) -> None:
        """What these tasks' last markers count: who wrote them may not have come to say so."""
        for task, counted in counts.items():
            state = self.tasks.get(task)
            if state is not None:
                state.report = {**state.report, **_never_less(state.report, counted)}

    def on_job_lost(self, slot: int, attempts: int | None = None) -> list[Effect]:
        """Spark says that whatever ran in this slot has ended; or only attempts below a number.

        Its word may come after the successor's hello.
        """
        lost = [
            member.worker
            for member in self.members.values()
            if member.slot == slot and (attempts is None or member.attempt < attempts)
        ]
        if self.is_over:
            self._forget(lost)
            return []
        effects = self._lose(lost)
        if attempts is not None:
            for worker in lost:  # it is dead for sure: a beat that is still to be read says nothing
                self._gone.pop(worker, None)
        return effects

    def vacate(self, slot: int) -> list[Effect]:
        """The executor of this slot's worker is about to go: its tasks move, and then it leaves."""
        here = [one.worker for one in self.members.values() if one.slot == slot]
        if self.is_over or not here or here[0] in self._vacating:
            return []
        self._vacating |= {*here}
        return self._place()

    def expect(self, workers: int) -> None:
        """So many workers were asked for; tasks stay where they are until the layout changes."""
        self._expected = workers

    def suspend(self) -> list[Effect]:
        """No worker is wanted: whoever is there commits what it has, and leaves."""
        self.is_suspended = True
        self.wanted = self._expected = 0
        self._plan = self._gathering_since = None
        self.copies, self.successors, self._made_ready = {}, {}, {}
        for state in self.tasks.values():
            state.target = state.yielding_since = None
        return self._place()

    def resume(self, workers: int) -> list[Effect]:
        """So many workers come. Tasks are placed when they are there, as when a run begins."""
        if not self.is_suspended:
            return []
        self.is_suspended = False
        self.wanted = self._expected = workers
        return self._place()

    def rescale(self, workers: int) -> list[Effect]:
        """So many workers are wanted from now on: those of the first slots."""
        self.wanted = workers
        self._plan = None
        return self._place()

    def prepare(self, plan: Plan) -> list[Effect]:
        """Let the workers that will run the tasks of the next layout make ready for them."""
        self._plan = plan
        self._made_ready = {}
        return self._place()

    @property
    def prepared(self) -> tuple[int, int]:
        """How many tasks of the next layout could begin at once, and of how many."""
        copied = frozenset[TaskId]() if self._plan is None else self._plan.copied
        ready = [task for task in copied if self._made_ready.get(task, {}).get("is_ready")]
        return len(ready), len(copied)

    @property
    def prepared_rows(self) -> int:
        """Of state that is there for the tasks of the next layout."""
        return sum(int(one.get("state_rows", 0)) for one in self._made_ready.values())

    def succeed(self, tasks: Sequence[TaskId], layout: dict[str, Any]) -> list[Effect]:
        """The tasks of the next layout, which have ended, or never ran, are to be placed.

        They go to the workers that have made ready for them.
        """
        self.layout = layout
        self.copies = {task: (who,) for task, who in self.successors.items() if task in tasks}
        self._plan, self.successors, self._made_ready = None, {}, {}
        self._by_hand = {task: who for task, who in self._by_hand.items() if task in tasks}
        self.tasks = {task: _TaskState() for task in tasks}
        return self._place()

    @property
    def is_settled(self) -> bool:
        """Whether all tasks have a place, and nobody moves."""
        if self.is_over or self.is_suspended or not self._is_gathered or not self.members:
            return False
        return all(
            one.place is not None and not one.claiming and one.target is None
            for one in self.tasks.values()
        )

    def finish(self) -> list[Effect]:
        """Tell the workers to stop."""
        if self.is_over:
            return []
        self.is_over = True
        return [Announce(Finish())]

    # -- members

    def _on_hello(self, hello: Hello) -> list[Effect]:
        if hello.worker in self._gone or hello.worker in self.members:
            return []
        self.hellos[hello.slot] = self.hellos.get(hello.slot, 0) + 1
        older = [member.worker for member in self.members.values() if member.slot == hello.slot]
        effects = self._lose(older, settle=False)
        self.members[hello.worker] = Member(
            hello.worker, hello.slot, hello.host, hello.pid, self._pulses, hello.attempt,
            hello.executor,
        )  # fmt: skip
        if self._gathering_since is None:
            self._gathering_since = self._pulses
        return [*effects, *self._place()]

    def _on_beat(self, beat: Beat) -> list[Effect]:
        member = self.members.get(beat.worker)
        if member is None:
            return self._take_back(beat.worker)
        member.heard_at = self._pulses
        for name, told in beat.tasks.items():
            task = parse_task(name)
            state = self.tasks.get(task)
            if state is not None and state.place is not None and state.place.worker == beat.worker:
                report = read_report(told)
                state.report = {**report, **_never_less(state.report, report)}
                self.on_committed({task: report.get("commits_ever", -1)})
        for name, told in beat.standbys.items():
            task = parse_task(name)
            state = self.tasks.get(task)
            if state is not None and beat.worker in self.copies.get(task, ()):
                state.standbys[beat.worker] = read_copy_report(told)
        for name, told in beat.successors.items():
            task = parse_task(name)
            if self.successors.get(task) == beat.worker:
                self._made_ready[task] = read_copy_report(told)
        return self._place() if beat.standbys else []

    def _take_back(self, worker: str) -> list[Effect]:
        """A worker that was lost and lives gets work again, unless another has its slot."""
        member = self._gone.get(worker)
        if member is None or any(other.slot == member.slot for other in self.members.values()):
            return []
        del self._gone[worker]
        member.heard_at = self._pulses
        self.members[worker] = member
        return self._place()

    def _lose(self, workers: Sequence[str], *, settle: bool = True) -> list[Effect]:
        lost = [worker for worker in workers if worker in self.members]
        effects: list[Effect] = []
        for worker in lost:
            self._gone[worker] = self.members.pop(worker)
            for task, state in self.tasks.items():
                if state.place is not None and state.place.worker == worker:
                    effects += self._end(task, "its worker was lost")
        return [*effects, *self._place()] if settle and lost else effects

    def _forget(self, workers: Sequence[str]) -> None:
        """When all is over: from them no goodbye will come."""
        for worker in workers:
            del self.members[worker]
        for state in self.tasks.values():
            if state.place is not None and state.place.worker in workers:
                state.place = None

    def _on_ended(self, ended: Ended) -> list[Effect]:
        task = parse_task(ended.task)
        state = self.tasks.get(task)
        here = Place(ended.worker, ended.instance)
        if state is None or state.place != here:
            return []  # of an instance that was replaced meanwhile
        if not ended.is_retryable:
            return self._fail(f"task {task}: {ended.message}", ended.traceback)
        return [*self._end(task, ended.message), *self._place()]

    def _on_yielded(self, yielded: Yielded) -> list[Effect]:
        task = parse_task(yielded.task)
        state = self.tasks.get(task)
        if state is None or state.place != Place(yielded.worker, yielded.instance):
            return []
        state.place, state.left = None, (yielded.worker, self._why(task))
        return self._place()

    def _why(self, task: TaskId) -> str:
        place = self.tasks[task].place
        if place is not None and place.worker in self._vacating:
            return "its executor is to go"
        return "by hand" if task in self._by_hand else "for balance"

    def _on_move(self, move: Move) -> list[Effect]:
        task, worker = parse_task(move.task), self.find_worker(move.worker)
        if task in self.tasks and worker is not None:
            self._by_hand[task] = worker
        return self._place()

    def find_worker(self, name: str) -> str | None:
        """By its name, or by its slot."""
        for member in self.members.values():
            if name in (member.worker, str(member.slot)):
                return member.worker
        return None

    def _end(self, task: TaskId, cause: str) -> list[Effect]:
        state = self.tasks[task]
        worker = None if state.place is None else state.place.worker
        is_told = worker in self._leaving
        if worker is not None:
            state.left = (worker, "its worker was told to leave" if is_told else cause)
        state.place = None
        if is_told:
            state.report = {**state.report, "is_running": False}
            return []  # nothing of it failed
        # One that lived on without input was no victim of its input.
        lived_long = self._pulses - state.placed_at > PULSES_LONG
        state.futile = 1 if lived_long else state.futile + 1
        if state.futile <= FUTILE_MAX or self.is_over:
            return []
        position = state.report.get("position", "its start")
        return self._fail(
            f"task {task} ended {state.futile} times in a row without a commit, at input position "
            f"{position}; last cause: {cause}. Look at what stands there with `penstock explain`, "
            "and at the executors' memory"
        )

    def _fail(self, message: str, traceback: str = "") -> list[Effect]:
        self.is_over = True
        return [Fail(message, traceback), Announce(Finish())]

    # -- assignment

    @property
    def _is_gathered(self) -> bool:
        if self._gathering_since is None:
            return False
        slots = {one.slot for one in self.members.values() if one.worker not in self._leaving}
        return len(slots) >= self.wanted or (
            self._pulses - self._gathering_since >= PULSES_GATHERING
        )

    def _desired(self) -> dict[TaskId, str]:
        workers = [member.worker for member in self._staying()]
        previous = {
            task: state.place.worker
            for task, state in self.tasks.items()
            if state.place is not None
        }
        copies = {task: self._heirs(task) for task in self.tasks}
        # A lost task goes on where its state is; from there it moves to where it is wanted.
        by_hand = {
            task: worker
            for task, worker in self._by_hand.items()
            if task in previous or worker in copies[task] or not copies[task]
        }
        return assign(list(self.tasks), workers, previous, copies=copies, by_hand=by_hand)

    def _staying(self, wanted: int | None = None) -> list[Member]:
        """The workers that tasks may run in: those of wanted slots, or all if there is none.

        One that was told to leave does, whatever was said since.
        """
        count = self.wanted if wanted is None else wanted
        living = [one for one in self.members.values() if one.worker not in self._leaving]
        # If all are to go, tasks stay where they are until somebody else is there.
        safe = [one for one in living if one.worker not in self._vacating]
        members = sorted(safe or living, key=lambda member: member.slot)
        return [member for member in members if member.slot < count] or members

    def _let_go(self) -> list[Effect]:
        """Workers that are wanted no more leave when nothing of a task is theirs."""
        self._leaving &= self.members.keys()
        self._vacating &= self.members.keys()
        kept = set() if self.is_suspended else self._kept()
        free = [one for one in self.members if one not in kept | self._leaving]
        self._leaving |= {*free}
        return [Announce(Leave(worker)) for worker in free]

    def _kept(self) -> set[str]:
        """Workers that run something, or may."""
        busy = {state.place.worker for state in self.tasks.values() if state.place is not None}
        most = max(self.wanted, self._expected)
        return busy | {member.worker for member in self._staying(most)}

    def _heirs(self, task: TaskId) -> list[str]:
        """Who a task goes to that runs nowhere: the worker that it yielded for; or those with a
        copy that is up to date, or else with any."""
        state = self.tasks[task]
        if state.yielding_since is not None and state.target in self.members:
            return [state.target]
        living = [worker for worker in self.copies.get(task, ()) if worker in self.members]
        return [worker for worker in living if self._is_ready(task, worker)] or living

    def _is_ready(self, task: TaskId, worker: str) -> bool:
        return bool(self.tasks[task].standbys.get(worker, {}).get("is_ready"))

    def _place(self) -> list[Effect]:
        """Claim what must get another instance, and bring on what is to move."""
        if self.is_suspended and not self.is_over:
            return self._let_go()
        if self.is_over or not self._is_gathered:
            return []
        desired = self._desired()
        moved = []
        effects: list[Effect] = []
        for task, worker in desired.items():
            state = self.tasks[task]
            if state.claiming:
                continue
            if state.place is not None and state.place.worker == worker:
                state.target = state.yielding_since = None
            elif state.place is None or not self._replicas or self._is_yielded_out(state):
                if state.place is not None:
                    state.left = (state.place.worker, self._why(task))
                moved.append(task)
            else:
                effects += self._bring_on(task, state.place, worker)
        if moved and self._restarts_together:
            if any(state.claiming for state in self.tasks.values()):
                return []  # all of them are claimed; what they get is looked at then
            moved = list(self.tasks)
            for state in self.tasks.values():
                state.place = None
        for task in moved:
            self.tasks[task].claiming = True
        if moved:
            return [*effects, Claim(tuple(moved))]  # copies are placed when they are claimed
        effects += self._let_go()
        is_news = self._place_copies() != self.copies or self._place_next() != self.successors
        return [*self._announce(), *effects] if is_news else effects

    def _is_yielded_out(self, state: _TaskState) -> bool:
        since = state.yielding_since
        return since is not None and self._pulses - since > PULSES_YIELDING

    def _bring_on(self, task: TaskId, place: Place, worker: str) -> list[Effect]:
        """The next step of a move to this worker, which is a standby first."""
        state = self.tasks[task]
        if state.yielding_since is not None:
            return []
        state.target = worker
        if not self._is_ready(task, worker):
            return []
        state.yielding_since = self._pulses
        return [Announce(Yield(str(task), place.instance))]

    def _place_copies(self) -> Copies:
        """Who is to keep copies now; whoever a task moves to is one of them.

        Copies of a task that runs nowhere stay where they are: one of them takes it over.
        """
        placed = {t: state.place.worker for t, state in self.tasks.items() if state.place}
        copies = self._place_replicas(placed) if self._replicas else {}
        for task, workers in self.copies.items():
            if task not in placed:
                copies[task] = tuple(worker for worker in workers if worker in self.members)
        return copies

    def _place_replicas(self, placed: Mapping[TaskId, str]) -> Copies:
        executors = {member.worker: member.executor for member in self._staying()}
        sizes = {t: int(state.report.get("state_bytes", 0)) for t, state in self.tasks.items()}
        targets = {task: self.tasks[task].target for task in placed}
        # The copies that are there stay until the one that it moves to is there, too.
        kept = {t: [w for w in who if w != targets.get(t)] for t, who in self.copies.items()}
        copies = place_copies(self._replicas, placed, executors, kept, sizes)
        for task, target in targets.items():
            if target in self.members and target not in copies[task]:
                copies[task] = (*copies[task], target)
        return copies

    def _place_next(self) -> dict[TaskId, str]:
        """Who is to make ready for which task of the next layout; one that stays, where it is."""
        if self._plan is None:
            return {}
        workers = [member.worker for member in self._staying(self._plan.workers)]
        here = {t: state.place.worker for t, state in self.tasks.items() if state.place}
        previous = {task: who for task, who in here.items() if task in self._plan.tasks}
        return assign(
            self._plan.tasks, workers, {**previous, **self.successors}, by_hand=self._by_hand
        )

    def _announce(self) -> list[Effect]:
        self._number += 1
        self.copies = self._place_copies()
        before, self.successors = self.successors, self._place_next()
        for task in [task for task in before if self.successors.get(task) != before[task]]:
            self._made_ready.pop(task, None)
        for task, state in self.tasks.items():
            kept = self.copies.get(task, ())
            state.standbys = {who: report for who, report in state.standbys.items() if who in kept}
        tasks: dict[str, list[Any]] = {
            str(task): [state.place.worker, state.place.instance]
            for task, state in self.tasks.items()
            if state.place is not None
        }
        standbys = {str(task): list(workers) for task, workers in self.copies.items() if workers}
        message = Assign(self._number, tasks, standbys, self.layout)
        if self._plan is not None:
            copied = self._plan.copied
            ready = {str(task): who for task, who in self.successors.items() if task in copied}
            message = replace(message, next_layout=self._plan.layout, successors=ready)
        return [Announce(message)]

    def check(self) -> None:
        """Every invariant that can be said of one moment."""
        for state in self.tasks.values():
            if state.place is not None:
                assert state.place.worker in self.members
        for task, workers in self.copies.items():
            place = self.tasks[task].place
            assert place is None or place.worker not in workers or self.tasks[task].claiming


def _never_less(before: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, int]:
    """Counters of a task over all of its instances: one that has not resumed yet knows of none."""
    names = [name for name in ("rows_in", "rows_out") if name in before or name in told]
    return {name: max(int(before.get(name, 0)), int(told.get(name, 0))) for name in names}
