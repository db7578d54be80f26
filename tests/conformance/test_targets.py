"""Every target applies a batch if it meets the position, once, with all its rows; or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from target_databases import Database
from target_samples import SCHEMA, batch_of, expected, shard_of, table_of

from penstock.delivery.api import Shard, Target
from penstock.errors import BadRequest, BadRow, Fenced, Refused, SchemaMismatch, Unavailable
from penstock.ids import Lsn
from penstock.stream.ddl import parse_ddl

KEYED = shard_of()
STRICT = shard_of(strict=True)
ADDED = shard_of(changing=False, key=())
COUNTED = shard_of(key=())
ONE, TWO, THREE = (1, "a", 1.5), (2, None, None), (3, "c", float("inf"))


@contextmanager
def opened(database: Database, shard: Shard, term: int = 1) -> Iterator[Target]:
    with closing(database.target()) as target:
        target.open(shard, term)
        yield target


def added(*rows: tuple[object, ...]) -> list[tuple[object, ...]]:
    return [(1, *row) for row in rows]


def taken(*rows: tuple[object, ...]) -> list[tuple[object, ...]]:
    return [(-1, *row) for row in rows]


# -- positions


def test_a_new_target_is_at_the_start_and_stays_where_it_came_to(database: Database) -> None:
    with closing(database.target()) as target:
        assert target.open(KEYED, 1) == 10
        assert target.apply(batch_of(KEYED, 10, 20, added(ONE))) == 20
    with closing(database.target()) as target:
        assert target.open(replace(KEYED, start=Lsn(99)), 1) == 20
        target.close()
        assert target.open(KEYED, 2) == 20

    assert database.stored(KEYED) == (20, 2)
    assert table_of(database, KEYED) == expected(KEYED, [ONE])


def test_the_position_of_another_delivery_of_the_name_is_not_taken(database: Database) -> None:
    """It was removed, or is of another log: rows below its position are none of this delivery's."""
    first, second = replace(KEYED, id="first"), replace(KEYED, id="second")
    with opened(database, first) as target:
        target.apply(batch_of(first, 10, 20, added(ONE)))
        with pytest.raises(Refused, match="is of another delivery of this name"):
            database.target().open(second, 7)
        assert target.apply(batch_of(first, 20, 30, added(TWO))) == 30

    assert database.stored(KEYED) == (30, 1)
    assert table_of(database, KEYED) == expected(KEYED, [ONE, TWO])


def test_rows_of_others_are_not_in_the_table_of_what_takes_rows_back(
    sql_database: Database,
) -> None:
    """As if a query was started anew, whose delivery needs another name, with the same table."""
    first = [replace(KEYED, index=index, count=2, id="first") for index in (0, 1)]
    later = replace(KEYED, delivery="later", id="later")
    with opened(sql_database, first[0]) as target:
        target.apply(batch_of(first[0], 10, 20, added(ONE)))

    with pytest.raises(Refused, match="has rows that are none of this delivery's"):
        sql_database.target().open(later, 1)
    assert sql_database.stored(later) is None
    with opened(sql_database, first[1]) as target:  # rows of its own delivery, in another shard
        target.apply(batch_of(first[1], 10, 20, added(TWO)))
    sql_database.run('DELETE FROM "results"')
    with opened(sql_database, later) as target:
        target.apply(batch_of(later, 10, 20, added(THREE)))
    with opened(sql_database, later):
        assert table_of(sql_database, later) == expected(later, [THREE])


TEXTS = parse_ddl("k string NOT NULL, v string")
#: Tables as a user may have made them, in which 'A' equals 'a'; whether rows can be told apart.
VAGUE = {
    "sqlite": [
        ("CREATE TABLE results (k text COLLATE nocase NOT NULL PRIMARY KEY, v text)", False),
        ("CREATE TABLE results (k text COLLATE nocase NOT NULL, v text, UNIQUE (k))", False),
        ("CREATE TABLE results (k text NOT NULL COLLATE nocase, v text);"
         "CREATE UNIQUE INDEX i ON results (k COLLATE binary)", True),
        ("CREATE TABLE results (k text NOT NULL, v text);"
         "CREATE UNIQUE INDEX i ON results (k COLLATE rtrim)", False),
    ],
    "duckdb": [("CREATE TABLE results (k varchar COLLATE nocase, v varchar)", True)],
    "postgresql": [
        ("CREATE TABLE results (k text COLLATE vague PRIMARY KEY, v text)", False),
        ("CREATE TABLE results (k text NOT NULL, v text);"
         "CREATE UNIQUE INDEX ON results (k COLLATE vague)", False),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("sql_database", "statements", "is_taken"),
    [(kind, *case) for kind, cases in VAGUE.items() for case in cases],
    indirect=["sql_database"],
)
def test_texts_that_differ_are_different_keys_whatever_collation_a_table_has(
    sql_database: Database, statements: str, is_taken: bool
) -> None:
    shard = shard_of(TEXTS, key=["k"])
    if "vague" in statements:
        sql_database.run(
            "CREATE COLLATION vague (provider=icu, locale='und-u-ks-level2', deterministic=false)"
        )
    for statement in statements.split(";"):
        sql_database.run(statement)
    if not is_taken:
        with pytest.raises(SchemaMismatch, match=r"different texts for equal|no unique"):
            sql_database.target().open(shard, 1)
        return
    with opened(sql_database, shard) as target:
        target.apply(batch_of(shard, 10, 20, added(("A", "1"), ("b", "2"))))
        target.apply(batch_of(shard, 20, 30, added(("a", "3"), ("B", "4"))))
        target.apply(batch_of(shard, 30, 40, [*taken(("A", "1"), ("B", "4")), (1, "B", "5")]))

    assert table_of(sql_database, shard) == expected(shard, [("a", "3"), ("B", "5"), ("b", "2")])


def test_a_batch_that_comes_twice_is_applied_once(database: Database) -> None:
    batch = batch_of(ADDED, 10, 20, [ONE, ONE])
    with opened(database, ADDED) as target:
        assert [target.apply(batch) for _ in range(3)] == [20, 20, 20]

    assert table_of(database, ADDED) == expected(ADDED, [ONE, ONE])


@pytest.mark.parametrize("after", [0, 9, 11, 15, 20, 30])
def test_a_batch_that_does_not_meet_the_position_changes_nothing(
    database: Database, after: int
) -> None:
    with opened(database, COUNTED) as target:
        assert target.apply(batch_of(COUNTED, after, 40, added(ONE, TWO))) == 10

    assert database.stored(COUNTED) == (10, 1)
    assert table_of(database, COUNTED) == []


def test_a_batch_without_rows_moves_the_position_alone(database: Database) -> None:
    with opened(database, KEYED) as target:
        assert target.apply(batch_of(KEYED, 10, 12)) == 12
        assert target.apply(batch_of(KEYED, 12, 13, added(ONE))) == 13
        assert target.apply(batch_of(KEYED, 13, 900)) == 900

    assert database.stored(KEYED) == (900, 1)
    assert table_of(database, KEYED) == expected(KEYED, [ONE])


def test_rows_that_lie_nowhere_are_refused(database: Database) -> None:
    with opened(database, KEYED) as target:
        for upto in (9, 10):
            with pytest.raises(BadRequest, match="no rows lie in LSNs 10 to"):
                target.apply(batch_of(KEYED, 10, upto, added(ONE)))
        assert target.apply(batch_of(KEYED, 10, 10)) == 10


def test_deliveries_and_shards_have_positions_of_their_own(database: Database) -> None:
    shards = [
        replace(KEYED, delivery=delivery, index=index, table=f"results of {delivery}")
        for delivery in ("bids", 'the "other"; DROP TABLE x')
        for index in (0, 1)
    ]
    for number, shard in enumerate(shards):
        with opened(database, shard) as target:
            row = (number, str(number), 0.5)
            assert target.apply(batch_of(shard, 10, 20 + number, added(row))) == 20 + number

    assert [database.stored(shard) for shard in shards] == [(20 + n, 1) for n in range(4)]
    for first in (0, 2):
        rows = [(number, str(number), 0.5) for number in (first, first + 1)]
        assert table_of(database, shards[first]) == expected(KEYED, rows)


# -- terms


def test_an_older_player_cannot_open_a_target(database: Database) -> None:
    with opened(database, KEYED, term=7), closing(database.target()) as late:
        with pytest.raises(Fenced, match="term 7, this one has 6"):
            late.open(KEYED, 6)
        assert late.open(KEYED, 7) == 10


def test_a_target_that_cannot_be_opened_holds_no_connection(database: Database) -> None:
    """Nobody closes it: a connection that is left would warn of itself, which is an error here."""
    with opened(database, KEYED, term=7):
        target = database.target()
        with pytest.raises(Fenced):
            target.open(KEYED, 6)
        assert getattr(target, "_connection", None) is None


def test_an_older_player_is_fenced_though_it_meets_the_position(database: Database) -> None:
    with opened(database, KEYED, term=1) as zombie, opened(database, KEYED, term=2) as heir:
        with pytest.raises(Fenced):
            zombie.apply(batch_of(KEYED, 10, 20, added(ONE), term=1))
        assert table_of(database, KEYED) == []

        assert heir.apply(batch_of(KEYED, 10, 20, added(TWO), term=2)) == 20
        with pytest.raises(Fenced):
            zombie.apply(batch_of(KEYED, 10, 20, added(ONE), term=1))

    assert database.stored(KEYED) == (20, 2)
    assert table_of(database, KEYED) == expected(KEYED, [TWO])


# -- rivals


@pytest.mark.parametrize("shard", [ADDED, COUNTED, STRICT], ids=["added", "counted", "strict"])
def test_of_rivals_that_apply_the_same_batches_one_wins_each(
    sql_database: Database, shard: Shard
) -> None:
    """Both have the same term, so that nothing but the position tells them apart."""
    count = 40
    problems: list[BaseException] = []

    def batch(number: int) -> object:
        row = (number, "x", 0.0)
        return batch_of(shard, 10 + number, 11 + number, added(row) if shard.changing else [row])

    def play() -> None:
        try:
            with closing(sql_database.target()) as target:
                position = open_patiently(target, shard)
                while position < 10 + count:
                    try:
                        position = target.apply(batch(position - 10))
                    except Unavailable:
                        position = open_patiently(target, shard)
        except BaseException as error:
            problems.append(error)

    rivals = [threading.Thread(target=play) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()

    assert problems == []
    assert sql_database.stored(shard) == (10 + count, 1)
    counts = {"_count": 1} if shard is COUNTED else {}
    rows = expected(shard, [(number, "x", 0.0) for number in range(count)])
    assert table_of(sql_database, shard) == [row | counts for row in rows]


def test_shards_that_are_opened_at_once_share_a_table(sql_database: Database) -> None:
    shards = [replace(ADDED, index=index, count=4) for index in range(4)]
    problems: list[BaseException] = []

    def play(shard: Shard) -> None:
        try:
            with closing(sql_database.target()) as target:
                position = open_patiently(target, shard)
                while position < 20:
                    try:
                        row = (shard.index, "x", 0.0)
                        position = target.apply(batch_of(shard, position, position + 5, [row]))
                    except Unavailable:
                        position = open_patiently(target, shard)
        except BaseException as error:
            problems.append(error)

    players = [threading.Thread(target=play, args=[shard]) for shard in shards]
    for player in players:
        player.start()
    for player in players:
        player.join()

    assert problems == []
    rows = [(index, "x", 0.0) for index in range(4) for _ in range(2)]
    assert table_of(sql_database, ADDED) == expected(ADDED, rows)


def open_patiently(target: Target, shard: Shard) -> Lsn:
    for _ in range(1000):
        try:
            return target.open(shard, 1)
        except Unavailable:
            continue
    raise AssertionError("never available")


# -- what was lost


def test_a_table_that_is_gone_is_not_made_anew(sql_database: Database) -> None:
    with opened(sql_database, KEYED) as target:
        target.apply(batch_of(KEYED, 10, 20, added(ONE)))
    sql_database.run("DROP TABLE results")

    words = "table results is gone, but rows were delivered to it up to LSN 20"
    with closing(sql_database.target()) as target, pytest.raises(Refused, match=words):
        target.open(KEYED, 1)


def test_a_position_that_is_gone_asks_for_opening(sql_database: Database) -> None:
    with opened(sql_database, KEYED) as target:
        sql_database.run("DELETE FROM penstock_positions")
        with pytest.raises(Unavailable, match="is gone"):
            target.apply(batch_of(KEYED, 10, 20, added(ONE)))
        assert target.open(KEYED, 1) == 10


def test_a_target_that_was_restored_goes_on_from_its_own_position(sql_database: Database) -> None:
    with opened(sql_database, ADDED) as target:
        target.apply(batch_of(ADDED, 10, 20, [ONE]))
        target.apply(batch_of(ADDED, 20, 30, [TWO]))
    sql_database.run("DELETE FROM results WHERE auction = 2")
    sql_database.run("UPDATE penstock_positions SET position = 20")

    with closing(sql_database.target()) as target:
        assert target.open(ADDED, 2) == 20
        assert target.apply(batch_of(ADDED, 20, 30, [TWO], term=2)) == 30

    assert table_of(sql_database, ADDED) == expected(ADDED, [ONE, TWO])


# -- rows


def test_rows_replace_each_other_by_key(database: Database) -> None:
    later = (1, "b", 2.5)
    with opened(database, KEYED) as target:
        target.apply(batch_of(KEYED, 10, 20, added(ONE, TWO, THREE)))
        target.apply(batch_of(KEYED, 20, 30, [*taken(ONE), *added(later), *taken(TWO)]))

    assert table_of(database, KEYED) == expected(KEYED, [later, THREE])


def test_of_rows_that_are_only_added_the_last_of_each_key_stays(database: Database) -> None:
    shard = shard_of(changing=False)
    with opened(database, shard) as target:
        target.apply(batch_of(shard, 10, 20, [ONE, TWO, (1, "b", 2.5)]))
        target.apply(batch_of(shard, 20, 30, [THREE, (2, "z", 0.5)]))

    assert table_of(database, shard) == expected(shard, [(1, "b", 2.5), (2, "z", 0.5), THREE])


def test_rows_without_a_key_are_counted(database: Database) -> None:
    nothing = (4, None, float("nan"))
    with opened(database, COUNTED) as target:
        target.apply(batch_of(COUNTED, 10, 20, [*added(ONE, ONE, TWO), (3, *nothing)]))
        target.apply(batch_of(COUNTED, 20, 30, [*taken(ONE, TWO), *added(THREE), (-2, *nothing)]))

    counted = [row | {"_count": 1} for row in expected(COUNTED, [ONE, THREE, nothing])]
    assert repr(table_of(database, COUNTED)) == repr(sorted(counted, key=repr))


def test_a_count_below_zero_is_kept_until_the_row_comes(database: Database) -> None:
    """The delivery may begin in the middle of a result."""
    with opened(database, COUNTED) as target:
        target.apply(batch_of(COUNTED, 10, 20, [(-2, *ONE)]))
        assert [row["_count"] for row in database.rows(COUNTED)] == [-2]
        target.apply(batch_of(COUNTED, 20, 30, [(2, *ONE)]))

    assert database.rows(COUNTED) == []


def test_many_rows_come_to_the_same_as_few(database: Database) -> None:
    count = 6000
    rows = [(number, f"s{number % 7}", number / 8) for number in range(count)]
    for name, shape in {"keyed": KEYED, "counted": COUNTED, "added": ADDED}.items():
        shard = replace(shape, delivery=name, table=name)
        first, then = (rows, []) if not shard.changing else (added(*rows), taken(*rows[::2]))
        with opened(database, shard) as target:
            batch = batch_of(shard, 10, 20, first)
            assert target.apply(batch) == 20
            assert target.apply(batch) == 20
            assert target.apply(batch_of(shard, 20, 30, then)) == 30
        left = rows[1::2] if shard.changing else rows
        counts = {"_count": 1} if shape is COUNTED else {}
        wanted = [row | counts for row in expected(shard, left)]
        assert table_of(database, shard) == wanted


# -- strict


STRICT_REFUSALS = {
    "a key that has two rows": ([], added(ONE, (1, "b", 2.5)), "auction=1 has more than one row"),
    "a row twice": ([], [(2, *ONE)], "auction=1 has more than one row"),
    "a key that is there": (added(ONE), added(TWO, (1, "b", 2.5)), "auction.*=.*1"),
    "a row that is not there": (added(ONE), taken(TWO), "auction=2"),
    "another row of the key": (added(ONE), taken((1, "b", 1.5)), "auction=1"),
    "another row that is replaced": (
        added(ONE, TWO),
        [*taken((1, "a", None)), *added((1, "z", 0.0))],
        "auction=1",
    ),
}


@pytest.mark.parametrize("case", STRICT_REFUSALS)
def test_strict_refuses_and_changes_nothing(sql_database: Database, case: str) -> None:
    before, rows, words = STRICT_REFUSALS[case]
    with opened(sql_database, STRICT) as target:
        target.apply(batch_of(STRICT, 10, 20, before))
        with pytest.raises(Refused, match=words) as caught:
            target.apply(batch_of(STRICT, 20, 31, rows))
        assert not isinstance(caught.value, BadRow)
        assert "in LSNs 20 to 31" in str(caught.value)

        assert sql_database.stored(STRICT) == (20, 1)
        assert table_of(sql_database, STRICT) == expected(STRICT, [row[1:] for row in before])
        assert target.apply(batch_of(STRICT, 20, 31, added(THREE))) == 31


def test_strict_takes_what_is_right(database: Database) -> None:
    nan, zero = (4, None, float("nan")), (5, None, -0.0)
    with opened(database, STRICT) as target:
        target.apply(batch_of(STRICT, 10, 20, added(ONE, TWO, nan, zero)))
        changed = [*added((1, "b", 2.5)), *taken(ONE, TWO, nan, (5, None, 0.0))]
        assert target.apply(batch_of(STRICT, 20, 30, changed)) == 30

    assert table_of(database, STRICT) == expected(STRICT, [(1, "b", 2.5)])


def test_strict_knows_null_keys(database: Database) -> None:
    shard = shard_of(key=("seller", "auction"), strict=True)
    rows = [(1, None, 1.0), (2, None, 2.0), (1, "a", 3.0)]
    with opened(database, shard) as target:
        target.apply(batch_of(shard, 10, 20, added(*rows)))
        with pytest.raises(Refused):
            target.apply(batch_of(shard, 20, 30, added((2, None, 9.0))))
        assert target.apply(batch_of(shard, 20, 30, taken(*rows[:2]))) == 30

    assert table_of(database, shard) == expected(shard, rows[2:])


def test_strict_does_not_count_below_zero(database: Database) -> None:
    shard = replace(COUNTED, strict=True)
    with opened(database, shard) as target:
        target.apply(batch_of(shard, 10, 20, [(2, *ONE)]))
        with pytest.raises(Refused):
            target.apply(batch_of(shard, 20, 30, [*added(TWO), (-3, *ONE)]))
        assert [row["_count"] for row in database.rows(shard)] == [2]
        assert target.apply(batch_of(shard, 20, 30, [(-2, *ONE)])) == 30

    assert database.rows(shard) == []


# -- rows that will not do


def test_a_bad_row_is_named_and_nothing_of_its_batch_is_applied(sql_database: Database) -> None:
    with opened(sql_database, KEYED) as target:
        rows = added(ONE, TWO)
        rows.append((1, None, "no auction", 0.0))
        with pytest.raises(BadRow, match="row 2, column auction: is NOT NULL") as caught:
            target.apply(batch_of(KEYED, 10, 20, rows))
        assert caught.value.row == 2

        assert sql_database.stored(KEYED) == (10, 1)
        assert target.apply(batch_of(KEYED, 10, 20, rows[:2])) == 20

    assert table_of(sql_database, KEYED) == expected(KEYED, [ONE, TWO])


@pytest.mark.parametrize("count", [5, 3000], ids=["few", "many"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_row_that_the_users_own_constraint_refuses_is_found(
    sql_database: Database, count: int, strict: bool
) -> None:
    shard = replace(KEYED, strict=strict)
    sql_database.run(
        "CREATE TABLE results (auction bigint NOT NULL PRIMARY KEY, seller text, "
        "price double precision CHECK (price >= 0))"
    )
    rows = added(*((number, "x", float(number != count - 2) - 0.5) for number in range(count)))
    with opened(sql_database, shard) as target:
        with pytest.raises(BadRow, match=f"row {count - 2} in LSNs 10 to 20") as caught:
            target.apply(batch_of(shard, 10, 20, rows))
        assert caught.value.row == count - 2
        assert table_of(sql_database, shard) == []
        del rows[count - 2]
        assert target.apply(batch_of(shard, 10, 20, rows)) == 20

    assert len(sql_database.rows(shard)) == count - 1


def test_a_bad_row_that_comes_late_is_answered_with_the_position(database: Database) -> None:
    with opened(database, KEYED) as target:
        target.apply(batch_of(KEYED, 10, 20, added(ONE)))
        assert target.apply(batch_of(KEYED, 10, 30, [(1, None, "x", 0.0)])) == 20


def test_rows_of_another_schema_are_refused(database: Database) -> None:
    other = shard_of(SCHEMA.append(SCHEMA.field(0).with_name("more")))
    batch = batch_of(other, 10, 20, [(1, 1, "a", 0.5, 2)])
    with opened(database, KEYED) as target:
        with pytest.raises(BadRequest, match="column more: extra, got bigint; open the target"):
            target.apply(batch)
        assert target.open(other, 1) == 10
        assert target.apply(batch) == 20
