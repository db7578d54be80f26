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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.nexmark import draws, model
from penstock.nexmark.draws import Ints
from penstock.nexmark.pools import Pools, make_pools


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

    @property
    def turn(self) -> int:
        """How many ids until the kinds repeat."""
        return self.persons + self.auctions + self.bids


class Generator:
    """Events of one stream."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = Parameters() if parameters is None else parameters
        self._pools: Pools = make_pools(self.parameters.seed)

    def kinds(self, ids: Ints) -> Ints:
        """What happens at each id, by its position in model.KINDS."""
        place = ids % self.parameters.turn
        persons = self.parameters.persons
        return (place >= persons).astype(np.int64) + (place >= persons + self.parameters.auctions)

    def events(self, ids: Ints) -> pa.RecordBatch:
        """The mixed stream: one row per id, in the order of `ids`."""
        kinds = self.kinds(ids)
        makers = (self._persons, self._auctions, self._bids)
        columns: list[pa.Array] = [pa.array(kinds.astype(np.int32))]
        for kind, make in enumerate(makers):
            mask = kinds == kind
            places = np.cumsum(mask) - 1
            rows = make(ids[mask]).to_struct_array()
            columns.append(rows.take(pa.array(places, mask=~mask)))
        return pa.RecordBatch.from_arrays(columns, schema=model.EVENT)

    def persons(self, ids: Ints) -> pa.RecordBatch:
        """The persons among these ids, in their order."""
        return self._persons(ids[self.kinds(ids) == 0])

    def auctions(self, ids: Ints) -> pa.RecordBatch:
        """The auctions among these ids, in their order."""
        return self._auctions(ids[self.kinds(ids) == 1])

    def bids(self, ids: Ints) -> pa.RecordBatch:
        """The bids among these ids, in their order."""
        return self._bids(ids[self.kinds(ids) == 2])

    # -- one kind each

    def _persons(self, n: Ints) -> pa.RecordBatch:
        pools = self._pools
        name = pc.binary_join_element_wise(
            self._pick(pools.first_names, n, draws.FIRST_NAME),
            self._pick(pools.last_names, n, draws.LAST_NAME),
            " ",
        )
        email = self._pick(pools.emails, n, draws.EMAIL)
        groups = [self._pick(pools.card_groups, n, draws.CARD + group) for group in range(4)]
        card = pc.binary_join_element_wise(*groups, " ")
        city = self._pick(pools.cities, n, draws.CITY)
        state = self._pick(pools.states, n, draws.STATE)
        size = 8 + _bytes(name, email, card, city, state)
        extra = self._extra(n, size, self.parameters.person_bytes)
        ids = pa.array(model.FIRST_PERSON_ID + self._last_person(n))
        columns = [ids, name, email, card, city, state, _times(self._time_ms(n)), extra]
        return pa.RecordBatch.from_arrays(columns, schema=model.PERSON)

    def _auctions(self, n: Ints) -> pa.RecordBatch:
        options, seed = self.parameters, self.parameters.seed
        time = self._time_ms(n)
        horizon = self._time_ms(n + options.open_auctions * options.turn // options.auctions) - time
        length = 1 + draws.below(np.maximum(2 * horizon, 1), n, draws.LENGTH, seed)
        hot = self._last_person(n) // model.HOT_GROUP * model.HOT_GROUP
        is_hot = draws.below(options.hot_seller_ratio, n, draws.HOT_PERSON, seed) > 0
        seller = np.where(is_hot, hot, self._cold_person(n))
        first_bid = draws.price(n, draws.PRICE, seed)
        category = model.FIRST_CATEGORY + draws.below(model.CATEGORIES, n, draws.CATEGORY, seed)
        item = self._pick(self._pools.item_names, n, draws.ITEM_NAME)
        description = self._pick(self._pools.descriptions, n, draws.DESCRIPTION)
        columns = [
            pa.array(model.FIRST_AUCTION_ID + self._last_auction(n)),
            item,
            description,
            pa.array(first_bid),
            pa.array(first_bid + draws.price(n, draws.RESERVE, seed)),
            _times(time),
            _times(time + length),
            pa.array(model.FIRST_PERSON_ID + seller),
            pa.array(category),
            self._extra(n, 48 + _bytes(item, description), options.auction_bytes),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=model.AUCTION)

    def _bids(self, n: Ints) -> pa.RecordBatch:
        options, seed = self.parameters, self.parameters.seed
        hot_auction = self._last_auction(n) // model.HOT_GROUP * model.HOT_GROUP
        is_hot = draws.below(options.hot_auction_ratio, n, draws.HOT_AUCTION, seed) > 0
        auction = np.where(is_hot, hot_auction, self._cold_auction(n))
        # The second of its group: the first is the hot seller, who does not bid on his own.
        hot_bidder = self._last_person(n) // model.HOT_GROUP * model.HOT_GROUP + 1
        is_hot = draws.below(options.hot_bidder_ratio, n, draws.HOT_PERSON, seed) > 0
        bidder = np.where(is_hot, hot_bidder, self._cold_person(n))
        channel = pa.array(self._channel(n))
        columns = [
            pa.array(model.FIRST_AUCTION_ID + auction),
            pa.array(model.FIRST_PERSON_ID + bidder),
            pa.array(draws.price(n, draws.PRICE, seed)),
            self._pools.channels.take(channel),
            self._pools.urls.take(channel),
            _times(self._time_ms(n)),
            self._extra(n, np.full(len(n), 32), options.bid_bytes),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=model.BID)

    # -- ids and times

    def _time_ms(self, n: Ints) -> Ints:
        micros = (n * (1e6 / self.parameters.events_per_s)).astype(np.int64)
        return self.parameters.base_ms + micros // 1000

    def _last_person(self, n: Ints) -> Ints:
        """The newest person at event n, counted from 0."""
        turn, place = np.divmod(n, self.parameters.turn)
        return turn * self.parameters.persons + np.minimum(place, self.parameters.persons - 1)

    def _last_auction(self, n: Ints) -> Ints:
        """The newest auction at event n, counted from 0; -1 if there is none."""
        persons, auctions = self.parameters.persons, self.parameters.auctions
        turn, place = np.divmod(n, self.parameters.turn)
        return turn * auctions + np.clip(place - persons, -1, auctions - 1)

    def _cold_person(self, n: Ints) -> Ints:
        count = self._last_person(n) + 1
        active = np.minimum(count, self.parameters.active_persons)
        seed = self.parameters.seed
        return count - active + draws.below(active + model.LEAD, n, draws.COLD_PERSON, seed)

    def _cold_auction(self, n: Ints) -> Ints:
        last = self._last_auction(n)
        first = np.maximum(last - self.parameters.open_auctions, 0)
        choices = last - first + 1 + model.LEAD
        return first + draws.below(choices, n, draws.COLD_AUCTION, self.parameters.seed)

    def _channel(self, n: Ints) -> Ints:
        seed, count = self.parameters.seed, len(model.HOT_CHANNELS)
        is_hot = draws.below(self.parameters.hot_channel_ratio, n, draws.IS_HOT_CHANNEL, seed) > 0
        hot = draws.below(count, n, draws.HOT_CHANNEL, seed)
        cold = count + draws.below(model.COLD_CHANNELS, n, draws.COLD_CHANNEL, seed)
        return np.where(is_hot, hot, cold)

    # -- strings

    def _pick(self, pool: pa.Array, n: Ints, slot: int) -> pa.Array:
        return pool.take(pa.array(draws.below(len(pool), n, slot, self.parameters.seed)))

    def _extra(self, n: Ints, sizes: Ints, wanted_bytes: int) -> pa.Array:
        """Padding up to about the wanted size, a fifth more or less."""
        seed, padding = self.parameters.seed, self._pools.padding
        missing = np.maximum(wanted_bytes - sizes, 0)
        spread = np.floor(0.2 * missing + 0.5).astype(np.int64)
        lengths = missing - spread + draws.below(2 * spread, n, draws.EXTRA_LENGTH, seed)
        room = len(padding) - lengths
        return self._pools.cut_padding(draws.below(room, n, draws.EXTRA_OFFSET, seed), lengths)


def _bytes(*columns: pa.Array) -> Ints:
    return sum(pc.binary_length(column).to_numpy() for column in columns).astype(np.int64)


def _times(milliseconds: Ints) -> pa.Array:
    return pa.array(milliseconds * 1000).cast(model.TIME)
