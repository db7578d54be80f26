"""The auction site: persons open auctions, persons place bids. Money in cents, times in UTC.

Owns the schemas and the words; how often and in which order events come is the generator's matter.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.stream.ddl import parse_ddl

#: Spark's TIMESTAMP.
TIME = pa.timestamp("us", tz="UTC")

PERSON = parse_ddl(
    "id long, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string"
)
AUCTION = parse_ddl(
    "id long, itemName string, description string, initialBid long, reserve long, "
    "dateTime timestamp, expires timestamp, seller long, category long, extra string"
)
BID = parse_ddl(
    "auction long, bidder long, price long, channel string, url string, dateTime timestamp, "
    "extra string"
)
#: The kinds of events, as `event_type` has them, and the mixed stream's columns.
KINDS = {"person": PERSON, "auction": AUCTION, "bid": BID}
EVENT = pa.schema(
    [("event_type", pa.int32()), *((kind, pa.struct(schema)) for kind, schema in KINDS.items())]
)
#: The table that q13 joins: one row per key.
SIDE_INPUT = parse_ddl("key long, value string")
SIDE_INPUT_ROWS = 10_000

FIRST_PERSON_ID = 1000
FIRST_AUCTION_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
#: Sellers, bidders and auctions are hot one per so many.
HOT_GROUP = 100
#: How far cold draws reach into ids that do not exist yet, so that joins must buffer both sides.
LEAD = 10

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"),
    *("Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"),
    "Walter",
)
LAST_NAMES = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"),
)
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
COLD_CHANNELS = 10_000
URL_HOST = "https://www.nexmark.com/"


def side_input() -> pa.Table:
    """The rows of q13's table: a number and its text."""
    keys = pa.array(range(SIDE_INPUT_ROWS), pa.int64())
    return pa.table([keys, keys.cast(pa.string())], schema=SIDE_INPUT)
