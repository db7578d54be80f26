"""`penstock delivery reshard`: what it says, what others say of it, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changing_result import COLUMNS, QUERY, ChangingResult
from harness.waiting import wait_until
from resharded_tables import Judge, look_at_sqlite
from test_cli_deliver import player, run, run_json

import penstock
from penstock.delivery.registration import list_deliveries


@pytest.fixture
def result(own_log: penstock.Log) -> Iterator[ChangingResult]:
    made = ChangingResult(own_log, seed=4)
    for _ in range(20):
        made.commit()
    yield made
    made.close()


def test_a_running_delivery_gets_other_targets(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """Then it is killed, and what it is started with must be the new ones."""
    a, b, c = (f"sqlite:///{tmp_path / name}.db" for name in "abc")
    about = ["--query", QUERY, "--name", "d", "--table", "hot"]

    def whole() -> bool:
        ((found, _),) = list_deliveries(own_log.client)
        judge = Judge(result.commits, found.layout, keyed=True)
        samples = [
            look_at_sqlite(tmp_path / f"{name}.db", "d", "hot", COLUMNS, is_counted=False)
            for name in "abc"
        ]
        tables = [one.table for one in samples if one is not None]
        assert not any(judge.problem(one) for one in samples if one is not None)
        return sum(map(len, tables)) == len(judge.whole()) and len(tables) == 3

    def moves() -> list[str | None]:
        told = run_json(own_log, "delivery", "status", "d")["targets"]
        return [one["moves"] for one in told]

    with player(own_log, tmp_path, *about, "--to", a, "--to", b):
        wait_until(lambda: any(one["position"] for one in run_json(own_log, "delivery", "list")))
        done = run_json(own_log, "delivery", "reshard", "d", "--to", c, "--to", a)
        result.commit()
        wait_until(whole)

    assert (done["added"], done["removed"], done["targets"]) == ([c], [b], [a, c])
    old = run(own_log, "deliver", *about, "--to", a, "--to", b)
    assert old.exit_code == 3, old.output
    assert f"it was given other targets at LSN {done['cut']}, {a}, {c}" in old.stderr
    result.commit()
    with player(own_log, tmp_path, *about, "--to", a, "--to", c):
        wait_until(whole)
        wait_until(lambda: moves() == [None, "gave all its rows away", None])
    (listed,) = run_json(own_log, "delivery", "list")
    assert listed["lag"]["records"] == 0


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (["sqlite:///{a}"], "has these targets already"),
        (["postgresql://me:secret@db/shop"], "is not registered in the log"),
        (["target://127.0.0.1:1/0?token_file=/t"], "is not registered in the log"),
        (["nonsense://x"], "is no target"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path, to: list[str], words: str
) -> None:
    file = tmp_path / "a.db"
    with player(own_log, tmp_path, "--query", QUERY, "--name", "d", "--to", f"sqlite:///{file}"):
        wait_until(lambda: list_deliveries(own_log.client) != [])

    addresses = [part for one in to for part in ("--to", one.format(a=file))]
    found = run(own_log, "delivery", "reshard", "d", *addresses)

    assert found.exit_code not in (0, 1), found.output
    assert words in found.stderr
    assert "secret" not in found.output


def test_a_delivery_that_is_not_there_has_no_targets(own_log: penstock.Log) -> None:
    found = run(own_log, "delivery", "reshard", "d", "--to", "sqlite:///a.db")

    assert "no delivery d: the log has no deliveries" in found.stderr


def test_how_to_start_it_from_then_on_is_printed_as_it_is_to_be_typed(
    own_log: penstock.Log, result: ChangingResult, tmp_path: Path
) -> None:
    """Its name, which may have been made of a target that it has no more; addresses with users."""
    a, b = (f"sqlite:///{tmp_path / name}.db" for name in "ab")
    with player(own_log, tmp_path, "--query", QUERY, "--to", a):
        wait_until(lambda: list_deliveries(own_log.client) != [])
    [(found, _)] = list_deliveries(own_log.client)

    close = run(own_log, "delivery", "reshard", f"{found.name}s", "--to", b)
    done = run(own_log, "delivery", "reshard", found.name, "--to", b)

    assert f"did you mean {found.name}?" in close.stderr
    assert f"  --name {found.name}\n  --to {b}\n" in done.stdout
