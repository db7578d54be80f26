"""Queries and tasks, and the tags and keys under which the log knows them.

    s/<stream>                     a stream: data, and the markers of tasks that write it
    k/<query>.<version>/<stage>    a keyed stream between stages: markers of the stage's tasks
    k/…/<stage>/<virtual node>     its data, by virtual node
    f/<query>.<version>/<stage>    an entry here asks the stage's tasks to commit up to it
    s/<stream>/<virtual node>      data of a stream whose writer says by which columns it is keyed
    M/<stream>                     the markers of the stream that name staged entries
    T/<task>, C/<task>             a task's markers, and its state changes
    ctl/<query>                    control entries between the coordinator and its workers
    pulse/<query>                  the coordinator's own, with the progress
    T/spark/<id>                   markers of a micro-batch query of Spark's own engine, by its id
    W                              markers of batch writes
    D/<delivery>                   acks of a delivery: how far each of its targets is
    D/<delivery>/flush             an entry here asks it to come up to it soon

A task is `<query>.<version>/<stage>/<index>`; its producer is `@<task>`, that of a delivery's
player `@deliver/<delivery>`. A version is a life of the
query: one that starts anew after its plan was changed takes the next, and so shares no tag with it.
Law: no stream, and no producer of a stream, can take these names (none starts with @). Whoever has
the log's token and appends by hand can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadFormat, BadRequest

QUERY_PREFIX: Final = "query/"
RUN_PREFIX: Final = "run/"
LAYOUT_PREFIX: Final = "layout/"
#: Metadata: the query that was last registered as a writer of a stream, by the stream.
WRITERS_PREFIX: Final = "writers/"
#: Metadata: the last batch of a micro-batch query (batch_commit.py), by the query's id.
BATCH_PREFIX: Final = "batch/"
#: Metadata: from where on a writer of Spark's own engine has staged entries without a marker.
STAGING_PREFIX: Final = "staging/"
#: Metadata: what a delivery is, and how far it is (deliveries.py).
DELIVER_PREFIX: Final = "deliver/"
DELIVERED_PREFIX: Final = "delivered/"
#: Metadata: rows that a delivery has set aside, one key each.
ASIDE_PREFIX: Final = "aside/"
#: Producers that are players of deliveries.
PLAYER_PREFIX: Final = "@deliver/"
#: Markers of batch writes, all of them.
BATCH_WRITES_TAG: Final = "W"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_DELIVERY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_TASK: Final = re.compile(
    r"([A-Za-z_][A-Za-z0-9_-]{0,99})"
    r"\.(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,5})/(0|[1-9][0-9]{0,5})"
)


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One set of virtual nodes of one stage of one version of a query."""

    query: str
    version: int
    stage: int
    index: int

    def __str__(self) -> str:
        return f"{self.query}.{self.version}/{self.stage}/{self.index}"

    @property
    def producer(self) -> str:
        return f"@{self}"

    @property
    def marker_tag(self) -> str:
        return f"T/{self}"

    @property
    def change_tag(self) -> str:
        return f"C/{self}"


def parse_task(text: str) -> TaskId:
    match = _TASK.fullmatch(text)
    if match is None:
        raise BadFormat(f"{text!r} is no task: expected query.version/stage/index")
    query, version, stage, index = match.groups()
    return TaskId(query, int(version), int(stage), int(index))


def check_query_name(name: str) -> None:
    """Names go into tags, keys and file names, hence few characters."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"query name {name!r}: a letter or _ first, then letters, digits, _ - "
            "(100 characters at most)"
        )


def keyed_tag(query: str, version: int, stage: int) -> str:
    """The markers of a keyed stream."""
    return f"k/{query}.{version}/{stage}"


def node_tag(query: str, version: int, stage: int, node: int) -> str:
    """The data of one virtual node of a keyed stream."""
    return f"k/{query}.{version}/{stage}/{node}"


def flush_tag(query: str, version: int, stage: int) -> str:
    """Read by all tasks of a stage, among their input."""
    return f"f/{query}.{version}/{stage}"


def control_tag(query: str) -> str:
    return f"ctl/{query}"


def pulse_tag(query: str) -> str:
    return f"pulse/{query}"


def coordinator_producer(query: str) -> str:
    return f"@{query}"


def query_key(query: str) -> str:
    """Metadata: what the query is (runtime/registry.py)."""
    return QUERY_PREFIX + query


def run_key(query: str) -> str:
    """Metadata: the instance of the coordinator that runs it; claims of tasks are guarded by it."""
    return RUN_PREFIX + query


def layout_key(query: str) -> str:
    """Metadata: which task has which virtual nodes (runtime/layout.py)."""
    return LAYOUT_PREFIX + query


def writers_key(stream: str) -> str:
    """Metadata: guards the registration of queries that write the stream (runtime/writers.py)."""
    return WRITERS_PREFIX + stream


def stream_node_tag(stream: str, node: int) -> str:
    """The data of one virtual node of a stream that is keyed."""
    return f"s/{stream}/{node}"


def naming_tag(stream: str) -> str:
    """The markers of a stream that name staged entries: a reader of a range needs only those."""
    return f"M/{stream}"


def with_naming(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags of a marker that names staged entries, given those of one that does not."""
    streams = [tag.removeprefix("s/") for tag in tags if tag.startswith("s/")]
    return (*tags, *(naming_tag(stream) for stream in streams))


def batch_key(id: str) -> str:
    return BATCH_PREFIX + id


def staging_key(id: str, batch: int = 0) -> str:
    """Of one batch of a micro-batch query, or of a batch write."""
    return f"{STAGING_PREFIX}{id}.{batch}"


def batch_writer(id: str) -> str:
    """What the markers of a micro-batch query, or of a batch write, say that they are of."""
    return f"spark/{id}"


def check_delivery_name(name: str) -> None:
    """Names go into tags, keys and tables of targets, hence few characters."""
    if not isinstance(name, str) or not _DELIVERY.fullmatch(name):
        raise BadRequest(
            f"delivery name {name!r}: a letter or _ first, then letters, digits, _ . - "
            "(100 characters at most)"
        )


def deliver_key(delivery: str) -> str:
    return DELIVER_PREFIX + delivery


def delivered_key(delivery: str) -> str:
    return DELIVERED_PREFIX + delivery


def aside_key(delivery: str, shard: int, lsn: int, row: int) -> str:
    """A row of a shard, by where it counts and which of the rows there it is."""
    return f"{ASIDE_PREFIX}{delivery}/{shard}/{lsn}/{row}"


def ack_tag(delivery: str) -> str:
    return f"D/{delivery}"


def delivery_flush_tag(delivery: str) -> str:
    """Read by the delivery's player, among the stream."""
    return f"D/{delivery}/flush"


def player_producer(delivery: str) -> str:
    return PLAYER_PREFIX + delivery
