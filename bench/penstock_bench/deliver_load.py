"""Targets in processes of their own that note when batches come, and who sends them.

Owns the processes, and what stands for a player: it makes batches and hands them to the hosts that
ship. The clock is the machine's monotonic one, which all of its processes share.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pyarrow as pa
import uvloop

from penstock.delivery.api import Batch, Shard
from penstock.delivery.host import TargetHost
from penstock.delivery.messages import (
    Ack,
    Apply,
    At,
    Bye,
    Failure,
    FromTarget,
    Hello,
    Piece,
    Places,
)
from penstock.delivery.remote.address import HostAddress
from penstock.delivery.remote.frames_host import FramesHost
from penstock.delivery.remote.frames_server import TargetServer
from penstock.delivery.remote.grpc_host import GrpcHost
from penstock.delivery.remote.grpc_server import GrpcTargetServer
from penstock.delivery.remote.host_config import HostConfig
from penstock.ids import Lsn
from penstock.log.serving.directory import Address, read_token
from penstock.log.serving.process import run_until_signal
from penstock_bench.child import ANSWER_SECONDS, Child

SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.binary())])
#: Which shard, the end of the batch, and when: nanoseconds of the machine's monotonic clock.
Receipt = tuple[int, int, int]


class ReceivingTarget:
    """Notes when batches come, and does nothing with them."""

    def __init__(self) -> None:
        self._shard = 0
        self._position = Lsn(0)
        self.receipts: list[Receipt] = []

    def open(self, shard: Shard, term: int) -> Lsn:
        self._shard, self._position = shard.index, shard.start
        return self._position

    def apply(self, batch: Batch) -> Lsn:
        self.receipts.append((self._shard, batch.upto, time.monotonic_ns()))
        if batch.after == self._position:
            self._position = batch.upto
        return self._position

    def close(self) -> None:
        return None


def _serve(protocol: str, count: int, token_file: Path, port: int, pipe: Connection) -> None:
    """A host as it ships; whatever comes through the pipe is answered with all receipts."""
    targets = [ReceivingTarget() for _ in range(count)]
    make = TargetServer if protocol == "target" else GrpcTargetServer

    def ready(address: Address) -> None:
        pipe.send((address.host, address.port))

    async def run() -> None:
        server = make(HostConfig(token_file, port=port), targets, ready)
        serving = asyncio.create_task(run_until_signal(server, []))
        with suppress(EOFError, OSError):
            while True:
                await asyncio.to_thread(pipe.recv)
                pipe.send([one for target in targets for one in target.receipts])
                for target in targets:
                    target.receipts = []
        server.stop()
        await serving

    uvloop.run(run())


class HostProcess:
    """A host of some shards' targets, as a process; ended by `with`."""

    def __init__(
        self, protocol: str, shards: Sequence[int], token_file: Path, *, port: int = 0
    ) -> None:
        self.protocol = protocol
        self.shards = shards
        self.token_file = token_file
        self._child = Child(f"{protocol} host", _serve, protocol, len(shards), token_file, port)
        self.address: HostAddress

    def __enter__(self) -> HostProcess:
        host, port = self._child.answer(ANSWER_SECONDS)
        self.address = HostAddress(self.protocol, host, port)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def kill(self) -> None:
        self._child.process.kill()
        self._child.close()

    def again(self) -> HostProcess:
        """Another process at the address of this one, which has ended."""
        return HostProcess(self.protocol, self.shards, self.token_file, port=self.address.port)

    def receipts(self) -> list[Receipt]:
        """All since it was last asked."""
        self._child.send("receipts")
        found: list[Receipt] = self._child.answer(ANSWER_SECONDS)
        return found


class Dispatcher:
    """Stands for a player, on the hosts as they ship; all targets are opened by `async with`."""

    def __init__(self, hosts: Sequence[HostProcess], token_file: Path, *, row_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._rows = pa.RecordBatch.from_arrays(
            [pa.array([0], pa.int64()), pa.array([os.urandom(row_bytes)])], schema=SCHEMA
        )
        count = sum(len(host.shards) for host in hosts)
        self._hosts: dict[int, TargetHost] = {}
        for process in hosts:
            host = _host_of(process, read_token(token_file), count)
            self._hosts |= dict.fromkeys(process.shards, host)
        self._positions = dict.fromkeys(self._hosts, Lsn(0))
        self._unanswered = 0
        self._answered = asyncio.Event()
        self._error: Exception | None = None

    async def __aenter__(self) -> Dispatcher:
        self._unanswered = len(self._hosts)
        for host in dict.fromkeys(self._hosts.values()):
            host.start(self._hear)
        for shard, host in self._hosts.items():
            host.send([Hello(shard, 1, 1)])
        await self.wait_acked()
        return self

    async def __aexit__(self, *_: object) -> None:
        for shard, host in self._hosts.items():
            host.send([Bye(shard, 1)])
        for host in dict.fromkeys(self._hosts.values()):
            await host.close()

    def make(self, shards: Sequence[int]) -> list[Apply]:
        """A transaction: a batch for each of these shards."""
        batches = []
        for shard in shards:
            after, upto = self._positions[shard], Lsn(self._positions[shard] + 1)
            self._positions[shard] = upto
            piece = Piece(after, upto, (self._rows,), self._rows.nbytes, Places((after,), (0,)))
            batches.append(Apply(shard, 1, 1, after, upto, (piece,)))
        return batches

    def dispatch(self, batches: Sequence[Apply]) -> None:
        """As player.py does: each host gets what is for its targets at once."""
        self._unanswered += len(batches)
        by_host: dict[TargetHost, list[Apply]] = {}
        for batch in batches:
            by_host.setdefault(self._hosts[batch.shard], []).append(batch)
        for host, some in by_host.items():
            host.send(some)

    async def wait_acked(self) -> None:
        """Raises what went wrong instead."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while self._unanswered and self._error is None:
                self._answered.clear()
                await self._answered.wait()
        if self._error is not None:
            raise self._error

    def _hear(self, message: FromTarget) -> None:
        match message:
            case At() | Ack():
                self._unanswered -= 1
            case Failure():
                self._error = message.error
        if not self._unanswered or self._error is not None:
            self._answered.set()


def _host_of(process: HostProcess, token: str, count: int) -> TargetHost:
    make = FramesHost if process.protocol == "target" else GrpcHost
    shards = {
        number: Shard("bench", shard, count, Lsn(0), SCHEMA, False, (), "t")
        for number, shard in enumerate(process.shards)
    }
    return make(process.address, token=token, tls=None, shards=shards, schema=SCHEMA)
