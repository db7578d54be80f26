"""TLS: the right server is believed, every other one is not, and the token waits for that."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from harness.async_tests import async_fixture
from harness.served_log import ServedLog, served
from harness.waiting import best_below, until, until_refused
from tls_material import Authority, CertificateFiles

from penstock.config import ServerConfig
from penstock.errors import BadConfig, Unavailable
from penstock.limits import PREAUTH_SECONDS_MAX
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.embedded import address_endpoint, directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.serving import acceptor, connection
from penstock.log.serving.directory import read_token

HOSTS = ("localhost", "127.0.0.1")


def tls_config(tmp_path: Path, files: CertificateFiles, host: str = "127.0.0.1") -> ServerConfig:
    return ServerConfig(
        tmp_path / "data", host=host, port=0, tls_cert=files.cert, tls_key=files.key
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@async_fixture
async def log(tmp_path: Path, authority: Authority) -> AsyncIterator[ServedLog]:
    async with served(tls_config(tmp_path, authority.issue("server", hosts=HOSTS))) as log:
        yield log


def endpoint_of(log: ServedLog, ca: Path | None, host: str = "localhost") -> Resolve:
    return address_endpoint(
        f"penstock://{host}:{log.server.address.port}",
        token_file=log.server.config.data_dir / "token",
        tls_ca=ca,
    )


async def connect(resolve: Resolve, timeout: float = 10.0) -> list[bytes]:
    """Append and read one entry through a client of its own."""
    async with await AsyncLog.connect(resolve, timeout=timeout) as log:
        await log.append([NewEntry(b"sealed", ("t",))])
        return [entry.payload for entry in await log.read(["t"])]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_server_with_a_certificate_of_the_given_authority_is_believed(
    authority: Authority, host: str, log: ServedLog
) -> None:
    assert await connect(endpoint_of(log, authority.ca, host)) == [b"sealed"]


async def test_with_tls_a_server_may_listen_on_every_address(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("server", hosts=HOSTS)

    async with served(tls_config(tmp_path, files, host="0.0.0.0")) as log:
        assert await connect(endpoint_of(log, authority.ca)) == [b"sealed"]


def _other_authority(authority: Authority) -> CertificateFiles:
    other = Authority(authority.ca.parent / "other", "other")
    return other.issue("server", hosts=HOSTS)


IMPOSTORS: dict[str, Callable[[Authority], CertificateFiles]] = {
    "another authority": _other_authority,
    "another host name": lambda ours: ours.issue("server", hosts=("other.example",)),
    "another address": lambda ours: ours.issue("server", hosts=("10.1.2.3",)),
    "a name that only starts like it": lambda ours: ours.issue("server", hosts=("localhost.x",)),
    "no name at all": lambda ours: ours.issue("localhost"),
    "expired": lambda ours: ours.issue("server", hosts=HOSTS, age_days=20, life_days=10),
    "not valid yet": lambda ours: ours.issue("server", hosts=HOSTS, age_days=-5),
}


@pytest.mark.parametrize("name", IMPOSTORS)
async def test_an_impostor_is_refused_before_it_sees_the_token(
    authority: Authority, tmp_path: Path, name: str
) -> None:
    async with served(tls_config(tmp_path, IMPOSTORS[name](authority))) as log:
        resolve = endpoint_of(log, authority.ca)
        words = "certificate verify failed"
        await until_refused(lambda: connect(resolve, timeout=0.5), Unavailable, words)

        metrics = log.server.service.metrics
        assert (metrics.unauthorized, metrics.bad_frames, metrics.appended_entries) == (0, 0, 0)


async def test_an_authority_of_the_system_is_not_trusted_beside_the_given_one(
    authority: Authority, tmp_path: Path
) -> None:
    resolve = address_endpoint(
        "penstock://localhost:1", token_file=_token_file(tmp_path), tls_ca=authority.ca
    )

    context = (await resolve()).tls

    assert context is not None and context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


def _token_file(directory: Path) -> Path:
    path = directory / "some-token"
    path.write_text("0" * 64)
    path.chmod(0o600)
    return path


async def test_clients_of_the_directory_of_a_tls_server_are_told_how_to_connect(
    log: ServedLog,
) -> None:
    with pytest.raises(BadConfig, match=r"speaks TLS: connect with penstock://127.*tls_ca"):
        await connect(directory_endpoint(log.server.config.data_dir))


async def test_plain_bytes_on_a_tls_port_get_nothing_and_harm_nobody(
    authority: Authority, log: ServedLog
) -> None:
    with pytest.raises(Unavailable):
        await connect(endpoint_of(log, None), timeout=0.5)
    answer = await asyncio.to_thread(
        talk, log.server.address.port, b"GET /metrics HTTP/1.1\r\n\r\n"
    )
    assert b"HTTP" not in answer and b"penstock" not in answer

    assert await connect(endpoint_of(log, authority.ca)) == [b"sealed"]


async def test_a_tls_client_finds_nobody_on_a_plain_port(
    authority: Authority, tmp_path: Path
) -> None:
    async with served(ServerConfig(tmp_path / "data", port=0)) as log:
        metrics = log.server.service.metrics

        async def is_heard() -> bool:
            with pytest.raises(Unavailable):
                await connect(endpoint_of(log, authority.ca), timeout=0.5)
            return metrics.bad_frames >= 1

        await until(is_heard)
        assert metrics.unauthorized == 0


async def test_metrics_are_served_under_tls(authority: Authority, log: ServedLog) -> None:
    token = read_token(log.server.config.data_dir / "token")
    request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    context = ssl.create_default_context(cafile=str(authority.ca))
    answer = await asyncio.to_thread(talk, log.server.address.port, request.encode(), context)
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"# EOF\n")


async def test_versions_below_tls_1_2_are_not_spoken(authority: Authority, log: ServedLog) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    with pytest.raises(OSError):
        await asyncio.to_thread(talk, log.server.address.port, b"", context)


@pytest.fixture
def preauth_seconds(monkeypatch: pytest.MonkeyPatch) -> float:
    """A server that waits for as long only, instead of five times that."""
    for module in (connection, acceptor):
        monkeypatch.setattr(module, "PREAUTH_SECONDS_MAX", PREAUTH_SECONDS_MAX / 5)
    return PREAUTH_SECONDS_MAX / 5


async def test_a_handshake_that_does_not_come_is_not_waited_for(
    authority: Authority, log: ServedLog, preauth_seconds: float
) -> None:
    """Silence, half a hello, and a handshake without a token: each ends within the deadline."""
    context = ssl.create_default_context(cafile=str(authority.ca))

    port = log.server.address.port

    async def seconds() -> float:
        started = time.monotonic()
        await asyncio.gather(
            asyncio.to_thread(talk, port, b""),
            asyncio.to_thread(talk, port, bytes.fromhex("16030100f8010000f40303")),
            asyncio.to_thread(talk, port, b"", context, may_be_late=True),
        )
        return time.monotonic() - started

    await best_below(preauth_seconds + 3, seconds)


def talk(
    port: int, data: bytes, context: ssl.SSLContext | None = None, *, may_be_late: bool = False
) -> bytes:
    """Send, then read until the server ends it; TimeoutError if it does not within 20 s.

    `may_be_late`: it may end before the handshake is done, if we were slow.
    """
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        try:
            one = plain
            if context is not None:
                one = context.wrap_socket(plain, server_hostname="localhost")
        except (ConnectionError, ssl.SSLEOFError):
            if may_be_late:
                return b""
            raise
        with one:
            one.sendall(data)
            answer = b""
            try:
                while piece := one.recv(65536):
                    answer += piece
            except ConnectionResetError:
                pass
            return answer


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key"])
def test_a_certificate_without_its_key_is_refused(tmp_path: Path, missing: str) -> None:
    files = Authority(tmp_path, "ours").issue("server", hosts=HOSTS)
    given = {"tls_cert": files.cert, "tls_key": files.key}
    given[missing] = tmp_path / "nothing.pem"

    with pytest.raises(BadConfig, match="does not exist"):
        ServerConfig(tmp_path, **given).validate()
    with pytest.raises(BadConfig, match="go together"):
        ServerConfig(tmp_path, **{missing: files.cert}).validate()
