"""How a stream is written down in the log."""

from __future__ import annotations

import json

import pytest

from penstock.errors import BadFormat, BadRequest
from penstock.stream.ddl import parse_ddl
from penstock.stream.registration import (
    Registration,
    check_name,
    decode_registration,
    encode_registration,
    stream_key,
    stream_tag,
)

BIDS = Registration(
    "bids", parse_ddl("n bigint NOT NULL COMMENT 'number', s string"), 1_763_193_600_000
)


def test_a_registration_comes_back_equal_with_nullability_and_comments() -> None:
    found = decode_registration("bids", encode_registration(BIDS))
    assert found == BIDS
    assert found.schema.equals(BIDS.schema, check_metadata=True)
    assert found.ddl == "n bigint NOT NULL COMMENT 'number', s string"


def test_the_value_is_json_with_a_version_and_ddl_for_people() -> None:
    value = json.loads(encode_registration(BIDS))
    assert sorted(value) == ["created_ms", "ddl", "schema", "version"]
    assert (value["version"], value["ddl"]) == (1, BIDS.ddl)
    assert (stream_key("bids"), stream_tag("bids")) == ("stream/bids", "s/bids")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"version": 1}',
        b"[" * 200_000,
        json.dumps({**json.loads(encode_registration(BIDS)), "created_ms": 10**18}).encode(),
        json.dumps({**json.loads(encode_registration(BIDS)), "created_ms": -1}).encode(),
        json.dumps({**json.loads(encode_registration(BIDS)), "created_ms": float("inf")}).encode(),
        json.dumps({**json.loads(encode_registration(BIDS)), "lanes": 10**9}).encode(),
        json.dumps({**json.loads(encode_registration(BIDS)), "start_lsn": 2**64}).encode(),
        b'{"version": 1, "schema": "!", "created_ms": 0}',
        b'{"version": 1, "schema": "AAAA", "created_ms": 0}',
        b'{"version": 1, "schema": 5, "created_ms": 0}',
    ],
)
def test_bytes_that_are_no_registration_are_refused(data: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_registration("bids", data)


def test_a_newer_version_says_so() -> None:
    with pytest.raises(BadFormat, match="version 3, this program reads up to 2"):
        decode_registration("bids", b'{"version": 3}')


@pytest.mark.parametrize("name", ["a", "_x", "A.b-c_9", "x" * 128])
def test_plain_names_are_allowed(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".a", "9a", "a\n", "a/b", "x" * 129, "é"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        check_name(name)
