"""`penstock cluster …`: real processes for what runs, this process for what asks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from harness.files import flip_bit, token_file
from harness.http_gateway import HttpClient
from harness.server_process import free_port
from harness.ui_page import ui_thread
from harness.waiting import TRIES, wait_until

import penstock
from penstock.cli import cluster_node, cluster_proxy
from penstock.cli.cluster_up import end_text, living_processes
from penstock.cli.cluster_verify import ReplicaFinding, still_owed
from penstock.cli.main import cli
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.core.rights import allow_caveat
from penstock.log.meta.open import open_metadata
from penstock.log.node.config import NodeConfig
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.open_log import Replication
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment
from penstock.ui.config import UiConfig
from penstock.ui.view import Book
from penstock.wire.token import make_token

COMMAND = [sys.executable, "-m", "penstock.cli.main"]


def run(*arguments: object) -> Result:
    """A command in this process; what it raised on the way out is part of the result."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Up:
    """A process of ours, and the line in which it said where it is."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As at a terminal, even if these tests run under `nohup`, which would be heeded.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code, _, complaint = self.end(None)
            raise AssertionError(f"it ended with {code}: {complaint}")
        self.said = json.loads(line)

    def end(self, number: signal.Signals | None = signal.SIGINT) -> tuple[int, str, str]:
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        output, complaint = self.process.communicate(timeout=60)
        return self.process.returncode, output, complaint


def pids(home: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((home / "cluster.json").read_text())["pids"]
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def append(up: Up, rows: list[int]) -> None:
    with penstock.connect(up.said["url"], token_file=up.said["token_file"]) as log:
        log.create_stream("bids", "n long").append([{"n": n} for n in rows])


def read(up: Up) -> list[int]:
    with penstock.connect(up.said["url"], token_file=up.said["token_file"]) as log:
        return [row["n"] for row in log.stream("bids").read().to_pylist()]


# ---- up


def test_a_cluster_comes_back_with_all_that_was_appended(tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    first = Up("cluster", "up", "--dir", home, "--proxies", 1, "--port", free_port())
    append(first, [1, 2, 3])
    before = pids(home)
    assert sorted(before) == ["n0", "n1", "n2", "p0", "zookeeper"]
    started = time.monotonic()
    assert first.end(signal.SIGINT) == (0, "", "")
    assert time.monotonic() - started < 20
    assert not any(map(is_running, before.values()))

    again = Up("cluster", "up", "--dir", home, "--nodes", 1, "--proxies", 1)
    assert again.said["url"] == first.said["url"]
    assert again.said["nodes"] == ["n0", "n1", "n2"]  # one alone would not have everything
    assert read(again) == [1, 2, 3]
    append(again, [4])
    assert read(again) == [1, 2, 3, 4]
    assert again.end(signal.SIGTERM) == (0, "", "")
    assert not any(map(is_running, pids(home).values()))


def test_what_keeps_a_cluster_from_starting_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cluster"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run("cluster", "up", "--dir", home, "--port", port)
    assert refused.exit_code == 5
    assert f"port {port} of this machine is taken: give another one" in refused.stderr

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    no_java = run("cluster", "up", "--dir", home)
    assert no_java.exit_code == 3 and "needs Java" in no_java.stderr


def living(home: Path) -> dict[str, int]:
    return living_processes(home, json.loads((home / "cluster.json").read_text()))


def test_nothing_is_started_beside_what_an_earlier_run_left(tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    options = ("cluster", "up", "--dir", home, "--nodes", 1, "--proxies", 1, "--port", free_port())
    Up(*options).end(signal.SIGKILL)
    left = living(home)
    try:
        assert sorted(left) == ["n0", "p0", "zookeeper"]
        # Without its pid it is found, too: whoever started it may have ended too early to write it.
        known = json.loads((home / "cluster.json").read_text())
        for pids_known in (known["pids"], {}):
            (home / "cluster.json").write_text(json.dumps(known | {"pids": pids_known}))
            refused = run("cluster", "up", "--dir", home, "--port", free_port())
            assert refused.exit_code == 5
            assert f"zookeeper (pid {left['zookeeper']})" in refused.stderr
            assert "--port" not in refused.stderr
            assert ("kill " + " ".join(map(str, left.values())) in refused.stderr) == bool(
                pids_known
            )
        (home / "cluster.json").write_text(json.dumps(known))
    finally:
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living(home))


def test_a_cluster_that_is_interrupted_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    for number in range(TRIES):
        home = tmp_path / f"cluster-{number}"
        starting = subprocess.Popen(
            [*COMMAND, "cluster", "up", "--dir", str(home), "--port", str(free_port())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        wait_until(lambda home=home: (home / "cluster.json").exists() and "n0" in pids(home))
        for signalled in (signal.SIGINT, signal.SIGINT, signal.SIGHUP):  # somebody impatient
            starting.send_signal(signalled)
            time.sleep(0.05)
        said, complaint = starting.communicate(timeout=60)
        assert not living(home)
        if not said:
            break  # else it was up before we came, which is another test's
    assert not said
    # A later signal may find it when all is stopped, on its way out.
    assert starting.returncode in (130, -signal.SIGINT, -signal.SIGHUP), complaint


def test_a_terminal_that_goes_away_stops_the_cluster(tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    options = ("--port", free_port(), "--nodes", 1, "--proxies", 1)
    up = Up("cluster", "up", "--dir", home, *options)
    node = pids(home)["n0"]
    os.kill(node, signal.SIGKILL)
    assert up.process.stderr is not None
    complaint = up.process.stderr.readline()
    assert "n0 has ended by SIGKILL: " in complaint
    code, _, more = up.end(signal.SIGHUP)
    assert code == 0 and not living(home)
    assert str(home / "n0.out") in complaint + more
    assert (end_text(70), end_text(-250)) == ("with exit code 70", "by signal 250")


# ---- a running cluster of four nodes


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Up]]:
    """Two logs' worth of life: started, written to, stopped, started again."""
    home = tmp_path_factory.mktemp("four") / "cluster"
    options = ("--dir", home, "--port", free_port(), "--nodes", 4, "--proxies", 1)
    first = Up("cluster", "up", *options)
    append(first, list(range(100)))
    assert first.end()[0] == 0
    up = Up("cluster", "up", *options, "--read-proxies", 1)
    append(up, list(range(100, 200)))  # whoever opens the log closes its last segment
    yield home, up
    assert up.end()[0] == 0


def test_a_second_up_in_the_same_directory_is_refused(four: tuple[Path, Up]) -> None:
    refused = run("cluster", "up", "--dir", four[0])
    assert refused.exit_code == 5
    assert "a cluster runs in" in refused.stderr


def test_status_shows_nodes_proxies_and_logs(four: tuple[Path, Up]) -> None:
    home, up = four
    wait_until(lambda: run_json("cluster", "status", home)["audit"] is not None)
    found = run_json("cluster", "status", home)

    assert found["address"] == up.said["url"]
    assert {(n["name"], n["state"], n["region"]) for n in found["nodes"]} == {
        (f"n{number}", "up", "default") for number in range(4)
    }
    assert sorted((p["role"], p["state"]) for p in found["proxies"]) == [
        ("read", "up"),
        ("write", "up"),
    ]
    (log,) = found["logs"]
    assert (log["log"], log["epoch"], log["ack_quorum"], log["write_quorum"]) == ("main", 2, 2, 3)
    assert (log["segments_sealed"], log["segments_open"], log["trim_point"]) == (1, 1, 0)
    assert log["tail"] > 0 and log["owner"] in {p["address"] for p in found["proxies"]}
    assert sum(node["segments"] for node in found["nodes"]) == 6

    text = run("cluster", "status", home)
    assert text.exit_code == 0 and text.stdout.isascii()
    lines = text.stdout.splitlines()
    assert lines[0] == f"cluster  {up.said['url']}"
    assert any(line.startswith("NODE ") for line in lines)
    assert any(line.startswith("main ") for line in lines)


def test_the_page_of_a_log_shows_the_cluster_that_keeps_it(
    four: tuple[Path, Up], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, up = four
    monkeypatch.setenv("PENSTOCK_NODE_TOKEN_FILE", str(home / "node-token"))
    if (home / "metadata-auth").exists():
        monkeypatch.setenv("PENSTOCK_METADATA_AUTH_FILE", str(home / "metadata-auth"))
    token = (home / "token").read_text().strip()
    with ui_thread(UiConfig(target=up.said["url"], port=0)) as address:
        facts = HttpClient(address, token).ask("GET", "/v1/facts").json
        narrowed = make_token(token, "a1b2c3d4e5f60718", [allow_caveat(["read:*"])])
        less = HttpClient(address, narrowed).ask("GET", "/v1/facts").json
    book = Book()
    book.take(facts)
    cluster = book.page(None, facts["at_ms"])["cluster"]

    assert cluster["why"] is None
    assert [node["state"] for node in cluster["nodes"]] == ["up"] * 4
    assert sum(node["figures"]["segments"][1] for node in cluster["nodes"]) == 6
    (log,) = cluster["logs"]
    assert log["owner"] in {proxy["address"] for proxy in cluster["proxies"]}
    assert log["missing nodes"] == "none"
    assert set(less["cluster"]) == {"why"}, "who may not look at the server is told nothing"


def test_status_without_tokens_shows_the_metadata_and_says_who_was_not_asked(
    four: tuple[Path, Up], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE", raising=False)
    found = run_json("cluster", "status", four[1].said["url"])
    assert {thing["state"] for thing in found["nodes"] + found["proxies"]} == {"not asked"}
    assert [log["log"] for log in found["logs"]] == ["main"]
    assert found["logs"][0]["tail"] is None

    checked = run_json("cluster", "decommission", four[1].said["url"], "n0", "--dry-run")
    assert checked["ok"] and checked["min_regions"] is None
    assert "the region rule (--min-regions) is not known" in checked["problems"][0]

    refused = run("cluster", "verify", four[1].said["url"])
    assert refused.exit_code == 3 and "--node-token-file" in refused.stderr


def test_verify_reads_every_copy_and_finds_a_flipped_bit(four: tuple[Path, Up]) -> None:
    home, _ = four
    whole = run_json("cluster", "verify", home, "main")
    assert whole["ok"] and whole["segments"] == 1 and whole["findings"] == []
    assert whole["copies"] % 3 == 0 and whole["copies"] > 3

    files = sorted(home.glob("n*/segments/*main*0000000000*"))
    assert files
    file = max(files, key=lambda path: path.stat().st_size)
    flip_bit(file, mask=0x10)
    deadline = time.monotonic() + 20
    while (broken := run("cluster", "verify", home)).exit_code != 8:
        assert time.monotonic() < deadline  # the node may still have had it in memory
    line, verdict = broken.stdout.splitlines()
    assert line.startswith(f"damaged node={file.parent.parent.name}:")
    assert " log=main segment=0 part=data block=" in line
    assert verdict.startswith("damage found: 1 segments, ")

    # The node has noticed it, too: the auditor mends it from another copy.
    wait_until(lambda: run("cluster", "verify", home).exit_code == 0)
    assert run("cluster", "verify", home, "nothing").exit_code == 3


def test_a_node_is_emptied_and_the_next_is_refused(four: tuple[Path, Up]) -> None:
    home, up = four
    assert run("cluster", "decommission", home, "n9").exit_code == 3
    named = next(n for n in run_json("cluster", "status", home)["nodes"] if n["segments"] == 2)
    name = named["name"]
    checked = run("cluster", "decommission", home, name, "--dry-run")
    assert (checked.exit_code, checked.stdout) == (
        0,
        f"{name} can be taken away: 2 segments would be copied\n",
    )
    done = run_json("cluster", "decommission", home, name)
    assert done == {
        **{"node": name, "draining": True, "segments": 0},
        **{"min_regions": 1, "problems": []},
    }
    after = {n["name"]: n for n in run_json("cluster", "status", home)["nodes"]}
    assert (after[name]["segments"], after[name]["state"]) == (0, "draining")

    other = next(each for each in after if each != name)
    refused = run("cluster", "decommission", home, other)
    assert refused.exit_code == 3
    assert f"{other} cannot be taken away" in refused.stderr
    assert "no other node is free to take the place" in refused.stderr
    why = run("cluster", "decommission", home, other, "--dry-run", "--json")
    assert why.exit_code == 3
    reasons = json.loads(why.stdout)["reasons"]
    assert len(reasons) == len(set(reasons)) > 0
    marked = {n["name"]: n["state"] for n in run_json("cluster", "status", home)["nodes"]}
    assert marked[other] != "draining"

    # The node can go, and everything is there.
    os.kill(pids(home)[name], signal.SIGKILL)
    wait_until(
        lambda: name not in {n["name"] for n in run_json("cluster", "status", home)["nodes"]}
    )
    assert run("cluster", "verify", home).exit_code == 0
    assert read(up) == list(range(200))
    cancelled = run("cluster", "decommission", home, name, "--cancel")
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{name} is used again\n")
    assert run("cluster", "decommission", home, name, "--cancel").exit_code == 3


def test_status_and_verify_say_which_node_is_missing(four: tuple[Path, Up]) -> None:
    """The last test: the cluster does not get over it."""
    home, up = four
    nodes = run_json("cluster", "status", home)["nodes"]
    lost = next(node for node in nodes if node["segments"])
    os.kill(pids(home)[lost["name"]], signal.SIGKILL)

    def state() -> str:
        found = run_json("cluster", "status", home)["nodes"]
        return str(next(node["state"] for node in found if node["id"] == lost["id"]))

    wait_until(lambda: state() == "missing")
    text = run("cluster", "status", home)
    assert text.exit_code == 0
    assert f"! node {lost['id']} is missing: " in text.stdout
    unread = run("cluster", "verify", home)
    assert unread.exit_code == 5
    assert f"unreachable node={lost['id']}" in unread.stdout
    assert "the node is not registered" in unread.stdout
    assert read(up) == list(range(200))


async def write(metadata: str, values: dict[str, bytes]) -> None:
    store = await open_metadata(metadata, session_seconds=30.0)
    for path, data in values.items():
        await store.create(path, data)
    await store.close()


def test_what_cannot_be_read_in_the_metadata_is_a_problem_of_its_own(
    tmp_path: Path, metadata: str
) -> None:
    token = token_file(tmp_path / "token", "x" * 32)
    bad = dict.fromkeys(("/logs/bad", "/owners/bad", "/nodes/bad", "/auditor"), b"no")
    asyncio.run(write(metadata, bad | {"/proxies/bad": b'{"id": "p"}'}))
    found = run_json("cluster", "status", metadata)
    assert [words.split()[0] for words in found["problems"]] == [
        *("/logs/bad", "/nodes/bad", "/owners/bad", "/proxies/bad", "/auditor"),
        "no",  # write proxy runs
    ]
    for arguments in ((), ("bad",)):
        verified = run("cluster", "verify", metadata, *arguments, "--node-token-file", token)
        assert verified.exit_code == 8 and "! /logs/bad in the metadata" in verified.stdout
    refused = run("cluster", "decommission", metadata, "n0")
    assert refused.exit_code == 3 and "/logs/bad in the metadata" in refused.stderr


def test_a_node_is_empty_only_after_a_second_look(tmp_path: Path, metadata: str) -> None:
    """At the first, a proxy may not have seen the mark, and place something on the node."""
    info = {"name": "n0", "cookie": "1", "host": "127.0.0.1", "port": 1}
    asyncio.run(write(metadata, {"/nodes/n0": json.dumps(info).encode()}))
    started = time.monotonic()
    done = run("cluster", "decommission", metadata, "n0")
    assert time.monotonic() - started > 2.0
    problem, verdict = done.stdout.splitlines()
    assert problem.startswith("! the region rule (--min-regions) is not known")
    assert verdict.startswith("n0 is empty")


def test_what_was_trimmed_or_moved_while_it_was_read_is_not_missing() -> None:
    a, b, c = map(NodeId, ("a:1", "b:1", "c:1"))
    segment = Segment(
        SegmentId(0),
        Epoch(1),
        Lsn(0),
        (Ensemble(BlockId(0), (a, b)),),
        2,
        2,
        sealed=True,
        blocks=10,
    )
    before = LogManifest(bytes(16), Epoch(1), "p", Lsn(0), SegmentId(0), (segment,))
    finding = ReplicaFinding("missing", a, "main", 0, "data", 2, 8, "it is not there")
    assert still_owed([finding], before, before) == [finding]
    moved = replace(segment, ensembles=(Ensemble(BlockId(0), (c, b)), Ensemble(BlockId(5), (a, b))))
    after = replace(before, segments=(moved,))
    assert still_owed([finding], before, after) == [replace(finding, first=5)]
    assert still_owed([finding], before, replace(before, segments=())) == []
    assert still_owed([finding], before, replace(before, log_id=b"x" * 16)) == []
    assert still_owed([finding], before, None) == []


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    address = "penstock://127.0.0.1:1/logs"
    missing = run("cluster", "status", address, "--tls-ca", "/nope.pem")
    assert missing.exit_code == 3 and "/nope.pem of --tls-ca" in missing.stderr
    token = tmp_path / "token"
    token.touch(0o600)
    for data, words in ((b"\xff" * 40, "is not UTF-8"), (b"x", "is too short")):
        token.write_bytes(data)
        refused = run("cluster", "status", address, "--token-file", token)
        assert refused.exit_code == 3 and words in refused.stderr
        assert "remove the file" not in refused.stderr


# ---- single processes


def test_node_and_proxy_run_in_the_foreground(tmp_path: Path, metadata: str) -> None:
    tokens = {name: token_file(tmp_path / name, "x" * 32) for name in ("token", "node-token")}
    node = Up(
        *("cluster", "node", "--name", "n0", "--data-dir", tmp_path / "n0"),
        *("--metadata", metadata, "--token-file", tokens["node-token"], "--rack", "r1"),
    )
    proxy = Up(
        *("cluster", "proxy", "--metadata", metadata, "--token-file", tokens["token"]),
        *("--node-token-file", tokens["node-token"], "--ensemble", 1),
        *("--write-quorum", 1, "--ack-quorum", 1),
    )
    try:
        assert (node.said["name"], node.said["rack"]) == ("n0", "r1")
        assert proxy.said["role"] == "write"
        with penstock.connect(metadata, token_file=tokens["token"]) as log:
            log.create_stream("s", "n long").append({"n": 7})
        found = run_json(
            *("cluster", "status", metadata, "--token-file", tokens["token"]),
            *("--node-token-file", tokens["node-token"]),
        )
        assert (found["nodes"][0]["state"], found["logs"][0]["write_quorum"]) == ("up", 1)
        for up in (node, proxy):
            assert "arrow" not in Path(f"/proc/{up.process.pid}/maps").read_text()
    finally:
        ends = [proxy.end(), node.end(signal.SIGTERM)]
    assert [(code, output) for code, output, _ in ends] == [(0, ""), (0, "")]


def test_what_a_node_or_proxy_cannot_do_has_its_exit_code(tmp_path: Path, metadata: str) -> None:
    common = ("--data-dir", tmp_path / "n0", "--metadata", metadata)
    assert run("cluster", "node", "--name", "No!", *common).exit_code == 3
    openly = run("cluster", "node", "--name", "n0", *common, "--host", "0.0.0.0")
    assert openly.exit_code == 3 and "needs TLS" in openly.stderr
    assert run("cluster", "node", *common).exit_code == 2


def test_every_setting_of_a_node_or_proxy_is_an_option() -> None:
    commands = {"node": cluster_node.node, "proxy": cluster_proxy.proxy}
    names = {
        name: {parameter.name for parameter in command.params} for name, command in commands.items()
    }
    assert {field.name for field in fields(NodeConfig)} <= names["node"]
    settings = {field.name for field in (*fields(ProxyConfig), *fields(Replication))}
    assert settings - {"replication"} <= names["proxy"]


def test_an_address_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    for address in (tmp_path, "penstock://zk:2181", "http://x", f"penstock+dir://{tmp_path}"):
        refused = run("cluster", "status", address)
        assert refused.exit_code == 3, refused.output
    nobody = run("cluster", "status", "penstock://127.0.0.1:1/logs", "--timeout", 0.5)
    assert nobody.exit_code == 5
