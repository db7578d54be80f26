"""`penstock bench gateway`: what a request over HTTP costs, and what its JSON does; and Kafka's
protocol (gateway_kafka.py).

A log server, a gateway and this program, each a process; clients are sockets on one loop here, each
with one request on its way, prepared before the clock starts. Every append is durable when it is
answered. The decoder by column is measured beside the exact one, which goes row by row, in turns,
so that a machine that drifts favours none; the least of each counts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import uvloop

import penstock
from penstock.errors import Unavailable
from penstock.log.serving.directory import read_token
from penstock.stream.ddl import parse_ddl
from penstock.stream.json_columns import array_to_batches, lines_to_batches, number_lines
from penstock.stream.json_lines import row_from_json
from penstock.stream.rows import to_batches
from penstock_bench.gateway_kafka import KafkaSizes, measure_kafka
from penstock_bench.measure import busy_load, scratch, summary
from penstock_bench.report import Check, Report, Say

_DDL: Final = "auction long, bidder long, price double, channel string, ts timestamp"
#: What the issue asks for, at 100 rows a request.
_RATIO_BAR: Final = 8.0
_RATIO_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class GatewayBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    json_rows: tuple[int, ...] = (1, 10, 100, 1000)
    arrow_rows: tuple[int, ...] = (100, 1000, 10_000)
    connections: int = 16
    seconds: float = 4.0
    rounds: int = 60
    kafka: KafkaSizes = field(default_factory=KafkaSizes)


FULL: Final = GatewayBenchSizes()
QUICK: Final = GatewayBenchSizes((1, 100), (1000,), 4, 0.3, 5, KafkaSizes(1, 0.5))


def run_bench(*, directory: Path | None, plan: GatewayBenchSizes, say: Say) -> Report:
    report = Report("gateway", parameters={"plan": repr(plan), "quick": plan == QUICK})
    report.figures["load_before"] = busy_load(say)
    _measure_decoder(plan, report, say)
    with scratch("penstock-bench-", directory) as root, penstock.connect(root / "log") as log:
        log.create_stream("bids", _DDL)
        token = read_token(root / "log" / "token")
        with _gateway(root / "log") as (port, kafka_port):
            for rows in plan.json_rows:
                body = _json_body(rows)
                _measure(plan, report, say, port, token, "json", rows, body, keyed=False)
            for rows in plan.arrow_rows:
                body = _arrow_body(rows)
                _measure(plan, report, say, port, token, "arrow", rows, body, keyed=False)
            body = _json_body(_RATIO_ROWS)
            _measure(plan, report, say, port, token, "json", _RATIO_ROWS, body, keyed=True)
            ways = {
                "bootstrap.servers": f"127.0.0.1:{kafka_port}",
                "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                "sasl.username": "bench", "sasl.password": token,
            }  # fmt: skip
            measure_kafka(plan.kafka, report, say, root=root, ways=ways)
    return report


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "auction": 1000 + number,
            "bidder": 7 * number,
            "price": number + 0.25,
            "channel": f"channel-{number % 40}",
            "ts": f"2026-11-15T08:{number // 60 % 60:02d}:{number % 60:02d}.000000Z",
        }
        for number in range(count)
    ]


def _json_body(count: int) -> bytes:
    return json.dumps(_rows(count)).encode()


def _arrow_body(count: int) -> bytes:
    batches = array_to_batches(_json_body(count), parse_ddl(_DDL))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


# ---- the decoder


def _measure_decoder(plan: GatewayBenchSizes, report: Report, say: Say) -> None:
    schema = parse_ddl(_DDL)
    array = _json_body(_RATIO_ROWS)
    lines = number_lines("\n".join(map(json.dumps, _rows(_RATIO_ROWS))).encode())

    def row_by_row() -> object:
        return to_batches([row_from_json(line, schema, line=at) for at, line in lines], schema)

    ways: dict[str, Callable[[], object]] = {
        "row_by_row": row_by_row,
        "array_by_column": lambda: array_to_batches(array, schema),
        "lines_by_column": lambda: lines_to_batches(lines, schema),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(plan.rounds):
        for name, decode in ways.items():
            began = time.perf_counter()
            decode()
            least[name] = min(least[name], time.perf_counter() - began)
    report.figures["json_us_per_row"] = {
        name: round(seconds / _RATIO_ROWS * 1e6, 3) for name, seconds in least.items()
    }
    slowest = max(least["array_by_column"], least["lines_by_column"])
    report.judge(
        Check(
            "json_decode_ratio",
            least["row_by_row"] / slowest,
            _RATIO_BAR,
            "at least",
            "times",
            f"by column (arrays and lines, the slower of both) beside row by row, "
            f"{_RATIO_ROWS} rows of 5 columns",
        ),
        say,
    )


# ---- requests


@contextmanager
def _gateway(log: Path) -> Iterator[tuple[int, int]]:
    """The ports of HTTP and of Kafka's protocol."""
    command = [sys.executable, "-m", "penstock.cli.main", "gateway", "--dir", str(log)]
    command += ["--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0"]
    command += ["--json", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told: dict[str, str] = {}
            while not {"url", "kafka"} <= told.keys():
                line = process.stdout.readline()
                if not line:
                    raise Unavailable("the gateway did not start")
                told |= json.loads(line)
            http, kafka = (int(told[name].rpartition(":")[2]) for name in ("url", "kafka"))
            yield http, kafka
        finally:
            process.terminate()


def _measure(
    plan: GatewayBenchSizes,
    report: Report,
    say: Say,
    port: int,
    token: str,
    kind: str,
    rows: int,
    body: bytes,
    *,
    keyed: bool,
) -> None:
    types = {"json": "application/json", "arrow": "application/vnd.apache.arrow.stream"}
    head = (
        f"POST /v1/streams/bids/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {types[kind]}\r\nContent-Length: {len(body)}\r\n"
    )
    took, seconds = uvloop.run(_load(plan, port, head, body, keyed=keyed))
    name = f"{kind}, {rows} rows, {len(body)} bytes{', with a key' if keyed else ''}"
    rate = len(took) / seconds
    report.figures[name] = {
        "requests_per_s": round(rate),
        "rows_per_s": round(rate * rows),
        "latency_ms": summary(took, scale=1e3, digits=2),
    }
    say(f"{name}: {rate:.0f} requests/s, {rate * rows:.0f} rows/s")


async def _load(
    plan: GatewayBenchSizes, port: int, head: str, body: bytes, *, keyed: bool
) -> tuple[list[float], float]:
    """Seconds of each request, and how long it all took."""
    took: list[float] = []
    loop = asyncio.get_running_loop()

    async def client(name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = 0
        while loop.time() < deadline:
            key = f"Idempotency-Key: {name}:{number}\r\n" if keyed else ""
            began = loop.time()
            writer.write(f"{head}{key}\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise Unavailable(f"the gateway answered {answer[:40]!r}")
            length = answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            await reader.readexactly(int(length))
            took.append(loop.time() - began)
            number += 1
        writer.close()
        await writer.wait_closed()

    started = loop.time()
    deadline = started + plan.seconds
    names = [f"bench-{started:.6f}-{number}" for number in range(plan.connections)]
    await asyncio.gather(*map(client, names))
    return took, loop.time() - started
