"""Small-scope search: every order of messages between one writer, two recoverers and three nodes.

The real SegmentWriter, SegmentRecovery and NodeCore, two blocks, Qw 3 and Qa 2, and one message of
the recoverers that may get lost. States that are equal are visited once. What must hold at every
end: a block that was acknowledged lies below every end that was decided (I6), and once somebody has
sealed the segment nothing more of it is acknowledged (I5). With recovery reads that do not fence,
the search finds BookKeeper's bug #2614 again (R02): so it can find something.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from penstock.errors import Fenced, PenstockError
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    encode_block_header,
)
from penstock.log.replication.manifest import Ensemble, Segment, SegmentKey
from penstock.log.replication.node_api import Blocks, Fence, Found
from penstock.log.replication.node_core import (
    AddRecord,
    NodeCore,
    ReadPlan,
    ReadRequest,
    StoredPart,
)
from penstock.log.replication.segment_recovery import (
    AddBack,
    Effect,
    FenceNode,
    ReadBlock,
    SegmentRecovery,
)
from penstock.log.replication.segment_writer import SegmentWriter

NODES = tuple(NodeId(f"n{number}:c") for number in range(3))
MARK = 7
KEY = SegmentKey("main", 0)
SEGMENT = Segment(SegmentId(0), Epoch(1), Lsn(0), (Ensemble(BlockId(0), NODES),), 3, 2)
#: Bounds of the search in every run.
SECONDS_MAX = 25.0
STATES_MAX = 60_000


class MemoryStore:
    """Blocks of one node, durable at once."""

    def __init__(self) -> None:
        self.blocks: dict[int, AddRecord] = {}

    def load(self, key: SegmentKey) -> StoredPart:
        return StoredPart()

    def put(self, record: AddRecord) -> None:
        self.blocks[record.block] = record

    def mark(self, key: SegmentKey, block: int) -> int:
        return self.blocks[block].mark

    def drop(self, log: str, first_segment: int) -> None:
        raise AssertionError("nothing is trimmed here")


def block(number: int, durable: int) -> bytes:
    body = b"block %d" % number
    header = BlockHeader(
        BLOCK_HEADER_BYTES + len(body),
        crc32c(body),
        BlockKind.DATA,
        0,
        1,
        MARK,
        SegmentId(0),
        BlockId(number),
        Epoch(1),
        BlockId(durable),
        0,
        Lsn(number),
        Lsn(number + 1),
        0,
        BlockId(0),
    )
    return encode_block_header(header) + body


#: A step: something that can happen next.
#:   ("write",)               the writer sends its next block
#:   ("add", node)            the node gets the writer's oldest add
#:   ("added", node)          the writer gets the node's oldest answer
#:   ("start", r)             recoverer r begins
#:   ("ask", r, node)         the node gets the recoverer's oldest request, and answers
#:   ("answer", r, node)      the recoverer gets the oldest answer
#:   ("lose", r, node)        the recoverer's oldest request is lost, and it hears of nothing
Step = tuple[str, ...] | tuple[str, int] | tuple[str, int, int]


@dataclass
class Cluster:
    """One state of the small world, reached by a sequence of steps."""

    blocks: int = 2
    fencing_reads: bool = True
    losses: int = 1
    cores: list[NodeCore] = field(default_factory=list)
    stores: list[MemoryStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = [MemoryStore() for _ in NODES]
        self.cores = [NodeCore(store) for store in self.stores]
        self.writer = SegmentWriter(SEGMENT)
        self.acked_max = 0
        self.adds: list[list[bytes]] = [[] for _ in NODES]
        self.acks: list[list[tuple[int, PenstockError | None]]] = [[] for _ in NODES]
        self.recoveries = [SegmentRecovery(SEGMENT, Epoch(2 + r), MARK) for r in range(2)]
        self.started = [False, False]
        self.asks: list[list[list[Effect]]] = [[[] for _ in NODES] for _ in range(2)]
        self.answers: list[list[list[tuple[Effect, object]]]] = [
            [[] for _ in NODES] for _ in range(2)
        ]
        #: What the first to decide has sealed.
        self.sealed: int | None = None
        self.problem = ""

    # ---- what can happen

    def steps(self) -> Iterator[Step]:
        if not self.writer.fenced and self.writer.next_block < self.blocks:
            yield ("write",)
        for node in range(3):
            if self.adds[node]:
                yield ("add", node)
            if self.acks[node]:
                yield ("added", node)
        for r in range(2):
            if not self.started[r]:
                # The second comes after the first, whose epoch it has seen.
                if r == 0 or self.started[0]:
                    yield ("start", r)
                continue
            for node in range(3):
                if self.asks[r][node]:
                    yield ("ask", r, node)
                    if self.losses:
                        yield ("lose", r, node)
                if self.answers[r][node]:
                    yield ("answer", r, node)

    def do(self, step: Step) -> None:
        match step:
            case ("write",):
                number = int(self.writer.next_block)
                data = block(number, int(self.writer.durable_block))
                for send in self.writer.add((data,)):
                    self.adds[NODES.index(send.node)].append(data)
            case ("add", int(node)):
                number, data = len(self.acks), self.adds[node].pop(0)
                self.cores[node].add("", KEY, 1, data)
                number = int.from_bytes(data[48:56], "little")
                outcome = self._answer(node)
                assert outcome is None or isinstance(outcome, PenstockError)
                self.acks[node].append((number, outcome))
            case ("added", int(node)):
                number, error = self.acks[node].pop(0)
                self._added(node, number, error)
            case ("start", int(r)):
                self.started[r] = True
                self._ask(r, self.recoveries[r].start())
            case ("ask", int(r), int(node)):
                effect = self.asks[r][node].pop(0)
                self.answers[r][node].append((effect, self._serve(node, effect, r)))
            case ("lose", int(r), int(node)):
                self.asks[r][node].pop(0)
                self.losses -= 1
            case ("answer", int(r), int(node)):
                self._heard(r, *self.answers[r][node].pop(0))

    def _answer(self, node: int) -> object:
        """Write, fsync, answer: the node's disk is quick here."""
        core = self.cores[node]
        while (write := core.take_write()) is not None:
            core.written(write)
        (answer,) = core.take_answers()
        return answer.outcome

    def _added(self, node: int, number: int, error: PenstockError | None) -> None:
        if isinstance(error, Fenced):
            self.writer.refused()
            return
        self.writer.added(NODES[node], number)
        if self.writer.durable_block > self.acked_max:
            self.acked_max = int(self.writer.durable_block)
            if self.sealed is not None and self.acked_max > self.sealed:
                self.problem = f"block {self.acked_max - 1} acknowledged, sealed at {self.sealed}"

    def _serve(self, node: int, effect: Effect, r: int) -> object:
        core, epoch = self.cores[node], 2 + r
        match effect:
            case FenceNode():
                core.fence("", "main", 0, epoch)
                return self._answer(node)
            case AddBack():
                core.add("", KEY, epoch, effect.data)
                return self._answer(node)
            case ReadBlock():
                # The mutant reads without a fence, beyond what is durable all the same.
                fence = epoch if self.fencing_reads else 0
                core.read("", ReadRequest(KEY, effect.block, 1 << 30, fence_epoch=fence))
                plan = self._answer(node)
                if not isinstance(plan, ReadPlan):
                    return plan
                found = self.stores[node].blocks.get(effect.block)
                data = b"" if found is None else found.data
                return Blocks(plan.found, plan.durable_block, data)

    def _heard(self, r: int, effect: Effect, answer: object) -> None:
        recovery = self.recoveries[r]
        if recovery.end is not None or recovery.lost:
            return
        if isinstance(answer, Fenced):
            recovery.refused()
            return
        match effect:
            case FenceNode():
                assert isinstance(answer, Fence)
                following = recovery.fenced(effect.node, answer)
            case ReadBlock():
                assert isinstance(answer, Blocks)
                following = recovery.read(effect.node, effect.block, answer)
            case AddBack():
                following = recovery.added(effect.node, effect.block)
        self._ask(r, following)
        if recovery.end is not None:
            if recovery.end < self.acked_max:
                self.problem = f"sealed at {recovery.end}, {self.acked_max} were acknowledged"
            # The manifest's version lets one of them seal: the newer epoch refuses the older.
            if self.sealed is None and (r == 1 or not self.started[1]):
                self.sealed = int(recovery.end)

    def _ask(self, r: int, effects: list[Effect]) -> None:
        for effect in effects:
            self.asks[r][NODES.index(effect.node)].append(effect)

    # ---- states that are equal

    def key(self) -> tuple[object, ...]:
        writer = self.writer
        pending = tuple(tuple(sorted(p.acks)) for p in writer._pending)
        nodes = tuple(
            (tuple(sorted(store.blocks)), core._fences.get(("main", 0), 0), _lac(core))
            for store, core in zip(self.stores, self.cores, strict=True)
        )
        recoveries = tuple(
            (
                self.started[r],
                recovery._block,
                recovery.durable_block,
                tuple(sorted(recovery._absent)),
                tuple(sorted(recovery._added)),
                tuple(recovery._fenced.silent),
                recovery._data is not None,
                recovery.end,
                recovery.lost,
            )
            for r, recovery in enumerate(self.recoveries)
        )
        ways = (
            tuple(tuple(map(_lac_of, adds)) for adds in self.adds),
            tuple(tuple((n, e is None) for n, e in acks) for acks in self.acks),
            tuple(tuple(tuple(map(_name, q)) for q in asks) for asks in self.asks),
            tuple(
                tuple(tuple((_name(e), _told(a)) for e, a in q) for q in answers)
                for answers in self.answers
            ),
        )
        head = (writer.next_block, writer.durable_block, writer.fenced, pending)
        return head, nodes, recoveries, ways, self.losses, self.sealed, self.acked_max


def _lac(core: NodeCore) -> int:
    part = core._parts.get(KEY)
    return 0 if part is None else part.durable_block


def _lac_of(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[48:56], "little"), int.from_bytes(data[64:72], "little")


def _name(effect: Effect) -> tuple[str, int]:
    return type(effect).__name__, -1 if isinstance(effect, FenceNode) else int(effect.block)


def _told(answer: object) -> object:
    match answer:
        case Fence():
            return ("fence", answer.durable_block)
        case Blocks():
            return ("blocks", answer.found is Found.HERE, answer.found, answer.durable_block)
        case _:
            return type(answer).__name__


@dataclass
class Search:
    """Depth first over all steps; a state is reached by playing its steps again."""

    fencing_reads: bool = True
    losses: int = 1
    states_max: int = STATES_MAX
    seconds_max: float = SECONDS_MAX
    states: int = 0
    sealed: set[int] = field(default_factory=set)
    found: tuple[Step, ...] | None = None
    problem: str = ""
    is_complete: bool = False

    def run(self) -> Search:
        deadline = time.monotonic() + self.seconds_max
        seen: set[int] = set()
        stack: list[tuple[Step, ...]] = [()]
        while stack:
            path = stack.pop()
            cluster = self._play(path)
            if cluster.problem:
                self.found, self.problem = path, cluster.problem
                return self
            key = hash(cluster.key())
            if key in seen:
                continue
            seen.add(key)
            self.states = len(seen)
            if cluster.sealed is not None:
                self.sealed.add(cluster.sealed)
            if self.states >= self.states_max or time.monotonic() > deadline:
                return self
            stack += [(*path, step) for step in reversed(list(cluster.steps()))]
        self.is_complete = True
        return self

    def _play(self, path: tuple[Step, ...]) -> Cluster:
        cluster = Cluster(fencing_reads=self.fencing_reads, losses=self.losses)
        for step in path:
            cluster.do(step)
            if cluster.problem:
                break
        return cluster


def test_no_order_of_messages_seals_below_what_was_acknowledged() -> None:
    search = Search().run()

    print(f"{search.states} states, complete: {search.is_complete}, ends {search.sealed}")
    assert search.found is None, f"{search.problem}: {search.found}"
