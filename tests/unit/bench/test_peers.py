"""Peers: the contract, with real programs of a few lines, and the verdict of a comparison."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from penstock_bench.cli.nexmark_peers import peers as peers_command
from penstock_bench.nexmark import peers as peers_module
from penstock_bench.nexmark.compare import (
    FAILED,
    ComparisonResults,
    PeerComparison,
    _chosen,
    holds_rate,
    make_report,
    worst,
)
from penstock_bench.nexmark.peer_run import last_by_key, read_rows
from penstock_bench.nexmark.peers import (
    Peer,
    PeerRefused,
    PeerSpec,
    find_peer,
    find_peers,
    install,
    read_spec,
)
from penstock_bench.nexmark.visible import Rows

from penstock.errors import BadConfig, DeadlineExceeded, NotFound, Unavailable

#: What a program must do at least: one JSON object per line, in turn.
ECHO = """
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "refuse":
        print(json.dumps({"error": "not that one", "refused": True}), flush=True)
    elif command["do"] == "fail":
        print(json.dumps({"error": "Traceback: it broke"}), flush=True)
    else:
        print(json.dumps({"ok": True, "heard": command}), flush=True)
"""


def _make(root: Path, program: str, *, name: str = "echo", more: str = "") -> PeerSpec:
    directory = root / name
    directory.mkdir()
    (directory / "program.py").write_text(textwrap.dedent(program))
    settings = 'summary = "s"\nprogram = "program.py"\nvariants = ["only"]\nevents = "log"\n'
    (directory / "peer.toml").write_text(settings + more)
    return read_spec(directory / "peer.toml")


def _requiring(root: Path) -> PeerSpec:
    """A peer that wants an environment of its own, which is not there."""
    spec = _make(root, ECHO)
    (spec.directory / "needed.txt").write_text("")
    file = spec.directory / "peer.toml"
    file.write_text(file.read_text() + 'requirements = "needed.txt"\n')
    return read_spec(file)


@contextlib.contextmanager
def _running(root: Path, program: str) -> Iterator[Peer]:
    with contextlib.closing(Peer(_make(root, program))) as peer:
        yield peer


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_dead(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _is_alive(pid)


# ---- the contract


def test_a_command_reaches_the_program_and_its_figures_come_back(tmp_path: Path) -> None:
    with _running(tmp_path, ECHO) as peer:
        first = peer.ask("start", 60, query="q1", result={"stream": "r"})
        second = peer.ask("stop", 60)

    assert first["heard"] == {"do": "start", "query": "q1", "result": {"stream": "r"}}
    assert second["heard"] == {"do": "stop"}


def test_a_refusal_is_no_failure_and_the_program_goes_on(tmp_path: Path) -> None:
    with _running(tmp_path, ECHO) as peer:
        with pytest.raises(PeerRefused, match="not that one"):
            peer.ask("refuse", 60)
        with pytest.raises(Unavailable, match="echo failed at 'fail': Traceback: it broke"):
            peer.ask("fail", 60)

        assert peer.ask("start", 60)["ok"] is True


def test_a_peer_that_dies_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    program = """
        import sys
        sys.stdin.readline()
        sys.exit("no more memory")
    """
    with _running(tmp_path, program) as peer:
        with pytest.raises(Unavailable, match=r"(?s)echo died, exit code 1.*no more memory"):
            peer.ask("start", 60)
        with pytest.raises(Unavailable, match="echo died"):
            peer.ask("stop", 60)
        with pytest.raises(Unavailable, match="echo died"):
            peer.check()


def test_a_peer_that_hangs_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "_END_SECONDS", 0.1)
    with _running(tmp_path, "import time\ntime.sleep(600)") as peer:
        pid = peer.pids[0]
        with pytest.raises(DeadlineExceeded, match=r"did not answer 'start' within 0\.1 s"):
            peer.ask("start", 0.1)

    assert _wait_dead(pid)


@pytest.mark.parametrize("answer", ["hello", "[1]", "{}", '{"ok": false}', "x" * 1_000])
def test_nonsense_is_shown_and_raised(tmp_path: Path, answer: str) -> None:
    program = f"""
        import sys
        sys.stdin.readline()
        print({answer!r}, flush=True)
        sys.stdin.readline()
    """
    with (
        _running(tmp_path, program) as peer,
        pytest.raises(Unavailable, match="nonsense") as raised,
    ):
        peer.ask("start", 60)

    assert len(str(raised.value)) < 300


def test_what_a_peer_started_ends_with_it(tmp_path: Path) -> None:
    program = """
        import json, subprocess, sys
        child = subprocess.Popen(["sleep", "600"])
        for line in sys.stdin:
            print(json.dumps({"ok": True, "child": child.pid}), flush=True)
    """
    with _running(tmp_path, program) as peer:
        child = peer.ask("start", 60)["child"]
        assert child in peer.pids

    assert _wait_dead(child)
    peer.close()  # again, and nothing happens


TALKING = """
import pathlib, subprocess, sys
sys.path.insert(0, {peers!r})
from talk import Refusal, serve
child = subprocess.Popen(["sleep", "600"])
def start(command):
    print("this is no answer")
    if command["query"] == "q6":
        raise Refusal("no q6")
    return {{"child": child.pid, "twice": 2 * command["number"]}}
serve({{"start": start}}, close=lambda: child.kill())
"""


def test_the_programs_side_keeps_prints_apart_and_tells_refusals_from_bugs(tmp_path: Path) -> None:
    program = TALKING.format(peers=str(peers_module.peers_directory()))
    with _running(tmp_path, program) as peer:
        assert peer.ask("start", 60, query="q1", number=21)["twice"] == 42
        with pytest.raises(PeerRefused, match="no q6"):
            peer.ask("start", 60, query="q6")
        with pytest.raises(Unavailable, match="KeyError"):
            peer.ask("start", 60, query="q1")


def test_a_program_dies_with_the_harness(tmp_path: Path) -> None:
    program = TALKING.format(peers=str(peers_module.peers_directory()))
    spec = _make(tmp_path, program)
    told, tell = os.pipe()
    harness = os.fork()
    if harness == 0:  # pragma: no cover - another process
        peer = Peer(spec)
        child = peer.ask("start", 60, query="q1", number=1)["child"]
        os.write(tell, f"{peer.pids[0]} {child}".encode())
        signal.pause()
    pids = [int(pid) for pid in os.read(told, 100).split()]

    os.kill(harness, signal.SIGKILL)
    os.waitpid(harness, 0)

    assert len(pids) == 2
    assert all(_wait_dead(pid) for pid in pids)


# ---- finding and installing


def test_the_peers_of_the_source_tree_are_as_they_should_be() -> None:
    peers = find_peers()

    assert {"structured_streaming", "flink", "kafka_streams"} <= set(peers)
    assert peers["structured_streaming"].requirements is None
    assert peers["flink"].events == "own"
    assert peers["kafka_streams"].pom is not None


def test_a_package_without_its_source_tree_says_where_peers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "_SOURCE_TREE", tmp_path)

    with pytest.raises(NotFound, match=r"pip install -e \./bench"):
        find_peers()


def test_a_peer_that_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    spec = _requiring(tmp_path)

    assert spec.missing == "not installed: penstock nexmark peers install echo"
    with pytest.raises(NotFound, match="penstock nexmark peers install echo"):
        Peer(spec)
    results, said = ComparisonResults(), []
    plan = PeerComparison(("q1",))
    assert _chosen(plan, results, said.append, tmp_path) == []
    assert said == ["echo is skipped: not installed: penstock nexmark peers install echo"]
    assert results.skipped[0]["system"] == "echo"


def test_what_a_peer_needs_beside_python_is_looked_for_first(tmp_path: Path) -> None:
    spec = _make(tmp_path, ECHO, more='needs = ["sh", "no-such-command"]\n')

    assert spec.missing == "no-such-command is not on the path: install it first"
    with pytest.raises(NotFound, match="echo needs no-such-command on the path"):
        install(spec, print)


def test_a_failed_installation_leaves_the_peer_uninstalled(tmp_path: Path) -> None:
    spec = _requiring(tmp_path)
    (spec.environment / "bin").mkdir(parents=True)
    spec.python.symlink_to("/bin/false")  # a pip that fails, without a minute of installing
    (spec.environment / ".installed").touch()

    with pytest.raises(Unavailable, match="echo was not installed"):
        install(spec, lambda line: None)

    assert spec.missing is not None


def test_an_installed_peer_runs_in_its_own_python(tmp_path: Path) -> None:
    spec = _requiring(tmp_path)
    (spec.environment / "bin").mkdir(parents=True)
    said: list[str] = []
    spec.python.write_text('#!/bin/sh\necho "$@"\n')
    spec.python.chmod(0o755)

    install(spec, said.append)

    assert said == [
        f"-m pip install --disable-pip-version-check --progress-bar off -r {spec.requirements}"
    ]
    assert spec.missing is None
    assert spec.python.parent == spec.directory / ".venv" / "bin"


@pytest.mark.parametrize("succeeds", [True, False])
def test_the_jars_of_a_peer_are_those_that_maven_copied_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, succeeds: bool
) -> None:
    commands, said = tmp_path / "bin", []
    commands.mkdir()
    script = 'echo "$@"\nexit 0\n' if succeeds else 'echo "no such artifact"\nexit 1\n'
    (commands / "mvn").write_text("#!/bin/sh\n" + script)
    (commands / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    (_make(tmp_path, ECHO).directory / "pom.xml").touch()
    file = tmp_path / "echo" / "peer.toml"
    file.write_text(file.read_text() + 'pom = "pom.xml"\nneeds = ["mvn"]\n')
    spec = read_spec(file)
    assert spec.missing == "not installed: penstock nexmark peers install echo"
    spec.jars.mkdir(parents=True)
    (spec.jars / "old.jar").touch()

    with contextlib.nullcontext() if succeeds else pytest.raises(Unavailable, match="no such art"):
        install(spec, said.append)

    assert (spec.missing is None) is succeeds
    assert list(spec.jars.iterdir()) == []
    if succeeds:
        assert said[0].endswith(f"-DincludeScope=runtime -DoutputDirectory={spec.jars}")


def test_a_wrong_peer_file_is_told_with_all_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "peer.toml"
    file.write_text('summary = 1\nprogram = "gone.py"\nevents = "tape"\nx = 1\n')

    with pytest.raises(BadConfig) as raised:
        read_spec(file)

    told = ("summary: 1 is not", "gone.py is not there", "'tape'", "x: no such", "variants: miss")
    assert [problem for problem in told if problem not in str(raised.value)] == []


def test_an_unknown_peer_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    _make(tmp_path, ECHO)

    with pytest.raises(NotFound, match="no peer 'kafka': there are echo"):
        find_peer("kafka", tmp_path)


def test_the_list_shows_every_peer_and_its_state() -> None:
    shown = CliRunner().invoke(peers_command, ["list"])

    assert shown.exit_code == 0
    for name in ("structured_streaming", "flink", "kafka_streams"):
        assert name in shown.output


# ---- rows and verdicts


def test_rows_that_a_peer_hands_over_get_their_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "_weight": [1, -1],
            "_lat_us": [1_000_000, 1_000_000],
            "_visible_us": [1_002_000, 1_004_000],
            "_emitted_us": [1_001_000, 1_001_000],
            "auction": ["1000", "1001"],
            "price": ["0.908", "1.000"],
            "dateTime": ["1000", "2000"],
            "extra": ["12", ""],
        }
    )
    with pa.ipc.new_file(tmp_path / "rows", table.schema) as writer:
        writer.write_table(table)

    rows = read_rows(tmp_path / "rows")

    assert rows.table.schema.types == [
        pa.int64(),
        pa.decimal128(23, 3),
        pa.timestamp("us", tz="UTC"),
        pa.string(),
    ]
    _, visible, emitted = rows.latencies_ms(1_000_000, 1_000_001)
    assert visible.tolist() == [2.0]  # a row that takes another back is none
    assert emitted.tolist() == [1.0]


def test_of_rows_that_replace_each_other_the_last_counts() -> None:
    table = pa.table({"category": [1, 2, 1, 1], "final": [10, 20, 30, 40]})
    times = np.zeros(4, np.int64)

    kept = last_by_key(Rows(table, None, times, times, times), ("category",))

    assert kept.table.to_pylist() == [
        {"category": 2, "final": 20},
        {"category": 1, "final": 40},
    ]


def _result(system: str, variant: str, p50: float | None, **more: Any) -> dict[str, Any]:
    return {
        "system": system,
        "variant": variant,
        "query": "q1",
        "rate": 5_000,
        "rows": 100,
        "latency_ms": None if p50 is None else {"p50": p50},
        "checks": [{"name": "p99 latency", "ok": False}, {"name": "schedule held", "ok": True}],
        "oracle": "equal",
        "oracle_reason": "",
        **more,
    }


def _missed(*results: dict[str, Any]) -> set[str]:
    report = make_report(PeerComparison(("q1",)), ComparisonResults(list(results)))
    return {check.name for check in report.checks if not check.ok}


OURS = _result("penstock", "marker", 5.0)
BEST = _result("structured_streaming", "best", 60.0, keeps_up=True)
DEFAULTS = _result("structured_streaming", "defaults", 160.0, keeps_up=True)


def test_both_bars_are_between_medians_of_the_same_run() -> None:
    assert _missed(OURS, BEST, DEFAULTS) == set()
    slow = {**BEST, "latency_ms": {"p50": 49.0}}
    assert _missed(OURS, slow, DEFAULTS) == {"q1_p50_structured_streaming_best_over_penstock"}
    slow = {**DEFAULTS, "latency_ms": {"p50": 124.0}}
    assert _missed(OURS, BEST, slow) == {"q1_p50_structured_streaming_defaults_over_penstock"}


def test_penstock_counts_with_its_worse_round() -> None:
    worse = _result("penstock", "marker", 7.0)

    assert worst([OURS, worse]) is worse
    assert _missed(worse, BEST, OURS) == {"q1_p50_structured_streaming_best_over_penstock"}


def test_a_side_that_does_not_hold_the_rate_wins_nothing_for_the_other() -> None:
    behind = {**BEST, "keeps_up": False}
    assert _missed(OURS, behind) == {"q1_structured_streaming_best_holds_the_rate"}
    ours = {**OURS, "checks": [{"name": "growth of the lag", "ok": False}]}
    assert _missed(ours, BEST) == {"q1_penstock_marker_holds_the_rate"}
    assert holds_rate(OURS), "how late its rows were is another matter"


def test_a_peer_that_fails_is_a_miss_and_one_that_refuses_is_not() -> None:
    results = ComparisonResults([OURS])
    results.skip("flink", "defaults", "q1", "it has no such form")
    assert make_report(PeerComparison(("q1",)), results).ok
    results.skip("flink", "defaults", "q1", f"{FAILED}its JVM died")
    missed = [
        check.name for check in make_report(PeerComparison(("q1",)), results).checks if not check.ok
    ]
    assert missed == ["q1_flink_defaults_runs"]


def test_results_are_kept_as_they_come() -> None:
    kept: list[Any] = []
    ComparisonResults(keep=kept.append).add(OURS)
    assert kept == [OURS]


def test_no_rows_and_wrong_rows_are_no_success() -> None:
    silent = _result("structured_streaming", "best", None, keeps_up=False)
    wrong = {**BEST, "oracle": "different", "oracle_reason": "1 row missing"}

    assert "q1_p50_structured_streaming_best_over_penstock" in _missed(OURS, silent)
    assert _missed(OURS, wrong) == {"q1_structured_streaming_best_equal_to_batch_spark"}


def test_what_was_not_measured_is_not_judged() -> None:
    assert _missed(OURS) == set()
    assert _missed(BEST) == set()
