"""`penstock bench deliver`: delivery to many targets, part by part, in one run.

Owns the order of the parts and their sizes; each part is a file of its own, with its bars.

hosts    from dispatch to receipt, in targets beside their data: frames, and gRPC
kafka    from append to applied, beside transactions of a Kafka broker's, if that peer is installed
others   from append to receipt, in targets beside one that is dead, or comes back
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock_bench.deliver_hosts import HostSizes, measure_hosts
from penstock_bench.deliver_kafka import KafkaSizes, measure_kafka
from penstock_bench.deliver_others import OthersSizes, measure_others
from penstock_bench.measure import busy_load, scratch
from penstock_bench.report import Report, Say


@dataclass(frozen=True, slots=True)
class DeliverBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    hosts: HostSizes = HostSizes()
    kafka: KafkaSizes = KafkaSizes()
    others: OthersSizes = OthersSizes()


FULL: Final = DeliverBenchSizes()
QUICK: Final = DeliverBenchSizes(
    HostSizes(rounds=1, transactions=40, targets=(2, 4)),
    KafkaSizes(rounds=1, transactions=40, more_transactions=20, scene=OthersSizes(targets=4)),
    OthersSizes(rounds=1, transactions=40, targets=4, away=2000),
)


def run_bench(*, directory: Path | None, plan: DeliverBenchSizes, say: Say) -> Report:
    report = Report("deliver", parameters={"plan": repr(plan), "quick": plan == QUICK})
    report.figures["load_before"] = busy_load(say)
    with scratch("penstock-bench-", directory) as root:
        measure_hosts(root, plan.hosts, report, say)
        measure_kafka(root, plan.kafka, report, say)
        measure_others(root, plan.others, report, say)
    return report
