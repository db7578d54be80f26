"""Which nodes take a block, and how many answers are enough.

    nodes of an ensemble   n0 n1 n2 n3        E = 4, write quorum 3, ack quorum 2
    write set of block 0   n0 n1 n2
    write set of block 1      n1 n2 n3
    write set of block 2   n0    n2 n3
    write set of block 3   n0 n1    n3

Law: of the nodes of a write set, `refusals_enough` is the least number such that every ack quorum
has one of them. So many that were fenced let no further block be acknowledged, and so many that
say ABSENT prove that a block never was (R02, R04). One less proves nothing. DistributedLog III-B.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from penstock.errors import BadRequest
from penstock.ids import NodeId
from penstock.log.replication.manifest import Segment


def check_quorums(*, size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise BadRequest unless 1 <= ack quorum <= write quorum <= size of the ensemble."""
    if not 1 <= ack_quorum <= write_quorum <= size:
        raise BadRequest(
            f"an ensemble of {size} nodes cannot have a write quorum of {write_quorum} and an ack "
            f"quorum of {ack_quorum}: need 1 <= ack quorum <= write quorum <= ensemble"
        )


def write_set(ensemble: Sequence[NodeId], block: int, write_quorum: int) -> tuple[NodeId, ...]:
    """The nodes that a block is written to, of the nodes of its ensemble."""
    size = len(ensemble)
    return tuple(ensemble[(block + step) % size] for step in range(write_quorum))


def write_sets(ensemble: Sequence[NodeId], write_quorum: int) -> Iterator[tuple[NodeId, ...]]:
    """Every write set of an ensemble that differs from the others as a set."""
    turns = 1 if write_quorum == len(ensemble) else len(ensemble)
    return (write_set(ensemble, block, write_quorum) for block in range(turns))


def replicas(segment: Segment, block: int, part: int = 0) -> tuple[NodeId, ...]:
    """Where a block of a segment lies. The index part lies on the segment's last ensemble."""
    ensemble = segment.ensemble_of(block) if part == 0 else segment.ensembles[-1]
    return write_set(ensemble.nodes, block, segment.write_quorum)


def refusals_enough(write_quorum: int, ack_quorum: int) -> int:
    """So many nodes of a write set are in every ack quorum of it, at least one of them."""
    return write_quorum - ack_quorum + 1


def can_ack(
    ensemble: Sequence[NodeId],
    usable: Collection[NodeId],
    *,
    write_quorum: int,
    ack_quorum: int,
) -> bool:
    """Whether the usable nodes can acknowledge every block, whichever write set it has."""
    return all(
        sum(node in usable for node in nodes) >= ack_quorum
        for nodes in write_sets(ensemble, write_quorum)
    )


def covers(
    ensemble: Sequence[NodeId], answered: Collection[NodeId], write_quorum: int, ack_quorum: int
) -> bool:
    """Whether every ack quorum of every write set has a node that answered; see `Coverage`."""
    enough = refusals_enough(write_quorum, ack_quorum)
    return all(
        sum(node in answered for node in nodes) >= enough
        for nodes in write_sets(ensemble, write_quorum)
    )


class Coverage:
    """Counts the nodes of an ensemble that answered, until no ack quorum is left without one.

    Only explicit answers are told to it: a node that is silent, or that says UNKNOWN, is not.
    """

    def __init__(self, ensemble: Sequence[NodeId], *, write_quorum: int, ack_quorum: int) -> None:
        check_quorums(size=len(ensemble), write_quorum=write_quorum, ack_quorum=ack_quorum)
        self._ensemble = tuple(ensemble)
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._answered: set[NodeId] = set()
        #: How many answers each write set still lacks, by the place of its first node. With
        #: E = Qw all of them are the same set, and one number stands for it.
        turns = 1 if write_quorum == len(ensemble) else len(ensemble)
        self._lacking = [refusals_enough(write_quorum, ack_quorum)] * turns
        #: Write sets that lack any.
        self._open = turns

    def add(self, node: NodeId) -> bool:
        """This node answered; returns `complete`. Repeats and strangers change nothing."""
        if node in self._answered or node not in self._ensemble:
            return self.complete
        self._answered.add(node)
        place, turns = self._ensemble.index(node), len(self._lacking)
        first_turns = [0] if turns == 1 else range(place - self._write_quorum + 1, place + 1)
        for turn in first_turns:
            self._lacking[turn % turns] -= 1
            if self._lacking[turn % turns] == 0:
                self._open -= 1
        return self.complete

    @property
    def complete(self) -> bool:
        """Whether every ack quorum of every write set has a node that answered."""
        return self._open == 0

    @property
    def silent(self) -> tuple[NodeId, ...]:
        """The nodes that did not answer yet, for messages."""
        return tuple(node for node in self._ensemble if node not in self._answered)

    def can_complete(self, hopeless: Collection[NodeId]) -> bool:
        """Whether it still could, if these nodes never answer."""
        rest = Coverage(
            self._ensemble, write_quorum=self._write_quorum, ack_quorum=self._ack_quorum
        )
        for node in self._ensemble:
            if node in self._answered or node not in hopeless:
                rest.add(node)
        return rest.complete
