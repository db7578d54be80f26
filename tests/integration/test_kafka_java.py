"""Kafka's own clients, of Java, at the gateway: all that their documentation has them do.

Long runs (`make soak`), since their jars come from Maven: tests/jvm/clients.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_server import kill_server
from harness.http_gateway import ForkedGateway, gateway_thread
from harness.maven import DIRECTORY, java_ways, run_java, running_java, write_properties
from harness.ports import free_ports
from harness.soak import fresh_seeds
from harness.waiting import wait_until
from tls_material import Authority

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.log.serving.directory import Address

pytestmark = pytest.mark.soak

PROGRAM = DIRECTORY / "clients" / "Clients.java"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LANES = 3
EACH = 40


@pytest.fixture(params=["SASL_PLAINTEXT", "SASL_SSL"])
def ways(
    request: pytest.FixtureRequest, module_log: penstock.Log, tmp_path: Path
) -> Iterator[Path]:
    """What the clients are told, with and without TLS."""
    given: dict[str, Any] = {}
    authority = Authority(tmp_path / "ca", "test")
    if request.param == "SASL_SSL":
        files = authority.issue("gateway", hosts=("127.0.0.1",))
        given = {"tls_cert": files.cert, "tls_key": files.key}
    found: list[Address] = []
    config = GatewayConfig(target=module_log.target, port=0, kafka_port=0, **given)
    with gateway_thread(config, found.append):
        token = (Path(module_log.target) / "token").read_text().strip()
        trusted = authority.ca if given else None
        properties = java_ways(found[0], token, authority=trusted)
        assert properties["security.protocol"] == request.param
        yield write_properties(tmp_path / "ways.properties", properties)


def test_they_describe_write_read_share_and_commit(
    ways: Path, module_log: penstock.Log, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = "of_" + request.node.callspec.params["ways"]

    def run(command: str, *more: object) -> list[list[str]]:
        return run_java("clients", PROGRAM, command, ways, topic, *more, log=tmp_path / "log")

    told = run("describe")
    facts = {line[0]: line[1:] for line in told}
    configs = {line[1]: line[2] for line in told if line[0] == "config"}
    assert facts["made"] == facts["partitions"] == [f"{LANES}"]
    assert facts["again"] == facts["listed"] == ["true"] and facts["nodes"] == ["1"]
    assert configs["cleanup.policy"] == "" and configs["retention.ms"] == "-1"
    assert configs["penstock.columns"].startswith("key binary")
    offsets = {line[1]: line[2] for line in told if line[0] == "offset"}
    assert offsets == {"EarliestSpec": "0", "LatestSpec": "0", "MaxTimestampSpec": "-1"}

    assert run("produce", EACH) == [["sent"]]
    whole = len(CODECS) * EACH * LANES
    read = run("read", whole)
    found: dict[str, list[str]] = defaultdict(list)
    offsets_of: dict[str, list[int]] = defaultdict(list)
    for _, lane, offset, time_ms, key, header, value in (row for row in read if row[0] == "row"):
        number = int(value.rpartition("-")[2])
        assert value.startswith(f"{key}-{lane}-") and header == "h"
        assert int(time_ms) == 1_700_000_000_000 + number
        found[lane].append(value)
        offsets_of[lane].append(int(offset))
    for lane in range(LANES):
        expected = [f"{codec}-{lane}-{number}" for codec in CODECS for number in range(EACH)]
        assert found[f"{lane}"] == expected
        assert offsets_of[f"{lane}"] == sorted(set(offsets_of[f"{lane}"]))
    ends = {line[1]: (int(line[2]), int(line[3])) for line in read if line[0] == "end"}
    assert ends == {lane: (all[-1] + 1, all[-1] + 1) for lane, all in offsets_of.items()}
    assert ["begin", "0", "0"] in read

    shared = run("group", whole)
    rows = [line[3] for line in shared if line[0] == "row"]
    assert sorted(rows) == sorted(value for all in found.values() for value in all)
    assert not [line for line in shared if line[0] == "again"]  # nothing came twice
    facts = {line[0]: line[1:] for line in shared if line[0] != "committed"}
    assert sorted(facts["shared"]) == ["1", "2"]
    assert facts["alone"] == facts["kept"] == [f"{LANES}"]
    committed = {line[1]: int(line[2]) for line in shared if line[0] == "committed"}
    assert committed == {lane: end for lane, (end, _) in ends.items()}

    assert run("transact") == [["fenced"]]
    after = [row[6] for row in run("read", whole + LANES + 1) if row[0] == "row"]
    transacted = {"counts 0", "counts 1", "counts 2", "of the new"}
    assert sorted(after) == sorted([*rows, *transacted])
    assert module_log.stream(topic).read().num_rows == whole + LANES + 1


def listen(process: subprocess.Popen[str], said: list[list[str]]) -> threading.Thread:
    def run() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip("\n").split("\t"))

    thread = threading.Thread(target=run, name="pump")
    thread.start()
    return thread


def run_pump(directory: Path, *, kills: int, rows: int) -> dict[str, int]:
    """How often the program aborted and began anew."""
    with penstock.connect(directory / "data") as log:
        for name in ("in", "out"):
            log.create_stream(name, "value STRING", lanes=1 if name == "in" else 2)
        token = (Path(log.target) / "token").read_text().strip()
        (port,) = free_ports(1)
        config = GatewayConfig(target=log.target, port=0, kafka_port=port)
        gateway = ForkedGateway(config)
        quick = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
        properties = java_ways(Address("127.0.0.1", port, False), token) | quick
        file = write_properties(directory / "pump.properties", properties)
        said: list[list[str]] = []
        sent = 0
        try:
            command = (PROGRAM, "pump", file, "in", "out", rows)
            with running_java("clients", *command, log=directory / "log") as process:
                listener = listen(process, said)
                for number in range(kills):
                    # It moves something after each kill, and something is there to be moved.
                    before = sum(line[0] == "moved" for line in said)
                    more = min(rows - sent, rows // kills)
                    values = [{"value": f"{at}"} for at in range(sent, sent + more)]
                    log.stream("in").append(values)
                    sent += more
                    wait_until(
                        lambda before=before: sum(line[0] == "moved" for line in said) > before,
                        seconds=120,
                    )
                    if number % 4 == 3:
                        kill_server(Path(log.target))
                    else:
                        gateway.kill()
                        gateway = ForkedGateway(config)
                log.stream("in").append([{"value": f"{at}"} for at in range(sent, rows)])
                assert process.wait(180) == 0, (directory / "log").read_text()[-5000:]
                listener.join()
        finally:
            gateway.kill()
        found: dict[str, list[int]] = {"0": [], "1": []}
        for row in log.stream("out").read().to_pylist():
            lane, _, value = row["value"].partition(":")
            found[lane].append(int(value))
        assert found == {lane: list(range(rows)) for lane in found}
    kinds = ("aborted", "anew", "moved")
    return {kind: sum(line[0] == kind for line in said) for kind in kinds}


def test_a_program_that_moves_rows_in_transactions_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    for seed in fresh_seeds():
        directory = tmp_path / str(seed)
        directory.mkdir()
        began = time.monotonic()
        counts = run_pump(directory, kills=12, rows=600)
        print(f"12 kills, {time.monotonic() - began:.0f} s: {counts}")
