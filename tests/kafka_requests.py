"""Everything that can be asked of the gateway in Kafka's protocol, about what is somebody's.

Owns samples of each kind of request: about stream bids, the group shop and the transactional id
till, as whoever means harm would send them. `needs` says which right to bids makes it theirs to ask
(tests/bad_identities.py has those who have none).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from harness.kafka_wire import batch_of

from penstock.gateway.kafka.schemas import APIS

#: `log`: any right to use the log; `nothing`: it tells nobody's secrets and changes nothing of
#: anybody's, as groups do, which are of one token.
Needs = Literal["append", "read", "either", "log", "nothing"]


@dataclass(frozen=True)
class KafkaRequest:
    name: str
    key: int
    asked: dict[str, Any]
    needs: Needs
    #: A list of what there is, out of which is left what they may not see.
    lists: bool = False


def requests(producer_id: int, epoch: int, offset: int) -> Iterator[KafkaRequest]:
    """`producer_id`, `epoch`: of till's owner; `offset`: of a row of bids."""
    bids = {"name": "bids"}
    one = [bids | {"partitions": [0]}]
    owner = {"txn": "till", "producer_id": producer_id, "epoch": epoch}
    part = {"index": 0, "offset": offset, "max_bytes": 1 << 20, "metadata": "forged"}
    at = {"topics": [bids | {"partitions": [part]}]}
    shop = {"group": "shop", "generation": -1, "member": ""}

    def produce(txn: str | None, records: bytes) -> dict[str, Any]:
        part = {"index": 0, "records": records}
        return {"txn": txn, "acks": -1, "timeout_ms": 9, "topics": [bids | {"partitions": [part]}]}

    once = {"producer_id": producer_id, "epoch": epoch, "sequence": 0}
    yield KafkaRequest("produce", 0, produce(None, batch_of(b"forged")), "append")
    yield KafkaRequest("produce as till", 0, produce(None, batch_of(b"forged", **once)), "append")
    records = batch_of(b"forged", **once, is_transactional=True)
    yield KafkaRequest("produce in a transaction", 0, produce("till", records), "append")
    yield KafkaRequest("fetch", 1, at | {"min_bytes": 1, "max_bytes": 1 << 20}, "read")
    for name, time_ms in (("the end", -1), ("the start", -2), ("a time", 0)):
        timed = {"topics": [bids | {"partitions": [{"index": 0, "time_ms": time_ms}]}]}
        yield KafkaRequest(f"offsets of {name}", 2, timed, "read")
    yield KafkaRequest("describe", 3, {"topics": [bids]}, "either")
    yield KafkaRequest("list topics", 3, {"topics": None}, "either", lists=True)
    yield KafkaRequest("commit offsets", 8, shop | at, "read")
    yield KafkaRequest("offsets of a group", 9, {"group": "shop", "topics": one}, "read")
    every = {"group": "shop", "topics": None}
    yield KafkaRequest("all offsets of a group", 9, every, "read", lists=True)
    yield KafkaRequest("find a coordinator", 10, {"key": "shop", "keys": ["shop"]}, "nothing")
    joining = {"kind": "consumer", "session_ms": 6000, "protocols": [{"name": "range"}]}
    yield KafkaRequest("join", 11, {"group": "shop", "member": "shop-1", **joining}, "nothing")
    yield KafkaRequest("heartbeat", 12, shop, "nothing")
    leaving = {"group": "shop", "member": "shop-1", "members": [{"member": "shop-1"}]}
    yield KafkaRequest("leave", 13, leaving, "nothing")
    yield KafkaRequest("sync", 14, shop | {"assignments": []}, "nothing")
    yield KafkaRequest("handshake", 17, {"mechanism": "PLAIN"}, "nothing")
    yield KafkaRequest("versions", 18, {"client": "x", "client_version": "1"}, "nothing")
    new = {"name": "bids", "partitions": 3, "configs": [], "assignments": []}
    yield KafkaRequest("create a topic", 19, {"topics": [new]}, "append")
    drawn = {"txn": None, "timeout_ms": 9, "producer_id": -1}
    yield KafkaRequest("a producer", 22, drawn, "nothing")
    fence = {"txn": "till", "timeout_ms": 9, "producer_id": -1, "epoch": -1}
    yield KafkaRequest("fence a producer", 22, fence, "log")
    yield KafkaRequest("renew a producer", 22, owner | {"timeout_ms": 9}, "log")
    yield KafkaRequest("add partitions", 24, owner | {"topics": one}, "append")
    yield KafkaRequest("add offsets", 25, owner | {"group": "shop"}, "log")
    yield KafkaRequest("commit", 26, owner | {"commit": True}, "log")
    yield KafkaRequest("abort", 26, owner | {"commit": False}, "log")
    configs = {"kind": 2, "name": "bids", "keys": None}
    yield KafkaRequest("configs", 32, {"resources": [configs]}, "either")
    yield KafkaRequest("commit offsets in a transaction", 28, owner | shop | at, "read")
    yield KafkaRequest("describe the cluster", 60, {"endpoint": 1}, "nothing")


def versions(request: KafkaRequest) -> set[int]:
    """The first that can say it, and the last."""
    api = APIS[request.key]
    first = {"all offsets of a group": 2, "list topics": 1}.get(request.name, api.first)
    return {first, api.last}
