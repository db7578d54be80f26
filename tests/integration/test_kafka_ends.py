"""Where a partition ends, as Kafka's clients see it: lag, and the end of file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from harness.http_gateway import gateway_thread
from harness.kafka_clients import SECONDS, consume, produce, settings
from harness.kafka_wire import wire
from harness.waiting import wait_until

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.log.serving.directory import Address
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import naming_tag
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import Lanes
from penstock.stream.last_rows import LastRows, find_last_rows
from penstock.stream.registration import stream_tag

LANES = 3


@pytest.fixture(scope="module")
def address(module_log: penstock.Log) -> Iterator[Address]:
    found: list[Address] = []
    config = GatewayConfig(target=module_log.target, port=0, kafka_port=0)
    with gateway_thread(config, found.append):
        yield found[0]


@pytest.fixture
def token(module_log: penstock.Log) -> str:
    return (Path(module_log.target) / "token").read_text().strip()


@pytest.fixture
def ways(address: Address, token: str) -> dict[str, Any]:
    return settings(address, token)


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [f"row {at}" for at in range(count)]})


def stage(log: penstock.Log, lanes: Lanes, lane: int, count: int) -> Range:
    """Rows that count once a marker names them, as a task of a query writes them."""
    entry = NewEntry(encode_batch(rows(count)), lanes.tags(lane), Kind.STAGED, count)
    return Range(log.client.append([entry]).first_lsn, 1)


def mark(log: penstock.Log, stream: str, *ranges: Range) -> Lsn:
    """A marker of a task that writes the stream; with nothing new to say, it names nothing."""
    made = Marker("q.1/0/0", 1, 0, Lsn(0), 0, tuple(ranges))
    tags = (stream_tag(stream), naming_tag(stream)) if ranges else (stream_tag(stream),)
    return log.client.append([NewEntry(encode_marker(made), tags, Kind.MARKER)]).first_lsn


def read_all(ways: dict[str, Any], topic: str, lanes: int, count: int) -> Consumer:
    """A member of a group that has read and committed all that is there."""
    more = {"group.id": f"of-{topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(ways | more)
    consumer.assign([TopicPartition(topic, lane, -2) for lane in range(lanes)])
    consume(consumer, count)
    consumer.commit(asynchronous=False)
    return consumer


def test_the_newest_record_is_found_by_its_time(
    ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    module_log.create_stream(name, "value STRING", lanes=2)
    sent = produce(Producer(ways), name, [b"a", b"b", b"c"], partition=1)
    asked = {TopicPartition(name, lane): OffsetSpec.max_timestamp() for lane in range(2)}
    admin = AdminClient(ways)
    found = admin.list_offsets(asked)
    offsets = {each.partition: future.result(SECONDS).offset for each, future in found.items()}
    assert offsets == {0: -1, 1: sent[-1].offset()}


def find_lags(consumer: Consumer, topic: str, lanes: int) -> list[int]:
    """As tools show it: the end of each partition, less what the group has committed there."""
    lags = []
    for at in consumer.committed([TopicPartition(topic, lane) for lane in range(lanes)], SECONDS):
        low, high = consumer.get_watermark_offsets(at, timeout=SECONDS)
        lags.append(high - (low if at.offset < 0 else at.offset))
    return lags


@pytest.mark.parametrize("lanes", [1, LANES])
def test_who_has_read_what_producers_sent_has_no_lag(
    ways: dict[str, Any], name: str, module_log: penstock.Log, lanes: int
) -> None:
    name = f"{name}_{lanes}"
    module_log.create_stream(name, "value STRING", lanes=lanes)
    for count, lane in ((5, 0), (7, lanes - 1)):
        values = [b"%d" % at for at in range(count)]
        produce(Producer(ways), name, values, partition=lane)
    consumer = read_all(ways, name, lanes, 12)
    assert find_lags(consumer, name, lanes) == [0] * lanes
    produce(Producer(ways), name, [b"one more"], partition=0)
    assert find_lags(consumer, name, lanes)[0] > 0
    consumer.close()


@pytest.mark.parametrize("lanes", [1, LANES])
def test_who_has_read_what_a_query_wrote_has_no_lag(
    ways: dict[str, Any], name: str, module_log: penstock.Log, lanes: int
) -> None:
    """Markers name rows of some lanes, or of none; and what no marker names is not there."""
    name = f"{name}_{lanes}"
    module_log.create_stream(name, "value STRING", lanes=lanes)
    spread = Lanes(name, lanes)
    mark(module_log, name, stage(module_log, spread, 0, 4), stage(module_log, spread, 0, 3))
    mark(module_log, name, stage(module_log, spread, lanes - 1, 2))
    mark(module_log, name)
    stage(module_log, spread, 0, 9)
    consumer = read_all(ways, name, lanes, 9)
    assert find_lags(consumer, name, lanes) == [0] * lanes
    consumer.close()


@pytest.mark.parametrize("lanes", [1, LANES])
def test_an_empty_partition_has_no_lag(
    ways: dict[str, Any], name: str, module_log: penstock.Log, lanes: int
) -> None:
    name = f"{name}_{lanes}"
    module_log.create_stream(name, "value STRING", lanes=lanes)
    mark(module_log, name)
    stage(module_log, Lanes(name, lanes), 0, 9)
    consumer = Consumer(ways | {"group.id": "nobody"})
    for lane in range(lanes):
        low, high = consumer.get_watermark_offsets(TopicPartition(name, lane), timeout=SECONDS)
        assert low == high
    consumer.close()


def test_the_end_of_file_comes_after_the_last_record_however_little_a_client_waits(
    ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    module_log.create_stream(name, "value STRING", lanes=1)
    for _ in range(20):
        produce(Producer(ways), name, [b"x" * 100] * 50)
    more = {"group.id": "nobody", "enable.partition.eof": True, "fetch.wait.max.ms": 0}
    consumer = Consumer(ways | more)
    consumer.assign([TopicPartition(name, 0, -2)])
    read = 0
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{read} came, and no end"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        read += 1
    assert read == 1000
    consumer.close()


def test_an_empty_answer_does_not_say_that_a_partition_ends_before_its_records(
    address: Address, token: str, ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    module_log.create_stream(name, "value STRING", lanes=1)
    sent = produce(Producer(ways), name, [b"x", b"y"])
    begin, end = sent[0].offset(), sent[1].offset() + 1
    asked = {"index": 0, "offset": begin, "max_bytes": 1 << 20}
    at_once = {"wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    with wire(address) as client:
        client.log_in(token)
        answers = []
        while not answers or not answers[-1]["records"]:
            told = client.ask(1, 12, at_once | {"topics": [{"name": name, "partitions": [asked]}]})
            assert told is not None
            answers.append(told["topics"][0]["partitions"][0])
        assert len(answers) > 1, "the first was to be empty"
        assert [each["high_watermark"] for each in answers] == [end] * len(answers)


@pytest.mark.parametrize("gap", [0, 3, 90])
def test_the_last_rows_are_found_however_much_lies_behind_them(
    name: str, module_log: penstock.Log, gap: int
) -> None:
    name = f"{name}_{gap}"
    module_log.create_stream(name, "value STRING", lanes=2)
    spread = Lanes(name, 2)
    tags = [f"l/{name}/0", naming_tag(name)]

    def find(tags: Sequence[str]) -> LastRows | None:
        return module_log.client.run(lambda log: find_last_rows(log, tags))

    assert find(tags) is None
    for _ in range(gap):
        mark(module_log, name, stage(module_log, spread, 1, 1))
    assert find(tags) is None
    at = mark(module_log, name, stage(module_log, spread, 0, 4), stage(module_log, spread, 1, 3))
    for _ in range(gap):
        mark(module_log, name, stage(module_log, spread, 1, 1))
    assert find(tags) == LastRows(at, 4)
    assert find([stream_tag(name)]) is not None


def test_a_commit_that_a_trim_has_cut_is_not_the_last(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as log:
        log.create_stream("s", "value STRING", lanes=1)
        cut = stage(log, Lanes("s"), 0, 4)
        log.trim(cut.end)
        mark(log, "s", cut)
        assert log.client.run(lambda each: find_last_rows(each, ["s/s"])) is None
        log.stream("s").append(rows(2))
        wait_until(lambda: log.stream("s").read().num_rows == 2)
        found = log.client.run(lambda each: find_last_rows(each, ["s/s"]))
        assert found is not None and found.rows == 2
