"""Small-scope search: every order of messages between one writer, two recoverers and three nodes.

The real SegmentWriter, SegmentRecovery and NodeCore, two blocks, Qw 3 and Qa 2, and one message of
the recoverers that may get lost. Equal states are visited once. An answer arrives when it is given:
that a message waits is a request that waits. A refusal never reaches the writer, at the worst.
What must hold: a block that was acknowledged lies below every end that was decided (I6), and what
is acknowledged after the segment was sealed lies below that end (I5). With recovery reads that do
not fence, the search finds BookKeeper's bug #2614 again (R02): so it can find something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from crc32c import crc32c

from penstock.errors import Fenced, PenstockError
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    decode_block_header,
    encode_block_header,
)
from penstock.log.replication import segment_recovery
from penstock.log.replication.manifest import Ensemble, Segment, SegmentKey
from penstock.log.replication.node_api import Blocks, Fence
from penstock.log.replication.node_core import (
    AddRecord,
    NodeCore,
    Ranges,
    ReadPlan,
    ReadRequest,
    StoredPart,
)
from penstock.log.replication.quorum import Coverage
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
#: States of the larger scope that every run visits; a long run visits as many as it has time for.
STATES_MAX = 15_000
SOAK_STATES_MAX = 3_000_000


class MemoryStore:
    """Blocks of one node, durable at once."""

    def __init__(self, blocks: Mapping[int, AddRecord] | None = None) -> None:
        self.blocks: dict[int, AddRecord] = dict(blocks or {})

    def load(self, key: SegmentKey) -> StoredPart:
        return StoredPart()

    def put(self, record: AddRecord) -> None:
        self.blocks[record.block] = record

    def mark(self, key: SegmentKey, block: int) -> int:
        return self.blocks[block].mark

    def drop(self, log: str, first_segment: int) -> None:
        self.blocks.clear()


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
#:   ("add", node)            the node gets the writer's oldest add, and answers
#:   ("start", r)             recoverer r begins; the second has the newer epoch
#:   ("ask", r, node)         the node gets the recoverer's oldest request, and answers
#:   ("lose", r, node)        the recoverer's oldest request is lost, and it hears of nothing
Step = tuple[str | int, ...]


class Cluster:
    """One state of the small world."""

    def __init__(self, *, blocks: int, recoverers: int, fencing_reads: bool, losses: int) -> None:
        self.blocks = blocks
        self.fencing_reads = fencing_reads
        self.losses = losses
        self.stores = [MemoryStore() for _ in NODES]
        self.cores = [NodeCore(store) for store in self.stores]
        self.writer = SegmentWriter(SEGMENT)
        self.adds: list[tuple[bytes, ...]] = [() for _ in NODES]
        self.recoveries = [SegmentRecovery(SEGMENT, Epoch(2 + r), MARK) for r in range(recoverers)]
        self.started = [False] * recoverers
        #: By recoverer and node, oldest first.
        self.asks: list[list[tuple[Effect, ...]]] = [[() for _ in NODES] for _ in range(recoverers)]
        #: What was sealed; the manifest's version lets only the newest epoch do it.
        self.sealed: int | None = None
        self.problem = ""

    def clone(self) -> Cluster:
        """The same state; what a step changes is copied by the step."""
        made = object.__new__(Cluster)
        made.__dict__ = dict(self.__dict__)
        made.stores, made.cores = list(self.stores), list(self.cores)
        made.recoveries, made.started = list(self.recoveries), list(self.started)
        made.adds, made.asks = list(self.adds), [list(asks) for asks in self.asks]
        return made

    def _own(self, node: int) -> NodeCore:
        """The core of a node, to be changed."""
        store = self.stores[node] = MemoryStore(self.stores[node].blocks)
        core = self.cores[node] = _clone_core(self.cores[node], store)
        return core

    # ---- what can happen

    def steps(self) -> Iterator[Step]:
        if self.writer.next_block < self.blocks:
            yield ("write",)
        for node in range(3):
            if self.adds[node]:
                yield "add", node
        for r, started in enumerate(self.started):
            if not started:
                if r == 0 or self.started[r - 1]:
                    yield "start", r
                continue
            for node in range(3):
                if self.asks[r][node]:
                    yield "ask", r, node
                    if self.losses and isinstance(self.asks[r][node][0], FenceNode):
                        yield "lose", r, node

    def do(self, step: Step) -> None:
        match step:
            case ("write",):
                self.writer = _clone_writer(self.writer)
                data = block(int(self.writer.next_block), int(self.writer.durable_block))
                for send in self.writer.add((data,)):
                    node = NODES.index(send.node)
                    self.adds[node] = (*self.adds[node], data)
            case ("add", int(node)):
                data, *rest = self.adds[node]
                self.adds[node] = tuple(rest)
                self._add(node, data)
            case ("start", int(r)):
                self.started[r] = True
                self.recoveries[r] = _clone_recovery(self.recoveries[r])
                self._ask(r, self.recoveries[r].start())
            case ("ask", int(r), int(node)):
                effect, *left = self.asks[r][node]
                self.asks[r][node] = tuple(left)
                self._heard(r, effect, self._serve(node, effect, r))
            case ("lose", int(r), int(node)):
                self.asks[r][node] = self.asks[r][node][1:]
                self.losses -= 1

    def _answer(self, node: int) -> object:
        """Write, fsync, answer: the node's disk is quick here."""
        core = self.cores[node]
        while (write := core.take_write()) is not None:
            core.written(write)
        (answer,) = core.take_answers()
        return answer.outcome

    def _add(self, node: int, data: bytes) -> None:
        self._own(node).add("", KEY, 1, data)
        error = self._answer(node)
        if error is not None:
            assert isinstance(error, Fenced)
            return  # the writer hears of it too late, or never
        self.writer = _clone_writer(self.writer)
        self.writer.added(NODES[node], decode_block_header(data).block)
        acked = int(self.writer.durable_block)
        if self.sealed is not None and acked > self.sealed:
            self.problem = f"block {acked - 1} is acknowledged, but the end is {self.sealed}"

    def _serve(self, node: int, effect: Effect, r: int) -> object:
        core, epoch = self._own(node), 2 + r
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
                return Blocks(plan.found, plan.durable_block, b"" if found is None else found.data)

    def _heard(self, r: int, effect: Effect, answer: object) -> None:
        recovery = self.recoveries[r]
        if recovery.end is not None or recovery.lost:
            return
        recovery = self.recoveries[r] = _clone_recovery(recovery)
        if isinstance(answer, PenstockError):
            recovery.refused()
            return
        following: list[Effect] = []
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
        if recovery.end is None:
            return
        if recovery.end < self.writer.durable_block:
            acked = self.writer.durable_block
            self.problem = f"the end is {recovery.end}, but {acked} blocks were acknowledged"
        if not any(self.started[r + 1 :]):
            self.sealed = int(recovery.end)

    def _ask(self, r: int, effects: list[Effect]) -> None:
        for effect in effects:
            node = NODES.index(effect.node)
            self.asks[r][node] = (*self.asks[r][node], effect)

    # ---- states that are equal

    def key(self) -> tuple[object, ...]:
        """Every block goes to all three nodes: which of them is which makes no difference."""
        writer = self.writer
        recoveries = tuple(
            (
                self.started[r],
                recovery._block,
                recovery.durable_block,
                recovery._data is not None,
                recovery.end,
                recovery.lost,
            )
            for r, recovery in enumerate(self.recoveries)
        )
        nodes = sorted(self._key_of(place) for place in range(3))
        state = (writer.next_block, writer.durable_block, self.losses, self.sealed)
        return state, recoveries, *nodes

    def _key_of(self, place: int) -> tuple[object, ...]:
        node, core = NODES[place], self.cores[place]
        part = core._parts.get(KEY)
        return (
            tuple(sorted(self.stores[place].blocks)),
            core._fences.get(("main", 0), 0),
            0 if part is None else part.durable_block,
            self.adds[place],
            tuple(tuple(map(_name, asks[place])) for asks in self.asks),
            tuple(node in pending.acks for pending in self.writer._pending),
            tuple(
                (node in r._absent, node in r._added, node in r._fenced._answered)
                for r in self.recoveries
            ),
        )


def _clone_core(core: NodeCore, store: MemoryStore) -> NodeCore:
    made = object.__new__(NodeCore)
    made.__dict__ = dict(core.__dict__)
    made._store = store
    made._fences = dict(core._fences)
    made._answers, made._ready, made._stirred = deque(), [], {}
    made._waiting, made._deadlines = deque(), []
    made._parts = {
        key: replace(part, durable=Ranges(tuple(part.durable)), pending={}, waiting=[])
        for key, part in core._parts.items()
    }
    return made


def _clone_writer(writer: SegmentWriter) -> SegmentWriter:
    made = object.__new__(SegmentWriter)
    made.__dict__ = dict(writer.__dict__)
    made._pending = deque(replace(p, acks=set(p.acks)) for p in writer._pending)
    return made


def _clone_recovery(recovery: SegmentRecovery) -> SegmentRecovery:
    made = object.__new__(SegmentRecovery)
    made.__dict__ = dict(recovery.__dict__)
    made._absent, made._added = set(recovery._absent), set(recovery._added)
    made._again = list(recovery._again)
    made._fenced = object.__new__(Coverage)
    made._fenced.__dict__ = dict(recovery._fenced.__dict__)
    made._fenced._answered = set(recovery._fenced._answered)
    made._fenced._lacking = list(recovery._fenced._lacking)
    return made


def _name(effect: Effect) -> tuple[str, int]:
    return type(effect).__name__, -1 if isinstance(effect, FenceNode) else int(effect.block)


@dataclass
class Search:
    """Depth first over all steps."""

    blocks: int = 2
    recoverers: int = 1
    fencing_reads: bool = True
    losses: int = 1
    states_max: int = SOAK_STATES_MAX
    states: int = 0
    sealed: set[int] = field(default_factory=set)
    found: tuple[Step, ...] | None = None
    problem: str = ""
    is_complete: bool = False

    def run(self) -> Search:
        start = Cluster(
            blocks=self.blocks,
            recoverers=self.recoverers,
            fencing_reads=self.fencing_reads,
            losses=self.losses,
        )
        seen = {start.key()}
        stack: list[tuple[Cluster, tuple[Step, ...]]] = [(start, ())]
        while stack:
            cluster, path = stack.pop()
            for step in cluster.steps():
                following = cluster.clone()
                following.do(step)
                if following.problem:
                    self.found, self.problem = (*path, step), following.problem
                    return self
                key = following.key()
                if key in seen:
                    continue
                seen.add(key)
                if following.sealed is not None:
                    self.sealed.add(following.sealed)
                stack.append((following, (*path, step)))
            self.states = len(seen)
            if self.states >= self.states_max:
                return self
        self.is_complete = True
        return self


def test_one_recoverer_never_seals_below_what_was_acknowledged() -> None:
    """All orders: two blocks, one recoverer, one lost fence."""
    search = Search().run()

    assert search.found is None, f"{search.problem}: {search.found}"
    assert search.is_complete
    assert search.sealed == {0, 1, 2}


def test_two_recoverers_never_seal_below_what_was_acknowledged() -> None:
    """As many orders as fit: two blocks, two recoverers, one lost fence."""
    search = Search(recoverers=2, states_max=STATES_MAX).run()

    assert search.found is None, f"{search.problem}: {search.found}"
    assert search.states >= STATES_MAX
    assert search.sealed == {0, 1, 2}


def test_without_fencing_reads_the_search_finds_bookkeeper_2614() -> None:
    search = Search(fencing_reads=False).run()

    assert search.found is not None
    assert "is acknowledged, but the end is" in search.problem


def test_one_no_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_recovery, "refusals_enough", lambda write, ack: write - ack)

    assert Search().run().found is not None


def test_a_node_that_does_not_compare_epochs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeCore, "_check_writable", lambda *arguments: None)

    assert Search().run().found is not None


def test_a_lost_fence_is_what_bookkeeper_2614_needs() -> None:
    search = Search(fencing_reads=False, losses=0, blocks=1).run()

    assert search.is_complete


@pytest.mark.soak
def test_two_recoverers_in_every_order() -> None:
    search = Search(recoverers=2, blocks=1).run()

    assert search.found is None, f"{search.problem}: {search.found}"
