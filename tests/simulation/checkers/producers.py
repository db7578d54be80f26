"""Each (producer, seq) takes effect once, without gaps; an older instance never writes again.

I5 and I7. Claims are ordered in the log among what they fence, so LSN order is all that counts.
"""

from __future__ import annotations

from penstock.log.records import Entry
from simulation.checkers.evidence import Evidence, Violation, is_claim, is_retirement


def check_producers(evidence: Evidence) -> None:
    by_producer: dict[str, list[Entry]] = {}
    for lsn in evidence.lsns:
        entry = evidence.entries[lsn]
        by_producer.setdefault(entry.producer, []).append(entry)
    for producer, entries in by_producer.items():
        _check_instances(producer, entries)
        _check_seqs(producer, entries, complete=evidence.is_complete)
    _check_claims(evidence)


def _check_instances(producer: str, entries: list[Entry]) -> None:
    instance = 0
    claimed: set[int] = set()
    for entry in entries:
        if entry.instance < instance:
            raise Violation("I5", f"{producer}: {entry} after instance {instance} was opened")
        instance = entry.instance
        if is_claim(entry):
            if instance in claimed:
                raise Violation("I5", f"{producer}: instance {instance} was opened twice: {entry}")
            claimed.add(instance)


def _check_seqs(producer: str, entries: list[Entry], *, complete: bool) -> None:
    next_seq = 0
    retired = False
    for entry in entries:
        if retired:
            raise Violation("I7", f"{producer}: {entry} after the producer had retired")
        if is_claim(entry):
            continue
        gap = entry.seq > next_seq and complete
        if entry.seq < next_seq or gap:
            raise Violation("I7", f"{producer}: seq {next_seq} was next, but there is {entry}")
        next_seq = entry.seq + 1
        retired = is_retirement(entry)


def _check_claims(evidence: Evidence) -> None:
    """Whoever was told that it owns an instance is the only one."""
    owners: dict[tuple[str, int], bytes] = {}
    for claim in evidence.story.claims:
        if not claim.won:
            continue
        owner = owners.setdefault((claim.producer, claim.instance), claim.nonce)
        if owner != claim.nonce:
            raise Violation("I5", f"two own {claim.producer} instance {claim.instance}: {claim}")
