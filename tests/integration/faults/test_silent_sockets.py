"""Sockets that are opened and never used: more than a server has descriptors or room for.

Goal: I19 and I20, whoever has no token can neither end a server nor keep out those who have one.
Method: real sockets against a server with few descriptors; a client with the token comes last.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_workload import under_load
from harness.served_log import served
from harness.server_process import ServerProcess, silent_sockets
from harness.waiting import best_below, until
from raw_client import RawClient, read_metrics
from tls_material import Authority

from penstock.config import ServerConfig
from penstock.limits import PREAUTH_CONNECTIONS_MAX, SEGMENT_BYTES_MIN
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.embedded import address_endpoint
from penstock.log.serving import acceptor, connection
from penstock.log.serving.directory import read_address

#: What many systems grant a process.
DESCRIPTORS = 1024
#: A client that need not wait for anybody is in long before; a deadline's end would come later.
SECONDS_MAX = 2.0


class TlsServer(ServerProcess):
    """`penstock log serve` with a certificate."""

    def __init__(self, data_dir: Path, authority: Authority) -> None:
        super().__init__(data_dir, segment_bytes=SEGMENT_BYTES_MIN)
        self._ca = authority.ca
        self._files = authority.issue("server", hosts=("127.0.0.1",))

    def command(self) -> tuple[str, list[str]]:
        files = ("--tls-cert", str(self._files.cert), "--tls-key", str(self._files.key))
        serve = ("log", "serve", "--dir", str(self.data_dir), "--port", "0")
        return "penstock.cli.main", [*serve, *files]

    def endpoint(self) -> Resolve:
        address = read_address(self.data_dir)
        assert address is not None
        return address_endpoint(
            f"penstock://127.0.0.1:{address.port}",
            token_file=self.data_dir / "token",
            tls_ca=self._ca,
        )


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[TlsServer]:
    with TlsServer(tmp_path / "data", Authority(tmp_path, "ours")) as server:
        yield server


async def get_in(resolve: Resolve) -> float:
    """Ask something as a new client; the seconds until it is answered."""
    started = time.monotonic()
    async with await AsyncLog.connect(resolve) as log:
        await log.bounds()
    return time.monotonic() - started


@pytest.mark.timeout(90)
async def test_silent_sockets_before_tls_leave_a_server_its_descriptors_and_its_clients(
    tls_server: TlsServer,
) -> None:
    """Segments roll meanwhile, and each needs new files."""
    server = tls_server

    def segments() -> int:
        return len(list((server.data_dir / "log").glob("seg-*.log")))

    async with under_load(server, writers=1):
        server.limit_descriptors(DESCRIPTORS)

        async def seconds() -> float:
            with silent_sockets(server, 1100):
                found = await get_in(server.endpoint())
                assert server.descriptor_count() < PREAUTH_CONNECTIONS_MAX + 200
                wanted = segments() + 3
                await until(lambda: segments() >= wanted, seconds=50)
            return found

        await best_below(SECONDS_MAX, seconds)
    assert "out of system resource" not in server.output()
    assert server.stop() == 0


@pytest.mark.timeout(60)
async def test_silent_sockets_do_not_keep_out_who_has_the_token(server: ServerProcess) -> None:
    async def seconds() -> float:
        with silent_sockets(server, 600) as sockets:
            found = await get_in(server.endpoint())
            assert server.descriptor_count() < PREAUTH_CONNECTIONS_MAX + 200
            # The oldest have gone, the newest may still speak.
            assert sockets[0].recv(1) == b""
            return found

    await best_below(SECONDS_MAX, seconds)
    assert read_metrics(server)["penstock_crowded_out_total"] >= 600 - PREAUTH_CONNECTIONS_MAX


@pytest.mark.timeout(60)
async def test_who_speaks_late_is_heard_while_others_are_silent(
    server: ServerProcess,
) -> None:
    """Nothing but what waited longer goes for a newcomer: one of the newest is still there."""
    many = PREAUTH_CONNECTIONS_MAX
    with silent_sockets(server, many), RawClient(server) as late, silent_sockets(server, many // 2):
        late.hello()


@pytest.mark.timeout(60)
async def test_few_descriptors_are_shared_with_those_who_have_the_token(
    server: ServerProcess,
) -> None:
    """Where the kernel grants few, silent sockets make place, and not only beyond their number."""
    server.limit_descriptors(256)

    async def seconds() -> float:
        with silent_sockets(server, 400):
            found = await get_in(server.endpoint())
            assert server.descriptor_count() < 256
            return found

    await best_below(SECONDS_MAX, seconds)
    assert server.stop() == 0


@pytest.mark.parametrize("before_tls", [0.7, 5.0])
async def test_tls_is_included_in_the_time_that_a_silent_socket_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_tls: float
) -> None:
    """Half of it before the handshake, or all: it ends a second after the accept, not after two."""
    for module in (connection, acceptor):
        monkeypatch.setattr(module, "PREAUTH_SECONDS_MAX", 1.0)
    authority = Authority(tmp_path, "ours")
    files = authority.issue("server", hosts=("127.0.0.1",))
    config = ServerConfig(tmp_path / "data", tls_cert=files.cert, tls_key=files.key)
    context = ssl.create_default_context(cafile=str(authority.ca))
    async with served(config):
        address = read_address(config.data_dir)
        assert address is not None

        async def seconds() -> float:
            started = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
            with suppress(TimeoutError):
                async with asyncio.timeout(before_tls):
                    await reader.read(1)
            if before_tls < 1.0:
                with suppress(ConnectionError, ssl.SSLError):  # if we were slow, it is over
                    await writer.start_tls(context, server_hostname="127.0.0.1")
                    assert await reader.read(1) == b""
            found = time.monotonic() - started
            writer.close()
            assert found > 0.9
            return found

        await best_below(1.5, seconds)
