"""Stores of rows: what was put at a cut is what is loaded and found, whatever database has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from state_actions import TAKE
from test_increment_files import LOG, TASK, Writer, _some

from penstock.errors import BadConfig, Damaged, Unavailable
from penstock.state.fold import merge_changes
from penstock.state.stores.api import StaleCut
from penstock.state.stores.open import check_store
from penstock.state.stores.row_stores import open_row_store
from penstock.state.stores.rows import RowStore

Opener = Callable[[], RowStore]


@pytest.fixture(params=["indexed", "rocksdb", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same place again and again."""
    uri = f"{request.param}://{tmp_path}/stores"
    if request.param == "redis":
        server = request.getfixturevalue("redis")
        with server.client() as client:
            client.flushall()
        uri = server.url
    opened: list[RowStore] = []

    def open() -> RowStore:
        opened.append(open_row_store(uri, LOG))
        return opened[-1]

    yield open
    for store in opened:
        store.close()


def make_writer(store: RowStore) -> Writer:
    return Writer(store)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_every_checkpoint_is_the_state_of_its_marker(open_store: Opener, seed: int) -> None:
    """Also when it is opened again, and for readers beside the writer."""
    random = Random(seed)
    store = open_store()
    writer = make_writer(store)
    for number in range(8):
        for _ in range(random.randrange(4)):
            writer.do(_some(random))
        writer.do([TAKE])
        writer.put()
        writer.check(writer.named[0])
        if number == 4:
            store.close()
            writer.files = open_store()  # type: ignore[assignment]
            writer.check(writer.named[0])
    reader = open_store()
    writer.check(writer.named[0], reader)  # type: ignore[arg-type]


def test_a_reference_that_is_older_gives_what_is_there_now(open_store: Opener) -> None:
    writer = make_writer(open_store())
    writer.do([("put", [1, 2]), TAKE])
    first = writer.put()
    writer.do([("put", [3]), TAKE])
    second = writer.put()

    loaded = writer.files.load(first)

    assert loaded.cut == second["marker_lsn"]


def test_a_reference_that_is_newer_than_the_store_is_damage(open_store: Opener) -> None:
    """As after a database was set back: what it lacks may not look as if it had never been."""
    writer = make_writer(open_store())
    writer.do([("put", [1]), TAKE])
    reference = dict(writer.put())
    reference["marker_lsn"] = 11

    with pytest.raises(Damaged, match="has cut 10, expected 11"):
        writer.files.load(reference)
    with pytest.raises(Damaged):
        writer.files.find(reference, "op/numbers", [pa.array([1])])
    with pytest.raises(Damaged):
        writer.files.load({**reference, "task": "other.1/0/0"})
    with pytest.raises(Damaged):
        writer.files.load({"marker_lsn": 10})


def test_what_is_found_by_key_is_what_the_state_has(open_store: Opener) -> None:
    random = Random(3)
    writer = make_writer(open_store())
    for _ in range(6):
        writer.do([*_some(random), TAKE])
        writer.put()
    reference = writer.named[0]
    parts = writer.store.state.parts()
    whole = merge_changes(writer.files.load(reference).changes, parts, is_whole=True)

    for part in ("op/numbers", "op/rows"):
        keys = pa.array([None, *range(7)], pa.int64())
        (rows,) = [change.rows for change in whole if change.name == part]
        for key in keys:
            found = writer.files.find(reference, part, [pa.array([key.as_py()], pa.int64())])
            wanted = rows.filter(pa.array([k == key.as_py() for k in rows["k"].to_pylist()]))
            assert sum(one.rows.num_rows for one in found.changes) == wanted.num_rows
            for change in found.changes:
                assert sorted(map(str, change.rows.to_pylist())) == sorted(
                    map(str, wanted.to_pylist())
                )


def test_an_increment_that_does_not_go_on_from_there_is_refused(open_store: Opener) -> None:
    store = open_store()
    writer = make_writer(store)
    writer.do([("put", [1]), TAKE])
    writer.put()
    zombie = make_writer(store)
    zombie.do([("put", [9]), TAKE])
    with pytest.raises(StaleCut) as caught:
        zombie.put()  # makes all, and is no newer
    assert caught.value.cut == 10
    zombie.lsn, zombie.named = 20, [{"marker_lsn": 5}]
    zombie.do([("put", [9]), TAKE])
    with pytest.raises(StaleCut):
        zombie.put()

    writer.check(writer.named[0])


def test_what_makes_all_replaces_what_was_there(open_store: Opener) -> None:
    store = open_store()
    writer = make_writer(store)
    writer.do([("put", [1, 2]), ("insert", [(1, 3, "a", 1)]), TAKE])
    writer.put()
    heir = make_writer(store)
    heir.lsn = 50
    heir.do([("put", [3]), TAKE])

    heir.put()

    heir.check(heir.named[0])


def test_rows_that_an_eviction_struck_are_deleted_in_the_end(open_store: Opener) -> None:
    """Not at once: there may be many, in any place."""
    store = open_store()
    writer = make_writer(store)
    rows = [(number, 1, "a", 1) for number in range(200)]
    writer.do([("insert", rows), TAKE])
    writer.put()
    least = writer.named[0]["bytes"]
    for bound in range(2, 70):
        writer.do([("evict", bound), TAKE])
        writer.put()
        writer.check(writer.named[0])

    assert writer.named[0]["bytes"] < least / 4


def test_two_logs_with_one_store_never_see_each_others_rows(
    open_store: Opener, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind = request.node.callspec.params["open_store"]
    uri = f"{kind}://{tmp_path}/stores"
    if kind == "redis":
        uri = request.getfixturevalue("redis").url
    writer = make_writer(open_store())
    writer.do([("put", [1]), TAKE])
    reference = writer.put()
    other = open_row_store(uri, LOG[::-1])

    with pytest.raises(Damaged):
        other.load(reference)
    stranger = make_writer(other)
    stranger.do([("put", [7]), TAKE])
    stranger.put()
    stranger.files.sweep(TASK, [])
    other.close()

    writer.check(writer.named[0])


class Dying:
    """An engine that dies at a step: before its commit, or after it and before anybody is told."""

    def __init__(self, engine: Any, dies: list[str]) -> None:
        self._engine = engine
        self._dies = dies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def commit(self, *arguments: Any, **keywords: Any) -> None:
        when = self._dies.pop() if self._dies else ""
        if when == "before":
            raise Unavailable("gone")
        self._engine.commit(*arguments, **keywords)
        if when == "after":
            raise Unavailable("gone")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_put_that_fails_is_there_or_not(open_store: Opener, when: str) -> None:
    store = open_store()
    open_engine = store._open_engine
    dies: list[str] = []
    store._open_engine = lambda task, *, writes, anew: Dying(  # type: ignore[assignment]
        open_engine(task, writes=writes, anew=anew), dies
    )
    writer = make_writer(store)
    writer.do([("put", [1]), ("insert", [(1, 3, "a", 1)]), TAKE])
    first = writer.put()
    writer.do([("put", [2]), ("insert", [(1, 3, "a", 1)]), TAKE])
    dies.append(when)

    with pytest.raises(Unavailable):
        writer.put()

    wanted = 20 if when == "after" else 10
    writer.held[10] = writer.held[wanted]
    assert store.load(first).cut == wanted
    if when == "after":
        with pytest.raises(StaleCut) as caught:  # tried again: it is there
            store.put(writer.increment(), first)
        assert caught.value.cut == 20
    else:
        writer.put()
        writer.check(writer.named[0])


def test_a_store_that_cannot_be_read_is_made_anew_by_who_has_all(tmp_path: Path) -> None:
    uri = f"indexed://{tmp_path}"
    store = open_row_store(uri, LOG)
    writer = make_writer(store)
    writer.do([("put", [*range(6)]), TAKE])
    writer.put()
    writer.do([("put", [1]), TAKE])
    reference = writer.put()
    store.close()
    (data,) = tmp_path.rglob("*.data")
    raw = bytearray(data.read_bytes())
    raw[60] ^= 1
    data.write_bytes(bytes(raw))

    store = open_row_store(uri, LOG)
    with pytest.raises(Damaged):
        store.load(reference)
    writer.files = store  # type: ignore[assignment]
    writer.do([("put", [2]), TAKE])
    with pytest.raises(StaleCut) as caught:
        writer.put()
    assert caught.value.cut is None

    heir = make_writer(store)
    heir.lsn = 90
    heir.do([("put", [5]), TAKE])
    heir.put()
    heir.check(heir.named[0])
    store.close()


def test_a_store_that_is_closed_lets_go_once_what_is_under_way_is_done(tmp_path: Path) -> None:
    """The next instance of a task may begin in this process while the last put is not done."""
    first = open_row_store(f"indexed://{tmp_path}", LOG)
    second = open_row_store(f"indexed://{tmp_path}", LOG)
    open_engine = first._open_engine

    def close_under_way(task: str, *, writes: bool, anew: bool) -> Any:
        engine = open_engine(task, writes=writes, anew=anew)
        first.close()
        return engine

    first._open_engine = close_under_way  # type: ignore[assignment]
    writer = make_writer(first)
    writer.do([("put", [1]), TAKE])
    writer.put()

    with pytest.raises(Unavailable, match="closed"):
        first.load(writer.named[0])
    writer.files = second  # type: ignore[assignment]
    writer.do([("put", [2]), TAKE])
    writer.put()
    writer.check(writer.named[0])
    second.close()


def test_one_process_writes_to_a_folder_and_others_read(tmp_path: Path) -> None:
    first = open_row_store(f"indexed://{tmp_path}", LOG)
    second = open_row_store(f"indexed://{tmp_path}", LOG)
    writer = make_writer(first)
    writer.do([("put", [1]), TAKE])
    writer.put()

    writer.check(writer.named[0], second)  # type: ignore[arg-type]
    rival = make_writer(second)
    rival.lsn = 50
    rival.do([("put", [2]), TAKE])
    with pytest.raises(Unavailable, match="another process"):
        rival.put()
    first.close()
    rival.do([("put", [3]), TAKE])
    rival.put()
    rival.check(rival.named[0])
    second.close()


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("indexed://host/path", "expected indexed:///path"),
        ("rocksdb:relative", "expected rocksdb:///path"),
        ("indexed:///path?option=1", "expected indexed:///path"),
        ("indexed:///proc/nowhere", "/proc/nowhere"),
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(uri: str, words: str) -> None:
    with pytest.raises((BadConfig, Unavailable), match=words):
        check_store(uri, LOG)


def test_a_root_that_is_away_is_not_known_to_have_lost_anything(tmp_path: Path) -> None:
    root = tmp_path / "mounted"
    store = open_row_store(f"indexed://{root}", LOG)
    writer = make_writer(store)
    writer.do([("put", [1]), TAKE])
    reference = writer.put()
    store.close()
    root.rename(tmp_path / "unmounted")
    heir = open_row_store(f"indexed://{root}", LOG)

    with pytest.raises(Unavailable):
        heir.load(reference)

    (tmp_path / "unmounted").rename(root)
    writer.check(reference, heir)  # type: ignore[arg-type]
