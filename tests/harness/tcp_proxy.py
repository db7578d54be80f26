"""A TCP proxy in user space: a network that delays, stalls, cuts, swallows and flips on request.

Owns the sockets between a client and a server; knows nothing of what the bytes mean. Faults are
counted in bytes from the moment they are armed, so a test can cut a request or a reply at any
byte. Law: bytes are forwarded in order and unchanged unless a fault says otherwise, and every fault
that struck is counted: a test can show that it really happened.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType

from penstock.log.serving.directory import Address

_CHUNK_BYTES = 64 * 1024


class Way(Enum):
    """Which way bytes travel."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the bytes of one way; positions count from when it was armed."""

    #: Forward this many bytes, then end the connection on both sides.
    cut_after: int | None = None
    #: The cut is a reset, as after a crash; False: an orderly end, as after a close.
    reset: bool = True
    #: Forward this many bytes, take in the rest and throw it away: lost replies, say.
    drop_after: int | None = None
    #: Forward this many bytes, then read no more until the fault is replaced.
    stall_after: int | None = None
    #: Flip one bit of the byte at this position.
    flip_at: int | None = None
    #: Wait before each piece is forwarded.
    delay_seconds: float = 0.0


NO_FAULT = Fault()


@dataclass(slots=True)
class ProxyCounts:
    """What happened so far; every fault that struck is here."""

    connections: int = 0
    cuts: int = 0
    stalls: int = 0
    flips: int = 0
    dropped_bytes: int = 0
    forwarded_bytes: dict[Way, int] = field(default_factory=lambda: dict.fromkeys(Way, 0))


class _Link:
    """One client's connection and its way on to the server."""

    def __init__(self, proxy: TcpProxy, faults: dict[Way, Fault]) -> None:
        self._proxy = proxy
        self._faults = dict(faults)
        self._passed = dict.fromkeys(Way, 0)
        self._stalled = dict.fromkeys(Way, False)
        self._changed = asyncio.Event()
        self._ended = False
        self._writers: list[asyncio.StreamWriter] = []

    def arm(self, way: Way, fault: Fault) -> None:
        self._faults[way] = fault
        self._passed[way] = 0
        self._stalled[way] = False
        self._changed.set()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers = [writer]
        try:
            address = self._proxy.target()
            if address is None:
                return
            server_reader, server_writer = await asyncio.open_connection(address.host, address.port)
            self._writers.append(server_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(Way.TO_SERVER, reader, server_writer))
                group.create_task(self._pump(Way.TO_CLIENT, server_reader, writer))
        except* OSError:
            pass  # a side has gone; the other one is told by the close below
        finally:
            self.end(reset=False)

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            if self._faults[way].cut_after == self._passed[way]:
                # A cut after n bytes strikes once they were forwarded, not when the next one comes.
                self._cut(way)
                return
            await self._while_stalled(way)
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                self.end(reset=False)
                return
            if self._faults[way].delay_seconds:
                await asyncio.sleep(self._faults[way].delay_seconds)
            await self._forward(way, data, writer)

    async def _forward(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        counts = self._proxy.counts
        while data and not self._ended:
            fault, passed = self._faults[way], self._passed[way]
            size = len(data)
            for limit in (fault.cut_after, fault.drop_after, fault.stall_after):
                if limit is not None:
                    size = min(size, max(limit - passed, 0))
            piece = data[:size]
            if fault.flip_at is not None and passed <= fault.flip_at < passed + size:
                at = fault.flip_at - passed
                piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
                counts.flips += 1
            if piece:
                writer.write(piece)
                await writer.drain()
                counts.forwarded_bytes[way] += size
                self._passed[way] += size
                data = data[size:]
            elif fault.drop_after is not None and passed >= fault.drop_after:
                counts.dropped_bytes += len(data)
                return
            elif fault.cut_after is not None and passed >= fault.cut_after:
                return  # what is left is lost with the connection, see _pump
            else:
                await self._while_stalled(way)

    async def _while_stalled(self, way: Way) -> None:
        while not self._ended:
            limit = self._faults[way].stall_after
            if limit is None or self._passed[way] < limit:
                return
            if not self._stalled[way]:
                self._stalled[way] = True
                self._proxy.counts.stalls += 1
            self._changed.clear()
            await self._changed.wait()

    def _cut(self, way: Way) -> None:
        self._proxy.counts.cuts += 1
        self.end(reset=self._faults[way].reset)

    def end(self, *, reset: bool) -> None:
        """End both sides. Idempotent."""
        self._ended = True
        self._changed.set()
        for writer in self._writers:
            handle = writer.get_extra_info("socket")
            if reset and handle is not None and handle.fileno() >= 0:
                # Linger of zero: the kernel sends a reset and forgets what is still queued.
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()


class TcpProxy:
    """Listens on loopback and forwards to `target`, which is asked for every connection."""

    def __init__(self, target: Callable[[], Address | None]) -> None:
        self.target = target
        self.counts = ProxyCounts()
        #: What connections meet that are made from now on.
        self.faults: dict[Way, Fault] = dict.fromkeys(Way, NO_FAULT)
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self.address = Address("127.0.0.1", 0)

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, self.address.host, 0)
        self.address = replace(self.address, port=int(self._server.sockets[0].getsockname()[1]))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._links.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        link = _Link(self, self.faults)
        task = asyncio.current_task()
        assert task is not None
        self._links[link] = task
        try:
            await link.run(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is closing; asyncio's own callback would log this as an error
        finally:
            del self._links[link]

    def arm(self, way: Way, fault: Fault) -> None:
        """Give every live connection a fault, counted from now; new ones keep `faults`."""
        for link in self._links:
            link.arm(way, fault)

    def cut_all(self) -> None:
        """Reset every live connection now."""
        for link in list(self._links):
            self.counts.cuts += 1
            link.end(reset=True)
