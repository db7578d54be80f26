"""Power cuts, kills, errors of the disk and bad bits at every step of an indexed store's life."""

from __future__ import annotations

import pytest
from harness.disk import SimDisk
from harness.soak import fresh_seeds
from indexed_story import (
    DELETIONS_MIN,
    Story,
    check_crashes,
    check_faults,
    check_flips,
    check_gone,
    contents,
    open_store,
)

from penstock.state.stores import collecting


@pytest.fixture(autouse=True)
def few_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "DELETIONS_MIN", DELETIONS_MIN)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_any_crash_the_store_is_right_and_goes_on(seed: int) -> None:
    assert check_crashes(Story(seed, 36), open_store, seed=seed, mixtures=3) > 500


def test_an_error_at_any_operation_loses_nothing() -> None:
    assert check_faults(Story(3, 36), open_store, every=1) > 100


def test_a_bad_bit_anywhere_is_never_returned() -> None:
    assert check_flips(Story(4, 36), open_store, 500, seed=4) > 100


def test_a_data_file_that_is_gone_is_missed() -> None:
    assert check_gone(Story(5, 36), open_store) > 1


def test_garbage_is_collected_while_commits_go_on() -> None:
    """However often keys are put and deleted, and wherever what stays was written."""
    disk = SimDisk()
    store = open_store(disk)
    cold = {b"cold %d" % n: bytes(40) for n in range(50)}
    for cut, (key, value) in enumerate(cold.items(), 1):
        hot = {b"hot %d" % n: bytes(40) for n in range(4)}
        store.commit({key: value, **hot}, base=cut - 1, cut=cut)
    for cut in range(51, 2000):
        store.commit(
            {b"hot %d" % (cut % 8): bytes(40), b"passing %d" % cut: b"x"},
            [b"passing %d" % (cut - 20)],
            base=cut - 1,
            cut=cut,
        )
        if cut % 100 == 0:
            store.close()
            store = open_store(disk)

    live = sum(len(key) + len(value) + 36 for key, value in contents(store).items())
    used = sum(len(data.rstrip(b"\0")) for data in disk.contents().values())
    assert dict(store.scan(b"cold")) == cold
    assert used < 5 * live + 4 * 1500, (used, live)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_fresh_stories_survive_everything() -> None:
    for seed in fresh_seeds():
        story = Story(seed, 60)
        check_crashes(story, open_store, seed=seed, mixtures=6)
        check_faults(story, open_store, every=3)
        check_flips(story, open_store, 2000, seed=seed)
