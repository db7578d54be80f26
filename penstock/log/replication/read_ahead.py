"""How far to read ahead of a consumer: how much to ask for, how often at once, or to wait.

A reader is *catching up* while the next block to ask for is durable, and *tailing* when it is not
(DistributedLog IV-d). Catching up, the window doubles each time the consumer had to wait, up to a
bound, and is halved when it leaves most of it lie; what comes in while nobody eats is never asked
for. Tailing, there is one long poll and nothing else.

Law: nothing is asked for unless it fits, with all that lies here and is under way, into
`window_bytes`, which is never more than `window_bytes_max`. An answer may exceed what was asked
for by one block, and that is taken off the next requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.limits import DELIVERY_BYTES, KIB, MIB

#: Weight of a new measurement of latency and pace.
_NEW_WEIGHT = 0.25
#: A consumer for which the half of its window lasts for so many round trips gets less.
_SLOW_ROUND_TRIPS = 4.0


@dataclass(frozen=True, slots=True)
class ReadAheadLimits:
    """Bounds of one reader. A request is never below `request_bytes_min`, if there is room."""

    request_bytes_min: int = 64 * KIB
    #: A node answers with about as much at most.
    request_bytes_max: int = DELIVERY_BYTES
    window_bytes_max: int = 16 * MIB
    requests_max: int = 8


DEFAULT_LIMITS = ReadAheadLimits()


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for so many bytes from the next block on; a long poll waits until it is durable."""

    bytes: int
    long_poll: bool


class ReadAhead:
    """One reader's pace. Call `next_request` after every event until it returns None."""

    def __init__(self, limits: ReadAheadLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.window_bytes = limits.request_bytes_min
        #: Bytes that came and were not consumed.
        self.buffered_bytes = 0
        #: Bytes of the requests under way.
        self._asked: list[int] = []
        #: The consumer took the last byte and nothing had come since: it waits.
        self._starved = True
        self._latency_ms = 0.0
        #: Bytes per millisecond that the consumer takes when it has something to take.
        self._pace = 0.0
        self._consumed_ms: float | None = None

    @property
    def asked_bytes(self) -> int:
        return sum(self._asked)

    @property
    def requests(self) -> int:
        """Requests under way."""
        return len(self._asked)

    @property
    def requests_wanted(self) -> int:
        """How many requests to keep under way: one, and as many as cover a round trip."""
        pieces = -(-self.window_bytes // self._request_bytes)
        per_round_trip = 1 + int(self._pace * self._latency_ms / self._request_bytes)
        if self._starved:
            per_round_trip = pieces  # its pace is ours, and tells nothing
        return max(1, min(pieces, per_round_trip, self.limits.requests_max))

    def next_request(self, position: int, durable: int) -> Request | None:
        """What to ask for now, from block `position` on; blocks below `durable` are durable.

        The request counts as under way from here on: `answered` or `failed` must follow.
        """
        if position >= durable:
            if self._asked:
                return None
            # The smallest window has room for one request: nothing is asked beside the poll.
            self.window_bytes = self.limits.request_bytes_min
            room = self.window_bytes - self.buffered_bytes
            return self._ask(room, long_poll=True) if room > 0 else None
        if len(self._asked) >= self.requests_wanted:
            return None
        room = self.window_bytes - self.buffered_bytes - self.asked_bytes
        # Little pieces cost as much as large ones: wait until there is room for a whole one.
        if room < self.limits.request_bytes_min and (self._asked or self.buffered_bytes):
            return None
        return self._ask(min(room, self._request_bytes), long_poll=False)

    def answered(self, request: Request, *, bytes: int, latency_ms: float) -> None:
        """Its answer came, with so many bytes of blocks, after so long."""
        self._end(request)
        self.buffered_bytes += bytes
        was_starved, self._starved = self._starved, self.buffered_bytes == 0
        if request.long_poll:
            return  # it took as long as the writer did
        self._latency_ms += _NEW_WEIGHT * (latency_ms - self._latency_ms)
        if was_starved and bytes > 0:
            self.window_bytes = min(self.limits.window_bytes_max, 2 * self.window_bytes)
        elif self._is_slow():
            self.window_bytes = max(self.limits.request_bytes_min, self.window_bytes // 2)

    def failed(self, request: Request) -> None:
        """It brought nothing; says nothing of the consumer's pace."""
        self._end(request)

    def consumed(self, bytes: int, now_ms: float) -> None:
        """The consumer took so many bytes."""
        assert 0 <= bytes <= self.buffered_bytes
        self.buffered_bytes -= bytes
        if self._consumed_ms is not None and now_ms > self._consumed_ms:
            pace = bytes / (now_ms - self._consumed_ms)
            self._pace += _NEW_WEIGHT * (pace - self._pace)
        self._consumed_ms = now_ms
        self._starved = self.buffered_bytes == 0

    def check(self) -> None:
        """Assert the law; whatever came beyond what was asked for is not ours to bound."""
        limits = self.limits
        assert limits.request_bytes_min <= self.window_bytes <= limits.window_bytes_max
        assert 0 <= len(self._asked) <= limits.requests_max
        assert self.asked_bytes <= limits.window_bytes_max

    @property
    def _request_bytes(self) -> int:
        """Half of the window, so that one piece comes while the other is consumed."""
        limits = self.limits
        return max(limits.request_bytes_min, min(limits.request_bytes_max, self.window_bytes // 2))

    def _is_slow(self) -> bool:
        """Half of the window lies here and will for some time."""
        if 2 * self.buffered_bytes <= self.window_bytes:
            return False
        return self.buffered_bytes > _SLOW_ROUND_TRIPS * self._latency_ms * self._pace

    def _ask(self, bytes: int, *, long_poll: bool) -> Request:
        self._asked.append(bytes)
        return Request(bytes, long_poll)

    def _end(self, request: Request) -> None:
        self._asked.remove(request.bytes)
