"""One end of a simulated connection, as asyncio's protocols know it, and listening sockets.

Owns what asyncio promises a protocol: `connection_made` first, bytes in order, `connection_lost`
once and last; reading that can be paused; `pause_writing` when too much was written that the other
end has not read. How bytes travel is network.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.kernel.network import Network, Pipe
    from simulation.kernel.process import Process

Buffer = bytes | bytearray | memoryview

#: asyncio's default.
HIGH_WATER_BYTES = 64 * 1024


class SimTransport(asyncio.Transport):
    """See the module's docstring."""

    def __init__(self, process: Process, own: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self._names: dict[str, Any] = {"peername": peer, "sockname": own}
        self._protocol: Any = None
        self._is_buffered = False
        #: Where our bytes go; set by whoever made the connection.
        self.pipe: Pipe
        self._inbox: list[bytes | bytearray] = []
        #: How the other end ended, if that could not be told yet: reading was paused.
        self._unheard_end: Callable[[], None] | None = None
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_full = False

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self.process.sockets[self] = None
        protocol.connection_made(self)
        self._read_inbox()

    # ---- what protocols ask of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.process.call_soon(self._read_inbox)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._check_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.pipe.unsent_bytes

    def write(self, data: Buffer) -> None:
        if data and not self._is_closing and not self.process.dead:
            self.pipe.write(data)
            self._check_full()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """What was written still travels, and then the end."""
        self._close(self.pipe.finish)

    def abort(self) -> None:
        """What was written may get lost."""
        self._close(self.pipe.abort)

    def _close(self, end: Callable[[], None]) -> None:
        if not self._is_closing and not self.process.dead:
            self._is_closing = True
            end()
            self.process.call_soon(self._lose, None)

    # ---- what the network tells

    def received(self, data: bytes | bytearray) -> None:
        if self._is_closing:
            return
        if not self._is_reading or self._protocol is None or self._inbox:
            self._inbox.append(data)
        else:
            self._feed(data)

    def ended(self, error: Exception | None) -> None:
        """The other end is gone, after all that it sent."""
        unread = self._inbox or not self._is_reading
        if self._protocol is None or (error is None and unread):
            self._unheard_end = lambda: self.ended(error)
            return
        if self._is_closing:
            return
        if error is None and self._protocol.eof_received():
            return  # the protocol wants to go on writing
        self._is_closing = True
        self.pipe.abandon()
        self._lose(error)

    def lost(self, error: Exception) -> None:
        """The network gives this end up."""
        if self._protocol is None:
            self._unheard_end = lambda: self.lost(error)
        elif not self._is_closing:
            self._is_closing = True
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost and self._protocol is not None:
            self._is_lost = True
            self._inbox.clear()
            self.process.sockets.pop(self, None)
            self._protocol.connection_lost(error)

    def _read_inbox(self) -> None:
        while self._inbox and self._is_reading and not self._is_closing:
            self._feed(self._inbox.pop(0))
        end = self._unheard_end
        if end is not None and not self._inbox and self._is_reading:
            self._unheard_end = None
            end()

    def _feed(self, data: bytes | bytearray) -> None:
        protocol = self._protocol
        if not self._is_buffered:
            protocol.data_received(bytes(data))
        else:
            view, place = memoryview(data), 0
            while place < len(view) and not self._is_closing:
                buffer = protocol.get_buffer(-1)
                size = min(len(buffer), len(view) - place)
                buffer[:size] = view[place : place + size]
                place += size
                protocol.buffer_updated(size)
        self.pipe.other.read(len(data))

    # ---- flow control

    def _check_full(self) -> None:
        if not self._is_full and self.pipe.unsent_bytes > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def drained(self) -> None:
        """The other end has read something."""
        if self._is_full and self.pipe.unsent_bytes <= self._low:
            self._is_full = False
            self.process.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self._protocol.resume_writing()


class SimServer:
    """What `create_server` returns: a listening socket (as much of asyncio.Server as is used)."""

    def __init__(
        self,
        network: Network,
        process: Process,
        factory: Callable[[], Any],
        address: tuple[str, int],
    ) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.address = address

    @property
    def sockets(self) -> tuple[SimServer, ...]:
        return (self,) if self.is_serving() else ()

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def is_serving(self) -> bool:
        return self._network.listeners.get(self.address) is self

    def close(self) -> None:
        if self.is_serving():
            del self._network.listeners[self.address]

    async def wait_closed(self) -> None:
        return None
