"""From append to applied, beside transactions of a real Kafka broker in the same run.

A Kafka topic has a partition for each target, and each partition a consumer that reads what is
committed: Kafka's own clients, in a JVM (bench/peers/kafka_streams/). Its broker syncs every append
before it acknowledges it, as our log does. The two take turns, since a shared machine drifts. Law:
without the peer there are no figures, and a line says so.

Both are timed from when a transaction begins to be written to when a target has its record. Of
Kafka, time that a transaction waits for a producer that is free does not count. Bars are for a rate
that a broker holds on few cores, where it is at its best; at the rate of the other parts it is
measured once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Final

from penstock_bench.deliver_others import OthersSizes, Scene, open_scene
from penstock_bench.measure import percentile, summary
from penstock_bench.nexmark.peers import Peer, find_peers
from penstock_bench.report import Check, Report, Say

_PEER: Final = "kafka_streams"
_PROGRAM: Final = "delivery_load.py"
_SECONDS: Final = 240.0
#: How many times ours Kafka must take at least.
MEAN_BAR: Final = 4.0
P99_BAR: Final = 6.0


@dataclass(frozen=True, slots=True)
class KafkaSizes:
    """How much of it; bytes, targets and the rate of the other parts are those of `scene`."""

    rounds: int = 5
    transactions: int = 200
    rate: int = 20
    #: At the rate of the other parts, once.
    more_transactions: int = 400
    #: So many of Kafka's producers take turns.
    producers: int = 8
    scene: OthersSizes = OthersSizes()


def measure_kafka(root: Path, sizes: KafkaSizes, report: Report, say: Say) -> None:
    spec = find_peers().get(_PEER)
    if spec is None or spec.missing is not None:
        say(f"no broker of Kafka's to compare with: {_PEER} is {spec and spec.missing}")
        return
    (root / "kafka").mkdir()
    peer = Peer(replace(spec, program=spec.directory / _PROGRAM))
    try:
        opened = peer.ask(
            "open", _SECONDS, directory=str(root / "kafka"), targets=sizes.scene.targets,
            producers=sizes.producers,
        )  # fmt: skip
        with open_scene(root / "ours", sizes.scene) as scene:
            found = _Rounds()
            for _ in range(sizes.rounds):
                found.add(scene, peer, sizes.transactions, sizes.rate, sizes.scene.row_bytes)
            more = _Rounds()
            more.add(scene, peer, sizes.more_transactions, sizes.scene.rate, sizes.scene.row_bytes)
    finally:
        peer.close()
    report.figures["append_to_applied"] = {
        f"{sizes.rate}_per_s": found.as_json(),
        f"{sizes.scene.rate}_per_s": more.as_json(),
        "kafka_broker": opened["settings"],
        "kafka_producers": sizes.producers,
    }
    for name, value, bar in (
        ("kafka_mean_ratio", fmean, MEAN_BAR),
        ("kafka_p99_ratio", partial(percentile, percent=99), P99_BAR),
    ):
        theirs, mine = median(map(value, found.kafka)), median(map(value, found.ours))
        detail = f"Kafka {theirs:.2f} ms beside {mine:.2f} ms, medians of rounds"
        report.judge(Check(name, theirs / mine, bar, "at least", "times", detail), say)


@dataclass(slots=True)
class _Rounds:
    """Milliseconds of both, and how many transactions a second Kafka had done."""

    ours: list[list[float]] = field(default_factory=list)
    kafka: list[list[float]] = field(default_factory=list)
    held: list[float] = field(default_factory=list)

    def add(self, scene: Scene, peer: Peer, transactions: int, rate: int, row_bytes: int) -> None:
        self.ours.append(scene.load(transactions, rate=rate))
        found = peer.ask("load", _SECONDS, transactions=transactions, rate=rate, bytes=row_bytes)
        self.kafka.append(found["ms"])
        self.held.append(found["held"])

    def as_json(self) -> dict[str, object]:
        kafka = _figures(self.kafka) | {"transactions_per_s": round(median(self.held), 1)}
        return {"ours_ms": _figures(self.ours), "kafka_ms": kafka}


def _figures(rounds: list[list[float]]) -> dict[str, object]:
    return {
        "mean_rounds": [round(fmean(one), 3) for one in rounds],
        **summary(list(chain(*rounds)), digits=3),
    }
