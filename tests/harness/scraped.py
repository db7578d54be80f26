"""One of everything that has `/metrics`, at work: what a Prometheus would scrape.

A log with a query (shipped coordinator and worker on threads, without Spark), a delivery of its
result, a gateway with its listener for Kafka, a host of targets, and a cluster of nodes and a proxy
with a query's report in its log.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.request import Request, urlopen

import pyarrow as pa
import uvloop
from embedded_server import stop_server
from engine_samples import TIMED, count_by, spec_of, timed

import penstock
from harness.http_gateway import gateway_thread
from harness.in_process_cluster import in_process_cluster
from harness.remote_targets import serving
from harness.waiting import wait_until
from penstock.cli.metrics_port import serve_metrics
from penstock.delivery.targets.memory import MemoryDatabase, MemoryTarget
from penstock.gateway.config import GatewayConfig
from penstock.limits import MIB
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.protocol.names import control_tag, pulse_tag, query_key
from penstock.runtime import checkpoints
from penstock.runtime.control import Pulse, encode_message
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.progress import Rates, make_progress
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.worker import LogAddress, work


@dataclass(frozen=True)
class Scraped:
    """One target of Prometheus; `job` as docs/monitoring.md names it."""

    job: str
    port: int
    token: str

    def text(self) -> str:
        request = Request(f"http://127.0.0.1:{self.port}/metrics")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
        return body.decode()


@contextmanager
def everything_at_work(directory: Path) -> Iterator[list[Scraped]]:
    """Until the end of the `with`; rows are appended all the time."""
    with ExitStack() as stack:
        # As soon as anything has changed there is a checkpoint.
        stack.enter_context(mock.patch.object(checkpoints, "CHECKPOINT_BYTES_MIN", 1))
        log_dir = directory / "log"
        stack.callback(stop_server, log_dir)
        log = stack.enter_context(penstock.connect(log_dir))
        token = (log_dir / "token").read_text().strip()
        spec = stack.enter_context(_query(log, log_dir, directory / "checkpoints"))
        gateway = GatewayConfig(target=str(log_dir), port=0, kafka_port=0)
        listening = stack.enter_context(gateway_thread(gateway))
        delivery = penstock.deliver(log.stream(spec.to), f"sqlite:///{directory / 'out.db'}")
        stack.callback(delivery.stop)
        lag = partial(_lag_of, delivery)
        player = stack.enter_context(serve_metrics(0, token, lambda: delivery.metrics(lag())))
        found = [
            Scraped("penstock-log", _port_of(log_dir), token),
            Scraped("penstock-gateways", listening.port, token),
            Scraped("penstock-deliveries", player, token),
        ]
        found += stack.enter_context(_in_a_thread(partial(_cluster, directory / "cluster")))
        wait_until(lambda: _is_told(found[0]), "the query tells nothing")
        yield found


def _port_of(log_dir: Path) -> int:
    return int(json.loads((log_dir / "server.json").read_text())["port"])


def _lag_of(delivery: Any) -> Any:
    try:
        return delivery.lag
    except penstock.errors.PenstockError:
        return None


def _is_told(log: Scraped) -> bool:
    text = log.text()
    names = ("task_busy_ratio", "query_watermark_age", "query_latency_seconds_count",
             "state_checkpoint_age", "query_edge_lag_rows")  # fmt: skip
    return all(f"penstock_{name}" in text for name in names)


def _spec(checkpoints: str | None) -> QuerySpec:
    settings = Settings(checkpoints=checkpoints, checkpoint_interval_ms=500, state_memory=64 * MIB)
    return spec_of(count_by(timed(), 0), settings=settings)


def _registered(spec: QuerySpec) -> bytes:
    return encode_query(
        RegisteredQuery(
            name=spec.name, id="an-id", version=spec.version, plan="", mode="update", to=spec.to,
            starts=dict.fromkeys(spec.query.streams, 0), tasks=list(spec.tasks), created_ms=0,
        )
    )  # fmt: skip


@contextmanager
def _query(log: penstock.Log, log_dir: Path, checkpoints: Path) -> Iterator[QuerySpec]:
    spec = _spec(str(checkpoints))
    source = log.create_stream("in", TIMED)
    log.create_stream(spec.to, spec.to_schema)
    log.client.append([], sets=[SetKey(query_key(spec.name), _registered(spec))])
    address = LogAddress(str(log_dir))
    run = CoordinatorThread(address, spec, id="an-id", workers=1, trims=False)
    worker = threading.Thread(target=lambda: uvloop.run(work(address.resolve, spec, 0, 0)))
    worker.start()
    stopped = threading.Event()
    producer = threading.Thread(target=lambda: _produce(source, stopped))
    producer.start()
    try:
        yield spec
    finally:
        stopped.set()
        producer.join(30)
        run.finish()
        run.ended.wait(30)
        worker.join(30)


def _produce(source: penstock.Stream, stopped: threading.Event) -> None:
    """Rows whose event time is the clock's, ten times a second."""
    number = 0
    while not stopped.wait(0.1):
        keys = pa.array(range(number, number + 10), pa.int64())
        times = pa.array([time.time_ns() // 1000] * 10, pa.int64())
        source.append(pa.record_batch([keys, times.cast(TIMED.field(1).type)], schema=TIMED))
        number += 1


@asynccontextmanager
async def _cluster(directory: Path) -> AsyncIterator[list[Scraped]]:
    """Nodes, a proxy that owns a log with a report in it, and a host of targets."""
    directory.mkdir()
    (directory / "host").mkdir()
    async with (
        in_process_cluster(directory) as cluster,
        serving("target", [MemoryTarget(MemoryDatabase())], directory / "host") as host,
    ):
        log = await cluster.connect()
        spec = _spec(None)
        progress = make_progress(
            spec, {}, id="an-id", run_id="a-run", number=0, now_ms=time.time_ns() // 1_000_000,
            tail=0, lags={}, workers=0, rates=Rates(),
        )  # fmt: skip
        pulse = encode_message(Pulse({**progress, "isActive": False}))
        tags = (control_tag(spec.name), pulse_tag(spec.name))
        sets = [SetKey(query_key(spec.name), _registered(spec))]
        await log.append([NewEntry(pulse, tags, Kind.CONTROL)], sets=sets)
        await log.close()
        secrets = {name: (directory / name).read_text().strip() for name in ("token", "node-token")}
        proxies = [
            Scraped("penstock-proxies", proxy.info.port, secrets["token"])
            for proxy, _ in cluster.proxies
        ]
        nodes = [
            Scraped("penstock-nodes", node.info.port, secrets["node-token"])
            for node, _ in cluster.nodes.values()
        ]
        token = (directory / "host" / "token").read_text().strip()
        yield [*proxies, *nodes, Scraped("penstock-targets", host.address.port, token)]


@contextmanager
def _in_a_thread(make: Callable[..., Any]) -> Iterator[list[Scraped]]:
    """An async context manager, on a loop of its own."""
    ready, stop, found = threading.Event(), threading.Event(), list[Scraped]()

    async def run() -> None:
        async with make() as targets:
            found.extend(targets)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: uvloop.run(run()))
    thread.start()
    try:
        wait_until(lambda: ready.is_set() or not thread.is_alive(), "nothing serves")
        assert ready.is_set(), "it did not start"
        yield found
    finally:
        stop.set()
        thread.join(60)
