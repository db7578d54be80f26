"""Rows find their shard, in log order, and can be found again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.delivery.messages import Apply, batch_of
from penstock.delivery.routing import Commit, Router, first_route
from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
CHANGING = SCHEMA.append(pa.field("_weight", pa.int64()))


def rows(*keys: int, schema: pa.Schema = SCHEMA, weight: int = 1) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {"k": list(keys), "v": [f"v{key}" for key in keys]}
    if "_weight" in schema.names:
        columns["_weight"] = [weight] * len(keys)
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def commit(lsn: int, *batches: pa.RecordBatch) -> Commit:
    return Commit(Lsn(lsn), batches, 100 * sum(batch.num_rows for batch in batches))


def test_virtual_nodes_take_turns_over_the_shards() -> None:
    route = first_route(3)

    assert len(route) == VIRTUAL_NODES
    assert route[:4] == (0, 1, 2, 0)


def test_more_shards_than_virtual_nodes_are_refused() -> None:
    with pytest.raises(BadRequest, match="65 targets"):
        first_route(VIRTUAL_NODES + 1)


def test_each_row_goes_to_the_shard_of_its_key_in_log_order() -> None:
    router = Router(SCHEMA, ["k"], first_route(4))
    commits = [commit(5, rows(1, 2, 3)), commit(7, rows(4, 1)), commit(9, rows(2, 5), rows(6, 1))]

    span = router.route(commits, after=Lsn(3), upto=Lsn(12))

    assert (span.after, span.upto, span.commits) == (3, 12, 3)
    flat = [key for one in commits for batch in one.batches for key in batch["k"].to_pylist()]
    nodes = virtual_nodes(hash_columns([pa.array(flat)], len(flat)))
    for shard in range(4):
        expected = [key for key, node in zip(flat, nodes, strict=True) if node % 4 == shard]
        piece = span.pieces.get(shard)
        found = [] if piece is None else [k for b in piece.rows for k in b["k"].to_pylist()]
        assert found == expected
    assert sum(piece.count for piece in span.pieces.values()) == len(flat)


def test_a_row_is_found_where_it_counts_and_can_be_left_out() -> None:
    router = Router(SCHEMA, ["k"], first_route(2))
    commits = [commit(5, rows(1, 2, 3)), commit(9, rows(2, 5), rows(6, 1))]
    at = {(5, 0): 1, (5, 1): 2, (5, 2): 3, (9, 0): 2, (9, 1): 5, (9, 2): 6, (9, 3): 1}

    span = router.route(commits, after=Lsn(0), upto=Lsn(10))

    places = {}
    for shard, piece in span.pieces.items():
        batch = Apply(shard, 1, 1, Lsn(0), Lsn(10), (piece,))
        for row, key in enumerate(batch_of(batch, rows()).rows["k"].to_pylist()):
            place = batch.locate(row)
            assert place is not None
            places[place] = key
        lsn, row = piece.locate(0)
        less = piece.without(lsn, row)
        assert less.count == piece.count - 1
        assert less.without(lsn, row) is less
        assert piece.without(Lsn(6), 0) is piece
        assert [less.locate(at) for at in range(less.count)] == [
            piece.locate(at) for at in range(1, piece.count)
        ]
        assert batch.locate(piece.count) is None
    assert places == at


def test_rows_that_all_go_to_one_shard_are_not_copied() -> None:
    batch = rows(7, 7, 7)
    single = Router(SCHEMA, ["k"], first_route(1)).route(
        [commit(1, rows(1), batch)], after=Lsn(0), upto=Lsn(2)
    )
    alike = Router(SCHEMA, ["k"], first_route(4)).route(
        [commit(1, batch)], after=Lsn(0), upto=Lsn(2)
    )

    assert single.pieces[0].rows[1] is batch
    (piece,) = alike.pieces.values()
    assert piece.rows[0] is batch
    assert piece.locate(2) == (1, 2)


def test_rows_that_stand_together_are_not_copied() -> None:
    given = rows(*range(6), 8, 10)
    router = Router(SCHEMA, ["k"], first_route(2))
    shards = router._shards[router.nodes(given)].argsort(kind="stable")
    sorted_rows = given.take(pa.array(shards))

    pieces = router.route([commit(4, sorted_rows)], after=Lsn(4), upto=Lsn(5)).pieces

    assert {shard: piece.rows[0] for shard, piece in pieces.items()} == {
        shard: piece.rows[0]
        for shard, piece in router.route(
            [commit(4, given)], after=Lsn(4), upto=Lsn(5)
        ).pieces.items()
    }
    buffers = {piece.rows[0].column(0).buffers()[1].address for piece in pieces.values()}
    assert buffers == {sorted_rows.column(0).buffers()[1].address}
    (first, second) = pieces.values()
    assert [first.locate(0), second.locate(0)] == [(4, 0), (4, first.count)]


def test_without_a_key_a_row_and_what_takes_it_back_meet() -> None:
    router = Router(CHANGING, [], first_route(8))
    plus = rows(*range(50), schema=CHANGING)
    minus = rows(*range(50), schema=CHANGING, weight=-1)

    span = router.route([commit(1, plus), commit(2, minus)], after=Lsn(0), upto=Lsn(3))

    assert len(span.pieces) > 1
    for piece in span.pieces.values():
        (batch,) = piece.rows
        keys, weights = np.array(batch["k"]), np.array(batch["_weight"])
        assert sorted(keys[weights > 0]) == sorted(keys[weights < 0])


def test_one_shard_alone_can_be_asked_for() -> None:
    router = Router(SCHEMA, ["k"], first_route(2))
    commits = [commit(1, rows(*range(20)))]

    whole = router.route(commits, after=Lsn(0), upto=Lsn(3))
    alone = router.route(commits, after=Lsn(0), upto=Lsn(3), only=1)

    assert list(alone.pieces) == [1]
    assert alone.pieces[1] == whole.pieces[1]
    assert alone.commits == whole.commits


def test_commits_without_rows_do_not_count() -> None:
    span = Router(SCHEMA, ["k"], (0, 1) * 32).route(
        [commit(1, rows()), commit(2)], after=Lsn(0), upto=Lsn(4)
    )

    assert (span.pieces, span.commits, span.upto) == ({}, 0, 4)


def test_a_batch_without_pieces_has_the_columns_and_no_rows() -> None:
    batch = batch_of(Apply(0, 1, 3, Lsn(4), Lsn(9), ()), rows())

    assert (batch.term, batch.after, batch.upto) == (3, 4, 9)
    assert batch.rows.schema == SCHEMA
    assert batch.rows.num_rows == 0
