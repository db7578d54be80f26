"""Addresses of clusters: what is understood, and what is refused with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import BadConfig
from penstock.log.meta.open import ClusterAddress, parse_cluster_address, read_auth


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("penstock://zk:2181/logs", ClusterAddress(("zk:2181",), "/logs", "main")),
        ("penstock://zk/logs", ClusterAddress(("zk:2181",), "/logs", "main")),
        ("penstock://zk:2181/logs/", ClusterAddress(("zk:2181",), "/logs", "main")),
        ("penstock://zk:1/logs/orders", ClusterAddress(("zk:1",), "/logs", "orders")),
        (
            "penstock://a:2181,b.example.org,10.0.0.3:2183/prod-1",
            ClusterAddress(("a:2181", "b.example.org:2181", "10.0.0.3:2183"), "/prod-1"),
        ),
        ("penstock://[::1]:99/l/x", ClusterAddress(("[::1]:99",), "/l", "x")),
    ],
)
def test_an_address_is_understood_and_written_the_same(text: str, address: ClusterAddress) -> None:
    assert parse_cluster_address(text) == address
    assert parse_cluster_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not the address of a cluster"),
        ("zk:2181/logs", "is not the address of a cluster"),
        ("penstock+dir:///var/lib/penstock", "is not the address of a cluster"),
        ("http://zk:2181/logs", "is not the address of a cluster"),
        ("penstock://zk:2181", "names no namespace: penstock://zk:2181/logs"),
        ("penstock://zk:2181/", "names no namespace"),
        ("penstock:///logs", "'' is not a host"),
        ("penstock://a:1,,b/logs", "'' is not a host"),
        ("penstock://a:0/logs", "'a:0' is not a host"),
        ("penstock://a:65536/logs", "'a:65536' is not a host"),
        ("penstock://a:x/logs", "'a:x' is not a host"),
        ("penstock://a b/logs", "'a b' is not a host"),
        ("penstock://me:secret@a/logs", "a password is not part of the address"),
        ("penstock://a/logs/x/y", "too many parts"),
        ("penstock://a//x", "'' cannot be a namespace"),
        ("penstock://a/../x", "'..' cannot be a namespace"),
        ("penstock://a/zookeeper/x", "'zookeeper' cannot be a namespace"),
        ("penstock://a/logs/Orders", "'Orders' is not the name of a log"),
        ("penstock://a/logs//", "'' is not the name of a log"),
        ("penstock://a/logs?x=1", "no ?"),
        ("penstock://a/logs#orders", "no #"),
    ],
)
def test_an_address_that_is_not_clear_is_refused_with_a_remedy(text: str, complaint: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(complaint)):
        parse_cluster_address(text)


def test_a_password_never_shows_in_the_refusal() -> None:
    with pytest.raises(BadConfig) as refused:
        parse_cluster_address("penstock://me:secret@a/logs")

    assert "secret" not in str(refused.value)


def test_the_auth_file_holds_one_line_that_nobody_else_may_read(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.write_text("me:se:cret\n")
    file.chmod(0o600)
    assert read_auth(file) == "me:se:cret"

    file.chmod(0o640)
    with pytest.raises(BadConfig, match="others may read"):
        read_auth(file)
    file.chmod(0o600)
    for content in (b"", b"me", b"me:", b":x", b"me:x\nmore", b"\xff:\xff"):
        file.write_bytes(content)
        with pytest.raises(BadConfig):
            read_auth(file)
    with pytest.raises(BadConfig, match="cannot read"):
        read_auth(tmp_path / "missing")
