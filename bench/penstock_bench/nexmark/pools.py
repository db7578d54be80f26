"""The strings of the events, made once from the seed; an event picks one by its draw.

Picking keeps the distribution of sizes and needs no per-row Python. Padding is cut from one long
text. Letters are a-z, so that rows survive JSON and CSV unescaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import as_strided

from penstock_bench.nexmark import draws, model
from penstock_bench.nexmark.draws import Ints
from penstock_bench.nexmark.layout import Texts, as_texts

#: Enough that hardly two events of a batch share one, few enough to stay in the cache.
_POOL_SIZE = 4096
_PADDING_BYTES = 1 << 20
_CARD_GROUPS = 10_000
_SHORTEST = 3
#: A character is the special one once in so many.
_SPECIAL_ONE_IN = 13
_A = ord("a")
#: Arrow's string views hold strings up to this length themselves.
_INLINE_BYTES = 12
#: Each text takes two slots: its length, its letters.
_ITEM_NAME, _DESCRIPTION, _MAILBOX, _MAIL_HOST, _PADDING = range(draws.POOLS, draws.POOLS + 10, 2)
_URL_PARTS = range(draws.POOLS + 10, draws.POOLS + 16, 2)
_HAS_CHANNEL_ID = draws.POOLS + 16


@dataclass(frozen=True, slots=True)
class Pools:
    """All strings that events are made of."""

    states: pa.Array
    cities: pa.Array
    #: First and last, by first * len(model.LAST_NAMES) + last.
    names: pa.Array
    emails: pa.Array
    #: Four digits and a blank, a row each.
    card_groups: npt.NDArray[np.uint8]
    item_names: pa.Array
    descriptions: pa.Array
    #: By channel number: the hot ones, then the cold ones.
    channels: pa.Array
    urls: pa.Array
    #: The text, and room behind it, so that every place in it has a short string's letters.
    padding: npt.NDArray[np.uint8]
    #: The letters of a short string from each place of the text on, without a copy.
    starts: npt.NDArray[np.uint8]

    def cut_padding(self, offsets: Ints, lengths: Ints) -> Texts:
        """A piece of the padding text per row."""
        rows = len(offsets)
        # As views into the padding, which Arrow turns into strings: a copy per row in C++. An index
        # per letter takes seven times as long.
        views = np.empty((rows, 4), np.int32)
        views[:, 0] = lengths
        views[:, 1:] = self.starts[offsets].view(np.int32)
        is_long = lengths > _INLINE_BYTES
        # Long ones keep their first four letters, then say which buffer and where.
        np.copyto(views[:, 2], 0, where=is_long)
        np.copyto(views[:, 3], offsets, where=is_long, casting="same_kind")
        buffers = [None, pa.py_buffer(views), pa.py_buffer(self.padding)]
        return as_texts(pa.Array.from_buffers(pa.string_view(), rows, buffers).cast(pa.string()))

    @property
    def padding_bytes(self) -> int:
        """How much of the padding is text."""
        return len(self.padding) - _INLINE_BYTES


@lru_cache(maxsize=4)
def make_pools(seed: int) -> Pools:
    """The pools of this seed."""
    every = np.arange(_POOL_SIZE)
    mailboxes = _texts(every, 7, " ", _MAILBOX, seed)
    hosts = _texts(every, 5, " ", _MAIL_HOST, seed)
    channels, urls = _channels(seed)
    letters = draws.below(26, np.arange(_PADDING_BYTES), _PADDING, seed)
    padding = np.append(letters + _A, np.zeros(_INLINE_BYTES)).astype(np.uint8)
    return Pools(
        states=pa.array(model.STATES),
        cities=pa.array(model.CITIES),
        names=pa.array(
            [f"{first} {last}" for first in model.FIRST_NAMES for last in model.LAST_NAMES]
        ),
        emails=_join(mailboxes, "@", hosts, ".com"),
        card_groups=_card_groups(),
        item_names=_texts(every, 20, " ", _ITEM_NAME, seed),
        descriptions=_texts(every, 100, " ", _DESCRIPTION, seed),
        channels=channels,
        urls=urls,
        padding=padding,
        starts=as_strided(padding, (_PADDING_BYTES, _INLINE_BYTES), (1, 1)),
    )


def _card_groups() -> npt.NDArray[np.uint8]:
    numbers = np.arange(_CARD_GROUPS)
    digits = [numbers // power % 10 + ord("0") for power in (1000, 100, 10, 1)]
    return np.stack([*digits, np.full(_CARD_GROUPS, ord(" "))], axis=1).astype(np.uint8)


def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Names and addresses; nine of ten cold addresses say their channel's number."""
    cold = np.arange(model.COLD_CHANNELS)
    names = _join("channel-", pa.array(cold).cast(pa.string()))
    every = np.arange(len(model.HOT_CHANNELS) + model.COLD_CHANNELS)
    first, second, third = (_texts(every, 5, "_", slot, seed) for slot in _URL_PARTS)
    urls = _join(model.URL_HOST, first, "/", second, "/", third, "/item.htm?query=1")
    suffixes = _join("&channel_id=", pa.array(_channel_ids(cold)).cast(pa.string()))
    has_id = draws.below(10, cold, _HAS_CHANNEL_ID, seed) > 0
    suffixes = pc.if_else(pa.array(has_id), suffixes, "")
    suffixes = pa.concat_arrays([pa.array([""] * len(model.HOT_CHANNELS)), suffixes])
    return pa.concat_arrays([pa.array(model.HOT_CHANNELS), names]), _join(urls, suffixes)


def _channel_ids(channels: Ints) -> Ints:
    """Java's Math.abs(Integer.reverse(channel)), which overflows for channel 1."""
    bits = np.zeros(len(channels), np.uint32)
    for bit in range(32):
        bits |= (channels >> bit & 1).astype(np.uint32) << np.uint32(31 - bit)
    return np.abs(bits.view(np.int32)).astype(np.int64)


def _texts(numbers: Ints, length_end: int, special: str, slot: int, seed: int) -> pa.Array:
    """Texts of 3 to length_end - 1 characters, then trimmed."""
    lengths = _SHORTEST + draws.below(length_end - _SHORTEST, numbers, slot, seed)
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    drawn = draws.below(
        _SPECIAL_ONE_IN * 26, np.repeat(numbers, lengths) * length_end + places, slot + 1, seed
    )
    letters = np.where(drawn < 26, ord(special), _A + drawn % 26).astype(np.uint8)
    bounds = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    return pc.utf8_trim(_strings(bounds, letters), " ")


def _strings(bounds: npt.NDArray[np.int32], letters: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.StringArray.from_buffers(
        len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(letters))
    )


def _join(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
