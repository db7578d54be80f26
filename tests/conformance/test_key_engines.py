"""The laws of bytes by key, for every engine of stores of rows."""

from __future__ import annotations

from contextlib import closing
from random import Random

import pytest
from key_engines import Engines, rows_at, writer

from penstock.errors import BadRequest, Damaged, TooLarge
from penstock.state.stores.api import StaleCut
from penstock.state.stores.bytes_api import NOTHING, ROW_KEY_BYTES_MAX, Engine

#: Keys that begin alike, keys of one byte, and bytes that sort first and last.
KEYS = [b"\0", b"\xff", b"ab", b"ab\0\0", b"abcd", b"abcde", b"\xff\xff\xff\xff\xff"]


def everything(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.scan(b""))


def test_what_is_empty_has_nothing(engines: Engines) -> None:
    with closing(engines.open()) as engine:
        assert (engine.cut(), engine.get([b"a"]), everything(engine)) == (NOTHING, [None], {})
        assert engine.get([]) == []


def test_a_commit_is_found_again_by_key_and_by_prefix(engines: Engines) -> None:
    rows = {key: b"value of " + key for key in KEYS} | {b"empty": b""}

    with closing(engines.open()) as engine:
        engine.commit(rows, base=NOTHING, cut=7)
        engine.commit({b"abcd": b"new"}, [b"\0", b"was never there"], base=7, cut=9)
    with closing(engines.open()) as engine:
        left = {**rows, b"abcd": b"new"}
        del left[b"\0"]
        assert engine.cut() == 9
        assert everything(engine) == left
        assert engine.get([b"\0", *left, b"no"]) == [None, *left.values(), None]
        for prefix in (b"a", b"ab", b"ab\0", b"abcde", b"\xff\xff", b"x"):
            wanted = {key: value for key, value in left.items() if key.startswith(prefix)}
            assert dict(engine.scan(prefix)) == wanted


def test_a_commit_that_does_not_go_on_from_there_is_refused(engines: Engines) -> None:
    with closing(engines.open()) as engine:
        with pytest.raises(StaleCut) as caught:
            engine.commit({b"a": b"1"}, base=3, cut=4)
        assert caught.value.cut is None
        engine.commit({b"a": b"1"}, base=NOTHING, cut=4)

        for base, cut in [(3, 5), (NOTHING, 4), (NOTHING, 9), (None, 4), (None, 3), (5, 6)]:
            with pytest.raises(StaleCut, match="is at cut 4") as caught:
                engine.commit({b"a": b"2", b"b": b"2"}, base=base, cut=cut)
            assert caught.value.cut == 4

        assert (engine.cut(), everything(engine)) == (4, {b"a": b"1"})


def test_of_two_writers_one_goes_on(engines: Engines) -> None:
    """In one process; a database that only one may open refuses the other."""
    with closing(engines.open()) as first:
        first.commit({b"a": b"1"}, base=NOTHING, cut=1)
        first.commit({b"a": b"2"}, base=1, cut=2)
        with pytest.raises(StaleCut):
            first.commit({b"a": b"late"}, base=1, cut=3)
    with closing(engines.open()) as second:
        with pytest.raises(StaleCut):
            second.commit({b"a": b"late"}, base=1, cut=2)

        assert everything(second) == {b"a": b"2"}


def test_a_commit_that_begins_anew_leaves_nothing_from_before(engines: Engines) -> None:
    with closing(engines.open()) as engine:
        engine.commit(dict.fromkeys(KEYS, b"old"), base=NOTHING, cut=1)
        engine.commit({b"ab": b"new"}, base=None, cut=2)
        engine.commit({b"b": b"next"}, base=2, cut=3)

        assert everything(engine) == {b"ab": b"new", b"b": b"next"}
    with closing(engines.open()) as engine:
        assert (engine.cut(), everything(engine)) == (3, {b"ab": b"new", b"b": b"next"})


def test_names_know_nothing_of_each_other(engines: Engines) -> None:
    with closing(engines.open("one")) as one, closing(engines.open("two")) as two:
        one.commit({b"a": b"1"}, base=NOTHING, cut=5)

        assert (two.cut(), everything(two)) == (NOTHING, {})
        two.commit({b"a": b"2"}, base=None, cut=1)
        assert (one.cut(), everything(one)) == (5, {b"a": b"1"})


@pytest.mark.parametrize("seed", range(6))
def test_any_history_gives_what_a_dictionary_gives(engines: Engines, seed: int) -> None:
    random = Random(seed)
    model: dict[bytes, bytes] = {}
    cut = NOTHING
    engine = engines.open()
    try:
        for _ in range(150):
            step = random.random()
            if step < 0.08:
                engine.close()
                engine = engines.open()
                assert engine.cut() == cut
                assert everything(engine) == model
            elif step < 0.12:
                puts = draw_puts(random, 10)
                engine.commit(puts, base=None, cut=cut + 1)
                model, cut = dict(puts), cut + 1
            else:
                puts = draw_puts(random, random.choice((1, 1, 3, 30)))
                deletes = {draw_key(random) for _ in range(random.choice((0, 1, 10)))} - puts.keys()
                new = cut + random.randint(1, 1000)
                engine.commit(puts, sorted(deletes), base=cut, cut=new)
                model = {k: v for k, v in (model | puts).items() if k not in deletes}
                cut = new
            keys = [draw_key(random) for _ in range(5)]
            assert engine.get(keys) == [model.get(key) for key in keys]
        prefix = b"%02d" % random.randrange(4)
        wanted = {key: value for key, value in model.items() if key.startswith(prefix)}
        assert dict(engine.scan(prefix)) == wanted
        assert everything(engine) == model
    finally:
        engine.close()


def draw_key(random: Random) -> bytes:
    return b"%02d-%d" % (random.randrange(4), random.randrange(40))


def draw_puts(random: Random, count: int) -> dict[bytes, bytes]:
    sizes = (0, 1, 50, 300)
    return {draw_key(random): random.randbytes(random.choice(sizes)) for _ in range(count)}


def test_bytes_that_went_bad_are_never_returned(engines: Engines) -> None:
    value = Random(1).randbytes(120)  # nothing packs it
    with closing(engines.open()) as engine:
        engine.commit({b"good": b"other", b"bad": value}, base=NOTHING, cut=1)
        engine.commit({b"later": b"value"}, base=1, cut=2)
    engines.damage(value)

    with pytest.raises(Damaged), closing(engines.open()) as engine:
        engine.get([b"later", b"bad"])
    with pytest.raises(Damaged), closing(engines.open()) as engine:
        everything(engine)


def test_what_no_engine_takes_is_refused_before_anything_changes(engines: Engines) -> None:
    with closing(engines.open()) as engine:
        for error, puts, deletes, base, cut in [
            (TooLarge, {b"": b"x"}, [], NOTHING, 1),
            (TooLarge, {b"x" * (ROW_KEY_BYTES_MAX + 1): b""}, [], NOTHING, 1),
            (TooLarge, {}, [b""], NOTHING, 1),
            (BadRequest, {b"x": b""}, [b"x"], NOTHING, 1),
            (BadRequest, {b"x": b""}, [b"y"], None, 1),
            (BadRequest, {b"x": b""}, [], NOTHING, 0),
            (BadRequest, {b"x": b""}, [], 2, 2),
        ]:
            with pytest.raises(error):
                engine.commit(puts, deletes, base=base, cut=cut)

        assert (engine.cut(), everything(engine)) == (NOTHING, {})


@pytest.mark.parametrize("commits", [1, 7, 60])
def test_what_a_killed_writer_said_was_durable_is_there(engines: Engines, commits: int) -> None:
    """A kill, not a power cut: those are in test_indexed_crashes.py."""
    with writer(engines) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(commits)]
        process.kill()
        said += [int(line) for line in process.stdout.read().splitlines(True) if line[-1:] == b"\n"]

    with closing(engines.open()) as engine:
        cut = engine.cut()
        assert cut in (said[-1], said[-1] + 1)
        assert everything(engine) == rows_at(cut)
