"""What is to be sent to one target: a chain of pieces from its position on. Pure.

          opened, at the shared tail                   own read ended where the tail is
    S ─────────────────────────────► N ◄───────────────────────────┬───────── FC
    │                                │ queue full                  │           │ ▲
    │  opened, elsewhere             ▼                             │ queue full│ │ own read is
    └─────────────────────────────► RF ────────────────────────────┘ ◄─────────┘ │ nearly there
                                     └───────────────────────────────────────────┘
    any ── connection lost, target stopped ──► S

    S   suspended: nothing is queued, nothing is sent
    RF  reads the log by itself; what comes on the shared tail is not for it
    FC  its own read has one last piece to go, up to `join`; what the shared tail brings from there
        on waits behind it
    N   fed by the shared tail

Law: what was sent, what is queued and what waits are one chain without a gap: `after` of each batch
is `upto` of the one before, and the first is the target's own position. Law: batches and pieces are
cut between commits only. Law: beyond `bytes_max` it holds at most one piece more, so that a commit
of any size gets through. LogPlayer 2.2; unlike there, nothing piles up while a target reads by
itself, and there is no answer for the end of its own read that could meet an idle tail (R29).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import Final

from penstock.delivery.messages import Apply, Piece
from penstock.errors import InvariantBroken
from penstock.ids import Lsn

#: A position that only moves past entries of others is not worth a batch below so many of them.
#: Above what the player's own acks add to a log in which nothing else happens.
QUIET_LSNS: Final = 1_000


class State(Enum):
    """See the module's picture."""

    NORMAL = "N"
    READING = "RF"
    JOINING = "FC"
    SUSPENDED = "S"


#: From each state: where it may go.
TRANSITIONS: Final[dict[State, tuple[State, ...]]] = {
    State.SUSPENDED: (State.READING,),
    State.READING: (State.JOINING, State.NORMAL, State.SUSPENDED),
    State.JOINING: (State.NORMAL, State.READING, State.SUSPENDED),
    State.NORMAL: (State.READING, State.SUSPENDED),
}


class TargetQueue:
    """Of one target. `window` batches may be without an answer at a time."""

    def __init__(self, *, bytes_max: int, batch_bytes_max: int, window: int) -> None:
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._window = window
        self.state = State.SUSPENDED
        #: The target's own position, as it was last told; None: never.
        self.position: Lsn | None = None
        #: `after` of the next batch.
        self.sent = Lsn(0)
        #: All below it was sent or is in `_pieces`.
        self.looked = Lsn(0)
        #: Where the own read ends that is under way or was last; None: there was none since RF.
        self.read_end: Lsn | None = None
        #: Whether a read was asked for that did not come yet.
        self.is_reading = False
        #: Commits with rows for other shards since the last batch.
        self.passed = 0
        self._pieces: deque[Piece] = deque()
        #: FC only: what the shared tail brought, from `join` on, and how far it came.
        self._waiting: deque[Piece] = deque()
        self._join = Lsn(0)
        self._waiting_upto = Lsn(0)
        self._in_flight: deque[Apply] = deque()
        #: Of all pieces here, in flight included.
        self.bytes = 0

    # ---- life

    def open(self, position: Lsn) -> None:
        """The target is there, and stands here."""
        if self.state is not State.SUSPENDED:
            raise InvariantBroken(f"a target's queue is opened in state {self.state}")
        self._become(State.READING)
        self.position = self.sent = self.looked = position

    def suspend(self) -> None:
        """Forget everything but the position: when the target is back, it tells its own."""
        if self.state is not State.SUSPENDED:
            self._become(State.SUSPENDED)
        self._pieces.clear()
        self._waiting.clear()
        self._in_flight.clear()
        self.bytes = 0
        self.passed = 0
        self.read_end = None
        self.is_reading = False

    def _become(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantBroken(f"a target's queue cannot go from {self.state} to {state}")
        self.state = state

    # ---- from the shared tail

    def place(self, tail: Lsn, stop: Lsn | None = None) -> tuple[Lsn, Lsn] | None:
        """Join the shared tail, or say what to read by oneself: [start, end).

        None: nothing for now. The tail must still come to here, or a read is under way, or there
        is no room for more. `stop`: where a read has to end, if that is before the tail.
        """
        if self.state not in (State.READING, State.JOINING) or self.is_reading:
            return None
        if self.state is State.READING and self.looked == tail:
            self.read_end = None
            self._become(State.NORMAL)
            return None
        if self.looked >= tail or not (self.has_room or self._is_starved):
            return None
        if self.state is State.READING and (self.read_end is None or self.looked >= self.read_end):
            end = tail if stop is None else min(stop, tail)
            if self.read_end is not None and end == tail:
                # One read came to its end: what came meanwhile is little. Join behind it.
                self._become(State.JOINING)
                self._join = self._waiting_upto = tail
            self.read_end = end
        assert self.read_end is not None
        self.is_reading = True
        return self.looked, self.read_end

    def push(self, piece: Piece | None, upto: Lsn, commits: int) -> None:
        """The shared tail came to `upto`."""
        if self.state is State.NORMAL:
            if piece is not None and not self._fits(piece):
                self._become(State.READING)
                return
            self._append(self._pieces, piece, commits)
            self.looked = upto
        elif self.state is State.JOINING:
            if piece is not None and not self._fits(piece):
                self.bytes -= sum(waiting.bytes for waiting in self._waiting)
                self._waiting.clear()
                self._become(State.READING)
                return
            self._append(self._waiting, piece, commits)
            self._waiting_upto = upto

    def leave(self) -> None:
        """The shared tail is gone: go on by oneself."""
        if self.state in (State.NORMAL, State.JOINING):
            self.bytes -= sum(waiting.bytes for waiting in self._waiting)
            self._waiting.clear()
            self._become(State.READING)

    def _fits(self, piece: Piece) -> bool:
        return not self.bytes or self.bytes + piece.bytes <= self._bytes_max

    def _append(self, pieces: deque[Piece], piece: Piece | None, commits: int) -> None:
        if piece is None:
            self.passed += commits
        else:
            pieces.append(piece)
            self.bytes += piece.bytes

    # ---- from its own read

    def read(self, piece: Piece | None, upto: Lsn, commits: int) -> None:
        """What `place` asked for, or its beginning."""
        assert self.is_reading and self.read_end is not None
        assert self.looked <= upto <= self.read_end
        self.is_reading = False
        self._append(self._pieces, piece, commits)
        self.looked = upto
        if self.state is State.JOINING and upto == self._join:
            self._pieces += self._waiting
            self._waiting.clear()
            self.looked = self._waiting_upto
            self.read_end = None
            self._become(State.NORMAL)

    # ---- to the target

    @property
    def has_room(self) -> bool:
        """Whether more should be read for it."""
        return 2 * self.bytes < self._bytes_max

    @property
    def _is_starved(self) -> bool:
        """All that is here, if anything, waits for the own read."""
        return not self._pieces and not self._in_flight

    @property
    def in_flight(self) -> int:
        """Batches without an answer."""
        return len(self._in_flight)

    @property
    def oldest(self) -> Apply | None:
        """The batch that is answered next."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def is_quiet(self) -> bool:
        """Whether there are no rows to send, but a position that is worth to be moved."""
        if self._pieces or self._in_flight or self.state is State.SUSPENDED:
            return False
        return self.looked > self.sent and (
            self.passed > 0 or self.looked - self.sent >= QUIET_LSNS
        )

    def next_batch(self, shard: int, connection: int, term: int) -> Apply | None:
        """All that is queued as one batch, as far as its size allows; None: nothing now."""
        if not self._pieces or len(self._in_flight) >= self._window:
            return None
        taken = [self._pieces.popleft()]
        size = taken[0].bytes
        while self._pieces and size + self._pieces[0].bytes <= self._batch_bytes_max:
            taken.append(self._pieces.popleft())
            size += taken[-1].bytes
        upto = taken[-1].upto if self._pieces else self.looked
        return self._send(Apply(shard, connection, term, self.sent, upto, tuple(taken)))

    def empty_batch(self, shard: int, connection: int, term: int) -> Apply | None:
        """A batch without rows that moves the position; None: there is nothing to move."""
        if self._pieces or self._in_flight or self.looked == self.sent:
            return None
        return self._send(Apply(shard, connection, term, self.sent, self.looked, ()))

    def _send(self, batch: Apply) -> Apply:
        self._in_flight.append(batch)
        self.sent = batch.upto
        self.passed = 0
        return batch

    def amend(self, pieces: tuple[Piece, ...]) -> Apply:
        """The newest batch, with other rows in it."""
        batch = self._in_flight[-1] = replace(self._in_flight[-1], pieces=pieces)
        return batch

    def answered(self, position: Lsn) -> list[Apply] | None:
        """The batches that are applied with that; None: its position is none that we expect."""
        if not any(batch.upto == position for batch in self._in_flight):
            return None
        applied = [self._in_flight.popleft()]
        while applied[-1].upto != position:
            applied.append(self._in_flight.popleft())
        self.bytes -= sum(batch.bytes for batch in applied)
        self.position = position
        return applied

    # ---- laws

    def check(self) -> None:
        """Assert what can be seen from here."""
        if self.state is State.SUSPENDED:
            assert not (self._pieces or self._waiting or self._in_flight or self.bytes)
            assert not self.is_reading
            return
        chain = [(batch.after, batch.upto) for batch in self._in_flight]
        assert all(one[1] == other[0] for one, other in pairwise(chain))
        assert all(after < upto for after, upto in chain)
        assert not chain or (chain[0][0] == self.position and chain[-1][1] == self.sent)
        assert chain or self.sent == self.position
        bounds = [self.sent]
        for piece in self._pieces:
            bounds += [piece.after, piece.upto]
        bounds.append(self.looked)
        if self.state is State.JOINING:
            bounds.append(self._join)
            for piece in self._waiting:
                bounds += [piece.after, piece.upto]
            bounds.append(self._waiting_upto)
        else:
            assert not self._waiting
        assert bounds == sorted(bounds), "pieces overlap"
        held = [*self._pieces, *self._waiting]
        sent = sum(batch.bytes for batch in self._in_flight)
        assert self.bytes == sent + sum(piece.bytes for piece in held)
        assert not self.is_reading or self.state in (State.READING, State.JOINING)
