"""Events by id: the published values, the published sums, and that nothing but the id matters."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator, Parameters, rhino_parameters
from penstock_bench.nexmark.pools import make_pools

from penstock.errors import BadConfig
from penstock.stream.batches import decode_batch, encode_batch

Ints = npt.NDArray[np.int64]
MILLION = 1_000_000
DIGEST = "fc819978da41740a79859bd6f4779e83d7dee256fbdcc5f908812cd9bc96fe48"


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator()


@pytest.fixture(scope="module")
def million(generator: Generator) -> dict[str, pa.Table]:
    """The numbers of the first million events, by kind; strings would only take time."""
    made: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in model.KINDS}
    bounds = range(0, MILLION + 1, 100_000)
    for start, end in pairwise(bounds):
        ids = np.arange(start, end)
        made["person"].append(generator.persons(ids).select(["id", "state", "dateTime"]))
        made["auction"].append(
            generator.auctions(ids).select(["id", "seller", "category", "dateTime", "expires"])
        )
        made["bid"].append(generator.bids(ids).select(["auction", "bidder", "price", "dateTime"]))
    tables = {kind: pa.Table.from_batches(batches) for kind, batches in made.items()}
    return {kind: _in_ms(table) for kind, table in tables.items()}


def _in_ms(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            times = pc.divide(table.column(place).cast(pa.int64()), 1000)
            table = table.set_column(place, field.name, times)
    return table


def _numbers(table: pa.Table, name: str) -> Ints:
    numbers: Ints = table.column(name).to_numpy()
    return numbers


# -- published values


@pytest.mark.parametrize(
    ("kind", "ids", "names", "rows"),
    [
        (
            "persons",
            [0, 100_000],
            ["id", "dateTime", "state"],
            [(1000, 0, "ID"), (3000, 10_000, "OR")],
        ),
        (
            "auctions",
            [1, 2, 51],
            ["id", "seller", "category", "initialBid", "reserve", "dateTime", "expires"],
            [
                (1000, 1000, 14, 35_184_762, 59_262_109, 0, 224),
                (1001, 1005, 14, 1_199, 47_749_557, 0, 195),
                (1003, 1000, 12, 99_691, 274_097, 5, 148),
            ],
        ),
        (
            "bids",
            [4, 5, 99_999],
            ["auction", "bidder", "price", "dateTime"],
            [(1000, 1001, 15_060_870, 0), (1004, 1001, 39_578_742, 0), (6912, 2901, 8_941, 9_999)],
        ),
    ],
)
def test_events_are_those_of_the_notes(
    generator: Generator,
    kind: str,
    ids: list[int],
    names: list[str],
    rows: list[tuple[object, ...]],
) -> None:
    made = _in_ms(pa.table(getattr(generator, kind)(np.array(ids)))).select(names)

    assert list(zip(*made.to_pydict().values(), strict=True)) == rows


def test_a_million_events_add_up(million: dict[str, pa.Table]) -> None:
    person, auction, bid = (million[kind] for kind in model.KINDS)

    assert [table.num_rows for table in (person, auction, bid)] == [20_000, 60_000, 920_000]
    assert _numbers(bid, "price").sum() == 6_660_016_254_628
    assert _numbers(bid, "auction").sum() == 28_477_002_304
    assert _numbers(bid, "bidder").sum() == 9_975_176_481
    assert _numbers(auction, "seller").sum() == 650_435_259
    assert _numbers(auction, "expires").sum() == 3_009_844_547


def test_a_million_events_give_the_published_answers_of_q2_q3_and_q8(
    million: dict[str, pa.Table],
) -> None:
    person, auction, bid = (million[kind] for kind in model.KINDS)

    chosen = (_numbers(bid, "auction") % 123 == 0).sum()
    nearby = person.filter(pc.is_in(person["state"], pa.array(["OR", "ID", "CA"])))
    offered = auction.filter(pc.equal(auction["category"], 10))
    local = np.isin(_numbers(offered, "seller"), _numbers(nearby, "id")).sum()
    came = _numbers(person, "id") * 1000 + _numbers(person, "dateTime") // 10_000
    sold = _numbers(auction, "seller") * 1000 + _numbers(auction, "dateTime") // 10_000

    assert chosen == 6_805
    assert local == 6_150
    assert np.isin(came, sold).sum() == 8_527


def test_a_million_events_give_the_published_answers_of_q4(million: dict[str, pa.Table]) -> None:
    auction, bid = million["auction"], million["bid"]
    # Auctions are dense from 1000 on; a bid may name one that is yet to come.
    place = _numbers(bid, "auction") - model.FIRST_AUCTION_ID
    exists = place < auction.num_rows
    place, time, price = (
        values[exists] for values in (place, _numbers(bid, "dateTime"), _numbers(bid, "price"))
    )
    first, last = (_numbers(auction, name)[place] for name in ("dateTime", "expires"))
    in_time = (first <= time) & (time <= last)

    highest = np.zeros(auction.num_rows, np.int64)
    np.maximum.at(highest, place[in_time], price[in_time])
    sold = highest > 0
    category = _numbers(auction, "category")
    per_category = [highest[sold & (category == number)] for number in range(10, 15)]

    assert in_time.sum() == 658_211
    assert [len(prices) for prices in per_category] == [11_223, 11_306, 11_280, 10_912, 11_115]
    assert [int(prices.sum() // len(prices)) for prices in per_category] == [
        29_047_185,
        29_009_176,
        28_597_450,
        28_838_035,
        28_967_617,
    ]
    assert len(np.unique(_numbers(auction, "seller")[sold])) == 10_014


def test_a_million_events_give_the_published_answers_of_q5_and_q7(
    million: dict[str, pa.Table],
) -> None:
    bid = million["bid"]
    time, auction, price = (_numbers(bid, name) for name in ("dateTime", "auction", "price"))

    winners = []
    for start in range(-8_000, 100_000, 2_000):
        counts = np.bincount(auction[(start <= time) & (time < start + 10_000)])
        winners += [
            (start, int(a), int(counts.max())) for a in np.flatnonzero(counts == counts.max())
        ]
    highest = np.zeros(10, np.int64)
    np.maximum.at(highest, time // 10_000, price)
    at_highest = (price == highest[time // 10_000]).sum()

    assert len(winners) == 54
    assert [winner for winner in winners if winner[0] == 0] == [(0, 5500, 819)]
    assert at_highest == 10


# -- laws


def test_any_subset_in_any_order_gives_the_same_rows(generator: Generator) -> None:
    ids = np.arange(3_000)
    whole = pa.table(generator.events(ids))

    shuffled = np.random.default_rng(1).permutation(ids)
    parts = [Generator().events(part) for part in np.array_split(shuffled, 7)]
    again = pa.Table.from_batches(parts).take(pa.array(np.argsort(shuffled)))

    assert again.equals(whole)


def test_the_mixed_stream_has_the_rows_of_the_kinds(generator: Generator) -> None:
    ids = np.arange(1_000, 1_500)

    mixed = generator.events(ids)

    assert mixed.schema == model.EVENT
    for number, (kind, rows) in enumerate(
        zip(
            model.KINDS,
            (generator.persons(ids), generator.auctions(ids), generator.bids(ids)),
            strict=True,
        )
    ):
        own = mixed.filter(pc.equal(mixed.column("event_type"), number))
        assert own.column(kind).equals(rows.to_struct_array())
        assert mixed.column(kind).null_count == len(ids) - rows.num_rows


def test_no_ids_give_no_rows_of_the_right_schema(generator: Generator) -> None:
    none = np.zeros(0, np.int64)

    assert generator.persons(none).schema == model.PERSON
    assert generator.auctions(none).schema == model.AUCTION
    assert generator.bids(none).schema == model.BID
    assert generator.events(none).num_rows == 0


def test_another_seed_gives_other_events_of_the_same_ids() -> None:
    ids = np.arange(200)

    first, second = (Generator(Parameters(seed=seed)).auctions(ids) for seed in (1, 2))

    assert first.column("id").equals(second.column("id"))
    assert not first.column("initialBid").equals(second.column("initialBid"))
    assert not first.column("itemName").equals(second.column("itemName"))


def test_rate_and_base_move_event_times_only() -> None:
    ids = np.arange(500)

    slow = Generator(Parameters(events_per_s=100, base_ms=1_000_000)).bids(ids)
    fast = Generator().bids(ids)

    assert slow.drop_columns(["dateTime"]).equals(fast.drop_columns(["dateTime"]))
    assert _in_ms(pa.table(slow))["dateTime"].to_pylist()[:3] == [1_000_040, 1_000_050, 1_000_060]


# -- sizes and strings


def test_sizes_are_about_those_asked_for(generator: Generator) -> None:
    ids = np.arange(50_000)
    bids = generator.bids(ids).drop_columns(["channel", "url"])

    # NEXMark leaves one number of a person and of an auction out of its own count.
    assert _mean_bytes(generator.persons(ids)) == pytest.approx(200 + 8, abs=3)
    assert _mean_bytes(generator.auctions(ids)) == pytest.approx(500 + 8, abs=3)
    assert _mean_bytes(bids) == pytest.approx(100, abs=1)


def test_padding_of_a_bid_is_54_to_81_characters(generator: Generator) -> None:
    lengths = pc.binary_length(generator.bids(np.arange(20_000)).column("extra"))

    assert (pc.min(lengths).as_py(), pc.max(lengths).as_py()) == (54, 81)


def test_an_event_larger_than_asked_for_has_no_padding() -> None:
    rows = Generator(Parameters(bid_bytes=10)).bids(np.arange(100))

    assert pc.unique(rows.column("extra")).to_pylist() == [""]


def test_strings_are_shaped_as_the_site_has_them(generator: Generator) -> None:
    person = generator.persons(np.arange(20_000))
    auction = generator.auctions(np.arange(20_000))

    def all_match(column: pa.Array, pattern: str) -> bool:
        return bool(pc.all(pc.match_substring_regex(column, f"^(?:{pattern})$")).as_py())

    assert all_match(person.column("name"), "[A-Z][a-z]+ [A-Z][a-z]+")
    assert all_match(person.column("emailAddress"), "[a-z ]{0,6}@[a-z ]{0,4}[.]com")
    assert all_match(person.column("creditCard"), "[0-9]{4}( [0-9]{4}){3}")
    assert all_match(auction.column("itemName"), "|[a-z]|[a-z][a-z ]{0,17}[a-z]")
    assert all_match(auction.column("description"), "|[a-z]|[a-z][a-z ]{0,97}[a-z]")


def test_urls_of_cold_channels_name_their_number_reversed() -> None:
    pools = make_pools(42)
    names, urls = pools.channels.to_pylist(), pools.urls.to_pylist()
    numbers = {
        name: url.partition("&channel_id=")[2]
        for name, url in zip(names, urls, strict=True)
        if "&channel_id=" in url
    }

    assert names[:4] == ["Google", "Facebook", "Baidu", "Apple"]
    assert len(names) == 10_004
    assert not any(name in numbers for name in names[:4])
    assert 8_800 < len(numbers) < 9_200
    reversed_bits = {
        "channel-0": "0",
        "channel-1": "-2147483648",
        "channel-2": "1073741824",
        "channel-3": "1073741824",
        "channel-8953": "1622933504",
    }
    told = {name: numbers[name] for name in reversed_bits if name in numbers}
    assert len(told) >= 3
    assert told.items() <= reversed_bits.items()
    assert all(url.count("/") == 6 for url in urls)


# -- the mixed stream, and Rhino's


def test_rows_stay_what_they_have_always_been(generator: Generator) -> None:
    """Digest of what the first generator made, by taking rows of structs."""
    scattered = np.random.default_rng(5).integers(0, 10**9, 500)

    rows = generator.events(np.concatenate([np.arange(1_500), scattered])).to_pylist()

    told = json.dumps(rows, default=str).encode()
    assert hashlib.sha256(told).hexdigest() == DIGEST


def test_columns_under_a_missing_kind_are_null_too(generator: Generator) -> None:
    mixed = generator.events(np.arange(200))

    mixed.validate(full=True)
    for kind in model.KINDS:
        whole = mixed.column(kind)
        assert all(child.is_null().equals(whole.is_null()) for child in whole.flatten())
        assert all(
            whole.field(place).is_null().equals(whole.is_null())
            for place in range(whole.type.num_fields)
        )


@pytest.mark.parametrize("ids", [[0], [1, 2], [7, 8, 9], [0, 50, 100]])
def test_batches_of_one_kind_have_only_that_kind(generator: Generator, ids: list[int]) -> None:
    mixed = generator.events(np.array(ids))

    mixed.validate(full=True)
    again = decode_batch(encode_batch(mixed), model.EVENT)
    assert again.equals(mixed)
    assert [again.column(kind).null_count for kind in model.KINDS].count(0) == 1


def test_short_padding_is_cut_as_exactly_as_long_padding() -> None:
    pools = make_pools(42)
    text = pools.padding.tobytes().decode()
    lengths = np.arange(40)
    offsets = np.linspace(0, pools.padding_bytes - 40, 40).astype(np.int64)
    offsets[:12] = pools.padding_bytes - lengths[:12] - 1

    cut = pools.cut_padding(offsets, lengths)

    letters = cut.letters.to_pybytes().decode()
    pieces = [letters[start:end] for start, end in pairwise(cut.bounds.tolist())]
    wanted = zip(offsets.tolist(), lengths.tolist(), strict=True)
    assert pieces == [text[offset : offset + length] for offset, length in wanted]


def test_rhinos_stream_has_its_sizes_and_even_keys() -> None:
    generator = Generator(rhino_parameters())
    ids = np.arange(100_000, 150_000)

    person, auction, bid = generator.persons(ids), generator.auctions(ids), generator.bids(ids)

    assert [_mean_bytes(batch) for batch in (person, auction, bid)] == pytest.approx(
        [206 + 8, 269, 32], rel=0.03
    )
    _, bids_per_auction = np.unique(_numbers(pa.table(bid), "auction"), return_counts=True)
    assert bids_per_auction.max() < 40  # the hot one of the default stream has thousands
    assert not any(bid.column("url").to_pylist())


def test_a_larger_state_scale_makes_larger_records_and_more_keys() -> None:
    ids = np.arange(2_000_000, 2_002_000)

    one, ten = (Generator(rhino_parameters(state_scale=scale)) for scale in (1, 10))

    assert _mean_bytes(ten.auctions(ids)) == pytest.approx(
        10 * _mean_bytes(one.auctions(ids)), rel=0.05
    )
    keys = [len(np.unique(_numbers(pa.table(g.bids(ids)), "bidder"))) for g in (one, ten)]
    assert keys[1] > 1.5 * keys[0]


@pytest.mark.parametrize("scale", [0, 1_001])
def test_a_state_scale_out_of_range_is_refused(scale: int) -> None:
    with pytest.raises(BadConfig, match="1 to 1000"):
        rhino_parameters(state_scale=scale)


def _mean_bytes(batch: pa.RecordBatch) -> float:
    total = sum(
        pc.sum(pc.binary_length(column)).as_py()
        if pa.types.is_string(column.type)
        else 8 * len(column)
        for column in batch.columns
    )
    return float(total / batch.num_rows)
