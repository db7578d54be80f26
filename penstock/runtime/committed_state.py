"""What is known of a query's state: its tasks' last markers, their checkpoints, the changes since.

Law: what is shown of a key is the fold of what was committed up to the task's last marker, and of
nothing else. A checkpoint that cannot be read is told, and the one before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from penstock.errors import BadRequest, Damaged, PenstockError, Unavailable
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Kind
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId, layout_key
from penstock.protocol.resume import ChangeFold
from penstock.runtime.layout import first_layout, read_layout
from penstock.runtime.registry import RegisteredQuery
from penstock.state.api import Change
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.fold import have_keys, merge_changes
from penstock.state.manifest import IncrementFile
from penstock.state.parts import VALUE, Part, Parts
from penstock.state.stores.open import open_store
from penstock.stream.json_lines import row_from_json, row_to_json


class _TaskState:
    """The state of one task at its last marker."""

    def __init__(self, client: BlockingLog, query: RegisteredQuery, task: TaskId) -> None:
        self._client = client
        self.task = task
        last = client.read_last(task.marker_tag)
        self.marker: Marker | None = None if last is None else decode_marker(last.payload)
        self._end = 0 if last is None else last.lsn + 1
        self.store: CheckpointStore | None = None
        self.ref: CheckpointRef | None = None
        self.problem: str | None = None
        self.parts: Parts = {}
        if self.marker is not None and query.checkpoints is not None:
            store = open_store(query.checkpoints, client.log_id)
            if isinstance(store, CheckpointStore):
                self.store = store
                self._choose(self.marker, store)
            elif self.marker.checkpoints:
                kind = self.marker.checkpoints[0].get("store")
                self.problem = f"rows in {kind} are not shown: only changes that the log still has"

    def _choose(self, marker: Marker, store: CheckpointStore) -> None:
        """The newest checkpoint that can be read."""
        for named in marker.checkpoints:
            try:
                ref = CheckpointRef.from_json(named)
                self.parts = store.parts(ref)
            except (Damaged, Unavailable) as error:
                self.problem = f"a checkpoint cannot be read: {error}"
                continue
            self.ref = ref
            return

    def payloads(self) -> Iterator[bytes]:
        """What was committed after the checkpoint, up to the last marker."""
        start = 0 if self.ref is None else self.ref.marker_lsn + 1
        start = max(start, self._client.bounds().trim_point)
        fold, tags = ChangeFold(), [self.task.marker_tag, self.task.change_tag]
        if start >= self._end:
            return
        with self._client.tail(tags, start=start, end=self._end) as reader:
            for batch in reader:
                for entry in batch.entries:
                    if entry.kind in (Kind.MARKER, Kind.CHANGE):
                        yield from (change.payload for change in fold.step(entry))


def _tasks(client: BlockingLog, query: RegisteredQuery) -> list[_TaskState]:
    if query.protocol != "marker":
        raise BadRequest(f"query {query.name} commits by {query.protocol}: its state is not shown")
    value = client.get(layout_key(query.name))
    found = None if value is None else read_layout(value.data, query.version)
    layout = found or first_layout(query.tasks)
    ids = [
        TaskId(query.name, query.version, stage, share.index)
        for stage, shares in enumerate(layout.stages)
        for share in shares
    ]
    return [_TaskState(client, query, task) for task in ids]


def task_facts(client: BlockingLog, query: RegisteredQuery) -> list[dict[str, Any]]:
    """Of each task that keeps something: sizes, files, and what a restore reads."""
    return [
        _facts(one)
        for one in _tasks(client, query)
        if one.marker is not None and one.marker.has_state
    ]


def _facts(one: _TaskState) -> dict[str, Any]:
    lines: Sequence[IncrementFile] = ()
    problem = one.problem
    parts: dict[str, dict[str, Any]] = {}
    nodes: dict[int, int] = {}
    if one.ref is not None and one.store is not None:
        lines = one.store.increments(one.ref)
        try:
            for line in lines:
                for name, kind, rows, size in one.store.sizes(line):
                    part = parts.setdefault(name, {"name": name, "rows": 0, "bytes": 0})
                    part["kind"] = one.parts[name].kind if name in one.parts else kind
                    part["bytes"] += size
                    for node, count in rows.items():
                        if node >= 0:
                            part["rows"] += count
                            nodes[node] = nodes.get(node, 0) + count
        except PenstockError as error:
            problem = f"an increment cannot be read: {error}"
    sizes = [len(payload) for payload in one.payloads()]
    if one.ref is None and problem is None:
        problem = "there is no checkpoint yet: a restore reads all changes"
    return {
        "task": str(one.task),
        "checkpoint_lsn": None if one.ref is None else one.ref.marker_lsn,
        "restore_bytes": sum(line.bytes for line in lines),
        "increments": [asdict(line) for line in lines],
        "parts": list(parts.values()),
        "nodes": dict(sorted(nodes.items())),
        "change_entries": len(sizes),
        "change_bytes": sum(sizes),
        "problem": problem,
    }


def find_key(client: BlockingLog, query: RegisteredQuery, text: str) -> list[dict[str, Any]]:
    """The rows of one key, in all parts whose keys have these columns."""
    found: list[dict[str, Any]] = []
    known: set[str] = set()
    is_looked_for = False
    for one in _tasks(client, query):
        if one.marker is None or not one.marker.has_state:
            continue
        if one.ref is None:
            raise BadRequest(
                f"{one.task} has no checkpoint that can be read yet, and only checkpoints say "
                f"which columns are keys: try again later{_cause(one)}"
            )
        changes = [change for payload in one.payloads() for change in decode_changes(payload)]
        for name, part in one.parts.items():
            if part.kind == VALUE or not part.keys:
                continue
            known.add(", ".join(part.rows.field(at).name for at in part.keys))
            keys = _keys_of(part, text)
            if keys is not None:
                is_looked_for = True
                found += _rows_of(one, name, part, keys, changes)
    if not is_looked_for:
        raise BadRequest(
            f"{text} is no key of query {query.name}, whose keys are "
            f"{'; '.join(sorted(known)) or 'none'}: give one value as JSON, or an object with all "
            "columns of a key"
        )
    return found


def _cause(one: _TaskState) -> str:
    return "" if one.problem is None else f" ({one.problem})"


def _keys_of(part: Part, text: str) -> list[pa.Array] | None:
    """The key as columns of one row; None if it is none of this part's."""
    schema = pa.schema([part.rows.field(at).with_nullable(True) for at in part.keys])
    if len({*schema.names}) < len(schema):
        return None  # no object can have two columns of one name
    is_object = text.lstrip().startswith("{")
    if not is_object and len(schema) != 1:
        return None
    whole = text if is_object else f"{{{json.dumps(schema.names[0])}: {text}}}"
    try:
        if {*json.loads(whole)} != {*schema.names}:
            return None
        row = row_from_json(whole, schema)
    except (PenstockError, ValueError):
        return None
    return list(pa.RecordBatch.from_pylist([row], schema=schema).columns)


def _rows_of(
    one: _TaskState, name: str, part: Part, keys: list[pa.Array], changes: list[Change]
) -> list[dict[str, Any]]:
    assert one.store is not None and one.ref is not None
    kept = list(one.store.find(one.ref.to_json(), name, keys).changes)
    for change in changes:
        if change.name != name:
            continue
        if change.kind == "evict":
            kept.append(change)
            continue
        mask = have_keys(change.rows, part.keys, keys)
        if mask.any():
            kept.append(Change(name, change.kind, change.rows.filter(pa.array(mask))))
    rows = []
    for change in merge_changes(kept, one.parts, is_whole=True):
        weights = [1] * change.rows.num_rows
        plain = change.rows
        if change.kind == "add":
            weights = plain.column(len(part.rows)).to_pylist()
            plain = plain.select(list(range(len(part.rows))))
        for row, weight in zip(plain.to_pylist(), weights, strict=True):
            text = row_to_json(row)
            rows.append({"task": str(one.task), "part": name, "weight": weight, "text": text})
    return rows
