"""The laws of the log as functions over what clients did and saw (reliability I1 to I22).

evidence.py   everything that anybody ever saw, put together; one value per LSN (I2)
order.py      LSNs follow real time, append times never go back (I2)
durable.py    what was acknowledged is there, what was refused is not, groups are whole (I1, I22)
readers.py    every reader saw the filter of the log, once, in order, and nothing else (I3, I4)
producers.py  each seq takes effect once, older instances are fenced (I5, I7)
metadata.py   guards held, refusals and reads rest on what the log says (linearizable)
trimming.py   nothing is gone that was not given up, and what was stays gone

They read histories and the final log, never the product's memory.
"""

from __future__ import annotations

from simulation.checkers.durable import check_durable
from simulation.checkers.evidence import Evidence, Violation
from simulation.checkers.metadata import check_metadata
from simulation.checkers.order import check_order
from simulation.checkers.producers import check_producers
from simulation.checkers.readers import check_readers
from simulation.checkers.trimming import check_trimming
from simulation.log.story import FinalLog, Story

__all__ = ["Evidence", "Violation", "check_all"]


def check_all(story: Story, final: FinalLog) -> Evidence:
    """Raise Violation for the first law that is broken."""
    evidence = Evidence(story, final)
    check_trimming(evidence)
    check_durable(evidence)
    check_order(evidence)
    check_producers(evidence)
    check_readers(evidence)
    check_metadata(evidence)
    return evidence
