"""Hosts of targets for tests: in this event loop, or as a process that can be killed; and a player.

The player is a host's own client with what it was told, so that a test decides what is in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.delivery_targets import FileTarget
from harness.waiting import until, wait_until
from penstock.delivery.api import Shard, Target
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
from penstock.delivery.remote.serve import serve_targets
from penstock.ids import Lsn
from penstock.log.serving import launch
from penstock.log.serving.directory import Address, read_token

PROTOCOLS = ("target", "grpc")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
TargetHostServer = TargetServer | GrpcTargetServer


@asynccontextmanager
async def serving(
    protocol: str, targets: Sequence[Target], directory: Path, **settings: Any
) -> AsyncIterator[TargetHostServer]:
    """A host in this event loop; its token is in `directory/token`."""
    make = TargetServer if protocol == "target" else GrpcTargetServer
    server = make(HostConfig(directory / "token", **settings), targets)
    task = asyncio.create_task(server.run())
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield server
    finally:
        ready.cancel()
        server.stop()
        await task


class RemotePlayer:
    """Speaks to the targets 0, 1, … of one host, which are its shards, as a player does."""

    def __init__(
        self,
        protocol: str,
        address: Address,
        directory: Path,
        *,
        shards: int = 1,
        term: int = 1,
        delivery: str = "d",
        token: str | None = None,
        tls_ca: str | None = None,
        schema: pa.Schema = SCHEMA,
        tls: Any = None,
    ) -> None:
        make = FramesHost if protocol == "target" else GrpcHost
        self._term = term
        self._schema = schema
        self.told: list[FromTarget] = []
        self.connections = [0] * shards
        place = HostAddress(protocol, address.host, address.port, tls_ca=tls_ca)
        self.host = make(
            place,
            token=token or read_token(directory / "token"),
            tls=tls,
            shards={
                number: Shard(delivery, number, shards, Lsn(0), schema, False, (), "t")
                for number in range(shards)
            },
            schema=schema,
        )
        self.host.start(self.told.append)

    async def __aenter__(self) -> RemotePlayer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.host.close()

    # ---- what it says

    def hello(self, *shards: int) -> None:
        for shard in shards:
            self.connections[shard] += 1
        self.host.send([Hello(shard, self.connections[shard], self._term) for shard in shards])

    def bye(self, shard: int) -> None:
        self.host.send([Bye(shard, self.connections[shard])])

    def apply(self, shard: int, after: int, upto: int, *rows: pa.RecordBatch) -> None:
        self.host.send([self.batch(shard, after, upto, *rows)])

    def batch(self, shard: int, after: int, upto: int, *rows: pa.RecordBatch) -> Apply:
        places = Places((Lsn(after),), (0,))
        pieces = (Piece(Lsn(after), Lsn(upto), rows, 1, places),) if rows else ()
        return Apply(
            shard, self.connections[shard], self._term, Lsn(after), Lsn(upto), pieces
        )  # fmt: skip

    # ---- what it was told

    def acks(self, shard: int) -> list[int]:
        """On the current connection."""
        found = [one for one in self.of_shard(shard) if isinstance(one, Ack)]
        return [one.position for one in found]

    def of_shard(self, shard: int, connection: int | None = None) -> list[FromTarget]:
        wanted = (shard, connection or self.connections[shard])
        return [one for one in self.told if (one.shard, one.connection) == wanted]

    async def position(self, shard: int) -> int:
        """What the answer to the last hello says."""
        await until(lambda: self.of_shard(shard), "no answer to a hello")
        answer = self.of_shard(shard)[0]
        if isinstance(answer, Failure):
            raise answer.error
        assert isinstance(answer, At)
        return answer.position

    async def failure(self, shard: int, connection: int | None = None) -> Exception:
        def found() -> list[Failure]:
            heard = self.of_shard(shard, connection)
            return [one for one in heard if isinstance(one, Failure)]

        await until(found, "no failure")
        return found()[0].error

    async def open(self, *shards: int) -> list[int]:
        self.hello(*shards)
        return [await self.position(shard) for shard in shards]


def rows(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": list(keys), "v": [f"v{k}" for k in keys]}, SCHEMA)


class TargetProcess:
    """A process that hosts FileTargets; ended by `with`."""

    def __init__(self, protocol: str, paths: Sequence[Path], directory: Path, name: str) -> None:
        self._protocol = protocol
        self._paths = paths
        self.token_file = directory / "token"
        self._said = directory / f"{name}.json"
        self.log = directory / f"{name}.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> TargetProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        """On the same port, once it has one."""
        self._said.unlink(missing_ok=True)
        options = ["--protocol", self._protocol, "--port", str(self.port)]
        options += ["--token-file", str(self.token_file), "--said", str(self._said)]
        options += map(str, self._paths)
        module = "harness.remote_targets"
        self._process = process = launch.start_module(module, options, self.log)
        wait_until(lambda: self._said.exists() or process.poll() is not None)
        assert process.poll() is None, self.output()
        self.port = json.loads(self._said.read_text())["port"]

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def uris(self) -> list[str]:
        place = f"{self._protocol}://127.0.0.1:{self.port}"
        return [
            f"{place}/{number}?token_file={self.token_file}" for number in range(len(self._paths))
        ]

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--said", type=Path, required=True)
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()

    def ready(address: HostAddress) -> None:
        half = options.said.with_suffix(".new")
        half.write_text(json.dumps({"port": address.port}))
        half.rename(options.said)

    serve_targets(
        [FileTarget(path) for path in options.paths],
        token_file=options.token_file,
        port=options.port,
        grpc=options.protocol == "grpc",
        on_ready=ready,
    )


if __name__ == "__main__":
    main()
