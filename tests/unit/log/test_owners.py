"""Whose a tag, key or producer is: the names that the protocol makes, and those that trick."""

from __future__ import annotations

import pytest

from penstock.log.core.owners import (
    Thing,
    anonymous_prefix,
    owner_of_key,
    owner_of_producer,
    owner_of_tag,
    revoked_key,
)
from penstock.log.records import meta_tag
from penstock.protocol import names
from penstock.protocol.names import TaskId
from penstock.stream.producer import producer_name
from penstock.stream.registration import stream_key, stream_tag

TASK = TaskId("hot", 3, 1, 2)
QUERY, STREAM = Thing("query", "hot"), Thing("stream", "bids.eu")
BATCH, DELIVERY = Thing("batch", "spark/7f-1"), Thing("delivery", "shop.eu")

TAGS = {
    stream_tag("bids.eu"): STREAM,
    names.stream_node_tag("bids.eu", 63): STREAM,
    "l/bids.eu/15": STREAM,
    names.naming_tag("bids.eu"): STREAM,
    names.keyed_tag("hot", 3, 0): QUERY,
    names.node_tag("hot", 3, 0, 63): QUERY,
    names.flush_tag("hot", 3, 0): QUERY,
    names.control_tag("hot"): QUERY,
    names.pulse_tag("hot"): QUERY,
    TASK.marker_tag: QUERY,
    TASK.change_tag: QUERY,
    f"T/{names.batch_writer('7f-1')}": BATCH,
    names.BATCH_WRITES_TAG: Thing("batch", "spark/"),
    names.ack_tag("shop.eu"): DELIVERY,
    names.delivery_flush_tag("shop.eu"): DELIVERY,
    meta_tag("run/hot"): Thing("key", "run/hot"),
}
KEYS = {
    stream_key("bids.eu"): STREAM,
    names.writers_key("bids.eu"): STREAM,
    names.query_key("hot"): QUERY,
    names.run_key("hot"): QUERY,
    names.layout_key("hot"): QUERY,
    names.batch_key("7f-1"): BATCH,
    names.staging_key("7f-1", 4): BATCH,
    names.deliver_key("shop.eu"): DELIVERY,
    names.delivered_key("shop.eu"): DELIVERY,
    names.aside_key("shop.eu", 0, 77, 1): DELIVERY,
    revoked_key("0123456789abcdef"): Thing("revocation", "0123456789abcdef"),
}
PRODUCERS = {
    producer_name("bids.eu", "till 7/a"): STREAM,
    names.coordinator_producer("hot"): QUERY,
    TASK.producer: QUERY,
    names.player_producer("shop.eu"): DELIVERY,
    anonymous_prefix(None) + "00ff": Thing("anonymous", "anon-00ff"),
    anonymous_prefix("0123456789abcdef") + "00": Thing("anonymous", "anon-0123456789abcdef-00"),
}


@pytest.mark.parametrize("tag", TAGS)
def test_tags_of_the_protocol_have_their_owners(tag: str) -> None:
    assert owner_of_tag(tag) == TAGS[tag]


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_the_protocol_have_their_owners(key: str) -> None:
    assert owner_of_key(key) == KEYS[key]


@pytest.mark.parametrize("name", PRODUCERS)
def test_producers_of_the_protocol_have_their_owners(name: str) -> None:
    assert owner_of_producer(name) == PRODUCERS[name]


def test_every_name_of_the_protocol_is_here() -> None:
    made = {
        getattr(names, each)
        for each in vars(names)
        if each.endswith(("_PREFIX", "_TAG")) and each != "PLAYER_PREFIX"
    }
    assert {key.partition("/")[0] + "/" for key in KEYS} | {"W"} >= made
    spaces = {
        line.split()[0].partition("/")[0] for line in (names.__doc__ or "").splitlines()[2:15]
    }
    assert {tag.partition("/")[0] for tag in TAGS} >= spaces - {"<task>,"}


@pytest.mark.parametrize(
    "name",
    [
        *("", "x", "s/", "s/a/b", "s/a/1/2", "s/ä", "l/bids", "M/a/1", "T/hot", "T/hot.1"),
        *("T/hot.x/0", "T/hot.1/0/0/0", "ctl/", "ctl/a/b", "ctl/a.1", "D/", "D/a/flush/x"),
        *("W/", "w", "T/spark/", "T/spark/a/b", "s/a\n", "s/a ", " s/a"),
    ],
)
def test_tags_of_no_known_form_belong_to_nobody(name: str) -> None:
    assert owner_of_tag(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "stream/", "stream/a/b", "streams/a", "run/a.1", "aside/a/1", "staging/a", "batch/"],
)
def test_keys_of_no_known_form_belong_to_nobody(name: str) -> None:
    assert owner_of_key(name) is None


@pytest.mark.parametrize(
    "name", ["", "bids", "bids/", "@", "@hot.1", "@hot.1/0", "@deliver/", "@a/b"]
)
def test_producers_of_no_known_form_belong_to_nobody(name: str) -> None:
    assert owner_of_producer(name) is None
