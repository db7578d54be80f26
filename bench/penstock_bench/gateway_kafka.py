"""Kafka's protocol at the gateway, beside a real broker of Kafka's in the same run.

One client for both, librdkafka in the peer's environment (bench/peers/kafka_streams/
client_load.py); topics of one partition; both sync what they take before they acknowledge it. They
take turns, round by round, so that a machine that drifts favours none. Law: without the peer there
are no figures, and a line says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock_bench.measure import summary
from penstock_bench.nexmark.peers import Peer, find_peers
from penstock_bench.report import Check, Report, Say

_PEER: Final = "kafka_streams"
_PROGRAM: Final = "client_load.py"
_SECONDS: Final = 180.0
_BYTES: Final = 100
#: How much longer a broker may at least take.
_TRANSACTION_BAR: Final = 4.0
_PRODUCE_BAR: Final = 1.0
#: Between transactions: long enough for a broker to be done with the one before.
_PAUSE: Final = 0.03

Ways = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaSizes:
    """`seconds` for each measurement of each round."""

    rounds: int = 3
    seconds: float = 3.0


@dataclass(slots=True)
class _Figures:
    """Of one of the two."""

    ways: Ways
    latencies: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        rates = {name: round(median(found)) for name, found in self.rates.items()}
        return rates | {
            f"{name}_ms": summary(found, scale=1e3, digits=2)
            for name, found in self.latencies.items()
        }


def measure_kafka(plan: KafkaSizes, report: Report, say: Say, *, root: Path, ways: Ways) -> None:
    """`ways`: of a client of the gateway. Writes below `root`, the disk of the log."""
    spec = find_peers().get(_PEER)
    if spec is None or spec.missing is not None:
        say(f"no broker of Kafka's to compare with: {_PEER} is {spec and spec.missing}")
        return
    (root / "kafka").mkdir()
    peer = Peer(replace(spec, program=spec.directory / _PROGRAM))
    try:
        opened = peer.ask("open", _SECONDS, directory=str(root / "kafka"))
        both = {"gateway": _Figures(ways), "kafka": _Figures(opened["ways"])}
        for number in range(plan.rounds):
            for one in both.values():
                _measure_round(peer, plan, one, number)
    finally:
        peer.close()
    for name, one in both.items():
        report.figures[f"kafka protocol, {name}"] = one.as_json()
        shown = ", ".join(f"{what} {found:,}" for what, found in one.as_json().items()
                          if isinstance(found, int))  # fmt: skip
        say(f"{name}: {shown}")
    report.figures["kafka broker"] = opened["settings"]
    _judge(both["gateway"], both["kafka"], report, say)


def _measure_round(peer: Peer, plan: KafkaSizes, one: _Figures, number: int) -> None:
    def ask(do: str, topic: str, **more: Any) -> dict[str, Any]:
        given = {"ways": one.ways, "topic": topic, "seconds": plan.seconds, "bytes": _BYTES}
        return peer.ask(do, _SECONDS, **given, **more)

    small, large = f"small-{number}", f"large-{number}"
    for topic in (small, large):
        ask("make", topic)
    took = one.latencies
    took.setdefault("produce", []).extend(ask("produce_one", small)["seconds"])
    for name, rows, pause in (
        ("transaction", 1, 0.0),
        ("transaction_of_100_rows", 100, 0.0),
        ("transaction_after_a_pause", 1, _PAUSE),
    ):
        found = ask("transact", small, rows=rows, pause=pause)["seconds"]
        took.setdefault(name, []).extend(found)
    done = ask("produce", large)
    one.rates.setdefault("produced_rows_per_s", []).append(done["rows"] / done["seconds"])
    read = ask("fetch", large, rows=done["rows"])
    one.rates.setdefault("fetched_rows_per_s", []).append(read["rows"] / read["seconds"])


def _judge(ours: _Figures, kafka: _Figures, report: Report, say: Say) -> None:
    for name, kind, bar in (
        ("kafka_transaction_ratio", "transaction", _TRANSACTION_BAR),
        ("kafka_produce_ratio", "produce", _PRODUCE_BAR),
    ):
        p50 = [median(one.latencies[kind]) for one in (kafka, ours)]
        told = (
            f"Kafka's p50 {p50[0] * 1e3:.2f} ms beside {p50[1] * 1e3:.2f} ms, "
            "of one record each, one after the other"
        )
        report.judge(Check(name, p50[0] / p50[1], bar, "at least", "times", told), say)
