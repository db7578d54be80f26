"""Known subtle bugs of stream processors as short schedules, one or two per pin (R21 to R45).

Each docstring tells how the bug happened elsewhere, and what stands against it here. All but the
last lines of a test are the schedule; `bench.finish()` then lets the query run to its end under new
instances and asks every law, the comparison with a single thread among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from simulation.pipeline.bench import Bench, Instance
from simulation.pipeline.queries import DELAY_MS
from simulation.pipeline.story import contents_of

from penstock.errors import StaleInstance, Trimmed
from penstock.ids import Lsn
from penstock.log.client import packing
from penstock.log.core import producers as log_producers
from penstock.log.records import Kind
from penstock.ops.api import START_MS
from penstock.protocol.markers import Range
from penstock.protocol.names import TaskId, keyed_tag, node_tag
from penstock.runtime import checkpoints
from penstock.runtime.control import Assign, Hello
from penstock.runtime.coordinator_core import Announce, Claim, CoordinatorCore
from penstock.runtime.registry import RegisteredQuery, describe_change
from penstock.runtime.trim_rule import needed_from

ROWS = tuple((key, 1000 + key) for key in range(9))


@pytest.fixture(autouse=True)
def benches() -> Iterator[None]:
    """What the benches of a test left is let go."""
    yield
    Bench.close_all()


@pytest.fixture
def bench() -> Bench:
    """The count query: stage 0 scans, stage 1 counts; two tasks each."""
    return Bench()


@pytest.fixture
def tiny_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two entries are too much for a group: everything is flushed early."""
    monkeypatch.setattr(packing, "GROUP_ENTRIES", 1)


@pytest.fixture
def eager_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change is worth a checkpoint."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)


def feed(bench: Bench, entries: int = 4) -> None:
    for _ in range(entries):
        bench.put("bids", *ROWS)


def run(bench: Bench, stage: int) -> list[Instance]:
    """New instances of all tasks of a stage; each has taken in and committed what there is."""
    found = []
    for index in range(bench.spec.tasks[stage]):
        instance = bench.start(bench.task(stage, index))
        instance.read()
        instance.commit()
        instance.commit()  # names the checkpoint, if there is one
        found.append(instance)
    return found


# ---- markers


def test_r21_a_marker_whose_ack_was_lost_is_found_by_the_next_instance(bench: Bench) -> None:
    """The marker is in the log, its ack is lost, the task restarts and repeats the commit.

    Here the next instance reads the task's last marker after its claim, goes on behind it, and a
    retry of the old request is told what became of it; nothing is appended a second time.
    """
    first = bench.start(bench.task(0, 0))
    feed(bench)
    first.read()
    request = first.body(first.capture().cut().group([]))
    done = bench.order(request)  # and the answer gets lost

    second = bench.start(bench.task(0, 0))
    tail = bench.log.tail
    assert second.core.position == bench.markers(second.task)[0].position > 0
    assert bench.order(request) == replace(done, duplicate=True)
    assert bench.log.tail == tail
    assert second.read() == []
    bench.finish()


def test_r22_a_marker_in_flight_at_takeover_is_refused(bench: Bench) -> None:
    """The zombie's marker passed its check and is delayed; the new instance reads the tail and
    starts; the marker lands: one input is committed twice (KIP-447).

    Here the check is made where the order is made, against a claim that is ordered before the new
    instance reads the last marker.
    """
    feed(bench)
    zombie = bench.start(bench.task(0, 0))
    zombie.read()
    late = zombie.body(zombie.capture().cut().group([]))

    heir = bench.start(bench.task(0, 0))
    heir.read()
    with pytest.raises(StaleInstance):
        bench.order(late)
    assert heir.commit() is not None
    with pytest.raises(StaleInstance):
        bench.order(late)
    assert [marker.number for marker in bench.markers(heir.task)] == [0]
    bench.finish()


def test_r22_a_marker_ordered_before_the_claim_is_seen_by_the_heir(bench: Bench) -> None:
    """The other side of the race: the claim is answered only once all before it is durable."""
    feed(bench)
    zombie = bench.start(bench.task(0, 0))
    zombie.read()
    instance, claim = bench.claim_body(zombie.task.producer)
    marker = bench.send(zombie.body(zombie.capture().cut().group([])))
    bench.settle(bench.send(claim))

    heir = Instance(bench, zombie.task, instance)
    heir.resume()

    assert marker.done()
    assert heir.core.position == bench.markers(heir.task)[0].position > 0
    bench.finish()


def test_r23_a_zombies_output_inside_a_valid_range_does_not_count(
    bench: Bench, tiny_groups: None
) -> None:
    """Output of instance 1 has an LSN within the range that instance 2's marker commits.

    Here a marker names whole groups of its own instance, by what their acks said.
    """
    feed(bench)
    zombie = bench.start(bench.task(0, 0))
    zombie.read()
    commit = zombie.capture()
    assert len(commit.cut().ahead) > 1
    early = bench.order(zombie.body(commit.cut().ahead[0]))
    late = zombie.body(commit.cut().ahead[1])

    heir = bench.start(bench.task(0, 0))
    heir.read()
    ranges = heir.flush(again := heir.capture())
    with pytest.raises(StaleInstance):
        bench.order(late)
    bench.order(heir.body(again.cut().group(ranges)))

    named = [lsn for one in ranges for lsn in range(one.first_lsn, one.end)]
    assert early.first_lsn not in named
    assert {bench.log.entries[lsn].instance for lsn in named} == {heir.instance}
    assert bench.log.entries[early.first_lsn].kind is Kind.STAGED
    bench.finish()


def test_r24_what_lies_between_a_flush_and_its_marker_is_not_committed_with_it(
    bench: Bench, tiny_groups: None
) -> None:
    """A range "up to the marker" takes in outputs of the next epoch, or of somebody else.

    Here ranges are explicit. Two tasks flush in turns, one commits: the other's rows do not count.
    """
    feed(bench)
    one, other = bench.start(bench.task(0, 0)), bench.start(bench.task(0, 1))
    one.read()
    other.read()
    mine, theirs = one.capture(), other.capture()
    ranges: list[Range] = []
    for ours, foreign in zip(mine.cut().ahead, theirs.cut().ahead, strict=False):
        done = bench.order(one.body(ours))
        ranges.append(Range(done.first_lsn, done.count))
        bench.order(other.body(foreign))
    for rest in mine.cut().ahead[len(ranges) :]:
        done = bench.order(one.body(rest))
        ranges.append(Range(done.first_lsn, done.count))
    bench.order(one.body(mine.cut().group(ranges)))

    (marker,) = bench.markers(one.task)
    reader = bench.start(bench.task(1, 0))
    reader.read()
    second = bench.start(bench.task(1, 1))
    second.read()
    assert reader.core.stats.rows_in + second.core.stats.rows_in == marker.rows_out
    bench.finish()


@pytest.mark.parametrize("remembered", [1, 32])
def test_r25_a_late_copy_of_a_commit_does_not_hit_the_next_one(
    remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed append or commit of epoch n arrives in epoch n + 1 (KIP-890).

    Here every request carries instance and seq: a copy is answered with the first outcome, however
    long ago that was, and a copy of an older instance's with a refusal or its first outcome.
    """
    monkeypatch.setattr(log_producers, "PRODUCER_RECENT_GROUPS", remembered)
    bench = Bench()
    feed(bench, 2)
    instance = bench.start(bench.task(0, 0))
    requests, outcomes = [], []
    for _ in range(3):
        feed(bench, 3)
        instance.read()
        requests.append(instance.body(instance.capture().cut().group([])))
        outcomes.append(bench.order(requests[-1]))
    tail = bench.log.tail

    copies = [bench.order(request) for request in requests]

    assert copies == [replace(done, duplicate=True) for done in outcomes]
    bench.start(instance.task)
    assert bench.order(requests[0]) == copies[0]
    assert bench.log.tail == tail + 1  # the claim
    bench.finish()


def test_r26_a_task_that_dies_between_flush_and_marker_holds_nobody_up(
    bench: Bench, tiny_groups: None
) -> None:
    """A task dies mid-epoch, without a successor; downstream waits for its fate for ever (KIP-890).

    Here readers hold nothing back: a staged entry is nothing until a marker names it.
    """
    feed(bench)
    dead = bench.start(bench.task(0, 0))
    dead.read()
    dead.flush(dead.capture())
    alive = bench.start(bench.task(0, 1))
    alive.read()
    alive.commit()

    downstream = bench.start(bench.task(1, 0))
    downstream.read()
    lsn = downstream.commit()

    assert lsn is not None
    assert downstream.core.stats.rows_in > 0
    assert bench.markers(downstream.task)[-1].position > alive.core.position
    bench.finish()


# ---- checkpoints


def test_r35_a_checkpoint_holds_nothing_beyond_its_marker(eager_checkpoints: None) -> None:
    """State is flushed beyond the last marker, the task crashes, restore and replay apply the rest
    twice (KAFKA-20685).

    Here a checkpoint is made of what markers up to one have committed, and names that marker's
    LSN; replay starts behind it.
    """
    bench = Bench("join", checkpoints=True)
    bench.put("bids", *ROWS)
    bench.put("asks", *ROWS)
    run(bench, 0)
    run(bench, 1)
    task = bench.task(2, 0)
    first = bench.start(task)
    first.read()
    commit = first.capture()
    assert commit.is_checkpoint
    bench.put("bids", (1, 1008), (2, 1009))
    run(bench, 0)
    first.read()  # the state goes on while the commit is on its way
    done = bench.order(first.body(commit.cut().group([])))
    first.checkpoint(commit, Lsn(done.first_lsn + done.count - 1))
    first.commit()

    heir = bench.start(task)
    again = Instance(bench, task, bench.claim(task.producer))
    again.replay(0, bench.log.tail)  # without any checkpoint
    assert heir.core.checkpoint_lsn == Lsn(done.first_lsn + done.count - 1)
    assert contents_of(heir.core.state) == contents_of(again.core.state)
    bench.finish()


def test_r36_an_instance_that_dies_while_it_restores_claims_nothing(
    eager_checkpoints: None,
) -> None:
    """A task that is closed while it restores writes the end position, not the restored one
    (KAFKA-16017).

    Here a position is written by a marker only, and the first marker of an instance comes after
    all of the last one's state was applied.
    """
    bench = Bench(checkpoints=True)
    feed(bench)
    run(bench, 0)
    run(bench, 1)
    task = bench.task(1, 0)
    before = bench.markers(task)

    for _ in range(3):
        half = Instance(bench, task, bench.claim(task.producer))
        half.replay(0, bench.log.tail // 2)  # and it dies

    assert bench.markers(task) == before
    assert bench.start(task).core.position == before[-1].position
    bench.finish()


def test_r37_a_checkpoint_is_named_only_once_it_is_durable(eager_checkpoints: None) -> None:
    """The marker says "checkpoint present", the upload is unfinished, or was on a node that died.

    Here a marker names what was published before it was captured.
    """
    bench = Bench(checkpoints=True)
    feed(bench)
    run(bench, 0)
    task = bench.start(bench.task(1, 0))
    task.read()
    commit = task.capture()
    done = bench.order(task.body(commit.cut().group([])))
    feed(bench)
    run(bench, 0)
    task.read()
    bench.order(task.body(task.capture().cut().group([])))
    assert [marker.checkpoints for marker in bench.markers(task.task)] == [(), ()]

    reference = task.checkpoint(commit, Lsn(done.first_lsn + done.count - 1))
    task.commit()

    assert bench.markers(task.task)[-1].checkpoints == (reference.to_json(),)
    bench.finish()


@pytest.mark.parametrize("lost", [1, 2])
def test_r37_without_its_checkpoints_a_task_falls_back(lost: int, eager_checkpoints: None) -> None:
    """To the one before, and to its changes: as long as nobody trimmed them."""
    bench = Bench("join", checkpoints=True)
    task = bench.task(2, 0)
    for second in range(4):
        bench.put("bids", (1, 1000 + second), (2, 1000 + second))
        bench.put("asks", (1, 1000 + second), (2, 1000 + second))
        for stage in range(3):
            run(bench, stage)
    named = bench.markers(task)[-1].checkpoints
    assert len(named) == 2
    for found in named[:lost]:
        del bench.folder.files[str(found["path"])]

    bench.start(task)  # its state is compared with the fold of its input
    bench.finish()


def test_r38_a_late_upload_of_a_zombie_takes_nothing_away(eager_checkpoints: None) -> None:
    """An old executor's snapshot refers to files that cleanup removed, or its cleanup removes those
    of its heir (SPARK-55892).

    Here names hold marker, instance and seal, and who sweeps keeps everything from the older
    checkpoint of its own last marker on, and what that one is made of: a zombie knows older ones,
    and its heirs go on from those or from what is newer.
    """
    bench = Bench(checkpoints=True)
    task = bench.task(1, 0)
    zombie = bench.start(task)

    def work(instance: Instance) -> None:
        feed(bench, 1)
        run(bench, 0)
        instance.read()
        instance.commit()
        instance.commit()

    while len(zombie.core.checkpoints.named) < 2:
        work(zombie)
    feed(bench, 1)
    run(bench, 0)
    zombie.read()
    commit = zombie.capture()
    done = bench.order(zombie.body(commit.cut().group([])))  # and its upload takes long
    zombie.shell.durable(commit)
    heir = bench.start(task)
    known = bench.markers(task)[-1].checkpoints
    while known[0] in bench.markers(task)[-1].checkpoints:
        work(heir)

    late = zombie.checkpoint(commit, Lsn(done.first_lsn + done.count - 1))

    named = bench.markers(task)[-1].checkpoints
    assert len(named) == 2 and late.to_json() not in named
    needed = {path for found in named for path in bench.folder.files_of(str(found["path"]))}
    assert needed <= set(bench.folder.files)
    bench.finish()


# ---- trimming


def test_r39_a_trim_does_not_pass_a_task_that_restores(eager_checkpoints: None) -> None:
    """A trim passes a slow reader, or a task that restores (woodpecker #285).

    Here the point is the smallest over all tasks of what their last markers need, the changes after
    the older of two checkpoints among it: restoring reads only what is above, however slow it is.
    Whoever reads below is told.
    """
    bench = Bench(checkpoints=True)
    for _ in range(5):
        feed(bench)
        for stage in range(2):
            run(bench, stage)
    task = bench.task(1, 0)
    slow = Instance(bench, task, bench.claim(task.producer))
    newest, older = bench.markers(task)[-1].checkpoints
    del bench.folder.files[str(newest["path"])]

    point = bench.trim()

    assert 0 < point <= int(older["marker_lsn"])
    slow.resume()
    slow.read()
    with pytest.raises(Trimmed):
        bench.read(slow.core.tags, point - 1, point)
    bench.finish()


def test_r39_a_trim_does_not_pass_a_group_that_waits_for_its_marker(
    eager_checkpoints: None, tiny_groups: None
) -> None:
    """A group is flushed; before its marker comes, everybody else commits and checkpoints far
    beyond it; the next marker but one of its task is there before its readers have seen the first.

    Here a marker tells what was last heard of every upstream task: what those name next is newer.
    """
    bench = Bench(checkpoints=True)
    feed(bench)
    run(bench, 0)
    run(bench, 1)
    slow = bench.start(bench.task(0, 0))
    feed(bench)
    slow.read()
    commit = slow.capture()
    ranges = slow.flush(commit)
    other = bench.start(bench.task(0, 1))
    readers = [bench.start(bench.task(1, index)) for index in range(2)]
    for _ in range(9):
        feed(bench)
        other.read()
        other.commit()
        for reader in readers:
            reader.read()
            reader.commit()
            reader.commit()
    for reader in readers:
        _, older = bench.markers(reader.task)[-1].checkpoints
        assert int(older["marker_lsn"]) > ranges[-1].end
    bench.order(slow.body(commit.cut().group(ranges)))
    slow.read()
    slow.commit()

    assert bench.trim() <= ranges[0].first_lsn
    for reader in readers:
        reader.read()
        reader.commit()
    bench.finish()


def test_r39_a_task_without_state_resumes_although_its_first_markers_are_gone(
    eager_checkpoints: None,
) -> None:
    """Found by seed 10 of the simulation: a stage that only scans has no changes to be missing."""
    bench = Bench(checkpoints=True)
    for _ in range(4):
        feed(bench)
        for stage in range(2):
            run(bench, stage)
    assert bench.trim() > 0
    task = bench.task(0, 0)
    assert bench.markers(task)[0].number > 0

    heir = bench.start(task)

    assert heir.core.position == bench.markers(task)[-1].position
    bench.finish()


def test_r40_nothing_is_deleted_because_something_was_not_found(eager_checkpoints: None) -> None:
    """An incomplete listing is taken for "unused", and data is deleted (NATS #7556).

    Here a task without a marker needs everything, one without two checkpoints all its changes, and
    a sweep needs the position of a checkpoint that a marker names.
    """
    bench = Bench(checkpoints=True)
    feed(bench)
    run(bench, 0)
    bench.start(bench.task(1, 0))
    assert bench.trim() == 0  # stage 1 has no marker

    run(bench, 1)
    marker = bench.markers(bench.task(1, 0))[-1]
    assert marker.has_state and len(marker.checkpoints) == 1
    assert needed_from(marker, Lsn(0)) == 0
    assert needed_from(None, Lsn(7)) == 7
    assert bench.trim() == 0
    bench.finish()


# ---- time and plans


def test_r41_watermarks_come_from_the_log_and_never_go_back() -> None:
    """One source is five minutes ahead, one behind; a failover to a machine whose clock is in the
    past; one that has not spoken (SPARK-50046).

    Here a watermark is the smallest over all sources of what the markers of their tasks say of the
    rows' event times, part of the marker, and restored with it; no clock takes part. Tasks that
    share a source run twice: each says how far it has looked when it has heard of the other's rows.
    """
    bench = Bench("join")
    task = bench.task(2, 0)
    bench.clock_ms = 10**9
    bench.put("bids", *ROWS, (1, 1300))
    run(bench, 0)
    run(bench, 0)
    first = bench.start(task)
    first.read()
    first.commit()
    assert bench.markers(task)[-1].watermark_ms == START_MS  # asks have not spoken

    bench.put("asks", *ROWS)
    run(bench, 1)
    run(bench, 1)
    first.read()
    first.commit()
    behind_ms = 1008 * 1000 - DELAY_MS
    assert bench.markers(task)[-1].watermark_ms == behind_ms

    bench.clock_ms = 5  # the heir's machine lives in the past
    heir = bench.start(task)
    bench.put("bids", (3, 1299))
    run(bench, 0)
    heir.read()
    heir.commit()
    assert bench.markers(task)[-1].watermark_ms == behind_ms
    upstream = {str(bench.task(stage, index)) for stage in (0, 1) for index in (0, 1)}
    assert set(bench.markers(task)[-1].heard) == upstream
    bench.finish()


def test_r42_a_plan_that_changed_shares_no_state_with_the_old_one() -> None:
    """An operator that the optimiser removed shifts the slots of watermarks and state.

    Here slots are places in the plan; a plan that differs in anything is refused with the
    difference, or starts as a new version, which shares no tag with the old.
    """
    old = RegisteredQuery(
        name="q", id="x", version=1, plan="count\n  filter\n    scan", mode="update", to="out",
        starts={"bids": 0}, tasks=[2, 2], created_ms=0,
    )  # fmt: skip
    new = replace(old, plan="count\n  scan")
    assert describe_change(old, old) is None
    assert "-  filter" in str(describe_change(old, new))
    assert old.fingerprint != new.fingerprint

    def tags(version: int) -> set[str]:
        task = TaskId("q", version, 0, 0)
        nodes = {node_tag("q", version, 0, node) for node in range(64)}
        return {task.marker_tag, task.change_tag, task.producer, keyed_tag("q", version, 0)} | nodes

    assert tags(1).isdisjoint(tags(2))


def test_r43_a_commit_that_was_captured_and_not_appended_is_made_again_from_the_same_state(
    bench: Bench,
) -> None:
    """The offset log is ahead of the commit log: planned, crashed, and run again on other inputs
    or another state (SPARK-51682).

    Here there is one entry for both: what was captured and not appended never was. The heir takes
    in the same entries, from the same state, and says the same.
    """
    feed(bench)
    run(bench, 0)
    first = bench.start(bench.task(1, 0))
    first.read()
    lost = first.capture()

    heir = bench.start(bench.task(1, 0))
    heir.read(end=lost.marker.position)
    again = heir.capture()

    assert again.cut().inline == lost.cut().inline
    assert again.marker == replace(lost.marker, instance=heir.instance)
    bench.order(heir.body(again.cut().group([])))
    bench.finish()


# ---- attempts and pieces


def test_r44_a_second_attempt_of_a_worker_is_another_instance(bench: Bench) -> None:
    """A speculative or retried Spark task writes what the first attempt wrote.

    Here an attempt is a worker of its own: another one in its slot takes all its tasks, by claims
    that come before the announcement. What the first attempt then says is refused.
    """
    core = CoordinatorCore(bench.spec.task_ids, workers=1)
    (claim,) = core.on_message(Hello("first", 0, "host", 1))
    assert claim == Claim(bench.spec.task_ids)
    (announced,) = core.on_claimed(dict.fromkeys(bench.spec.task_ids, 1))
    assert isinstance(announced, Announce) and isinstance(announced.message, Assign)
    assert {place.worker for place in announced.message.places().values()} == {"first"}

    (claim,) = core.on_message(Hello("second", 0, "host", 2))
    assert claim == Claim(bench.spec.task_ids)
    (announced,) = core.on_claimed(dict.fromkeys(bench.spec.task_ids, 2))
    assert isinstance(announced, Announce) and isinstance(announced.message, Assign)
    places = announced.message.places().values()
    assert {(place.worker, place.instance) for place in places} == {("second", 2)}

    feed(bench)
    first, second = bench.start(bench.task(0, 0)), bench.start(bench.task(0, 0))
    first.read()
    second.read()
    second.commit()
    with pytest.raises(StaleInstance):
        first.commit()
    bench.finish()


@pytest.mark.parametrize("piece", [1, 3, 10**6])
def test_r45_entries_that_come_in_pieces_give_the_same_result(
    piece: int, tiny_groups: None
) -> None:
    """A frame larger than the socket's buffer arrives in pieces, and one is taken for the whole
    (SPARK-53870). tests/unit/wire/test_frames.py shows it for frames.

    Here: a payload above half a MiB, and a task that reads and commits after any number of LSNs,
    also inside a group, with a new instance each time.
    """
    bench = Bench()
    bench.put("bids", *(ROWS * 2500))
    assert len(bench.log.entries[-1].payload) > 512 * 1024
    feed(bench, 2)
    for stage in range(2):
        tail = bench.log.tail
        for index in range(2):
            for _ in range(tail + 1):
                instance = bench.start(bench.task(stage, index))
                if instance.core.position >= tail:
                    break
                instance.read(end=min(tail, instance.core.position + piece))
                instance.core.refresh()
                instance.commit()
    bench.finish()
