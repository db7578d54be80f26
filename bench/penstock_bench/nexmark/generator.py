"""Events by id: n decides what happens, when, and to whom; nothing else does.

Per 50 consecutive ids there are 1 person, 3 auctions and 46 bids, in this order. Ids of persons and
auctions are dense and grow with n. Half of the bids go to one hot auction, three quarters come from
one hot bidder; the hot ones move on every hundred persons or auctions. Cold draws reach a little
into the future: bids may come before their auction, auctions before their seller.

Law: rows depend on the parameters and their own id only. Any subset, any order, any split among
generators gives the same rows; the position of a source is simply n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadConfig
from penstock_bench.nexmark import draws, model
from penstock_bench.nexmark.draws import Draws, Ints
from penstock_bench.nexmark.layout import (
    Column,
    Texts,
    dense,
    even_texts,
    no_texts,
    pick,
    with_gaps,
)
from penstock_bench.nexmark.pools import Pools, make_pools

_PERSON_SLOTS = (
    *(draws.FIRST_NAME, draws.LAST_NAME, draws.EMAIL, draws.CITY, draws.STATE),
    *range(draws.CARD, draws.CARD + 4),
    *(draws.EXTRA_LENGTH, draws.EXTRA_OFFSET),
)
_AUCTION_SLOTS = (
    *(draws.HOT_PERSON, draws.COLD_PERSON, draws.CATEGORY, draws.PRICE, draws.RESERVE),
    *(draws.LENGTH, draws.ITEM_NAME, draws.DESCRIPTION, draws.EXTRA_LENGTH, draws.EXTRA_OFFSET),
)
_BID_SLOTS = (
    *(draws.HOT_PERSON, draws.COLD_PERSON, draws.HOT_AUCTION, draws.COLD_AUCTION, draws.PRICE),
    *(draws.EXTRA_LENGTH, draws.EXTRA_OFFSET),
)
_CHANNEL_SLOTS = (draws.IS_HOT_CHANNEL, draws.HOT_CHANNEL, draws.COLD_CHANNEL)

#: Beyond it, one person or auction may no longer fit a payload.
STATE_SCALE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the stream is like. The defaults are NEXMark's."""

    seed: int = 42
    #: Spacing of event times; also sets how long auctions last. Says nothing of wall clocks.
    events_per_s: float = 10_000
    #: Event time of id 0, in milliseconds since the epoch.
    base_ms: int = 0
    #: How many of each kind come in turn.
    persons: int = 1
    auctions: int = 3
    bids: int = 46
    #: One in so many is not the hot one.
    hot_seller_ratio: int = 4
    hot_bidder_ratio: int = 4
    hot_auction_ratio: int = 2
    hot_channel_ratio: int = 2
    #: How many persons and auctions a cold draw looks back to.
    active_persons: int = 1000
    open_auctions: int = 100
    #: Mean sizes, reached by padding; channel and url of a bid do not count.
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    #: Whether bids name a channel and an address; if not, both are empty.
    has_channels: bool = True

    @property
    def turn(self) -> int:
        """How many ids until the kinds repeat."""
        return self.persons + self.auctions + self.bids


def rhino_parameters(*, seed: int = 42, state_scale: int = 1) -> Parameters:
    """The stream of Rhino's evaluation (section 5.1.2): keys drawn evenly, records of their sizes.

    With a scale of N, persons and auctions are N times as large and N times as many of them are in
    use: the state of NBQ8 and NBQX grows N times as fast, the keys of NBQ5 are N times as many.
    """
    if not 1 <= state_scale <= STATE_SCALE_MAX:
        raise BadConfig(f"a state scale of {state_scale}: 1 to {STATE_SCALE_MAX} allowed")
    default = Parameters()
    return Parameters(
        seed=seed,
        hot_seller_ratio=1,
        hot_bidder_ratio=1,
        hot_auction_ratio=1,
        active_persons=default.active_persons * state_scale,
        open_auctions=default.open_auctions * state_scale,
        person_bytes=206 * state_scale,
        auction_bytes=269 * state_scale,
        bid_bytes=32,
        has_channels=False,
    )


class _Events(NamedTuple):
    """Some ids, and what is newest at each of them, counted from 0."""

    n: Ints
    #: Which of its turn's ids it is.
    place: Ints
    last_person: Ints
    #: -1 if there is none yet.
    last_auction: Ints
    time_ms: Ints

    def only(self, chosen: npt.NDArray[np.bool_]) -> _Events:
        return _Events(*(column[chosen] for column in self))


class Generator:
    """Events of one stream."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = Parameters() if parameters is None else parameters
        self._pools: Pools = make_pools(self.parameters.seed)

    def kinds(self, ids: Ints) -> Ints:
        """What happens at each id, by its position in model.KINDS."""
        return self._kinds(ids % self.parameters.turn)

    def events(self, ids: Ints) -> pa.RecordBatch:
        """The mixed stream: one row per id, in the order of `ids`."""
        events = self._locate(ids)
        kinds = self._kinds(events.place)
        makers = (self._persons, self._auctions, self._bids)
        columns: list[pa.Array] = [pa.array(kinds.astype(np.int32))]
        for kind, (make, schema) in enumerate(zip(makers, model.KINDS.values(), strict=True)):
            mask = kinds == kind
            columns.append(with_gaps(make(events.only(mask)), schema, mask))
        return pa.RecordBatch.from_arrays(columns, schema=model.EVENT)

    def persons(self, ids: Ints) -> pa.RecordBatch:
        """The persons among these ids, in their order."""
        return dense(self._persons(self._locate(ids[self.kinds(ids) == 0])), model.PERSON)

    def auctions(self, ids: Ints) -> pa.RecordBatch:
        """The auctions among these ids, in their order."""
        return dense(self._auctions(self._locate(ids[self.kinds(ids) == 1])), model.AUCTION)

    def bids(self, ids: Ints) -> pa.RecordBatch:
        """The bids among these ids, in their order."""
        return dense(self._bids(self._locate(ids[self.kinds(ids) == 2])), model.BID)

    # -- one kind each

    def _persons(self, events: _Events) -> list[Column]:
        drawn = Draws(events.n, _PERSON_SLOTS, self.parameters.seed)
        pools = self._pools
        first = drawn.below(len(model.FIRST_NAMES), draws.FIRST_NAME)
        last = drawn.below(len(model.LAST_NAMES), draws.LAST_NAME)
        name = pick(pools.names, first * len(model.LAST_NAMES) + last)
        email = _pick(pools.emails, drawn, draws.EMAIL)
        card = self._cards(drawn)
        city = _pick(pools.cities, drawn, draws.CITY)
        state = _pick(pools.states, drawn, draws.STATE)
        size = 8 + _bytes(name, email, card, city, state)
        extra = self._extra(drawn, size, self.parameters.person_bytes)
        ids = model.FIRST_PERSON_ID + events.last_person
        return [ids, name, email, card, city, state, events.time_ms * 1000, extra]

    def _auctions(self, events: _Events) -> list[Column]:
        options = self.parameters
        drawn = Draws(events.n, _AUCTION_SLOTS, options.seed)
        time = events.time_ms
        open_events = options.open_auctions * options.turn // options.auctions
        horizon = self._time_ms(events.n + open_events) - time
        length = 1 + drawn.below(np.maximum(2 * horizon, 1), draws.LENGTH)
        hot = events.last_person // model.HOT_GROUP * model.HOT_GROUP
        is_hot = drawn.below(options.hot_seller_ratio, draws.HOT_PERSON) > 0
        seller = np.where(is_hot, hot, self._cold_person(events, drawn))
        first_bid = drawn.price(draws.PRICE)
        category = model.FIRST_CATEGORY + drawn.below(model.CATEGORIES, draws.CATEGORY)
        item = _pick(self._pools.item_names, drawn, draws.ITEM_NAME)
        description = _pick(self._pools.descriptions, drawn, draws.DESCRIPTION)
        return [
            model.FIRST_AUCTION_ID + events.last_auction,
            item,
            description,
            first_bid,
            first_bid + drawn.price(draws.RESERVE),
            time * 1000,
            (time + length) * 1000,
            model.FIRST_PERSON_ID + seller,
            category,
            self._extra(drawn, 48 + _bytes(item, description), options.auction_bytes),
        ]

    def _bids(self, events: _Events) -> list[Column]:
        options = self.parameters
        slots = _BID_SLOTS + _CHANNEL_SLOTS if options.has_channels else _BID_SLOTS
        drawn = Draws(events.n, slots, options.seed)
        hot_auction = events.last_auction // model.HOT_GROUP * model.HOT_GROUP
        is_hot = drawn.below(options.hot_auction_ratio, draws.HOT_AUCTION) > 0
        auction = np.where(is_hot, hot_auction, self._cold_auction(events, drawn))
        # The second of its group: the first is the hot seller, who does not bid on his own.
        hot_bidder = events.last_person // model.HOT_GROUP * model.HOT_GROUP + 1
        is_hot = drawn.below(options.hot_bidder_ratio, draws.HOT_PERSON) > 0
        bidder = np.where(is_hot, hot_bidder, self._cold_person(events, drawn))
        channel, url = self._channels(drawn, len(events.n))
        return [
            model.FIRST_AUCTION_ID + auction,
            model.FIRST_PERSON_ID + bidder,
            drawn.price(draws.PRICE),
            channel,
            url,
            events.time_ms * 1000,
            self._extra(drawn, np.full(len(events.n), 32), options.bid_bytes),
        ]

    # -- ids and times

    def _locate(self, n: Ints) -> _Events:
        persons, auctions = self.parameters.persons, self.parameters.auctions
        turn, place = np.divmod(n, self.parameters.turn)
        return _Events(
            n,
            place,
            turn * persons + np.minimum(place, persons - 1),
            turn * auctions + np.clip(place - persons, -1, auctions - 1),
            self._time_ms(n),
        )

    def _kinds(self, place: Ints) -> Ints:
        persons = self.parameters.persons
        return (place >= persons).astype(np.int64) + (place >= persons + self.parameters.auctions)

    def _time_ms(self, n: Ints) -> Ints:
        micros = (n * (1e6 / self.parameters.events_per_s)).astype(np.int64)
        return self.parameters.base_ms + micros // 1000

    def _cold_person(self, events: _Events, drawn: Draws) -> Ints:
        count = events.last_person + 1
        active = np.minimum(count, self.parameters.active_persons)
        return count - active + drawn.below(active + model.LEAD, draws.COLD_PERSON)

    def _cold_auction(self, events: _Events, drawn: Draws) -> Ints:
        last = events.last_auction
        first = np.maximum(last - self.parameters.open_auctions, 0)
        return first + drawn.below(last - first + 1 + model.LEAD, draws.COLD_AUCTION)

    # -- strings

    def _channels(self, drawn: Draws, rows: int) -> tuple[Texts, Texts]:
        """Names and addresses of the channels that bids came by."""
        if not self.parameters.has_channels:
            return no_texts(rows), no_texts(rows)
        count = len(model.HOT_CHANNELS)
        is_hot = drawn.below(self.parameters.hot_channel_ratio, draws.IS_HOT_CHANNEL) > 0
        hot = drawn.below(count, draws.HOT_CHANNEL)
        cold = count + drawn.below(model.COLD_CHANNELS, draws.COLD_CHANNEL)
        channel = np.where(is_hot, hot, cold)
        return pick(self._pools.channels, channel), pick(self._pools.urls, channel)

    def _cards(self, drawn: Draws) -> Texts:
        """Four groups of digits with blanks between them."""
        pool = self._pools.card_groups
        groups = [pool[drawn.below(len(pool), draws.CARD + group)] for group in range(4)]
        return even_texts(np.concatenate(groups, axis=1)[:, :-1])

    def _extra(self, drawn: Draws, sizes: Ints, wanted_bytes: int) -> Texts:
        """Padding up to about the wanted size, a fifth more or less."""
        missing = np.maximum(wanted_bytes - sizes, 0)
        spread = np.floor(0.2 * missing + 0.5).astype(np.int64)
        lengths = missing - spread + drawn.below(2 * spread, draws.EXTRA_LENGTH)
        room = self._pools.padding_bytes - lengths
        return self._pools.cut_padding(drawn.below(room, draws.EXTRA_OFFSET), lengths)


def _pick(pool: pa.Array, drawn: Draws, slot: int) -> Texts:
    return pick(pool, drawn.below(len(pool), slot))


def _bytes(*columns: Texts) -> Ints:
    total: Ints = np.sum([column.lengths for column in columns], axis=0, dtype=np.int64)
    return total
