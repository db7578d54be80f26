"""Settings of a server: checked as a whole, every problem told at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config import ServerConfig, hide_secrets, is_loopback, masked_uri
from penstock.errors import BadConfig
from penstock.limits import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_MS_MAX
from penstock.log.proxy.config import ProxyConfig

GOOD = ServerConfig(data_dir=Path("data"))


def test_the_defaults_are_valid_and_listen_on_loopback() -> None:
    GOOD.validate()

    assert is_loopback(GOOD.host)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 0},
        {"port": 65535},
        {"host": "localhost"},
        {"host": "127.8.8.8"},
        {"host": "::1"},
        {"segment_bytes": SEGMENT_BYTES_MIN},
        {"segment_bytes": SEGMENT_BYTES_MAX},
        {"segment_seconds": 0.001},
        {"segment_seconds": SEGMENT_MS_MAX / 1000},
        {"ttl_seconds": 1.5},
    ],
    ids=str,
)
def test_settings_at_their_edges_are_valid(changes: dict[str, object]) -> None:
    replace(GOOD, **changes).validate()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"port": -1}, "port -1"),
        ({"port": 65536}, "port 65536"),
        ({"host": "0.0.0.0"}, "needs TLS"),
        ({"host": "::"}, "needs TLS"),
        ({"host": "example.org"}, "needs TLS"),
        ({"host": "localhost.example.org"}, "needs TLS"),
        ({"host": ""}, "needs TLS"),
        ({"tls_cert": Path("no-such.pem")}, "go together"),
        ({"tls_key": Path("no-such.pem")}, "does not exist"),
        ({"segment_bytes": SEGMENT_BYTES_MIN - 1}, "segment_bytes"),
        ({"segment_bytes": SEGMENT_BYTES_MAX + 1}, "segment_bytes"),
        ({"segment_seconds": 0.0}, "segment_seconds"),
        ({"segment_seconds": float("nan")}, "segment_seconds"),
        ({"segment_seconds": SEGMENT_MS_MAX / 1000 + 1}, "segment_seconds"),
        ({"ttl_seconds": -1.0}, "not negative"),
        ({"idle_exit_seconds": -0.1}, "not negative"),
        ({"local_bytes_max": -1}, "not negative"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        replace(GOOD, **changes).validate()


def test_every_problem_is_told_at_once() -> None:
    bad = replace(GOOD, host="0.0.0.0", port=-1, segment_bytes=1, ttl_seconds=-1.0)

    with pytest.raises(BadConfig) as caught:
        bad.validate()

    for words in ("port -1", "needs TLS", "segment_bytes", "not negative"):
        assert words in str(caught.value)


def test_any_address_may_be_used_with_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()

    replace(GOOD, host="0.0.0.0", tls_cert=cert, tls_key=key).validate()


def test_the_effective_settings_can_be_printed() -> None:
    lines = GOOD.lines()

    assert "port=7070" in lines
    assert all(line.count("\n") == 0 for line in lines)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/path", "s3://bucket/path"),
        ("s3://AKIAKEY:sesame@bucket/path", "s3://***@bucket/path"),
        ("s3://sesame@bucket", "s3://***@bucket"),
        ("s3://key:ses/ame+x@bucket/a", "s3://***@bucket/a"),
        ("s3://key:ses%2Fame@bucket/a?region=x", "s3://***@bucket/a?region=x"),
        ("s3://key:sesame?x@bucket/a", "s3://***"),
        ("s3://key:sesame#x@bucket/a", "s3://***"),
        (
            "s3://b/p?access_key=AKIAKEY&secret_key=sesame&region=eu&scheme=http",
            "s3://b/p?access_key=***&secret_key=***&region=eu&scheme=http",
        ),
        ("s3://b?endpoint_override=localhost%3A9000", "s3://b?endpoint_override=localhost%3A9000"),
        ("s3://b?endpoint_override=http%3A%2F%2Fu:sesame%40h", "s3://b?endpoint_override=***"),
        ("s3://b?access_key=a@sesame&secret_key=x", "s3://***"),
        ("abfs://box@account/x?client_secret=sesame", "abfs://***@account/x?client_secret=***"),
        ("gs://anonymous@bucket/x?whatever=sesame", "gs://***@bucket/x?whatever=***"),
        ("hdfs://host:8020/x#sesame", "hdfs://host:8020/x#***"),
        ("file:///data/a@b?c=d", "file:///data/a@b?c=d"),
        ("/data/a@b", "/data/a@b"),
    ],
)
def test_an_address_is_shown_without_its_secrets(uri: str, shown: str) -> None:
    assert masked_uri(uri) == shown
    for settings in (replace(GOOD, cold_uri=uri), ProxyConfig("", Path(), Path(), cold_uri=uri)):
        assert f"cold_uri={shown}" in settings.lines()
        assert "sesame" not in repr(settings)


def test_words_about_a_store_do_not_repeat_its_secrets() -> None:
    uri = "s3://AKIAKEY:ses%2Fame@bucket/p?token=open&region=eu-west"
    words = f"cannot use {uri}: key AKIAKEY with ses/ame (ses%2Fame), open, eu-west, bucket"

    assert hide_secrets(words, uri) == (
        "cannot use s3://***@bucket/p?token=***&region=eu-west: key *** with *** (***), ***, "
        "eu-west, bucket"
    )
    assert hide_secrets("nothing of it", "file:///a@b") == "nothing of it"
