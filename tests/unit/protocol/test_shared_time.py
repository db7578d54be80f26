"""The time of a shared source is a function of the log below a position, whoever reads how fast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import Lsn
from penstock.protocol.markers import Heard, Marker, decode_marker, encode_marker
from penstock.protocol.shared_time import AHEAD_MAX, hear, looked_by_all, settle, time_of


def marker(looked: int, ms: int | None, *, idle: bool = False) -> Marker:
    return Marker("q.1/0/0", 1, 0, Lsn(looked), 0, watermark_ms=ms, is_idle=idle)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=30),
    st.data(),
)
def test_time_is_that_of_the_rows_below_where_all_have_looked(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Rows are (task, time), one at each LSN. Tasks tell how far they are wherever they like."""
    words: list[Heard | None] = [None] * 3
    looked = [0] * 3
    while min(looked) < len(rows):
        task = data.draw(st.sampled_from([t for t in range(3) if looked[t] < len(rows)]))
        looked[task] = data.draw(st.integers(looked[task] + 1, len(rows)))
        own = [ms for who, ms in rows[: looked[task]] if who == task]
        words[task] = hear(words[task], Lsn(0), marker(looked[task], max(own, default=None)))
        words = settle(words)
        reached = looked_by_all(words)
        assert reached == min(looked)
        below = max((ms for _, ms in rows[:reached]), default=None)
        time = time_of(words)
        assert time is None or (below is not None and time <= below), "nothing from beyond"
        if len(set(looked)) == 1:
            assert time == below, "and all that is below"


def test_words_ahead_are_bounded_and_never_told_too_early() -> None:
    word: Heard | None = None
    for looked in range(1, 1_000):
        word = hear(word, Lsn(0), marker(looked, looked))
        assert len(word.ahead) <= AHEAD_MAX
    assert word is not None
    for reached in range(1, 1_000):
        other = Heard(Lsn(0), None, False, looked=Lsn(reached))
        time = time_of(settle([word, other]))
        assert time is None or time <= reached
    assert time_of(settle([word, Heard(Lsn(0), None, False, looked=Lsn(999))])) == 999


def test_words_ahead_are_in_the_readers_own_marker() -> None:
    word = Heard(Lsn(3), 5, True, looked=Lsn(9), ahead=((Lsn(7), 6), (Lsn(9), 8)))
    mine = Marker(
        "q.1/1/0", 1, 0, Lsn(4), 0, heard={"q.1/0/0": word, "q.1/0/1": Heard(Lsn(1), 2, False)}
    )
    encoded = encode_marker(mine)
    assert decode_marker(encoded) == mine
    assert b'"version":2' in encoded
    plain = Marker("q.1/1/0", 1, 0, Lsn(4), 0, heard={"q.1/0/1": Heard(Lsn(1), 2, False)})
    assert b'"version":1' in encode_marker(plain), "programs from before can read it"
