"""The decisions of a storage node, one test per rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_blocks import DictStore, make_block

from penstock.errors import BadRequest, Fenced, Unavailable
from penstock.ids import BlockId
from penstock.log.block_format import BlockKind
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Fence, Found
from penstock.log.replication.node_core import (
    FenceRecord,
    NodeAnswer,
    NodeCore,
    Ranges,
    ReadPlan,
    ReadRequest,
)

KEY = SegmentKey("main", 0)


class Node:
    """A core, its store, and its life in one line each."""

    def __init__(self) -> None:
        self.store = DictStore()
        self.core = NodeCore(self.store)

    def write(self) -> None:
        write = self.core.take_write()
        assert write is not None
        self.core.written(write)

    def settle(self) -> list[NodeAnswer]:
        """Write all there is, and take the answers."""
        answers = self.core.take_answers()
        while (write := self.core.take_write()) is not None:
            self.core.written(write)
            self.core.check()
            answers += self.core.take_answers()
        return answers

    def outcomes(self) -> list[object]:
        return [answer.outcome for answer in self.settle()]

    def ask(self, *calls: Callable[[], None]) -> list[object]:
        for call in calls:
            call()
        return self.outcomes()

    def finds(self, block: int, *, trusted: bool = True, **read: int) -> Found:
        return self.look(ReadRequest(KEY, block, **read), trusted=trusted).found

    def add(self, block: int, *, key: SegmentKey = KEY, epoch: int = 1, **fields: int) -> None:
        self.core.add(block, key, epoch, make_block(block, segment=key.segment, **fields))

    def look(self, read: ReadRequest, *, trusted: bool = True) -> ReadPlan:
        self.core.read("read", read, trusted=trusted)
        (answer,) = self.settle()
        assert isinstance(answer.outcome, ReadPlan)
        return answer.outcome


@pytest.fixture
def node() -> Node:
    return Node()


# ---- adding


def test_a_block_is_acknowledged_only_after_its_write(node: Node) -> None:
    node.add(0)

    assert node.core.take_answers() == []
    node.write()
    assert node.core.take_answers() == [NodeAnswer(0, None)]


def test_the_next_group_collects_while_one_is_in_flight(node: Node) -> None:
    node.add(0)
    first = node.core.take_write()
    node.add(1)
    node.add(2)

    assert node.core.take_write() is None
    assert first is not None
    node.core.written(first)
    second = node.core.take_write()
    assert second is not None and len(second.records) == 2


def test_a_duplicate_is_acknowledged_once_the_first_is_durable(node: Node) -> None:
    node.add(0)
    node.add(0)

    assert node.core.take_answers() == []
    assert node.settle() == [NodeAnswer(0, None), NodeAnswer(0, None)]
    assert node.ask(lambda: node.add(0)) == [None]
    assert len(node.store.blocks) == 1


def test_another_block_under_the_same_id_is_refused(node: Node) -> None:
    def add_other() -> None:
        node.core.add("other", KEY, 1, make_block(0, b"something else"))

    outcomes = node.ask(lambda: node.add(0), add_other) + node.ask(add_other)

    assert [type(outcome) for outcome in outcomes] == [type(None), BadRequest, BadRequest]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        make_block(0)[:-1],
        make_block(0) + b"x",
        make_block(0)[:-1] + b"?",
        make_block(0, segment=5),
        make_block(0, kind=BlockKind.INDEX),
        make_block(2**63),
        make_block(0, durable_block=2**64 - 1),
    ],
    ids=[
        *("empty", "cut", "longer", "flipped", "other segment", "index block"),
        *("impossible id", "impossible durable block"),
    ],
)
def test_a_block_that_is_not_what_it_should_be_is_refused(node: Node, data: bytes) -> None:
    (outcome,) = node.ask(lambda: node.core.add("bad", KEY, 1, data))

    assert isinstance(outcome, BadRequest)
    assert not node.store.blocks


def test_an_untrusted_caller_adds_and_fences_nothing(node: Node) -> None:
    outcomes = node.ask(
        lambda: node.core.add("add", KEY, 1, make_block(0), trusted=False),
        lambda: node.core.fence("fence", "main", 0, 9, trusted=False),
        lambda: node.add(0),
    )

    assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable, type(None)]


# ---- fencing (DistributedLog III-B)


def test_after_a_fence_no_block_of_an_older_epoch_is_taken(node: Node) -> None:
    node.add(0)
    node.core.fence("fence", "main", 0, 2)
    node.add(1)
    node.add(2, epoch=2)

    outcomes = node.outcomes()

    assert outcomes[0] is None and outcomes[3] is None
    assert outcomes[1] == Fence(BlockId(0), BlockId(1))
    assert isinstance(outcomes[2], Fenced)


def test_a_fence_is_answered_only_after_its_write_also_the_second_time(node: Node) -> None:
    node.core.fence("one", "main", 0, 2)
    node.core.fence("two", "main", 0, 2)

    assert node.core.take_answers() == []
    write = node.core.take_write()
    assert write is not None and write.records == (FenceRecord("main", 0, 2),)
    node.core.written(write)
    assert [answer.cause for answer in node.core.take_answers()] == ["one", "two"]


def test_an_older_recoverer_is_fenced_too(node: Node) -> None:
    outcomes = node.ask(
        lambda: node.core.fence("new", "main", 0, 5),
        lambda: node.core.fence("old", "main", 0, 4),
        lambda: node.core.read("old", ReadRequest(KEY, 0, fence_epoch=4)),
    )

    assert isinstance(outcomes[1], Fenced) and isinstance(outcomes[2], Fenced)


def test_a_fence_holds_for_the_segments_index_and_for_no_other_segment(node: Node) -> None:
    index = SegmentKey("main", 0, 1)
    outcomes = node.ask(
        lambda: node.core.fence("fence", "main", 0, 2),
        lambda: node.core.add("index", index, 1, make_block(0, kind=BlockKind.INDEX)),
        lambda: node.add(0, key=SegmentKey("main", 1)),
        lambda: node.add(0, key=SegmentKey("other", 0)),
    )

    assert isinstance(outcomes[1], Fenced)
    assert outcomes[2:] == [None, None]


def test_a_recovery_read_fences_before_it_is_answered(node: Node) -> None:
    """R02, BookKeeper #2614: otherwise its "absent" would not bind."""
    node.core.read("recovery", ReadRequest(KEY, 0, fence_epoch=2))

    assert node.core.take_answers() == []
    node.add(0)  # the old writer's, on its way since long
    outcomes = node.outcomes()

    assert isinstance(outcomes[1], Fenced)
    assert outcomes[0] == ReadPlan(Found.ABSENT, BlockId(0), KEY)


def test_a_recovery_read_shows_what_was_ordered_before_it(node: Node) -> None:
    node.add(0)
    node.core.read("recovery", ReadRequest(KEY, 0, fence_epoch=2))

    plan = node.settle()[1].outcome

    assert isinstance(plan, ReadPlan) and (plan.found, plan.first, plan.end) == (Found.HERE, 0, 1)


def test_fences_survive_in_the_snapshot(node: Node) -> None:
    node.ask(lambda: node.core.fence("fence", "main", 0, 7))
    again = Node()

    for record in node.core.snapshot():
        again.core.restore(record)

    (outcome,) = again.ask(lambda: again.add(0, epoch=6))
    assert isinstance(outcome, Fenced)


# ---- reading


def test_a_reader_sees_nothing_beyond_the_durable_blocks(node: Node) -> None:
    """R07: the last block is there, and nobody has said that it was acknowledged."""
    node.ask(lambda: node.add(0), lambda: node.add(1, durable_block=1))

    assert node.look(ReadRequest(KEY, 0)) == ReadPlan(
        Found.HERE, BlockId(1), KEY, 0, 1, ReadRequest(KEY, 0).bytes_max
    )
    assert node.finds(1) is Found.LATER
    assert node.finds(1, durable_block=2) is Found.HERE


def test_what_is_not_there_is_absent_only_for_a_caller_that_is_trusted(node: Node) -> None:
    """R05: a node that lost something shows what it has, and denies nothing."""
    node.ask(lambda: node.add(0))

    assert node.finds(3, durable_block=9) is Found.ABSENT
    assert node.finds(3, durable_block=9, trusted=False) is Found.UNKNOWN
    assert node.finds(3, fence_epoch=2, trusted=False) is Found.UNKNOWN
    assert node.finds(0, fence_epoch=2, trusted=False) is Found.HERE
    assert node.ask(lambda: node.add(1)) == [None]  # an untrusted read has fenced nothing


def test_a_lost_block_is_not_denied_and_all_others_are_answered(node: Node) -> None:
    node.ask(lambda: node.add(0), lambda: node.add(1))
    node.core.lost(KEY, 0)

    assert node.finds(0, durable_block=2) is Found.UNKNOWN
    assert node.finds(9, fence_epoch=2) is Found.ABSENT
    assert node.finds(1, durable_block=2) is Found.HERE
    assert node.core.list_blocks(KEY, 0, 10) == [(1, 2)]


def test_blocks_that_the_store_is_unsure_of_are_not_denied_until_they_are_added(
    node: Node,
) -> None:
    node.store.unsure[KEY] = ((0, 3),)

    assert node.ask(lambda: node.add(1)) == [None]
    found = [node.finds(block, durable_block=9) for block in range(4)]
    assert found == [Found.UNKNOWN, Found.HERE, Found.UNKNOWN, Found.ABSENT]


def test_a_lost_block_may_be_added_again(node: Node) -> None:
    node.ask(lambda: node.add(0))
    node.core.lost(KEY, 0)
    del node.store.blocks[KEY, 0]

    assert node.ask(lambda: node.add(0)) == [None]
    assert node.finds(0, durable_block=1) is Found.HERE


def test_a_block_in_flight_is_shown_when_it_is_durable(node: Node) -> None:
    node.add(0)
    node.core.read("read", ReadRequest(KEY, 0, durable_block=1))

    assert node.core.take_answers() == []
    plan = node.settle()[1].outcome
    assert isinstance(plan, ReadPlan) and plan.found is Found.HERE


def test_a_run_ends_at_the_first_block_that_is_elsewhere(node: Node) -> None:
    for block in (0, 1, 3, 4):
        node.add(block, durable_block=block)
    node.settle()

    plan = node.look(ReadRequest(KEY, 0, durable_block=9))

    assert (plan.first, plan.end) == (0, 2)
    assert node.core.list_blocks(KEY, 1, 4) == [(1, 2), (3, 4)]
    assert node.core.list_blocks(KEY, 0, 99) == [(0, 2), (3, 5)]


# ---- waiting


def test_a_waiting_read_is_answered_when_its_block_is_durable(node: Node) -> None:
    node.ask(lambda: node.add(0))
    node.core.read("poll", ReadRequest(KEY, 0, wait_ms=1000), now_ms=5)
    assert node.settle() == []
    assert node.core.due_ms() == 1005

    answers = node.ask(lambda: node.add(1, durable_block=1))

    plan = next(outcome for outcome in answers if isinstance(outcome, ReadPlan))
    assert (plan.found, plan.end, plan.durable_block) == (Found.HERE, 1, 1)
    assert node.core.due_ms() is None


def test_a_waiting_read_is_answered_when_its_time_is_over(node: Node) -> None:
    node.core.read("poll", ReadRequest(KEY, 0, wait_ms=1000), now_ms=5)

    node.core.expire(1004)
    assert node.settle() == []
    node.core.expire(1005)
    (answer,) = node.settle()

    assert isinstance(answer.outcome, ReadPlan) and answer.outcome.found is Found.LATER
    assert node.ask(lambda: node.add(0, durable_block=1)) == [None]


def test_a_part_with_a_waiting_read_stays_open(node: Node) -> None:
    node.core.read("poll", ReadRequest(KEY, 0, wait_ms=10), now_ms=0)
    assert not node.core.close_part(KEY)

    node.core.expire(10)
    node.settle()

    assert node.core.close_part(KEY) and not node.core.is_open(KEY)


def test_a_part_with_a_read_that_waits_for_its_fence_stays_open(node: Node) -> None:
    """The store would have to load it again, and cannot while the answer is due."""
    node.core.read("recovery", ReadRequest(KEY, 99, fence_epoch=5))
    assert not node.core.close_part(KEY)

    (answer,) = node.settle()

    assert isinstance(answer.outcome, ReadPlan) and answer.outcome.found is Found.ABSENT
    assert node.core.close_part(KEY)


# ---- giving up


def test_a_segment_below_the_first_takes_nothing_and_says_nothing(node: Node) -> None:
    """R13, BookKeeper #4462: a write after the deletion must not bring the segment back."""
    node.ask(lambda: node.add(0))
    node.core.read("poll", ReadRequest(KEY, 5, wait_ms=1000), now_ms=0)

    outcomes = node.ask(
        lambda: node.core.trim("trim", "main", 1),
        lambda: node.add(1, epoch=99),
        lambda: node.core.fence("fence", "main", 0, 99),
        lambda: node.core.read("recovery", ReadRequest(KEY, 0, fence_epoch=99)),
        lambda: node.core.read("read", ReadRequest(KEY, 0, durable_block=9)),
    )

    gone = ReadPlan(Found.UNKNOWN, BlockId(0), KEY)
    assert outcomes.count(gone) == 2  # the poll and the read
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 3
    assert not node.store.blocks
    assert node.core.list_blocks(KEY, 0, 9) == []


def test_blocks_are_removed_only_after_the_tombstone_is_durable(node: Node) -> None:
    node.ask(lambda: node.add(0))
    node.core.trim("trim", "main", 1)

    assert node.store.blocks
    node.write()
    assert not node.store.blocks


def test_a_tombstone_never_goes_back_and_touches_no_other_log(node: Node) -> None:
    other = SegmentKey("other", 0)
    node.ask(lambda: node.add(0, key=other), lambda: node.core.trim("one", "main", 3))

    assert node.ask(lambda: node.core.trim("two", "main", 2)) == [None]

    assert node.core.first_segment("main") == 3
    assert (other, 0) in node.store.blocks


def test_a_block_in_flight_when_its_segment_is_given_up_does_not_come_back(node: Node) -> None:
    node.add(0)
    write = node.core.take_write()
    node.core.trim("trim", "main", 1)
    assert write is not None

    node.core.written(write)
    node.core.check()
    node.settle()

    assert not node.store.blocks


# ---- failing


def test_after_a_failed_write_nobody_is_told_anything(node: Node) -> None:
    """R48."""
    node.add(0)
    node.core.take_write()
    node.core.write_failed()
    node.add(1)
    node.core.read("read", ReadRequest(KEY, 7, durable_block=9))

    assert node.core.take_answers() == []
    assert node.core.take_write() is None


def test_a_large_backlog_is_written_in_pieces_and_answered_in_order(node: Node) -> None:
    core = NodeCore(node.store, write_bytes_max=1000)
    for block in range(10):
        core.add(block, KEY, 1, make_block(block))
    causes: list[object] = []
    sizes: list[int] = []

    while (write := core.take_write()) is not None:
        core.written(write)
        core.check()
        sizes.append(len(write.records))
        causes += [answer.cause for answer in core.take_answers()]

    assert causes == list(range(10))
    assert len(sizes) > 1 and sum(sizes) == 10


# ---- ranges


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_ranges_are_a_set_of_numbers(changes: list[tuple[bool, int]]) -> None:
    ranges, wanted = Ranges(), set[int]()
    for is_added, block in changes:
        (ranges.add if is_added else ranges.remove)(block)
        (wanted.add if is_added else wanted.discard)(block)

    assert {block for first, end in ranges for block in range(first, end)} == wanted
    for block in range(22):
        end = ranges.end_of(block)
        assert set(range(block, end)) <= wanted and end not in wanted
    for first in range(0, 22, 3):
        inside = ranges.within(first, first + 5)
        found = {block for start, end in inside for block in range(start, end)}
        assert found == wanted & set(range(first, first + 5))
    ends = -1
    for first, end in ranges:
        assert ends < first < end
        ends = end
