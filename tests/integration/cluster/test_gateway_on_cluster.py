"""A gateway on a log of a cluster: keys hold over the death of a proxy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness.http_gateway import HttpClient, gateway_thread

from penstock.gateway.config import GatewayConfig
from penstock.log.local_cluster import LocalCluster
from penstock.log.serving.directory import read_token


@pytest.mark.soak
def test_keys_hold_over_the_death_of_an_owner(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.start(proxy_options={"session-seconds": 1.0})
        config = GatewayConfig(target=cluster.address_of("orders"), port=0)
        with gateway_thread(config) as listening:
            client = HttpClient(listening, read_token(cluster.token_file))
            made = client.ask("POST", "/v1/streams", '{"name": "s", "ddl": "n long"}')
            assert made.status == 201, made.body
            key = "p:0"
            for number in range(30):
                if number == 10:
                    cluster.proxies["p0"].kill()
                if number == 20:
                    cluster.proxies["p0"].start()
                    cluster.proxies["p1"].kill()
                while (answer := client.append("s", [{"n": number}], key)).status >= 500:
                    time.sleep(0.05)
                assert answer.status == 200, answer.body
                key = answer.json["next"]
            read = client.ask("GET", "/v1/streams/s/rows?format=csv")

    assert read.body.split() == [b'"n"', *(str(number).encode() for number in range(30))]
