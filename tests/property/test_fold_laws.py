"""A history of changes, cut into batches at will and folded, leaves the table it leaves uncut."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from delivery_histories import (
    KEY,
    SCHEMA,
    Commit,
    History,
    any_histories,
    counted,
    identities,
    keyed_histories,
    last_by_key,
    record_batch,
)
from hypothesis import Phase, given, settings

from penstock.delivery import fold as shipped
from penstock.state.keys import key_objects


def objects(batch: pa.RecordBatch, names: tuple[str, ...] | list[str]) -> list[object]:
    return key_objects(batch.select(list(names)).columns, batch.num_rows)


def keyed_table(
    fold: ModuleType, batches: list[Commit], *, changing: bool, strict: bool
) -> dict[object, object]:
    """What a database makes of the folds: keys, and the rows that they have."""
    table: dict[object, object] = {}
    for batch in batches:
        rows = record_batch(batch, weighted=changing)
        net = fold.fold(rows, key=KEY, changing=changing, strict=strict)
        put = objects(net.upserts, KEY)
        gone = objects(net.deletes, KEY)
        assert len(set(put)) == len(put) and len(set(gone)) == len(gone)
        if strict:
            lost = zip(gone, objects(net.deletes, SCHEMA.names), strict=True)
            assert all(table.pop(key) == row for key, row in lost)
            assert not table.keys() & set(put)
        else:
            assert not set(put) & set(gone)
            assert net.deletes.schema.names == list(KEY)
            for key in gone:
                table.pop(key, None)
        table |= dict(zip(put, objects(net.upserts, SCHEMA.names), strict=True))
        check_places(rows, net.upserts, net.upsert_places)
        check_places(rows, net.deletes, net.delete_places, -1)
    return table


def check_places(
    batch: pa.RecordBatch, rows: pa.RecordBatch, places: np.ndarray, signs: object = 1
) -> None:
    """Each row says where it came from, bit for bit; and there it came, or went."""
    taken = batch.take(pa.array(places))
    assert repr(taken.select(rows.schema.names).to_pylist()) == repr(rows.to_pylist())
    assert (np.diff(places) > 0).all()
    if "_weight" in batch.schema.names:
        assert (np.sign(taken.column("_weight")) == signs).all()


def check_keyed(fold: ModuleType, history: History) -> None:
    wanted = {}
    rows = counted(history.everything())
    assert set(rows.values()) <= {1}
    for row, _ in history.everything():
        (key,), (identity,) = identities([row], KEY), identities([row], SCHEMA.names)
        if identity in rows:
            wanted[key] = identity
    for strict in (False, True):
        table = keyed_table(fold, history.batches(), changing=True, strict=strict)
        assert table == wanted


def check_added(fold: ModuleType, history: History) -> None:
    table = keyed_table(fold, history.batches(), changing=False, strict=False)
    assert table == last_by_key(history.everything())


def check_counted(fold: ModuleType, history: History) -> None:
    table: Counter[object] = Counter()
    for batch in history.batches():
        net = fold.fold(record_batch(batch), key=(), changing=True, strict=False)
        assert (net.deltas != 0).all()
        rows = objects(net.rows, SCHEMA.names)
        assert len(set(rows)) == len(rows)
        for row, delta in zip(rows, net.deltas.tolist(), strict=True):
            table[row] += delta
        check_places(record_batch(batch), net.rows, net.places, np.sign(net.deltas))
    assert {row: count for row, count in table.items() if count} == counted(history.everything())


@given(keyed_histories())
def test_rows_that_replace_each_other_by_key(history: History) -> None:
    check_keyed(shipped, history)


@given(any_histories())
def test_rows_that_are_only_added_by_key(history: History) -> None:
    check_added(shipped, history)


@given(any_histories())
def test_rows_without_a_key(history: History) -> None:
    check_counted(shipped, history)


@given(any_histories())
def test_rows_that_are_added_without_a_key_stay_as_they_are(history: History) -> None:
    rows = record_batch(history.everything(), weighted=False)

    net = shipped.fold(rows, key=(), changing=False, strict=False)

    assert isinstance(net, shipped.Changes)
    assert net.upserts is rows and net.deletes.num_rows == 0


@given(any_histories())
def test_strict_notices_every_key_that_has_or_loses_two_rows(history: History) -> None:
    changes = history.everything()
    rows = [row for row, _ in changes]
    row_of = dict(zip(identities(rows, SCHEMA.names), rows, strict=True))
    come, gone = Counter[object](), Counter[object]()
    for identity, count in counted(changes).items():
        (key,) = identities([row_of[identity]], KEY)
        (come if count > 0 else gone)[key] += abs(count)
    is_wrong = max([*come.values(), *gone.values()], default=0) > 1

    with pytest.raises(shipped.KeyTwice) if is_wrong else nullcontext():
        shipped.fold(record_batch(changes), key=KEY, changing=True, strict=True)


#: What is replaced in the shipped file, by what, and the check that notices.
MUTANTS: dict[str, tuple[str, str, Callable[[ModuleType, History], None]]] = {
    "weights are not summed": (
        "np.add.at(totals, first, weights)",
        "totals[first] = weights",
        check_counted,
    ),
    "rows are equal only if all are": (
        "first = first_equal(rows.columns, count)",
        "first = np.arange(count)",
        check_counted,
    ),
    "rows are told apart by their keys alone": (
        "first = first_equal(rows.columns, count)",
        "first = first_equal(rows.columns[:2], count)",
        check_keyed,
    ),
    "a key that has a row again is deleted all the same": (
        "places[lost[winner[lost] < 0]]",
        "places[lost]",
        check_keyed,
    ),
    "a key that has lost its row keeps it": (
        "places[lost[winner[lost] < 0]]",
        "places[lost[:0]]",
        check_keyed,
    ),
    "the first row of a key wins": (
        "winner[codes[: len(added)]] = added",
        "winner[codes[: len(added)][::-1]] = added[::-1]",
        check_added,
    ),
    "what is taken back is added": (
        "places[totals > 0], places[totals < 0]",
        "places, places[:0]",
        check_keyed,
    ),
    "what stays the same is written": (
        "kept = np.flatnonzero(totals)",
        "kept = np.unique(first)",
        check_counted,
    ),
    "a row that goes stands for one that comes": (
        "(weights > 0) == (totals[first] > 0)",
        "weights != 0",
        check_keyed,
    ),
}
STRATEGIES = {
    check_keyed: keyed_histories(),
    check_added: any_histories(),
    check_counted: any_histories(),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, check = MUTANTS[name]
    text = Path(str(shipped.__file__)).read_text()
    assert text.count(old) == 1
    mutant = ModuleType("fold_mutant")
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
    exec(text.replace(old, new), mutant.__dict__)

    @settings(max_examples=300, phases=[Phase.generate])
    @given(STRATEGIES[check])
    def run(history: History) -> None:
        check(mutant, history)

    with pytest.raises((AssertionError, KeyError)):
        run()
