"""What each request and its answer hold, by version: Kafka's own definitions, as far as we serve.

A version that is not offered here is answered with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.gateway.kafka.codec import Field as F
from penstock.gateway.kafka.codec import Fields, Many

_NEVER: Final = 1000


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request."""

    key: int
    name: str
    first: int
    last: int
    #: From this version on lengths are varints and there are tagged fields.
    flexible: int
    request: Fields
    answer: Fields
    #: What ApiVersions says is the first: old librdkafka wants to see versions that none sends.
    shown_first: int | None = None

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible


def _null(name: str, kind: str | Many = "str", since: int = 0, null: int = 0) -> F:
    return F(name, kind, since, null_since=null)


_THROTTLE: Final = F("throttle_ms", "i32")
_ERROR: Final = F("error", "i16")
_GROUP: Final = F("group", "str")
_MEMBER: Final = F("member", "str")
_GENERATION: Final = F("generation", "i32")
_TXN: Final = (F("txn", "str"), F("producer_id", "i64"), F("epoch", "i16"))


def _throttle(since: int) -> F:
    return F("throttle_ms", "i32", since)


def _topics(*partition: F, name: str = "partitions") -> Many:
    return Many((F("name", "str"), F(name, Many(partition))))


_INDEXES: Final = Many((F("name", "str"), F("partitions", Many("i32"))))
_ERRORS: Final = _topics(F("index", "i32"), _ERROR)

_BROKERS: Final = Many((F("id", "i32"), F("host", "str"), F("port", "i32"), _null("rack", since=1)))

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        Api(
            0, "Produce", 3, 11, 9,
            (
                _null("txn"), F("acks", "i16"), F("timeout_ms", "i32"),
                F("topics", _topics(F("index", "i32"), _null("records", "bytes"))),
            ),
            (
                F("topics", _topics(
                    F("index", "i32"), _ERROR, F("base_offset", "i64"),
                    F("append_ms", "i64", 2), F("log_start", "i64", 5),
                    F("record_errors", Many((F("at", "i32"), _null("message"))), 8),
                    _null("message", since=8),
                )),
                _throttle(1),
            ),
            shown_first=0,
        ),
        Api(
            1, "Fetch", 4, 12, 12,
            (
                F("replica", "i32"), F("wait_ms", "i32"), F("min_bytes", "i32"),
                F("max_bytes", "i32", 3), F("isolation", "i8", 4),
                F("session", "i32", 7), F("session_epoch", "i32", 7),
                F("topics", _topics(
                    F("index", "i32"), F("leader_epoch", "i32", 9), F("offset", "i64"),
                    F("fetched_epoch", "i32", 12), F("log_start", "i64", 5),
                    F("max_bytes", "i32"),
                )),
                F("forgotten", _INDEXES, 7), F("rack", "str", 11),
            ),
            (
                _throttle(1), F("error", "i16", 7), F("session", "i32", 7),
                F("topics", _topics(
                    F("index", "i32"), _ERROR, F("high_watermark", "i64"),
                    F("last_stable", "i64", 4), F("log_start", "i64", 5),
                    _null("aborted", Many((F("producer_id", "i64"), F("first", "i64"))), 4),
                    F("preferred", "i32", 11), _null("records", "bytes"),
                )),
            ),
        ),
        Api(
            2, "ListOffsets", 1, 7, 6,
            (
                F("replica", "i32"), F("isolation", "i8", 2),
                F("topics", _topics(
                    F("index", "i32"), F("leader_epoch", "i32", 4), F("time_ms", "i64")
                )),
            ),
            (
                _throttle(2),
                F("topics", _topics(
                    F("index", "i32"), _ERROR, F("time_ms", "i64"), F("offset", "i64"),
                    F("leader_epoch", "i32", 4),
                )),
            ),
        ),
        Api(
            3, "Metadata", 0, 12, 9,
            (
                F("topics", Many((F("id", "uuid", 10), _null("name", null=10))), null_since=1),
                F("create", "bool", 4), F("cluster_ops", "bool", 8, 10), F("ops", "bool", 8),
            ),
            (
                _throttle(3), F("brokers", _BROKERS), _null("cluster", since=2),
                F("controller", "i32", 1),
                F("topics", Many((
                    _ERROR, _null("name", null=12), F("id", "uuid", 10), F("internal", "bool", 1),
                    F("partitions", Many((
                        _ERROR, F("index", "i32"), F("leader", "i32"),
                        F("leader_epoch", "i32", 7), F("replicas", Many("i32")),
                        F("in_sync", Many("i32")), F("offline", Many("i32"), 5),
                    ))),
                    F("ops", "i32", 8),
                ))),
                F("cluster_ops", "i32", 8, 10),
            ),
        ),
        Api(
            8, "OffsetCommit", 2, 8, 8,
            (
                _GROUP, F("generation", "i32", 1), F("member", "str", 1),
                _null("instance", since=7), F("retention_ms", "i64", 2, 4),
                F("topics", _topics(
                    F("index", "i32"), F("offset", "i64"), F("leader_epoch", "i32", 6),
                    _null("metadata"),
                )),
            ),
            (_throttle(3), F("topics", _ERRORS)),
        ),
        Api(
            9, "OffsetFetch", 1, 7, 6,
            (_GROUP, _null("topics", _INDEXES, null=2), F("stable", "bool", 7)),
            (
                _throttle(3),
                F("topics", _topics(
                    F("index", "i32"), F("offset", "i64"), F("leader_epoch", "i32", 5),
                    _null("metadata"), _ERROR,
                )),
                F("error", "i16", 2),
            ),
        ),
        Api(
            10, "FindCoordinator", 0, 4, 3,
            (F("key", "str", 0, 3), F("key_type", "i8", 1), F("keys", Many("str"), 4)),
            (
                _throttle(1), F("error", "i16", 0, 3), F("message", "str", 1, 3, 0),
                F("id", "i32", 0, 3), F("host", "str", 0, 3), F("port", "i32", 0, 3),
                F("coordinators", Many((
                    F("key", "str"), F("id", "i32"), F("host", "str"), F("port", "i32"), _ERROR,
                    _null("message"),
                )), 4),
            ),
        ),
        Api(
            11, "JoinGroup", 0, 9, 6,
            (
                _GROUP, F("session_ms", "i32"), F("rebalance_ms", "i32", 1), _MEMBER,
                _null("instance", since=5), F("kind", "str"),
                F("protocols", Many((F("name", "str"), F("metadata", "bytes")))),
                _null("reason", since=8),
            ),
            (
                _throttle(2), _ERROR, _GENERATION, _null("kind", since=7),
                _null("protocol", null=7), F("leader", "str"), F("skip", "bool", 9), _MEMBER,
                F("members", Many((
                    _MEMBER, _null("instance", since=5), F("metadata", "bytes"),
                ))),
            ),
        ),
        Api(
            12, "Heartbeat", 0, 4, 4,
            (_GROUP, _GENERATION, _MEMBER, _null("instance", since=3)),
            (_throttle(1), _ERROR),
        ),
        Api(
            13, "LeaveGroup", 0, 5, 4,
            (
                _GROUP, F("member", "str", 0, 2),
                F("members", Many((_MEMBER, _null("instance"), _null("reason", since=5))), 3),
            ),
            (
                _throttle(1), _ERROR,
                F("members", Many((_MEMBER, _null("instance"), _ERROR)), 3),
            ),
        ),
        Api(
            14, "SyncGroup", 0, 5, 4,
            (
                _GROUP, _GENERATION, _MEMBER, _null("instance", since=3), _null("kind", since=5),
                _null("protocol", since=5),
                F("assignments", Many((_MEMBER, F("assignment", "bytes")))),
            ),
            (
                _throttle(1), _ERROR, _null("kind", since=5), _null("protocol", since=5),
                F("assignment", "bytes"),
            ),
        ),
        Api(
            17, "SaslHandshake", 1, 1, _NEVER,
            (F("mechanism", "str"),),
            (_ERROR, F("mechanisms", Many("str"))),
            shown_first=0,
        ),
        Api(
            18, "ApiVersions", 0, 4, 3,
            (F("client", "str", 3), F("client_version", "str", 3)),
            (
                _ERROR,
                F("apis", Many((F("key", "i16"), F("first", "i16"), F("last", "i16")))),
                _throttle(1),
            ),
        ),
        Api(
            19, "CreateTopics", 2, 7, 5,
            (
                F("topics", Many((
                    F("name", "str"), F("partitions", "i32"), F("replication", "i16"),
                    F("assignments", Many((F("index", "i32"), F("brokers", Many("i32"))))),
                    F("configs", Many((F("name", "str"), _null("value")))),
                ))),
                F("timeout_ms", "i32"), F("validate_only", "bool", 1),
            ),
            (
                _throttle(2),
                F("topics", Many((
                    F("name", "str"), F("id", "uuid", 7), _ERROR, _null("message", since=1),
                    F("partitions", "i32", 5), F("replication", "i16", 5),
                    _null("configs", Many((
                        F("name", "str"), _null("value"), F("read_only", "bool"),
                        F("source", "i8"), F("sensitive", "bool"),
                    )), 5),
                ))),
            ),
        ),
        Api(
            22, "InitProducerId", 0, 4, 2,
            (
                _null("txn"), F("timeout_ms", "i32"), F("producer_id", "i64", 3),
                F("epoch", "i16", 3),
            ),
            (_THROTTLE, _ERROR, F("producer_id", "i64"), F("epoch", "i16")),
        ),
        Api(
            24, "AddPartitionsToTxn", 0, 3, 3,
            (*_TXN, F("topics", _INDEXES)),
            (_THROTTLE, F("topics", _ERRORS)),
        ),
        Api(25, "AddOffsetsToTxn", 0, 3, 3, (*_TXN, _GROUP), (_THROTTLE, _ERROR)),
        Api(26, "EndTxn", 0, 3, 3, (*_TXN, F("commit", "bool")), (_THROTTLE, _ERROR)),
        Api(
            28, "TxnOffsetCommit", 0, 3, 3,
            (
                F("txn", "str"), _GROUP, F("producer_id", "i64"), F("epoch", "i16"),
                F("generation", "i32", 3), F("member", "str", 3), _null("instance", since=3),
                F("topics", _topics(
                    F("index", "i32"), F("offset", "i64"), F("leader_epoch", "i32", 2),
                    _null("metadata"),
                )),
            ),
            (_THROTTLE, F("topics", _ERRORS)),
        ),
        Api(
            32, "DescribeConfigs", 1, 4, 4,
            (
                F("resources", Many((
                    F("kind", "i8"), F("name", "str"), _null("keys", Many("str")),
                ))),
                F("synonyms", "bool"), F("documentation", "bool", 3),
            ),
            (
                _THROTTLE,
                F("resources", Many((
                    _ERROR, _null("message"), F("kind", "i8"), F("name", "str"),
                    F("configs", Many((
                        F("name", "str"), _null("value"), F("read_only", "bool"),
                        F("source", "i8"), F("sensitive", "bool"),
                        F("synonyms", Many((F("name", "str"), _null("value"), F("source", "i8")))),
                        F("kind", "i8", 3), _null("documentation", since=3),
                    ))),
                ))),
            ),
        ),
        Api(
            36, "SaslAuthenticate", 0, 2, 2,
            (F("auth", "bytes"),),
            (_ERROR, _null("message"), F("auth", "bytes"), F("lifetime_ms", "i64", 1)),
        ),
        Api(
            60, "DescribeCluster", 0, 1, 0,
            (F("ops", "bool"), F("endpoint", "i8", 1)),
            (
                _THROTTLE, _ERROR, _null("message"), F("endpoint", "i8", 1), F("cluster", "str"),
                F("controller", "i32"),
                F("brokers", Many((
                    F("id", "i32"), F("host", "str"), F("port", "i32"), _null("rack"),
                ))),
                F("ops", "i32"),
            ),
        ),
    )
}  # fmt: skip
