"""The merge of changes: many in a row become few that do the same. Pure.

    value     the last `set`
    table     of each key the last `put` or `delete`
    row set   the latest bound of `evict`, then all rows that no later bound struck, as `add`;
              rows that cancel each other are gone

Rows come out in order of their place: virtual node first, then hash of the key. Rows of one key
stay in the order in which they came.

Law: applying merge_changes(changes) does what applying the changes does, to any state; and if that
state is empty, merge_changes(changes, is_whole=True) does so too. It may be cut anywhere: the merge
of merges is the merge of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadFormat, BadRequest
from penstock.state.api import Change
from penstock.state.equal_rows import Mask, first_equal, strike_out
from penstock.state.event_time import event_times_us
from penstock.state.keys import VIRTUAL_NODES, Hashes, hash_columns, virtual_nodes, words_column
from penstock.state.parts import ROW_SET, TABLE, Part, Parts

Ints = npt.NDArray[np.int64]
#: Of a place: so many upper bits are the virtual node, the others the upper ones of the hash.
NODE_BITS = 6
_NODE_SHIFT = np.uint64(64 - NODE_BITS)
_HASH_SHIFT = np.uint64(NODE_BITS)

assert VIRTUAL_NODES == 1 << NODE_BITS


def places_of(part: Part, rows: pa.RecordBatch) -> Hashes:
    """Where rows (or deleted keys) of a part stand: by virtual node, then by hash of the key.

    The key columns of a deletion are the first ones of a table, so positions hold for it too.
    """
    count = rows.num_rows
    nodes = virtual_nodes(hash_columns([rows.column(at) for at in part.partition], count))
    hashes = hash_columns([rows.column(at) for at in part.keys], count)
    return _places(nodes, hashes)


def find_places(part: Part, keys: Sequence[pa.Array]) -> Hashes:
    """Where rows with these keys stand; columns of keys in the order of the part's.

    Raises BadRequest if keys alone do not place rows.
    """
    if not {*part.partition} <= {*part.keys}:
        raise BadRequest("rows of this part are placed by columns that are not in their key")
    count = len(keys[0]) if keys else 1
    own = dict(zip(part.keys, keys, strict=True))
    nodes = virtual_nodes(hash_columns([own[at] for at in part.partition], count))
    return _places(nodes, hash_columns(keys, count))


def have_keys(rows: pa.RecordBatch, places: Sequence[int], keys: Sequence[pa.Array]) -> Mask:
    """Which rows have one of the keys in these columns: hashes alone do not tell."""
    wanted = len(keys[0]) if keys else 1
    columns = [
        pa.concat_arrays([key, rows.column(at)]) for key, at in zip(keys, places, strict=True)
    ]
    first = first_equal(columns, wanted + rows.num_rows)
    found: Mask = first[wanted:] < wanted
    return found


def _places(nodes: Ints, hashes: Hashes) -> Hashes:
    return (nodes.astype(np.uint64) << _NODE_SHIFT) | (hashes >> _HASH_SHIFT)


def nodes_of(places: Hashes) -> Ints:
    """The virtual nodes of places."""
    return (places >> _NODE_SHIFT).astype(np.int64)


def merge_changes(
    changes: Iterable[Change], parts: Parts, *, is_whole: bool = False
) -> list[Change]:
    """Changes of several parts, in the order in which they are to be applied.

    `is_whole`: nothing was there before them, so that nothing need be deleted or struck.
    """
    by_part: dict[str, list[Change]] = {}
    for change in changes:
        if change.name not in parts:
            raise BadFormat(f"changes of {change.name}, which is no part of the state")
        by_part.setdefault(change.name, []).append(change)
    merged = []
    for name, own in by_part.items():
        part = parts[name]
        if part.kind == TABLE:
            merged += _merge_table(name, part, own, is_whole=is_whole)
        elif part.kind == ROW_SET:
            merged += _merge_rows(name, part, own, is_whole=is_whole)
        else:
            merged.append(own[-1])
    return merged


def _merge_table(
    name: str, part: Part, changes: Sequence[Change], *, is_whole: bool
) -> list[Change]:
    keys = [[change.rows.column(at) for at in part.keys] for change in changes]
    counts = [change.rows.num_rows for change in changes]
    last = _last_of_each(keys, sum(counts))
    is_put = np.repeat([change.kind == "put" for change in changes], counts)
    merged = []
    gone, kept = last[~is_put[last]], last[is_put[last]]
    if len(gone) and not is_whole:
        schema = pa.schema([part.rows.field(at) for at in part.keys])
        rows = _take([_keys_of(change, part) for change in changes], gone, schema)
        merged.append(Change(name, "delete", in_order(part, rows)))
    if len(kept):
        numbers = np.cumsum(is_put) - 1  # places among what was put alone
        puts = [change.rows for change in changes if change.kind == "put"]
        merged.append(Change(name, "put", in_order(part, _take(puts, numbers[kept], part.rows))))
    return merged


def _last_of_each(keys: Sequence[Sequence[pa.Array]], count: int) -> Ints:
    """The last row of each key, in order."""
    columns = [pa.concat_arrays(column) for column in zip(*keys, strict=True)]
    back = words_column(np.arange(count)[::-1])
    first = first_equal([column.take(back) for column in columns], count)
    leads = (first == np.arange(count)).nonzero()[0]
    return (count - 1 - leads)[::-1]


def _keys_of(change: Change, part: Part) -> pa.RecordBatch:
    return change.rows.select(list(part.keys))


def _take(batches: Sequence[pa.RecordBatch], places: Ints, schema: pa.Schema) -> pa.RecordBatch:
    """These rows of all batches."""
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(places), pa.struct([])))
    plain = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
    whole = plain[0] if len(plain) == 1 else pa.concat_batches(plain)
    if len(places) == whole.num_rows:
        return whole
    return whole.take(words_column(places))


def _merge_rows(
    name: str, part: Part, changes: Sequence[Change], *, is_whole: bool
) -> list[Change]:
    bound_us: int | None = None
    added: list[pa.RecordBatch] = []
    for change in reversed(changes):
        if change.kind == "evict":
            told: int = change.rows.column(0)[0].as_py()
            bound_us = told if bound_us is None else max(told, bound_us)
        else:
            added.append(change.rows if bound_us is None else _later(part, change.rows, bound_us))
    merged = []
    if bound_us is not None and not is_whole:
        merged.append(Change(name, "evict", pa.record_batch([[bound_us]], names=["bound_us"])))
    rows = _added_up(part, [rows for rows in reversed(added) if rows.num_rows])
    if rows is not None:
        merged.append(Change(name, "add", rows))
    return merged


def _later(part: Part, rows: pa.RecordBatch, bound_us: int) -> pa.RecordBatch:
    """The rows that an eviction after them leaves."""
    if part.event_time is None:
        raise BadFormat("an eviction of rows without event time")
    return rows.filter(pa.array(event_times_us(rows.column(part.event_time)) > bound_us))


def _added_up(part: Part, added: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    if not added:
        return None
    schema = part.rows.append(pa.field("weight", pa.int64())).remove_metadata()
    count = sum(rows.num_rows for rows in added)
    rows = in_order(part, _take(added, np.arange(count), schema))
    weights: Ints = rows.column(len(part.rows)).to_numpy()
    if not (weights < 0).any():
        return rows
    plain = rows.select(list(range(len(part.rows))))
    kept, weights = strike_out(places_of(part, rows), plain, weights)
    if not len(kept):
        return None
    taken = plain.take(words_column(kept))
    return pa.RecordBatch.from_arrays([*taken.columns, words_column(weights)], schema=schema)


def in_order(part: Part, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in order of their places."""
    if rows.num_rows < 2 or not rows.num_columns:
        return rows
    places = places_of(part, rows)
    if (places[1:] >= places[:-1]).all():
        return rows
    return rows.take(words_column(places.argsort(kind="stable")))
