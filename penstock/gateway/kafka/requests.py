"""Which request of Kafka's protocol does what.

Owns what a client is told of topics, offsets and errors. Everything is asked of the log with the
caller's token; each partition of a request has an error of its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import BadRequest, NotFound, PenstockError
from penstock.gateway.config import INLINE_BYTES_MAX
from penstock.gateway.kafka.configs import (
    COLUMNS_CONFIG,
    GATEWAY,
    TOPIC,
    check_gateway,
    gateway_configs,
    shown,
    topic_configs,
)
from penstock.gateway.kafka.errors import Code, KafkaRefused, code_of
from penstock.gateway.kafka.fetching import Followed, Following, find_end
from penstock.gateway.kafka.groups import Groups, offset_sets
from penstock.gateway.kafka.offsets import offset_of
from penstock.gateway.kafka.producing import IDLE_MS, Produced, Producing, unpack
from penstock.gateway.kafka.records import is_compressed
from penstock.gateway.kafka.rows import KAFKA_COLUMNS
from penstock.gateway.kafka.shared import Shared
from penstock.gateway.kafka.transactions import Transactions
from penstock.gateway.sessions import Session
from penstock.log.serving.directory import Address
from penstock.stream.positions import EARLIEST, find_position
from penstock.stream.registration import Registration
from penstock.stream.registry import list_streams, make_stream

logger = logging.getLogger(__name__)

NODE = 0
_LATEST, _EARLIEST, _NEWEST_TIME = -1, -2, -3
#: "not asked for", among authorized operations.
_NO_OPS = -(2**31)
FETCH_WAIT_MS_MAX = 30_000
FETCH_BYTES_MAX = 8 * 1024 * 1024

Message = dict[str, Any]
Handler = Callable[[Session, Message, int], Awaitable[Message]]


class Requests:
    """Of one connection, once its client has shown a token."""

    def __init__(self, shared: Shared, here: Address) -> None:
        self._shared = shared
        #: Where the client found us: all partitions are here.
        self._here = here
        self._following = Following(shared.room)
        self.handlers: dict[int, Handler] = {
            0: self._produce,
            1: self._fetch,
            2: self._list_offsets,
            3: self._metadata,
            8: self._commit_offsets,
            9: self._fetch_offsets,
            10: self._find_coordinator,
            11: self._join,
            12: self._heartbeat,
            13: self._leave,
            14: self._sync,
            19: self._create_topics,
            22: self._init_producer,
            24: self._add_partitions,
            25: self._add_offsets,
            26: self._end,
            28: self._commit_in_transaction,
            32: self._describe_configs,
            60: self._describe_cluster,
        }

    async def close(self) -> None:
        await self._following.close()

    # ---- topics

    def _broker(self) -> Message:
        return {"id": NODE, "host": self._here.host, "port": self._here.port}

    async def _metadata(self, session: Session, asked: Message, version: int) -> Message:
        wanted = asked["topics"]
        if wanted is None or (version == 0 and not wanted):
            topics = [_topic(each) for each in await list_streams(session.log)]
        else:
            topics = [await self._find_topic(session, each["name"]) for each in wanted]
        return {
            "brokers": [self._broker()],
            "cluster": session.log.log_id,
            "controller": NODE,
            "topics": topics,
            "cluster_ops": _NO_OPS,
        }

    async def _find_topic(self, session: Session, name: str | None) -> Message:
        try:
            return _topic(await session.stream(name or "", fresh=False))
        except PenstockError as error:
            code = Code.INVALID_TOPIC if isinstance(error, BadRequest) else code_of(error)
            return {"error": code, "name": name or "", "ops": _NO_OPS}

    async def _describe_cluster(self, session: Session, asked: Message, version: int) -> Message:
        return {
            "endpoint": 1,
            "cluster": session.log.log_id,
            "controller": NODE,
            "brokers": [self._broker()],
            "ops": _NO_OPS,
        }

    async def _describe_configs(self, session: Session, asked: Message, version: int) -> Message:
        answers = []
        for each in asked["resources"]:
            told: Message = {"kind": each["kind"], "name": each["name"]}
            try:
                told["configs"] = await self._configs(session, each)
            except PenstockError as error:
                told |= {"error": code_of(error), "message": str(error)[:500]}
            answers.append(told)
        return {"resources": answers}

    async def _configs(self, session: Session, asked: Message) -> list[Message]:
        if asked["kind"] == TOPIC:
            stream = await session.stream(asked["name"], fresh=False)
            return shown(topic_configs(stream), asked["keys"])
        if asked["kind"] == GATEWAY:
            check_gateway(asked["name"], NODE)
            return shown(gateway_configs(), asked["keys"])
        raise BadRequest(f"nothing of kind {asked['kind']} has configs: topics and brokers have")

    async def _create_topics(self, session: Session, asked: Message, version: int) -> Message:
        made = []
        for topic in asked["topics"]:
            told: Message = {"name": topic["name"]}
            try:
                stream = await self._create(session, topic, asked["validate_only"])
                told |= {"partitions": stream.lanes, "replication": 1, "configs": []}
            except PenstockError as error:
                told |= {"error": code_of(error), "message": str(error), "partitions": -1}
            made.append(told)
        return {"topics": made}

    async def _create(self, session: Session, topic: Message, validate_only: bool) -> Registration:
        configs = {each["name"]: each["value"] for each in topic["configs"]}
        ddl = configs.get(COLUMNS_CONFIG) or KAFKA_COLUMNS
        lanes = 1 if topic["partitions"] == -1 else topic["partitions"]
        if topic["assignments"]:
            raise KafkaRefused(Code.INVALID_REQUEST, "there are no replicas to assign")
        try:
            found = await session.stream(topic["name"])
        except NotFound:
            if validate_only:
                raise KafkaRefused(Code.INVALID_REQUEST, "validate_only is not supported") from None
        else:
            raise KafkaRefused(Code.TOPIC_ALREADY_EXISTS, f"stream {found.name} exists")
        now_ms = time.time_ns() // 1_000_000
        made, _ = await make_stream(
            session.log, topic["name"], ddl, lanes=lanes, key=None, now_ms=now_ms
        )
        return made

    async def _partition(self, session: Session, name: str, partition: int) -> Registration:
        stream = await session.stream(name, fresh=False)
        if not 0 <= partition < stream.lanes:
            raise NotFound(f"stream {name} has {stream.lanes} lanes, there is no {partition}")
        return stream

    # ---- producing

    async def _init_producer(self, session: Session, asked: Message, version: int) -> Message:
        now_ms = time.time_ns() // 1_000_000
        if await session.beside(Producing).forget_idle(now_ms):
            await session.beside(Transactions).forget_older(now_ms - IDLE_MS)
        if asked["txn"] is not None:
            opened = await session.beside(Transactions).open_producer(asked["txn"], asked)
            return {"producer_id": opened[0], "epoch": opened[1]}
        # Drawn, so that it needs no table: none is drawn twice in the life of a log.
        return {"producer_id": secrets.randbits(62), "epoch": 0}

    async def _produce(self, session: Session, asked: Message, version: int) -> Message:
        answers = []
        txn = asked["txn"]
        for topic in asked["topics"]:
            # Side by side: the partitions of a request have nothing to do with each other.
            parts = [
                self._produce_one(session, topic["name"], part, txn) for part in topic["partitions"]
            ]
            answers.append({"name": topic["name"], "partitions": await asyncio.gather(*parts)})
        return {"topics": answers}

    async def _produce_one(
        self, session: Session, name: str, part: Message, txn: str | None
    ) -> Message:
        told: Message = {"index": part["index"], "append_ms": -1, "log_start": -1}
        began = time.perf_counter()
        metrics = self._shared.metrics
        try:
            done = await self._append(session, name, part, txn)
        except Exception as error:
            self._shared.count(error)
            return told | {"error": code_of(error), "base_offset": -1, "message": str(error)[:500]}
        metrics.append.observe(time.perf_counter() - began)
        if done.duplicate:
            metrics.duplicates += 1
        else:
            metrics.appended_rows += done.rows
        return told | {"base_offset": done.offset}

    async def _append(
        self, session: Session, name: str, part: Message, txn: str | None
    ) -> Produced:
        stream = await self._partition(session, name, part["index"])
        data = part["records"] or b""
        is_large = len(data) > INLINE_BYTES_MAX or is_compressed(data)
        records, batches = await self._shared.beside_if(is_large, unpack, data, stream)
        if records.is_transactional:
            if txn is None:
                raise BadRequest("records of a transaction without its id")
            # Where they will be is known once they are.
            await session.beside(Transactions).add(txn, stream, part["index"], records, batches)
            return Produced(-1, records.count)
        producing = session.beside(Producing)
        return await producing.append(stream, part["index"], records, batches)

    # ---- reading

    async def _list_offsets(self, session: Session, asked: Message, version: int) -> Message:
        answers = []
        for topic in asked["topics"]:
            parts = []
            for part in topic["partitions"]:
                told: Message = {"index": part["index"], "time_ms": -1, "leader_epoch": -1}
                try:
                    found = await self._find_offset(session, topic["name"], part)
                    told |= {"offset": found, "time_ms": max(part["time_ms"], -1)}
                except PenstockError as error:
                    told |= {"error": code_of(error), "offset": -1}
                parts.append(told)
            answers.append({"name": topic["name"], "partitions": parts})
        return {"topics": answers}

    async def _find_offset(self, session: Session, name: str, part: Message) -> int:
        stream = await self._partition(session, name, part["index"])
        time_ms = part["time_ms"]
        log = session.log
        if time_ms >= 0:
            found = offset_of(max(await log.find_time(time_ms), stream.start_lsn))
            end = await find_end(log, stream, part["index"])
            return -1 if end is None or found >= end else found
        if time_ms in (_LATEST, _NEWEST_TIME):
            # Behind the last that is here, not the log's tail: who has read it has no lag.
            end = await find_end(log, stream, part["index"])
            if time_ms == _NEWEST_TIME:  # the last itself
                return -1 if end is None else end - 1
            if end is not None:
                return end
        elif time_ms != _EARLIEST:
            raise KafkaRefused(Code.UNSUPPORTED_VERSION, f"offsets by time {time_ms}")
        return offset_of(await find_position(log, EARLIEST, [name], beginning=stream.start_lsn))

    async def _fetch(self, session: Session, asked: Message, version: int) -> Message:
        if asked.get("session"):
            return {"error": Code.FETCH_SESSION_ID_NOT_FOUND}
        answers: list[Message] = []
        followed: list[tuple[Message, Message, Followed]] = []
        wanted: set[tuple[str, int]] = set()
        for topic in asked["topics"]:
            parts: list[Message] = []
            answers.append({"name": topic["name"], "partitions": parts})
            for part in topic["partitions"]:
                told: Message = {
                    "index": part["index"], "high_watermark": -1, "last_stable": -1,
                    "log_start": -1, "preferred": -1, "records": b"", "name": topic["name"],
                }  # fmt: skip
                parts.append(told)
                wanted.add((topic["name"], part["index"]))
                try:
                    stream = await self._partition(session, topic["name"], part["index"])
                    one = await self._following.follow(
                        session, stream, part["index"], part["offset"]
                    )
                    followed.append((part, told, one))
                except PenstockError as error:
                    told["error"] = code_of(error)
        await self._following.keep_only(wanted)
        has_errors = any("error" in part for topic in answers for part in topic["partitions"])
        wait_ms = 0 if has_errors else min(max(asked["wait_ms"], 0), FETCH_WAIT_MS_MAX)
        await self._collect(followed, asked, wait_ms / 1000)
        return {"topics": answers}

    async def _collect(
        self, followed: list[tuple[Message, Message, Followed]], asked: Message, seconds: float
    ) -> None:
        """Wait until there are enough bytes, or long enough; then take what there is."""
        deadline = asyncio.get_running_loop().time() + seconds
        left = min(max(asked.get("max_bytes", FETCH_BYTES_MAX), 1), FETCH_BYTES_MAX)
        enough = min(max(asked["min_bytes"], 0), left)
        taken = 0
        while True:
            for part, told, one in followed:
                if "error" in told:
                    continue
                try:
                    one.look()
                    room = min(left - taken, max(part["max_bytes"], 1)) - len(told["records"])
                    if one.has_rows and room > 0:
                        rows = one.take(room)
                        told["records"] += rows
                        taken += len(rows)
                except Exception as error:
                    self._shared.count(error)
                    told["error"] = code_of(error)
                    await self._following.drop(told["name"], told["index"])
                else:
                    told["high_watermark"] = told["last_stable"] = one.end
            now = asyncio.get_running_loop().time()
            live = [one.wait() for _, told, one in followed if "error" not in told]
            failed = len(live) < len(followed)
            if failed or now >= deadline or taken >= max(enough, 1) or not live:
                break
            await asyncio.wait(live, timeout=deadline - now, return_when=asyncio.FIRST_COMPLETED)
        self._shared.metrics.read_bytes += taken

    # ---- groups

    async def _find_coordinator(self, session: Session, asked: Message, version: int) -> Message:
        broker = self._broker()
        if version < 4:
            return broker
        return {"coordinators": [{"key": key, **broker} for key in asked["keys"]]}

    async def _join(self, session: Session, asked: Message, version: int) -> Message:
        return await session.beside(Groups).join(asked, "member")

    async def _sync(self, session: Session, asked: Message, version: int) -> Message:
        return await session.beside(Groups).sync(asked)

    async def _heartbeat(self, session: Session, asked: Message, version: int) -> Message:
        return session.beside(Groups).heartbeat(asked)

    async def _leave(self, session: Session, asked: Message, version: int) -> Message:
        return session.beside(Groups).leave(asked)

    async def _commit_offsets(self, session: Session, asked: Message, version: int) -> Message:
        return await session.beside(Groups).commit(session, asked)

    async def _fetch_offsets(self, session: Session, asked: Message, version: int) -> Message:
        return await session.beside(Groups).fetch(asked)

    # ---- transactions

    async def _add_partitions(self, session: Session, asked: Message, version: int) -> Message:
        """All of them, or none."""
        answers = [
            {
                "name": topic["name"],
                "partitions": [
                    {"index": at, "error": await self._refusal(session, topic["name"], at)}
                    for at in topic["partitions"]
                ],
            }
            for topic in asked["topics"]
        ]
        told = [part for topic in answers for part in topic["partitions"]]
        if any(part["error"] for part in told):
            for part in told:
                part["error"] = part["error"] or Code.OPERATION_NOT_ATTEMPTED
        else:
            await session.beside(Transactions).begin(asked, self._shared.budget)
        return {"topics": answers}

    async def _refusal(self, session: Session, name: str, partition: int) -> Code:
        """Why nothing can be produced there, as far as that is known before."""
        try:
            await self._partition(session, name, partition)
        except PenstockError as error:
            return code_of(error)
        return Code.NONE

    async def _add_offsets(self, session: Session, asked: Message, version: int) -> Message:
        await session.beside(Transactions).begin(asked, self._shared.budget)
        return {}

    async def _commit_in_transaction(
        self, session: Session, asked: Message, version: int
    ) -> Message:
        session.beside(Groups).check_commit(asked)
        answers = []
        for topic in asked["topics"]:
            code = Code.NONE
            try:
                sets = await offset_sets(session, asked["group"], topic)
                await session.beside(Transactions).add_offsets(asked, sets)
            except PenstockError as error:
                code = code_of(error)
            told = [{"index": part["index"], "error": code} for part in topic["partitions"]]
            answers.append({"name": topic["name"], "partitions": told})
        return {"topics": answers}

    async def _end(self, session: Session, asked: Message, version: int) -> Message:
        await session.beside(Transactions).end(asked)
        return {}


def _topic(stream: Registration) -> Message:
    partitions = [
        {"index": index, "leader": NODE, "leader_epoch": 0, "replicas": [NODE], "in_sync": [NODE]}
        for index in range(stream.lanes)
    ]
    return {"name": stream.name, "partitions": partitions, "ops": _NO_OPS}
