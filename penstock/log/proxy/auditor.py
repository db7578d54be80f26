"""The auditor: one proxy of a cluster that sees to it that every block has all its copies.

Every few seconds: read all manifests, ask the nodes what they hold, let replication/repair.py
decide, copy, and only then change the manifest by compare-and-set. A log that nobody owns and that
has an open segment on a node which is gone or being emptied is opened here, which closes it.

Laws: nothing is ever deleted. A block is copied only after all its checksums and its place were
checked. A member leaves a manifest only after the other node has fsynced every block of it (R40).
What was not said is not known: a node that does not answer lacks nothing, a log that is not listed
is left alone. `/auditor` keeps two proxies from doing the same work, nothing more: two auditors at
once copy the same bytes, and versions decide whose change of a manifest is made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import (
    AlreadyExists,
    BadFormat,
    Damaged,
    NotFound,
    NotOwner,
    PenstockError,
    Unavailable,
    Unknown,
    VersionConflict,
)
from penstock.ids import NodeId
from penstock.limits import MIB
from penstock.log.block_format import encode_block_header
from penstock.log.meta.api import MetadataStore
from penstock.log.proxy.block_source import Block, split_blocks
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.recover_segment import add_block
from penstock.log.replication.block_ranges import Range
from penstock.log.replication.manifest import (
    LogManifest,
    Segment,
    SegmentKey,
    decode_log_manifest,
    encode_log_manifest,
)
from penstock.log.replication.node_api import Found, NodeClient, NodeInfo, Nodes
from penstock.log.replication.placement import machine_of
from penstock.log.replication.repair import (
    Copy,
    Repair,
    RepairPlan,
    Replacement,
    plan_repairs,
)
from penstock.log.serving.openmetrics import Gauges

logger = logging.getLogger(__name__)

#: Between two rounds.
ROUND_SECONDS = 5.0
#: How long a round waits for a log that it opens; the opening goes on.
ADOPT_SECONDS = 10.0
#: Manifests that are read in one go; the others one by one, with a pause before each.
MANIFESTS_AT_ONCE = 50
PAUSE_SECONDS = 0.02
#: A node that is missing for so long does not come back: until then it may be restarting.
GONE_SECONDS = 60.0
#: Repairs of one round, and how many at once.
REPAIRS_MAX = 64
REPAIRS_AT_ONCE = 4
#: What repairs may read and write, so that they do not crowd out the logs' own work.
BYTES_PER_SECOND = 32 * MIB
_READ_BYTES = 1 * MIB
#: Listings that are asked for at once, and how many known ones a round asks for again.
_LISTS_AT_ONCE = 32
#: What is told of repairs that are not possible.
_STUCK_MAX = 20
_LISTS_AGAIN = 256


class RollCall:
    """Who is missing, and since when. A node that was away for a moment is not gone."""

    def __init__(self, time: Callable[[], float], *, gone_seconds: float | None = None) -> None:
        self._time = time
        self._gone_seconds = GONE_SECONDS if gone_seconds is None else gone_seconds
        self._alive: Mapping[NodeId, NodeInfo] = {}
        self._machines: set[str] = set()
        self.missing: dict[NodeId, float] = {}
        #: The last that was known of every node.
        self.seen: dict[NodeId, NodeInfo] = {}

    def call(self, alive: Mapping[NodeId, NodeInfo], members: Iterable[NodeId]) -> None:
        """`members`: who should be there, as far as the caller knows."""
        self._alive = alive
        self._machines = {info.name for info in alive.values()}
        self.seen.update(alive)
        for node in alive:
            self.missing.pop(node, None)
        for node in members:
            if node not in alive:
                self.missing.setdefault(node, self._time())

    def is_gone(self, node: NodeId) -> bool:
        if node in self._alive:
            return False
        if machine_of(node) in self._machines:
            return True  # it has come back with another disk
        since = self.missing.get(node)
        return since is not None and self._time() - since >= self._gone_seconds

    def is_leaving(self, node: NodeId) -> bool:
        """It is gone, or somebody wants it empty."""
        return self.is_gone(node) or (node in self._alive and self._alive[node].draining)


@dataclass(slots=True)
class AuditReport:
    """What the last rounds found and did, for people and metrics."""

    rounds: int = 0
    #: Blocks that lack a copy, by log; None before the first round.
    under_replicated: dict[str, int] | None = None
    stuck: tuple[str, ...] = ()
    waiting: int = 0
    repairs: int = 0
    failures: int = 0
    copied_blocks: int = 0
    copied_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "under_replicated": self.under_replicated,
            "stuck": list(self.stuck[:_STUCK_MAX]),
            "stuck_count": len(self.stuck),
            "waiting": self.waiting,
            "repairs": self.repairs,
            "failures": self.failures,
            "copied_blocks": self.copied_blocks,
            "copied_bytes": self.copied_bytes,
        }

    def gauges(self, *, is_auditor: bool) -> Gauges:
        lacking = sum((self.under_replicated or {}).values())
        return {
            "auditor": ("Whether this proxy is the auditor.", int(is_auditor)),
            "under_replicated_blocks": ("Blocks that lack a copy.", lacking),
            "repairs_stuck": ("Repairs that are not possible now.", len(self.stuck)),
            "repairs_waiting": ("Repairs that wait for a later round.", self.waiting),
            "repairs_done": ("Repairs since the start.", self.repairs),
            "repairs_failed": ("Repairs that will be tried again.", self.failures),
            "repaired_bytes": ("Bytes of blocks copied by repairs.", self.copied_bytes),
        }


@dataclass(slots=True)
class _Log:
    """A log as one round knows it."""

    name: str
    manifest: LogManifest
    version: int
    #: As it was stored; a log that was made anew may have the same version.
    data: bytes

    @property
    def sealed(self) -> Iterator[Segment]:
        return (segment for segment in self.manifest.segments if segment.sealed)


#: Which node to ask for which part, and up to which block.
_Wanted = dict[tuple[SegmentKey, NodeId], int]


@dataclass(slots=True)
class _Listings:
    """What nodes said that they hold; a node that has not said so is not in it."""

    known: dict[tuple[SegmentKey, NodeId], tuple[int, list[Range]]] = field(default_factory=dict)
    #: How often somebody said something new.
    changes: int = 0

    def held(self, alive: Mapping[NodeId, NodeInfo]) -> dict[SegmentKey, dict[NodeId, list[Range]]]:
        found: dict[SegmentKey, dict[NodeId, list[Range]]] = {}
        for (key, node), (_, ranges) in self.known.items():
            if node in alive:
                found.setdefault(key, {})[node] = ranges
        return found

    def choose(self, wanted: _Wanted) -> list[tuple[SegmentKey, NodeId, int]]:
        """What to ask now: all that is new, and some of the rest, each in its turn."""
        self.known = {place: found for place, found in self.known.items() if place in wanted}
        new = [
            (*place, end)
            for place, end in wanted.items()
            if place not in self.known or self.known[place][0] != end
        ]
        # Whatever was said last stands last.
        again = [place for place, (end, _) in self.known.items() if wanted[place] == end]
        return new + [(*place, wanted[place]) for place in again[:_LISTS_AGAIN]]

    def take(self, key: SegmentKey, node: NodeId, end: int, ranges: list[Range] | None) -> None:
        former = self.known.pop((key, node), None)
        if ranges is not None:
            self.known[key, node] = (end, ranges)
        self.changes += former != self.known.get((key, node))

    def forget(self, key: SegmentKey, node: NodeId) -> None:
        """What it holds now is another matter."""
        self.changes += self.known.pop((key, node), None) is not None


class Auditor:
    """See the module's docstring. `adopt` opens a log that nobody owns."""

    def __init__(
        self,
        store: Callable[[], MetadataStore],
        nodes: Nodes,
        roll_call: RollCall,
        *,
        proxy: str,
        min_regions: int = 1,
        seed: int = 0,
        adopt: Callable[[str], Awaitable[object]],
        round_seconds: float | None = None,
        bytes_per_second: float = BYTES_PER_SECOND,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._roll_call = roll_call
        self._proxy = proxy
        self._min_regions = min_regions
        self._seed = seed
        self._adopt = adopt
        self._round_seconds = ROUND_SECONDS if round_seconds is None else round_seconds
        self._bytes_per_second = bytes_per_second
        self._loop = asyncio.get_running_loop()
        self._listings = _Listings()
        #: What the last round read and decided; most rounds find nothing new.
        self._logs: dict[str, _Log] = {}
        self._wanted: tuple[object, _Wanted] = (None, {})
        self._planned: tuple[object, RepairPlan | None] = (None, None)
        #: The session in which `/auditor` is ours.
        self._session: MetadataStore | None = None
        #: What stands there, and its version.
        self._told: tuple[bytes, int] = (b"", 0)
        self._free_at = 0.0
        self.report = AuditReport()

    @property
    def is_auditor(self) -> bool:
        return self._session is not None

    async def run(self) -> None:
        """Until it is cancelled. What fails is said and tried again."""
        pause = self._round_seconds
        while True:
            await asyncio.sleep(pause)
            pause, done = self._round_seconds, self.report.repairs
            try:
                if await self._take_office():
                    await self.round()
                    await self._tell()
                    if self.report.repairs > done:
                        pause = 0.0  # there may be more, and what was found is not true any more
            except (PenstockError, OSError) as error:
                logger.warning("the audit was interrupted, trying again cause=%r", error)

    async def _take_office(self) -> bool:
        store = self._store()
        if store is self._session:
            return True
        self._session = None
        data = self._words()
        try:
            self._told = (data, await store.create("/auditor", data, ephemeral=True))
        except (AlreadyExists, Unknown):
            found = await store.get("/auditor")
            if found is None or json.loads(found.data)["id"] != self._proxy:
                return False
            # Of an answer that was lost, or of a former session: `_tell` notices when it ends.
            self._told = (found.data, found.version)
        logger.info("this proxy is the auditor")
        self._session = store
        self.report.under_replicated = None
        return True

    def _words(self) -> bytes:
        return json.dumps({"id": self._proxy, "audit": self.report.as_json()}).encode()

    async def _tell(self) -> None:
        """Let everybody read in the metadata what was found, if that has changed."""
        data = self._words()
        if data != self._told[0] and self._session is not None:
            try:
                self._told = (data, await self._session.set("/auditor", data, self._told[1]))
            except (VersionConflict, NotFound, Unknown):
                # Another took the office, or it is not known: apply for it again.
                self._session = None

    async def round(self) -> RepairPlan:
        """Look at everything once, and do what can be done now."""
        logs = await self._read_logs()
        alive = self._nodes.alive()
        self._roll_call.call(alive, (node for log in logs.values() for node in _members(log)))
        await self._adopt_orphans(logs)
        # Logs may be long: what looks at every segment is done in a thread.
        facts = self._facts(logs, alive)
        await self._list(facts, logs, alive)
        facts = (facts, self._listings.changes)
        known, found_plan = self._planned
        if found_plan is None or known != facts or found_plan.repairs:
            found_plan = await asyncio.to_thread(self._plan, logs, alive)
        plan = found_plan
        self._planned = (facts, plan)
        repairs = [repair for repair in plan.repairs if self._is_possible(repair, logs, alive)]
        found: Counter[str] = Counter()
        for (log, _), missing in plan.under_replicated.items():
            found[log] += missing
        report = self.report
        report.rounds += 1
        report.under_replicated = dict(found)
        if plan.stuck != report.stuck:
            for words in plan.stuck[:_STUCK_MAX]:
                logger.warning("cannot be repaired now: %s", words)
        report.stuck = plan.stuck
        report.waiting = plan.left_over + len(plan.repairs) - len(repairs[:REPAIRS_MAX])
        await self._perform(repairs[:REPAIRS_MAX], logs)
        return plan

    def _facts(self, logs: Mapping[str, _Log], alive: Mapping[NodeId, NodeInfo]) -> object:
        """Equal to those of the last round if nothing has changed."""
        gone = {node for node in self._roll_call.missing if self._roll_call.is_gone(node)}
        return ({name: log.version for name, log in logs.items()}, dict(alive), gone)

    # ---- what there is

    async def _read_logs(self) -> dict[str, _Log]:
        store = self._store()
        try:
            names = await store.children("/logs")
        except NotFound:
            return {}  # no log was made yet; whatever it means, nothing is done
        logs = {}
        for count, name in enumerate(names):
            if count >= MANIFESTS_AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)  # with many logs it is others' turn, too
            try:
                found = await store.get(manifest_path(name))
                if found is None:
                    continue
                known = self._logs.get(name)
                if known is None or known.version != found.version or known.data != found.data:
                    manifest = await asyncio.to_thread(decode_log_manifest, found.data)
                    known = _Log(name, manifest, found.version, found.data)
                logs[name] = known
            except Damaged as error:
                logger.error("a manifest cannot be read, it is left alone log=%s: %s", name, error)
        self._logs = logs
        return logs

    async def _list(
        self, facts: object, logs: Mapping[str, _Log], alive: Mapping[NodeId, NodeInfo]
    ) -> None:
        if self._wanted[0] != facts:
            self._wanted = (facts, await asyncio.to_thread(self._want, logs, alive))
        asked = await asyncio.to_thread(self._listings.choose, self._wanted[1])
        silent: set[NodeId] = set()

        async def ask(key: SegmentKey, node: NodeId, end: int) -> None:
            client = None if node in silent else self._nodes.client(node)
            ranges = None
            if client is not None:
                try:
                    ranges = await client.list_blocks(key, 0, end)
                except PenstockError as error:
                    logger.debug("no listing node=%s cause=%s", node, error)
                    silent.add(node)  # the others of this round would wait as long
            self._listings.take(key, node, end, ranges)

        for at in range(0, len(asked), _LISTS_AT_ONCE):
            await asyncio.gather(*(ask(*one) for one in asked[at : at + _LISTS_AT_ONCE]))

    def _want(self, logs: Mapping[str, _Log], alive: Mapping[NodeId, NodeInfo]) -> _Wanted:
        return {
            (key, node): end
            for log in logs.values()
            for segment in log.sealed
            for key, end in _parts(log.name, segment)
            for node in self._who_may_hold(segment, alive)
        }

    def _who_may_hold(self, segment: Segment, alive: Mapping[NodeId, NodeInfo]) -> list[NodeId]:
        """Its members; and if one leaves, everybody: a copy may have been begun somewhere."""
        members = {node for ensemble in segment.ensembles for node in ensemble.nodes}
        if any(self._roll_call.is_leaving(node) for node in members):
            return sorted(alive)
        return sorted(members & alive.keys())

    # ---- decisions

    def _plan(self, logs: Mapping[str, _Log], alive: Mapping[NodeId, NodeInfo]) -> RepairPlan:
        # Who may only be restarting keeps its place, and is no source.
        roll_call = self._roll_call
        known = {
            node: roll_call.seen[node]
            for log in logs.values()
            for node in _members(log)
            if node not in alive and node in roll_call.seen and not roll_call.is_gone(node)
        }
        return plan_repairs(
            {name: log.manifest for name, log in logs.items()},
            {**known, **alive},
            self._listings.held(alive),
            min_regions=self._min_regions,
            repairs_max=16 * REPAIRS_MAX,
            seed=self._seed,
        )

    def _is_possible(
        self, repair: Repair, logs: Mapping[str, _Log], alive: Mapping[NodeId, NodeInfo]
    ) -> bool:
        """Not now: copy to who is away, or replace somebody while another is only missing."""
        if repair.target not in alive:
            return False
        if not isinstance(repair, Replacement):
            return True
        segment = logs[repair.log].manifest.find(repair.segment)
        assert segment is not None
        members = next(e.nodes for e in segment.ensembles if e.first_block == repair.first_block)
        # Of one that was never seen it is not known in which region it is.
        roll_call = self._roll_call
        return all(n in alive or n in roll_call.seen or roll_call.is_gone(n) for n in members)

    async def _adopt_orphans(self, logs: Mapping[str, _Log]) -> None:
        """Open segments are their owner's business; where there is none, one is needed."""
        alive = self._nodes.alive()
        usable = {info.name for info in alive.values() if not info.draining}
        for log in logs.values():
            members = [
                node
                for segment in log.manifest.open_segments
                for ensemble in segment.ensembles
                for node in ensemble.nodes
            ]
            if not any(map(self._roll_call.is_leaving, members)):
                continue
            size = max(len(s.ensembles[-1].nodes) for s in log.manifest.open_segments)
            if len(usable) < size or await self._store().get(f"/owners/{log.name}") is not None:
                continue
            try:
                # One whose nodes are away must not keep the others from being repaired.
                async with asyncio.timeout(ADOPT_SECONDS):
                    await self._adopt(log.name)
                logger.info("adopted a log that nobody owned log=%s", log.name)
            except NotOwner:
                pass
            except TimeoutError:
                logger.warning("a log is not open yet log=%s", log.name)
            except PenstockError as error:
                logger.warning("cannot open a log log=%s cause=%s", log.name, error)

    # ---- repairs

    async def _perform(self, repairs: list[Repair], logs: Mapping[str, _Log]) -> None:
        free = asyncio.Semaphore(REPAIRS_AT_ONCE)

        async def one(repair: Repair) -> None:
            async with free:
                try:
                    await self._repair(repair, logs[repair.log].manifest)
                except (PenstockError, OSError) as error:
                    self.report.failures += 1
                    logger.warning("a repair failed, will be tried again %s: %r", repair, error)
                finally:
                    for copy in repair.copies:
                        self._listings.forget(copy.key, repair.target)

        async with asyncio.TaskGroup() as group:
            for repair in repairs:
                group.create_task(one(repair))

    async def _repair(self, repair: Repair, manifest: LogManifest) -> None:
        segment = manifest.find(repair.segment)
        assert segment is not None
        for copy in repair.copies:
            await self._copy(copy, repair.target, manifest, segment)
        if isinstance(repair, Replacement):
            await self._replace(repair, manifest, segment)
        self.report.repairs += 1
        logger.info(
            "repaired log=%s segment=%d node=%s in_place_of=%s",
            repair.log,
            repair.segment,
            repair.target,
            repair.old if isinstance(repair, Replacement) else "-",
        )

    async def _copy(
        self, copy: Copy, target: NodeId, manifest: LogManifest, segment: Segment
    ) -> None:
        at = copy.first
        while at < copy.end:
            blocks = await self._read(copy, at, manifest, segment)
            client = self._nodes.client(target)
            if client is None:
                raise Unavailable(f"{target} has gone")
            adds = [
                add_block(client, copy.key, manifest.epoch, (encode_block_header(header), body))
                for header, body in blocks
            ]
            await asyncio.gather(*adds)
            size = sum(block.header.block_bytes for block in blocks)
            self.report.copied_blocks += len(blocks)
            self.report.copied_bytes += size
            at += len(blocks)
            await self._pace(size)

    async def _read(
        self, copy: Copy, first: int, manifest: LogManifest, segment: Segment
    ) -> list[Block]:
        """The next blocks to copy, each checked, from the first source that can show them."""
        problem: PenstockError = Unavailable("it has no source any more")
        for node in copy.sources:
            client = self._nodes.client(node)
            if client is None:
                continue
            try:
                return await _read_checked(client, copy, first, manifest, segment)
            except PenstockError as error:
                problem = error
        raise Unavailable(f"block {first} of {copy.key} cannot be read: {problem}")

    async def _pace(self, size: int) -> None:
        self._free_at = max(self._free_at, self._loop.time()) + size / self._bytes_per_second
        await asyncio.sleep(self._free_at - self._loop.time())

    async def _replace(
        self, replacement: Replacement, planned: LogManifest, segment: Segment
    ) -> None:
        """Put the new node into the manifest, if the segment is still what was copied."""
        store, path = self._store(), manifest_path(replacement.log)
        while True:
            found = await store.get(path)
            if found is None:
                raise Unavailable(f"log {replacement.log} has no manifest now")
            manifest = decode_log_manifest(found.data)
            known = manifest.find(replacement.segment)
            if known is None or manifest.log_id != planned.log_id:
                return  # it was given up meanwhile
            if replace(known, ensembles=segment.ensembles, cold=segment.cold) != segment:
                raise VersionConflict(f"segment {known.id} of {replacement.log} has changed")
            if _stands_in(replacement, known):
                return  # our own change, whose answer was lost
            try:
                data = encode_log_manifest(replacement.apply(manifest))
                await store.set(path, data, found.version)
                return
            except VersionConflict:
                # Somebody was faster. If the place itself was changed, that is for the next round.
                if (await store.get(path)) == found:
                    raise
            except Unknown:
                pass  # read again: it stands there, or it does not


def _members(log: _Log) -> Iterator[NodeId]:
    for segment in log.manifest.segments:
        for ensemble in segment.ensembles:
            yield from ensemble.nodes


def _parts(log: str, segment: Segment) -> Iterator[tuple[SegmentKey, int]]:
    yield SegmentKey(log, segment.id), segment.blocks
    if segment.index_blocks:
        yield SegmentKey(log, segment.id, 1), segment.index_blocks


def _stands_in(replacement: Replacement, segment: Segment) -> bool:
    return any(
        ensemble.first_block == replacement.first_block
        and replacement.target in ensemble.nodes
        and replacement.old not in ensemble.nodes
        for ensemble in segment.ensembles
    )


async def _read_checked(
    client: NodeClient, copy: Copy, first: int, manifest: LogManifest, segment: Segment
) -> list[Block]:
    answer = await client.read(copy.key, first, durable_block=copy.end, bytes_max=_READ_BYTES)
    if answer.found is not Found.HERE:
        raise Unavailable(f"{client.node} does not show block {first} of {copy.key}")
    blocks = split_blocks(answer.data, copy.key, manifest.log_mark, segment, first)
    for header, _ in blocks:
        if header.epoch != segment.epoch:
            raise BadFormat(f"block {header.block} of {copy.key} is of epoch {header.epoch}")
    return blocks[: copy.end - first]
