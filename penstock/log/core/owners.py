"""Whose a name of the log is: of tags, metadata keys and producers, what each belongs to. Pure.

A right is given for a stream, a query or a delivery. Their names stand in the tags of entries, in
metadata keys and in the names of producers, in the forms that protocol/names.py and
stream/registration.py make (a test holds the two together). Here they are read back. Law: every
name belongs to one thing at most, and a name of no known form to none: nobody but an administrator
may use it.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from penstock.log.records import META_TAG_PREFIX

#: What there are rights for. `batch`: a micro-batch query, or the batch writes, of Spark's own
#: engine, as `spark/<id>`. `key`: a metadata key, by whose tag its changes are read.
Sort = Literal["stream", "query", "batch", "delivery", "key", "anonymous", "revocation"]

REVOKED_PREFIX: Final = "revoked/"
#: Producers of clients that gave no name; those of a narrowed token have its id in theirs.
ANONYMOUS_PREFIX: Final = "anon-"

_STREAM: Final = r"(?P<stream>[A-Za-z_][A-Za-z0-9_.-]{0,127})"
_QUERY: Final = r"(?P<query>[A-Za-z_][A-Za-z0-9_-]{0,99})"
_DELIVERY: Final = r"(?P<delivery>[A-Za-z_][A-Za-z0-9_.-]{0,99})"
_BATCH: Final = r"(?P<batch>[^/]+)"
_VERSION: Final = r"\.(?:0|[1-9][0-9]{0,8})"

_TAGS: Final = re.compile(
    rf"s/{_STREAM}(?:/[0-9]+)?"
    rf"|l/{_STREAM.replace('stream', 'lane')}/[0-9]+"
    rf"|M/{_STREAM.replace('stream', 'naming')}"
    rf"|(?:ctl|pulse)/{_QUERY}"
    # Of a version of a query, whatever is kept of it: k, T, C, f, and what rivals of markers keep.
    rf"|(?![slMDm]/)[A-Za-z]/{_QUERY.replace('query', 'version')}{_VERSION}/[0-9]+(?:/[0-9]+)?"
    rf"|T/spark/{_BATCH}"
    rf"|D/{_DELIVERY}(?:/flush)?"
)
_KEYS: Final = re.compile(
    rf"stream/{_STREAM}"
    rf"|writers/{_STREAM.replace('stream', 'naming')}"
    rf"|(?:query|run|layout|image)/{_QUERY}"
    rf"|batch/{_BATCH}"
    rf"|staging/{_BATCH.replace('batch', 'staging')}\.[0-9]+"
    rf"|(?:deliver|delivered)/{_DELIVERY}"
    rf"|aside/{_DELIVERY.replace('delivery', 'aside')}/[0-9]+/[0-9]+/[0-9]+"
    rf"|kafka/seq/{_STREAM.replace('stream', 'seq')}/[0-9]+/[0-9]+"
    rf"|kafka/txn/(?P<txn>anon-(?:[^/]*-)?)/[^/]+"
    rf"|kafka/offset/{_STREAM.replace('stream', 'offset')}/[0-9]+/[^/]+"
)
_PRODUCERS: Final = re.compile(
    rf"{_STREAM}/.+"
    rf"|@{_QUERY}"
    rf"|@{_QUERY.replace('query', 'version')}{_VERSION}/[0-9]+/[0-9]+"
    rf"|@deliver/{_DELIVERY}",
    re.DOTALL,
)
_SORTS: Final[dict[str, Sort]] = {
    "stream": "stream",
    "lane": "stream",
    "naming": "stream",
    "txn": "anonymous",
    "seq": "stream",
    "offset": "stream",
    "query": "query",
    "version": "query",
    "batch": "batch",
    "staging": "batch",
    "delivery": "delivery",
    "aside": "delivery",
}
#: How far a group of Kafka's clients is in a stream: theirs who read it.
OFFSETS_PREFIX: Final = "kafka/offset/"
#: Who has a transactional id of Kafka's clients: theirs who have the token, whose prefix it names.
TRANSACTIONS_PREFIX: Final = "kafka/txn/"
#: How far a producer of Kafka's is in a stream: theirs who append to it.
SEQUENCES_PREFIX: Final = "kafka/seq/"
#: Up to where what was consumed is trimmed (protocol/trims.py): all who use the log see it.
TRIM_KEY: Final = "trim"
#: Markers of batch writes: of all of them at once.
BATCH_WRITES: Final = "W"


class Thing(NamedTuple):
    """What a name belongs to."""

    sort: Sort
    name: str


def owner_of_tag(tag: str) -> Thing | None:
    if tag.startswith(META_TAG_PREFIX):
        return Thing("key", tag.removeprefix(META_TAG_PREFIX))
    if tag == BATCH_WRITES:
        return Thing("batch", "spark/")
    return _find(_TAGS, tag)


def owner_of_key(key: str) -> Thing | None:
    if key.startswith(REVOKED_PREFIX):
        return Thing("revocation", key.removeprefix(REVOKED_PREFIX))
    return _find(_KEYS, key)


def owner_of_producer(name: str) -> Thing | None:
    if name.startswith(ANONYMOUS_PREFIX) and "/" not in name:
        return Thing("anonymous", name)
    return _find(_PRODUCERS, name)


def revoked_key(id: str) -> str:
    """Metadata: it is there once the token of this id is good for nothing in this log."""
    return REVOKED_PREFIX + id


def anonymous_prefix(id: str | None) -> str:
    """Of the names of producers that a client draws: only holders of the token may use these."""
    return ANONYMOUS_PREFIX if id is None else f"{ANONYMOUS_PREFIX}{id}-"


def _find(forms: re.Pattern[str], name: str) -> Thing | None:
    match = forms.fullmatch(name)
    if match is None or match.lastgroup is None:
        return None
    sort, found = _SORTS[match.lastgroup], match[match.lastgroup]
    return Thing(sort, f"spark/{found}" if sort == "batch" else found)
