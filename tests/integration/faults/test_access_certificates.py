"""Clients with certificates, and certificates that are replaced under a running server."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from harness.in_process_cluster import in_process_cluster
from harness.served_log import ServedLog, served
from tls_material import BOTH, Authority

from penstock.config import ServerConfig
from penstock.errors import BadConfig, Unavailable
from penstock.log.client.client import AsyncLog
from penstock.log.client.cluster import ClusterRoute, ProxyList
from penstock.log.embedded import address_endpoint, client_tls
from penstock.log.meta.open import ClusterAddress
from penstock.log.records import NewEntry
from penstock.log.serving import tls_files
from penstock.log.serving.tls_files import ServerTls, TlsFiles

HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def config_of(tmp_path: Path, authority: Authority, client_ca: Path | None = None) -> ServerConfig:
    files = authority.issue("server", hosts=HOSTS)
    return ServerConfig(
        tmp_path / "data", port=0, tls_cert=files.cert, tls_key=files.key, tls_client_ca=client_ca
    )


async def append(log: ServedLog, ca: Path, timeout: float = 10.0) -> int:
    resolve = address_endpoint(
        f"penstock://localhost:{log.server.address.port}",
        token_file=log.server.config.data_dir / "token",
        tls_ca=ca,
    )
    async with await AsyncLog.connect(resolve, timeout=timeout) as client:
        return (await client.append([NewEntry(b"sealed", ("t",))])).count


async def test_only_clients_with_a_certificate_of_the_authority_get_in(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other", "other")
    good = authority.issue_client("till")
    bad = {
        "none": None,
        "another authority's": other.issue_client("till"),
        "expired": authority.issue_client("old", age_days=40, life_days=30),
        "not valid yet": authority.issue_client("new", age_days=-2),
    }
    async with served(config_of(tmp_path, authority, authority.ca)) as log:
        monkeypatch.setenv("PENSTOCK_TLS_CERT", str(good))
        assert await append(log, authority.ca) == 1
        tail = log.server.owner.durable_lsn
        for name, path in bad.items():
            monkeypatch.setenv("PENSTOCK_TLS_CERT", str(path or ""))
            with pytest.raises(Unavailable):
                await append(log, authority.ca, timeout=0.3)
            assert log.server.owner.durable_lsn == tail, name
            assert not log.server.listener.connections, name


async def test_nodes_want_certificates_of_proxies_and_proxies_of_clients(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = authority.issue("node", hosts=HOSTS)
    proxy = authority.issue("proxy", hosts=HOSTS, uses=BOTH)
    mutual = {"tls_client_ca": authority.ca}
    async with in_process_cluster(tmp_path, nodes=0, proxies=0) as cluster:
        for number in range(3):
            await cluster.start_node(f"n{number}", tls_cert=node.cert, tls_key=node.key, **mutual)
        await cluster.start_proxy(
            tls_cert=proxy.cert, tls_key=proxy.key, tls_ca=authority.ca, **mutual
        )

        async def connect() -> AsyncLog:
            route = ClusterRoute(
                ClusterAddress((), "/memory", "main"),
                ProxyList(cluster.open_store),
                token=(tmp_path / "token").read_text(),
                tls=client_tls(authority.ca),
                region="default",
            )
            return await AsyncLog.connect(route, timeout=2.0)

        monkeypatch.setenv("PENSTOCK_TLS_CERT", str(authority.issue_client("till")))
        async with await connect() as log:
            await log.append([NewEntry(b"sealed", ("t",))])
            assert [entry.payload for entry in await log.read(["t"])] == [b"sealed"]
        monkeypatch.delenv("PENSTOCK_TLS_CERT")
        with pytest.raises(Unavailable):
            await connect()


def test_a_clients_key_is_its_own_secret(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = authority.issue_client("till")
    path.chmod(0o644)
    (tmp_path / "empty").touch(mode=0o600)
    for given, words in ((path, "chmod 600"), (tmp_path / "empty", "cannot be used")):
        monkeypatch.setenv("PENSTOCK_TLS_CERT", str(given))
        with pytest.raises(BadConfig, match=words):
            client_tls(authority.ca)


def test_an_authority_of_clients_needs_a_certificate_of_the_server(
    tmp_path: Path, authority: Authority
) -> None:
    config = config_of(tmp_path, authority)
    without = replace(config, tls_cert=None, tls_key=None, tls_client_ca=authority.ca)
    with pytest.raises(BadConfig, match="tls_client_ca goes with"):
        without.validate()
    with pytest.raises(BadConfig, match="does not exist"):
        replace(config, tls_client_ca=tmp_path / "nowhere").validate()


async def test_a_replaced_certificate_is_shown_without_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "LOOK_SECONDS", 0.0)
    other = Authority(tmp_path / "other", "other")
    config = config_of(tmp_path, authority)
    assert config.tls_cert is not None and config.tls_key is not None
    async with served(config) as log:
        resolve = address_endpoint(
            f"penstock://localhost:{log.server.address.port}",
            token_file=config.data_dir / "token",
            tls_ca=authority.ca,
        )
        async with await AsyncLog.connect(resolve) as before:
            await before.append([NewEntry(b"1", ("t",))])
            new = other.issue("server", hosts=HOSTS)
            config.tls_cert.write_bytes(new.cert.read_bytes())
            assert await append(log, authority.ca) == 1, "the key is still the old one"
            config.tls_key.write_bytes(new.key.read_bytes())
            assert await append(log, other.ca) == 1
            with pytest.raises(Unavailable):
                await append(log, authority.ca, timeout=0.3)
            await before.append([NewEntry(b"2", ("t",))])
            assert len(await before.read(["t"])) == 4, "who is connected stays"


def test_files_are_looked_at_once_a_second_at_most(tmp_path: Path, authority: Authority) -> None:
    now = 100.0
    files = authority.issue("server", hosts=HOSTS)
    tls = ServerTls(TlsFiles(files.cert, files.key), lambda: now)
    first = tls.context()
    authority.issue("server", hosts=HOSTS)

    now += 0.9
    assert tls.context() is first
    now += 0.2
    second = tls.context()
    assert second is not first and isinstance(second, ssl.SSLContext)
    now += 2
    assert tls.context() is second
    files.cert.unlink()
    now += 2
    assert tls.context() is second, "what cannot be read changes nothing"
    with pytest.raises(BadConfig):
        ServerTls(TlsFiles(files.cert, files.key), lambda: 0.0)
