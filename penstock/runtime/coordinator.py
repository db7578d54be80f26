"""The shell of the coordinator: it keeps a query running, through the log, from `open` to its end.

Owns the run: it claims the query's name (an older driver's coordinator can announce nothing from
then on, and claims of tasks are guarded by it), pulses, performs what the core decides, and makes
progress reports. Everything here is for one event loop; coordinator_thread.py gives it a thread of
the driver.

It also rescales. The workers of the next tasks make ready for them, while the old ones run. Then
the tasks of each stage, those that read sources first, are asked to end at one position, their cut;
when all have, one guarded append retires them and says where their successors begin
(succession.py). Before it nothing has happened, but for a pause; after it, whoever coordinates the
query finds the next layout. Law (I13): the tasks of one layout alone write.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import (
    BadFormat,
    BadRequest,
    Damaged,
    Fenced,
    GuardFailed,
    PenstockError,
    QueryFailed,
    Retryable,
    Trimmed,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.records import Entry, Guard, Kind, NewEntry, SetKey
from penstock.plain_text import plain
from penstock.protocol.markers import Marker, decode_marker, encode_marker
from penstock.protocol.names import (
    TaskId,
    control_tag,
    coordinator_producer,
    layout_key,
    pulse_tag,
    query_key,
    run_key,
)
from penstock.runtime.balancing import GIVEN_UP, Advice, Balancer
from penstock.runtime.control import (
    Balance,
    Beat,
    Finish,
    Goodbye,
    Message,
    Move,
    Pulse,
    Rescale,
    decode_message,
    encode_message,
)
from penstock.runtime.coordinator_core import (
    Announce,
    Claim,
    CoordinatorCore,
    Effect,
    Fail,
    Plan,
    StopAsked,
)
from penstock.runtime.flushing import cut_tasks, flush_tasks
from penstock.runtime.host import THIS_PROCESS, Host
from penstock.runtime.images import ImageKeeper
from penstock.runtime.lag import Lag, measure_lag
from penstock.runtime.layout import (
    Shares,
    encode_layout,
    layout_bytes,
    read_layout,
)
from penstock.runtime.node_rates import ByNode, NodeRates, tell_nodes
from penstock.runtime.progress import Rates, make_progress, settled_positions
from penstock.runtime.registry import decode_query, encode_query
from penstock.runtime.report_size import fitted
from penstock.runtime.run_errors import advise, check_wanted, explain, why_not_now
from penstock.runtime.run_facts import tell_balanced, tell_run, tell_suspended
from penstock.runtime.spec import QuerySpec, rescaled_tasks
from penstock.runtime.succession import (
    Last,
    can_follow,
    next_layout,
    plan_layout,
    shares_for,
    succeed,
)
from penstock.runtime.time_text import time_text
from penstock.runtime.trim import trim_consumed
from penstock.runtime.worker import CLOSE_SECONDS, PATIENCE_SECONDS, close_within

logger = logging.getLogger(__name__)

PULSE_SECONDS = 0.25
#: Pulses between two progress reports, and between two looks at what may be trimmed.
PULSES_PER_REPORT = 4
PULSES_PER_TRIM = 240
REPORTS_KEPT = 100
#: Characters of an error in the last report of a run.
EXCEPTION_MAX = 10_000
#: How long workers that were asked for are waited for, before tasks are made for them. Where all
#: processors are busy, they take their time: they load in nobody's way (spark/loading.py).
GATHER_SECONDS = 20.0
#: How long workers may take to make ready for the next tasks, before these begin from the store.
PREPARE_SECONDS = 60.0
#: How long workers may take to say goodbye.
FINISH_SECONDS = 15.0


class Coordinator:
    """One run of one query. Make one with `Coordinator.open`, which claims the query.

    After `run` has returned, `error` says why, if it did not end well.
    """

    def __init__(
        self,
        log: AsyncLog,
        voice: AsyncAppender,
        guard: Guard,
        heard_upto: Lsn,
        spec: QuerySpec,
        *,
        id: str,
        workers: int,
        trims: bool,
        host: Host,
        layout: bytes | None,
        keeps_image: bool = False,
        balances: bool = False,
    ) -> None:
        self._log = log
        self.voice = voice
        self._guard = guard
        self._heard_upto = heard_upto
        self.spec = spec
        self._id = id
        self._host = host
        self.run_id = str(uuid.uuid4())
        self._trims = trims
        self._keeps_image = keeps_image and spec.query.stages[-1].changing
        together = spec.settings.protocol.restarts_together
        self.core = CoordinatorCore(
            spec.task_ids, workers, restarts_together=together, replicas=spec.settings.replicas
        )
        #: The layout as the log has it; None: it has none yet.
        self._layout = layout
        if spec.layout_now is not None:
            self.core.layout = encode_layout(spec.layout_now, spec.version)
        #: How many workers the layout should be for; None: it stays.
        self._workers: int | None = None
        self._asked_to_rescale = asyncio.Event()
        self._node_rates = NodeRates()
        self._rows_by_node: Mapping[int, ByNode] = {}
        self._balancer = Balancer(is_automatic=balances)
        #: Which virtual nodes should get other tasks; and the last time that some did.
        self._advice: Advice | None = None
        self._is_changing = False
        self._balanced: dict[str, Any] | None = None
        #: How often somebody asked, for whoever waits for the answer.
        self._balances_asked = 0
        #: What was asked for through the log last and refused, for whoever waits for it.
        self._refused: dict[str, Any] | None = None
        #: The last time that the layout changed, for progress reports.
        self._rescaled: dict[str, Any] | None = None
        #: When it was suspended last.
        self._suspended_ms = 0
        self._has_next_layout = asyncio.Event()
        #: Tells whoever starts workers how many are wanted.
        self.on_workers: Callable[[int], None] = _tell_nobody
        self._conductor = spec.settings.protocol.conductor(self)
        self.recent: deque[dict[str, Any]] = deque(maxlen=REPORTS_KEPT)
        self.error: PenstockError | None = None
        #: What workers hold of Spark, and wait for; whoever starts them says it.
        self.cores: dict[str, Any] | None = None
        self._stop_asked = False
        self._rates = Rates()
        self._reports = 0
        self._goodbyes_from = Lsn(0)
        self._over = asyncio.Event()
        self._is_closing = False
        self._is_replaced = False

    @classmethod
    async def open(
        cls,
        resolve: Resolve,
        spec: QuerySpec,
        *,
        id: str,
        workers: int,
        trims: bool,
        host: Host = THIS_PROCESS,
        rescales: bool = False,
        keeps_image: bool = False,
        balances: bool = False,
    ) -> Coordinator:
        """Claim the query: whoever ran it so far has nothing to say from here on.

        `rescales`: whether its tasks become as many as so many workers should have. `keeps_image`:
        of a result that changes. `balances`: hot virtual nodes get other tasks by themselves.
        """
        name, key = f"coordinator-{spec.name}", run_key(spec.name)
        log = await AsyncLog.connect(resolve, name=name, timeout=PATIENCE_SECONDS)
        try:
            voice = await log.appender(coordinator_producer(spec.name))
            run = str(voice.instance).encode()
            await voice.append([], sets=[SetKey(key, run)])
            heard_upto = (await log.bounds()).tail
            value = await log.get(layout_key(spec.name))  # nobody else changes it any more
            layout = None if value is None else read_layout(value.data, spec.version)
            spec = spec if layout is None else spec.under(layout)
            made = cls(
                log, voice, Guard(key, run), heard_upto, spec,
                id=id, workers=workers, trims=trims, host=host,
                layout=None if value is None else value.data, keeps_image=keeps_image,
                balances=balances,
            )  # fmt: skip
            if rescales:
                made.ask_to_rescale(workers)
            return made
        except BaseException as error:
            await close_within(log, CLOSE_SECONDS)
            if isinstance(error, Exception):
                why = explain(spec.name, error)
                raise why from why.__cause__
            raise

    async def run(self) -> None:
        """To the end of the run, whatever ends it."""
        try:
            await self._main()
        except Exception as error:
            why = explain(self.spec.name, error)
            if self.error is None or not isinstance(error, PenstockError):
                self.error = why

    async def _main(self) -> None:
        beside = asyncio.ensure_future(self._keep_image())
        try:
            loops = [
                asyncio.ensure_future(self._listen()),
                asyncio.ensure_future(self._pulse()),
                asyncio.ensure_future(self._rescale_when_asked()),
                asyncio.ensure_future(self._over.wait()),
                *(asyncio.ensure_future(loop) for loop in self._conductor.loops()),
            ]
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            for loop in done:
                loop.result()
            if not self._is_replaced:  # else the workers are another run's: they say nothing
                await self._say_the_end()
        finally:
            self._is_closing = True
            beside.cancel()
            await close_within(self._log, CLOSE_SECONDS)

    async def _keep_image(self) -> None:
        """Beside the loops: whatever becomes of it, the query goes on."""
        if not self._keeps_image:
            return
        keeper = ImageKeeper(self._log, self.voice, self._guard, self.spec, self._host)
        try:
            await keeper.keep(self._rows_written)
        except Exception:
            logger.exception("query=%s keeps no image of its result any more", self.spec.name)

    def _rows_written(self) -> int | None:
        """As the last report has it; None before the first."""
        return self.recent[-1]["sink"]["numOutputRows"] if self.recent else None

    async def _listen(self) -> None:
        voice = coordinator_producer(self.spec.name)
        tags = [control_tag(self.spec.name)]
        async with self._log.tail(tags, start=self._heard_upto) as reader:
            async for batch in reader:
                for entry in batch.entries:
                    if entry.producer != voice:
                        await self._hear(entry)
                self._heard_upto = batch.looked_up_to

    async def _hear(self, entry: Entry) -> None:
        message: Message | None = None
        try:
            message = decode_message(entry.payload)
            if isinstance(message, Rescale):
                await self.rescale(message.workers)
            if isinstance(message, Balance):
                await self.balance()
            effects = [] if message is None else self.core.on_message(message)
            await self._conductor.hear(entry)
        except (BadFormat, BadRequest) as error:
            logger.warning("query=%s lsn=%d ignored: %s", self.spec.name, entry.lsn, error)
            if isinstance(message, Rescale | Balance):
                self._refused = {"lsn": entry.lsn, "why": str(error)}
            return
        await self._perform(effects)

    async def _pulse(self) -> None:
        # What runs before this one have counted is not news: the first report has it.
        last = await self._last_markers(self.spec.task_ids)
        self.core.on_counted({task: _counts(one) for task, one in last.items()})
        count = 0
        while True:
            report = await self._try_report() if count % PULSES_PER_REPORT == 0 else None
            await self._announce(Pulse(report))
            await self._perform(self.core.on_pulse())
            count += 1
            if self._trims and count % PULSES_PER_TRIM == 0:
                await self._trim()
            await asyncio.sleep(PULSE_SECONDS)

    async def _trim(self) -> None:
        """Housekeeping, which ends no query: what was not trimmed now is the next time."""
        try:
            await trim_consumed(self._log, self.spec.settings.protocol)
        except (Trimmed, Damaged) as error:
            # Somebody else trims as well, or registered what this version cannot read.
            logger.warning("query=%s not trimmed: %s", self.spec.name, error)
        except (Unknown, Retryable) as error:
            # A trim may be asked for any number of times. If the log is gone, the pulse says so.
            logger.warning("query=%s trims again later: %s", self.spec.name, error)

    async def _announce(self, message: Message) -> None:
        tags: tuple[str, ...] = (control_tag(self.spec.name),)
        if isinstance(message, Pulse):
            tags = (*tags, pulse_tag(self.spec.name))
        await self.voice.append([NewEntry(encode_message(message), tags, Kind.CONTROL)])

    async def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Claim(tasks=tasks):
                    claimed = await self._claim(tasks)
                    # A worker that was killed never told of its last commits: ask the log.
                    last = await self._last_markers(tasks)
                    self.core.on_committed({task: one.number for task, one in last.items()})
                    self.core.on_counted({task: _counts(one) for task, one in last.items()})
                    await self._perform(self.core.on_claimed(claimed, self._host.now_ms()))
                case Announce(message=message):
                    if isinstance(message, Finish):
                        self._goodbyes_from = self._heard_upto  # they may come before the ack of it
                    await self._announce(message)
                case Fail(message=message, traceback=traceback):
                    hint = advise(message, traceback, self.spec.settings)
                    parts = (message, hint, traceback)
                    text = "\n\n".join(part for part in parts if part).rstrip()
                    text = plain(f"query {self.spec.name} stopped. {text}", lines=True)
                    self.error = QueryFailed(text)
                    self._over.set()
                case StopAsked(who=who):
                    logger.info("query=%s stop asked by %s", self.spec.name, who)
                    self._stop_asked = True
                    await self._perform(self.core.finish())
                    self._over.set()

    async def _claim(self, tasks: Sequence[TaskId]) -> dict[TaskId, int]:
        async with self._conductor.claiming():
            claims = [self._log.claim(task.producer, guards=[self._guard]) for task in tasks]
            return dict(zip(tasks, await asyncio.gather(*claims), strict=True))

    async def _last_markers(self, tasks: Sequence[TaskId]) -> dict[TaskId, Marker]:
        last = await asyncio.gather(*(self._log.read_last(task.marker_tag) for task in tasks))
        return {
            task: decode_marker(entry.payload)
            for task, entry in zip(tasks, last, strict=True)
            if entry is not None
        }

    async def _say_the_end(self) -> None:
        """Wait for the workers' goodbyes, so that what they commit last is committed when `stop`
        returns; then say how it ended. In a bounded time, whether the log is there or not.
        """
        waiting = set(self.core.members)
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                saying = asyncio.ensure_future(self._wait_for_goodbyes(waiting))
                try:
                    while waiting and not saying.done():
                        await asyncio.wait({saying}, timeout=PULSE_SECONDS)
                        waiting &= self.core.members.keys()  # who is lost says nothing
                finally:
                    saying.cancel()
                if saying.done() and not saying.cancelled():
                    saying.result()
        except TimeoutError:
            logger.warning("query=%s workers did not say goodbye: %s", self.spec.name, waiting)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                report = await self._try_report() or self._report_nothing()
                cause = None if self.error is None else str(self.error)[:EXCEPTION_MAX]
                await self._announce(Pulse({**report, "isActive": False, "exception": cause}))
        except TimeoutError:
            logger.warning("query=%s has no log to say its end to", self.spec.name)

    async def _wait_for_goodbyes(self, waiting: set[str]) -> None:
        tags = [control_tag(self.spec.name)]
        async with self._log.tail(tags, start=self._goodbyes_from) as reader:
            while waiting:
                batch = await reader.__anext__()
                for entry in batch.entries:
                    try:
                        message = decode_message(entry.payload)
                    except BadFormat:
                        continue
                    if isinstance(message, Goodbye):
                        waiting.discard(message.worker)
                    elif isinstance(message, Beat):
                        self.core.on_message(message)  # the last of each is what it did

    # -- rescaling

    @property
    def is_suspended(self) -> bool:
        """It has no workers, and nobody has asked for any since."""
        return self.core.is_suspended and not self._workers

    def ask_to_rescale(self, workers: int) -> None:
        self._workers = workers
        self._asked_to_rescale.set()

    async def _rescale_when_asked(self) -> None:
        while True:
            await self._asked_to_rescale.wait()
            self._asked_to_rescale.clear()
            workers = self.core.wanted if self._workers is None else self._workers
            if not workers:
                self._give_up_advice()
                await self._suspend()
                continue
            await self._perform(self.core.resume(workers))
            if await self._change_to(workers):
                await self._perform(self.core.rescale(workers))

    async def _change_to(self, workers: int) -> bool:
        """The layout, if so many workers should have another one, or it was advised. False: it was
        given up, since something else is wanted by now."""
        self._is_changing = True
        advice = self._advice
        try:
            if shares := shares_for(self.spec, rescaled_tasks(self.spec, workers)):
                changed = await self._change(shares, workers)
                self._rescaled = changed or self._rescaled
            elif advice is not None and advice.version == self.spec.layout.version:
                changed = await self._change(advice.shares, workers)
                if changed is not None:
                    self._advice, self._balanced = None, tell_balanced(advice, changed)
                    logger.info("query=%s balanced, %s", self.spec.name, advice.why)
            else:
                return True
            return changed is not None
        finally:
            self._give_up_advice()
            self._is_changing = False

    def _give_up_advice(self) -> None:
        """If there is one that was not taken."""
        if self._advice is not None:
            self._advice, self._balancer.told = None, GIVEN_UP

    async def _change(self, shares: Shares, workers: int) -> dict[str, Any] | None:
        """To these tasks. What there is to tell of it; None: something else is wanted by now."""
        await self._gather(workers)
        if self._asked_to_rescale.is_set():
            return None
        ready, copied = await self._prepare(shares, workers)
        if self._asked_to_rescale.is_set():
            return None
        began = asyncio.get_running_loop().time()
        lasts = await cut_tasks(self._log, self.voice, self.spec, self._look_at_cut, PULSE_SECONDS)
        await self._change_layout(shares, workers, lasts)
        ms = (asyncio.get_running_loop().time() - began) * 1000
        return {
            "version": self.spec.layout.version,
            "at": time_text(self._host.now_ms()),
            "cutMs": round(ms, 1),
            "ready": ready,
            "copied": copied,
        }

    async def _suspend(self) -> None:
        if not self.core.is_suspended:
            self._suspended_ms = self._host.now_ms()
            logger.info("query=%s is suspended", self.spec.name)
        await self._perform(self.core.suspend())

    async def _gather(self, workers: int) -> None:
        """Tasks run; and workers that were asked for are there, or do not come for now."""
        now = asyncio.get_running_loop().time
        deadline = now() + GATHER_SECONDS
        while not self.core.is_settled or (len(self.core.members) < workers and now() < deadline):
            if self._asked_to_rescale.is_set():
                return
            await asyncio.sleep(PULSE_SECONDS)

    async def _prepare(self, shares: Shares, workers: int) -> tuple[int, int]:
        """Let those who will run the next tasks have their state, while the old ones go on.

        In a bounded time: whoever is not ready then begins from the store. How many are, of all.
        """
        spec, now = self.spec, asyncio.get_running_loop().time
        layout = plan_layout(spec, shares)
        new = spec.under(layout)
        copied = frozenset(task for task in new.task_ids if can_follow(spec, new, task))
        encoded = encode_layout(layout, spec.version)
        await self._perform(self.core.prepare(Plan(new.task_ids, copied, encoded, workers)))
        deadline = now() + PREPARE_SECONDS
        while (count := self.core.prepared)[0] < count[1]:
            if now() > deadline or self._asked_to_rescale.is_set():
                break
            await asyncio.sleep(PULSE_SECONDS)
        return count

    async def _look_at_cut(self) -> None:
        """Tasks that are to end need workers, and if none are wanted, nobody starts a lost one
        again: then it is suspended as it is. Whoever resumes it lets the tasks come to the cut.
        """
        if self._workers:
            await self._perform(self.core.resume(self._workers))
        elif self._workers is not None and not self.core.members:
            await self._suspend()

    async def _change_layout(
        self, shares: Shares, workers: int, lasts: Mapping[TaskId, Last]
    ) -> None:
        """One append: from there on the next layout counts, or nothing has happened."""
        spec = self.spec
        trimmed = (await self._log.bounds()).trim_point
        layout = next_layout(spec, shares, lasts, trimmed)
        new = spec.under(layout)
        entries = [
            NewEntry(encode_marker(marker), (task.marker_tag,), Kind.MARKER)
            for task, marker in succeed(spec, new, lasts).items()
        ]
        data = layout_bytes(layout, spec.version)
        registered, noted = await self._note_rescaled()
        guards = [self._guard, Guard(layout_key(spec.name), self._layout), *registered]
        sets = [SetKey(layout_key(spec.name), data), *noted]
        await self.voice.append(entries, guards=guards, sets=sets)
        logger.info("query=%s has layout=%d tasks=%s", spec.name, layout.version, layout.tasks)
        self.spec, self._layout = new, data
        self.core.wanted = workers
        self._has_next_layout.set()
        self._has_next_layout = asyncio.Event()
        await self._perform(self.core.succeed(new.task_ids, encode_layout(layout, spec.version)))

    async def _note_rescaled(self) -> tuple[list[Guard], list[SetKey]]:
        """Programs that know of no layouts must not go on with this query.

        If it is removed meanwhile, which changes no run, it stays so.
        """
        key = query_key(self.spec.name)
        value = await self._log.get(key)
        query = None if value is None else decode_query(self.spec.name, value.data)
        guards = [Guard(key, None if value is None else value.data)]
        if query is None or query.is_rescaled:
            return guards, []
        return guards, [SetKey(key, encode_query(replace(query, is_rescaled=True)))]

    # -- progress

    async def _try_report(self) -> dict[str, Any] | None:
        """None: it could not be made. Law: whatever becomes of a report, the query goes on."""
        try:
            return fitted(await self._report())
        except PenstockError as error:
            # If it is for good, whoever needs the log for more than to look at it will say so.
            logger.warning("query=%s makes no report for now: %s", self.spec.name, error)
        except Exception:
            logger.exception("query=%s has no report", self.spec.name)
        return None

    async def _report(self) -> dict[str, Any]:
        # Of one layout, and as they are now: it may change while the log is asked.
        spec, reports = self.spec, self._task_reports()
        tail, now_ms = (await self._log.bounds()).tail, self._host.now_ms()
        lags: dict[tuple[str, int], Lag] = {}
        for stream, stage, position in settled_positions(spec, reports):
            lags[stream, stage] = await measure_lag(self._log, stream, position, now_ms=now_ms)
        rates = self._node_rates.update(spec, reports)
        self._look_at_balance(spec, rates, now_ms)
        more = self._tell_more() | tell_nodes(rates)
        progress = self._make_progress(spec, reports, now_ms, tail, lags, more)
        self._reports += 1
        self.recent.append(progress)
        return progress

    def _task_reports(self) -> dict[TaskId, dict[str, Any]]:
        return {
            task: {
                **state.report,
                "worker": state.place.worker if state.place else None,
                "standbys": self._standbys(task),
            }
            for task, state in self.core.tasks.items()
        }

    def _make_progress(
        self,
        spec: QuerySpec,
        reports: Mapping[TaskId, Mapping[str, Any]],
        now_ms: int,
        tail: int | None,
        lags: Mapping[tuple[str, int], Lag],
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        return make_progress(
            spec, reports, id=self._id, run_id=self.run_id, number=self._reports,
            now_ms=now_ms, tail=tail, lags=lags,
            workers=len(self.core.members), rates=self._rates, more=more,
        )  # fmt: skip

    def _report_nothing(self) -> dict[str, Any]:
        """The last word of a run that could not find out how it stands: that it is over."""
        if self.recent:
            return fitted(self.recent[-1])
        more = {"members": {}, "workersWanted": self.core.wanted}
        return self._make_progress(self.spec, {}, self._host.now_ms(), None, {}, more)

    def _tell_more(self) -> dict[str, Any]:
        more = tell_run(self.core, self.spec.layout, self._rescaled, self._refused)
        if self.core.is_suspended:
            more["suspended"] = tell_suspended(self.spec.name, self._suspended_ms)
        elif self._workers and rescaled_tasks(self.spec, self._workers) != self.spec.tasks:
            ready, copied = self.core.prepared
            more["rescaling"] = {
                "workers": self._workers, "ready": ready, "copied": copied,
                "rows": self.core.prepared_rows,
            }  # fmt: skip
        more["balance"] = {
            **self._balancer.facts(),
            "asked": self._balances_asked,
            "isUnderWay": self._advice is not None,
            "last": self._balanced,
        }
        if self.cores is not None:
            more["cores"] = dict(self.cores)
        return more

    def _standbys(self, task: TaskId) -> dict[str, dict[str, Any]]:
        reports = self.core.tasks[task].standbys
        return {worker: reports.get(worker, {}) for worker in self.core.copies.get(task, ())}

    # -- for the driver

    async def finish(self) -> None:
        """Tell the workers to commit what they have and to leave. Idempotent."""
        if self._stop_asked:
            return
        self._stop_asked = True
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self._perform(self.core.finish())
        except TimeoutError:
            logger.warning("query=%s ends without a word: the log is away", self.spec.name)
        except Fenced:
            logger.info("query=%s ends here: a later run has its workers", self.spec.name)
        self._over.set()

    async def fail(self, message: str) -> None:
        """End the run with this error."""
        await self._perform([Fail(message), *self.core.finish()])

    async def move(self, task: TaskId, worker: str) -> None:
        """Let this worker run the task; it goes on where it is until the worker is ready for it."""
        if not self.spec.settings.replicas:
            raise BadRequest(
                f"query {self.spec.name} keeps no copies of its tasks' states, so that a move "
                "would be a restart: start it with replicas=1"
            )
        if task not in self.core.tasks:
            known = ", ".join(map(str, self.core.tasks))
            raise BadRequest(f"no task {task}: there are {known}")
        if self.core.find_worker(worker) is None:
            members = sorted(self.core.members.values(), key=lambda member: member.slot)
            known = ", ".join(f"{one.slot} ({one.worker})" for one in members)
            none = "none, since it is suspended" if self.is_suspended else "none yet"
            raise BadRequest(f"no worker {worker}: there are {known or none}")
        await self._perform(self.core.on_message(Move(str(task), worker)))

    async def job_lost(self, slot: int, attempts: int | None = None) -> None:
        """Spark's word: what ran in the slot has ended, or only attempts below a number."""
        await self._heed(lambda: self.core.on_job_lost(slot, attempts))

    async def _heed(self, decide: Callable[[], list[Effect]]) -> None:
        try:
            await self._perform(decide())
        except Exception as error:
            # Nobody waits for it; and without it, tasks would belong to nobody.
            if not self._is_closing:
                self.error = self.error or explain(self.spec.name, error)
                self._is_replaced = isinstance(error, Fenced | GuardFailed)
                self._over.set()

    async def vacate(self, slot: int) -> None:
        """Spark's word: the executor of this slot is about to go. Its tasks go before it does."""
        await self._heed(lambda: self.core.vacate(slot))

    async def rescale(self, workers: int) -> None:
        """Let the query run with so many workers; they are asked for, and tasks made for them.

        With 0 it is suspended: whoever asks for workers again resumes it.
        """
        if self.core.is_over:
            raise BadRequest(f"query {self.spec.name} is being stopped: start it with so many")
        check_wanted(workers, self.spec.settings.replicas)
        self.on_workers(workers)
        self.core.expect(workers)
        self.ask_to_rescale(workers)

    def _look_at_balance(self, spec: QuerySpec, rates: Mapping[int, ByNode], now_ms: int) -> None:
        """When nothing else is under way."""
        self._rows_by_node = rates
        advice = self._balancer.look(spec, rates, now_ms)
        if advice is not None and self._is_free:
            self._advice = advice
            self._asked_to_rescale.set()

    @property
    def _is_free(self) -> bool:
        """Whether nothing else is done to the layout, or about to be."""
        is_asked = self._advice is not None or self._asked_to_rescale.is_set()
        return self.core.is_settled and not is_asked and not self._is_changing

    async def balance(self) -> None:
        """Let hot virtual nodes go to tasks that have less to do, if that helps; or say why not."""
        if not self._is_free:
            raise BadRequest(why_not_now(self.spec.name, is_suspended=self.is_suspended))
        self._advice = self._balancer.by_hand(self.spec, self._rows_by_node)
        self._balances_asked += 1
        if self._advice is not None:
            self._asked_to_rescale.set()

    async def flush(self) -> None:
        """Returns when everything that was in the sources is processed, committed, visible."""
        while True:
            changing = asyncio.ensure_future(self._has_next_layout.wait())
            flushing = asyncio.ensure_future(flush_tasks(self._log, self.spec))
            try:
                both = {changing, flushing}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if flushing.done():
                    return flushing.result()
            finally:
                changing.cancel()
                flushing.cancel()


def _counts(marker: Marker) -> dict[str, int]:
    return {"rows_in": marker.rows_in, "rows_out": marker.rows_out}


def _tell_nobody(workers: int) -> None:
    """Workers are started elsewhere."""
