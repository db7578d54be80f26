"""ZooKeeper behind TLS: a store that checks who it talks to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tls_material import Authority

from penstock.errors import BadConfig, Unavailable
from penstock.log.meta.zookeeper import ZooKeeperMetadata, tls_options
from penstock.log.meta.zookeeper_server import HOST, ZooKeeperServer, _free_port


class SecureZooKeeper(ZooKeeperServer):
    """With a second port, for TLS; its clients have certificates, too."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory)
        files = authority.issue("zookeeper", hosts=("localhost", HOST))
        self._store = directory / "zookeeper.pem"
        directory.mkdir(parents=True, exist_ok=True)
        self._store.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
        self._authority = authority
        self.secure_port = _free_port()

    def _config(self, data: Path) -> list[str]:
        return [
            *super()._config(data),
            f"secureClientPort={self.secure_port}",
            f"secureClientPortAddress={HOST}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={self._store}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={self._authority.ca}",
            "ssl.trustStore.type=PEM",
            "ssl.clientAuth=need",
        ]


# Kazoo leaves the sockets of handshakes that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_metadata_travels_under_tls_to_who_has_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path / "other", "other")
    with SecureZooKeeper(tmp_path / "zookeeper", ours) as server:
        hosts = f"localhost:{server.secure_port}"
        own = ours.issue_client("proxy")
        monkeypatch.setenv("PENSTOCK_METADATA_TLS_CA", str(ours.ca))
        monkeypatch.setenv("PENSTOCK_TLS_CERT", str(own))
        store = await ZooKeeperMetadata.open(hosts, "/sealed")
        try:
            for number in range(50):
                await store.create(f"/n/{number}", b"x" * 20_000)
            assert len(await store.children("/n")) == 50
            value = await store.get("/n/7")
            assert value is not None and value.data == b"x" * 20_000
        finally:
            await store.close()
        # Another authority's server; no certificate of our own; no TLS.
        for ca, shown in [(other.ca, own), (ours.ca, None), (None, None)]:
            monkeypatch.setenv("PENSTOCK_METADATA_TLS_CA", str(ca or ""))
            monkeypatch.setenv("PENSTOCK_TLS_CERT", str(shown or ""))
            with pytest.raises(Unavailable):
                await ZooKeeperMetadata.open(hosts, "/sealed", session_seconds=1.0)


def test_files_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_METADATA_TLS_CA", raising=False)
    assert tls_options() == {}
    monkeypatch.setenv("PENSTOCK_METADATA_TLS_CA", "/nowhere.pem")
    with pytest.raises(BadConfig, match=r"/nowhere\.pem"):
        tls_options()
