"""Queries and tasks, and the tags and keys under which the log knows them.

    s/<stream>                     a stream: data, and the markers of tasks that write it
    k/<query>.<version>/<stage>    a keyed stream between stages: markers of the stage's tasks
    k/…/<stage>/<virtual node>     its data, by virtual node
    f/<query>.<version>/<stage>    an entry here asks the stage's tasks to commit up to it
    T/<task>, C/<task>             a task's markers, and its state changes
    X/<task>, O/<task>, R/<task>   with transactions: their states, positions, commit records
    ctl/<query>                    control entries between the coordinator and its workers
    pulse/<query>                  the coordinator's own, with the progress

A task is `<query>.<version>/<stage>/<index>`; its producer is `@<task>`. A version is a life of the
query: one that starts anew after its plan was changed takes the next, and so shares no tag with it.
Law: no stream, and no producer of a stream, can take these names (none starts with @). Whoever has
the log's token and appends by hand can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadFormat, BadRequest

QUERY_PREFIX: Final = "query/"
RUN_PREFIX: Final = "run/"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
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

    @property
    def transaction_tag(self) -> str:
        return f"X/{self}"

    @property
    def position_tag(self) -> str:
        return f"O/{self}"

    @property
    def commit_record_tag(self) -> str:
        return f"R/{self}"


def parse_task(text: str) -> TaskId:
    found = _TASK.fullmatch(text)
    if found is None:
        raise BadFormat(f"{text!r} is no task: expected query.version/stage/index")
    query, version, stage, index = found.groups()
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
