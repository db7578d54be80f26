"""Metadata as the log tells it: guards held where groups lie, answers rest on what was ordered.

An answer (a value that was read, a refusal) is right if it fits the state at some *cut* of the
log: above everything that was known when it was asked, and below everything that was asked for
after it was told. A refusal on grounds that a crash undid fits no cut.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock.errors import GuardFailed
from penstock.ids import Lsn
from penstock.log.group_format import decode_sets
from penstock.log.records import Guard, Kind, Value
from simulation.checkers.evidence import Evidence, Violation
from simulation.log.story import Asked


def check_metadata(evidence: Evidence) -> None:
    if not evidence.is_complete:
        return  # part of the fold was trimmed before anybody read it
    history = _History(evidence)
    for op, lsns in evidence.first_lsns().items():
        for guard in op.guards:
            if history.data_at(guard.key, lsns[0]) != guard.expected:
                found = history.data_at(guard.key, lsns[0])
                raise Violation("guard", f"{op} is at {lsns[0]}, where {guard.key} is {found!r}")
    for op in evidence.story.appends:
        if isinstance(op.outcome, GuardFailed) and not any(
            _may_fail(history, op, guard) for guard in op.guards
        ):
            raise Violation("guard", f"{op}: at no time did its guard not hold")
    for get in evidence.story.gets:
        if all(history.at(get.key, cut) != get.found for cut in history.cuts(get.key, get)):
            raise Violation("get", f"{get}: at no time was this the value")
    tail = evidence.final.tail
    folded = {key: value for key in history.keys if (value := history.at(key, tail))}
    if folded != evidence.final.metadata:
        raise Violation("fold", f"the log says {folded}, the state {evidence.final.metadata}")
    _check_counters(history)


def _may_fail(history: _History, op: Asked, guard: Guard) -> bool:
    return any(
        history.data_at(guard.key, cut) != guard.expected for cut in history.cuts(guard.key, op)
    )


def _check_counters(history: _History) -> None:
    for key in history.keys:
        if key.startswith("counter"):
            counts = [int(v.data.split(b"/")[0]) for v in history.values(key) if v is not None]
            if counts != list(range(1, len(counts) + 1)):
                raise Violation("guard", f"{key} counts {counts}")


class _History:
    """All values of all keys, by LSN."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lsns: dict[str, list[int]] = {}
        self._values: dict[str, list[Value | None]] = {}
        for lsn in evidence.lsns:
            entry = evidence.entries[lsn]
            if entry.kind is Kind.META:
                for change in decode_sets(entry.payload):
                    value = None if change.value is None else Value(change.value, Lsn(lsn))
                    self._lsns.setdefault(change.key, []).append(lsn)
                    self._values.setdefault(change.key, []).append(value)

    @property
    def keys(self) -> list[str]:
        return list(self._lsns)

    def values(self, key: str) -> list[Value | None]:
        return self._values[key]

    def at(self, key: str, cut: int) -> Value | None:
        """The value after everything below `cut`."""
        index = bisect_left(self._lsns.get(key, []), cut)
        return self._values[key][index - 1] if index else None

    def data_at(self, key: str, cut: int) -> bytes | None:
        value = self.at(key, cut)
        return None if value is None else value.data

    def cuts(self, key: str, asked: Asked) -> list[int]:
        """Cuts at which the operation may have been decided: the first, and one per change."""
        assert asked.ended_us is not None
        cuts = [asked.known_lsn]
        lsns = self._lsns.get(key, [])
        for lsn in lsns[bisect_left(lsns, asked.known_lsn) :]:
            # The group's first entry names the append; its change comes right after it.
            if self._evidence.asked_us(lsn - 1) > asked.ended_us:
                break
            cuts.append(lsn + 1)
        return cuts
