"""From which replica to read a block: in which order to ask, and when to ask the next one.

The first is the nearest, one of them at random if there are several; the second the nearest in
another rack; the third the nearest in another region; then the rest. Nodes that failed or were slow
lately sink back. DistributedLog IV-b and V-B.

    start ──► ask the first ──delay──► ask the second ──delay x 2──► ask the third ── …
                  │ HERE: found            LATER, ABSENT, UNKNOWN, error: ask the next at once
                  ▼
    outcome: Answered · NotYet · Nobody

Law (R04): that time has passed is no answer. It makes the next node be asked, and at the end the
read fails; it never makes a block absent or not yet there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import Unavailable
from penstock.ids import NodeId
from penstock.log.replication.node_api import Found, NodeInfo
from penstock.log.replication.placement import draw

#: After so long, a failure counts half, and what was measured is believed half.
HEALTH_HALF_LIFE_MS = 10_000
#: A node that failed sinks back until its failures have decayed below this: one failure, 10 s.
_FAILURES_MAX = 0.5
#: Slow: so many times the latency of another node that is not nearer, and at least so much.
_SLOW_FACTOR = 4.0
_SLOW_MS_MIN = 20.0
#: Weight of a new measurement of latency.
_NEW_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a reader has seen of a node lately."""

    #: Average time until an answer, in milliseconds.
    latency_ms: float = 0.0
    #: How much that average is based on: 0 nothing, 1 fresh measurements.
    weight: float = 0.0
    #: Number of failures, as it was at `at_ms`.
    failures: float = 0.0
    at_ms: float = 0.0

    def at(self, now_ms: float) -> NodeHealth:
        """The same after time has passed: failures and measurements are forgotten bit by bit."""
        passed_ms = max(0.0, now_ms - self.at_ms)
        kept = 0.5 ** (passed_ms / HEALTH_HALF_LIFE_MS)
        return NodeHealth(
            self.latency_ms, self.weight * kept, self.failures * kept, max(now_ms, self.at_ms)
        )

    def answered(self, latency_ms: float, now_ms: float) -> NodeHealth:
        """It answered; half of its failures are forgiven."""
        known = self.at(now_ms)
        old = known.weight * (1 - _NEW_WEIGHT)
        average = (known.latency_ms * old + latency_ms * _NEW_WEIGHT) / (old + _NEW_WEIGHT)
        weight = min(1.0, old + _NEW_WEIGHT)
        return replace(known, latency_ms=average, weight=weight, failures=known.failures / 2)

    def failed(self, now_ms: float) -> NodeHealth:
        known = self.at(now_ms)
        return replace(known, failures=known.failures + 1)


def read_order(
    nodes: Sequence[NodeId],
    infos: Mapping[NodeId, NodeInfo],
    *,
    region: str,
    rack: str,
    health: Mapping[NodeId, NodeHealth] | None = None,
    now_ms: float = 0.0,
    seed: int,
) -> tuple[NodeId, ...]:
    """All of `nodes`, in the order in which a reader at that place should ask them.

    Nodes that are not in `infos` are not registered now and come last: they may come back.
    """
    known = [node for node in nodes if node in infos]
    distances = {node: _distance(infos[node], region, rack) for node in known}
    seen = {node: found.at(now_ms) for node, found in (health or {}).items() if node in distances}
    near = sorted(known, key=lambda node: (distances[node], draw(seed, node)))
    ills = {node: _illness(node, distances, seen) for node in near}
    good = _cross_domains([node for node in near if ills[node] == 0], infos)
    bad = sorted((node for node in near if ills[node] > 0), key=lambda node: ills[node])
    return (*good, *bad, *(node for node in nodes if node not in infos))


def _distance(info: NodeInfo, region: str, rack: str) -> int:
    if info.region != region:
        return 2
    return 0 if info.rack == rack else 1


def _illness(
    node: NodeId, distances: Mapping[NodeId, int], seen: Mapping[NodeId, NodeHealth]
) -> float:
    """0 for a node in good health; else it sorts the others: slow ones, then by failures."""
    own = seen.get(node)
    if own is None:
        return 0.0
    if own.failures >= _FAILURES_MAX:
        return 1.0 + own.failures
    # Only what is not nearer is a measure: another region is no illness.
    best_ms = min(
        (
            other.latency_ms
            for found, other in seen.items()
            if distances[found] >= distances[node] and other.weight > 0
        ),
        default=own.latency_ms,
    )
    is_slow = own.latency_ms > max(_SLOW_MS_MIN, _SLOW_FACTOR * best_ms)
    # Measurements that are nearly forgotten are tried again.
    return own.weight if is_slow and own.weight >= _NEW_WEIGHT / 2 else 0.0


def _cross_domains(near: list[NodeId], infos: Mapping[NodeId, NodeInfo]) -> list[NodeId]:
    """Nearest first, but the second in another rack and the third in another region."""
    if not near:
        return []
    first, rest = infos[near[0]], near[1:]
    order = [near[0]]

    def take(found: NodeId | None) -> None:
        if found is not None:
            rest.remove(found)
            order.append(found)

    domain = (first.region, first.rack)
    take(next((n for n in rest if (infos[n].region, infos[n].rack) != domain), None))
    if all(infos[node].region == first.region for node in order):
        take(next((n for n in rest if infos[n].region != first.region), None))
    return order + rest


@dataclass(frozen=True, slots=True)
class Answered:
    """This node has it."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nobody has it, and at least one node said that it is not durable yet: `said` in order."""

    said: tuple[tuple[NodeId, str], ...]


@dataclass(frozen=True, slots=True)
class Nobody:
    """Nobody can serve it; `said` is what each node said, in the order of asking."""

    said: tuple[tuple[NodeId, str], ...]

    def error(self, what: str) -> Unavailable:
        """To raise; `what` names the block."""
        words = ", ".join(f"{node} {said}" for node, said in self.said)
        return Unavailable(f"no node can serve {what}: {words or 'there is none to ask'}")


Outcome = Answered | NotYet | Nobody


class SpeculativeRead:
    """One read. Every event returns the nodes to ask now; after it, look at `outcome`.

    The shell calls `on_time` when `due_ms` comes. What comes after the outcome is ignored. For a
    long poll, `delay_ms` must be beyond the time that the node itself may wait.
    """

    def __init__(
        self,
        nodes: Sequence[NodeId],
        *,
        delay_ms: float,
        deadline_ms: float,
        growth: float = 2.0,
    ) -> None:
        assert len(set(nodes)) == len(nodes) and delay_ms > 0 and growth >= 1
        self.outcome: Outcome | None = None
        self._nodes = tuple(nodes)
        self._delay_ms = delay_ms
        self._growth = growth
        self._deadline_ms = deadline_ms
        #: How many of the nodes were asked, from the front.
        self._asked = 0
        #: What each of those said that has not the block; the others are silent.
        self._said: dict[NodeId, str] = {}
        #: Whether one of them said LATER.
        self._later = False
        self._next_ms = deadline_ms

    @property
    def due_ms(self) -> float | None:
        """When `on_time` is to be called, if nothing happens before."""
        return None if self.outcome is not None else min(self._next_ms, self._deadline_ms)

    def start(self, now_ms: float) -> list[NodeId]:
        return self._ask_next(now_ms)

    def on_time(self, now_ms: float) -> list[NodeId]:
        """The next is asked if it is time; the silent ones may still answer."""
        if self.outcome is not None:
            return []
        if now_ms >= self._deadline_ms:
            self._finish()
            return []
        if now_ms < self._next_ms:
            return []
        return self._ask_next(now_ms)

    def on_answer(self, node: NodeId, found: Found, now_ms: float) -> list[NodeId]:
        """The node answered; HERE only after its blocks were checked."""
        if found == Found.HERE:
            if self.outcome is None and node in self._nodes[: self._asked]:
                self.outcome = Answered(node)
            return []
        return self._said_no(node, f"says {found.name}", now_ms, later=found == Found.LATER)

    def on_error(self, node: NodeId, error: Exception, now_ms: float) -> list[NodeId]:
        """It refused, broke off, or sent what is damaged."""
        words = f"failed ({type(error).__name__}: {error})"
        return self._said_no(node, words, now_ms, later=False)

    def _said_no(self, node: NodeId, words: str, now_ms: float, *, later: bool) -> list[NodeId]:
        is_new = node in self._nodes[: self._asked] and node not in self._said
        if self.outcome is not None or not is_new:
            return []
        self._said[node] = words
        self._later = self._later or later
        return self._ask_next(now_ms)

    def _ask_next(self, now_ms: float) -> list[NodeId]:
        if self._asked == len(self._nodes):
            self._next_ms = self._deadline_ms
            if len(self._said) == len(self._nodes):
                self._finish()
            return []
        self._asked += 1
        # The n-th delay is growth ** (n - 1) times the first, hence the chance that a node that
        # far down is asked decays exponentially with n (V-B).
        self._next_ms = now_ms + self._delay_ms * self._growth ** (self._asked - 1)
        return [self._nodes[self._asked - 1]]

    def _finish(self) -> None:
        said = tuple(
            (node, self._said.get(node, "does not answer")) for node in self._nodes[: self._asked]
        )
        self.outcome = NotYet(said) if self._later else Nobody(said)
