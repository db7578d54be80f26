"""Spark's Python processors for q4 and q6, whose plain forms Structured Streaming refuses.

`MaxPerAuction` and `HighestBid` follow the highest bid of one auction, made between its beginning
and its end; bids that come before their auction wait for it. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class _PerAuction(StatefulProcessor):
    """Keeps the auction, its highest bid, and bids that came before it."""

    def init(self, handle: Any) -> None:
        self._auction = handle.getValueState(
            "auction", "ts BIGINT, expires BIGINT, seller BIGINT, category BIGINT"
        )
        self._best = handle.getValueState("best", "price BIGINT, ts BIGINT")
        self._early = handle.getListState("early", "price BIGINT, ts BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        auction, best = self._auction.get(), self._best.get()
        before, bids = best, []
        for row in rows:
            if row.kind == 1:
                auction = (row.ts, row.expires, row.seller, row.category)
                self._auction.update(auction)
            else:
                bids.append((row.price, row.ts))
        if auction is None:
            for bid in bids:
                self._early.appendValue(bid)
            return
        if self._early.exists():
            bids += [tuple(bid) for bid in self._early.get()]
            self._early.clear()
        for price, ts in sorted(bids, key=lambda bid: bid[1]):
            if auction[0] <= ts <= auction[1] and (best is None or price > best[0]):
                best = (price, ts)
        if best is not None and best != before:
            self._best.update(best)
            yield self.changed(key[0], auction, before, best)

    def changed(self, id: int, auction: Any, before: Any, best: Any) -> Row:
        raise NotImplementedError

    def close(self) -> None:
        pass


class MaxPerAuction(_PerAuction):
    """What a new highest bid adds to the sum and the count of its category."""

    def changed(self, id: int, auction: Any, before: Any, best: Any) -> Row:
        return Row(
            category=auction[3],
            d_sum=best[0] - (0 if before is None else before[0]),
            d_count=1 if before is None else 0,
            at=best[1],
        )


class HighestBid(_PerAuction):
    """The auction with its highest bid so far."""

    def changed(self, id: int, auction: Any, before: Any, best: Any) -> Row:
        return Row(seller=auction[2], id=id, closed=auction[1], price=best[0], at=best[1])


class LastTen(StatefulProcessor):
    """Of one seller: the averages that a changed auction changes, its own and up to nine more."""

    def init(self, handle: Any) -> None:
        self._sold = handle.getListState(
            "sold", "closed BIGINT, id BIGINT, price BIGINT, at BIGINT"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        changed = {row.id: (row.closed, row.id, row.price, row.at) for row in rows}
        kept = [tuple(one) for one in self._sold.get() if one[1] not in changed]
        sold = sorted([*kept, *changed.values()])
        self._sold.put(sold)
        touched = {
            place + later
            for place, one in enumerate(sold)
            if one[1] in changed
            for later in range(min(10, len(sold) - place))
        }
        for place in sorted(touched):
            ten = sold[max(0, place - 9) : place + 1]
            yield Row(
                seller=key[0],
                avg_price=sum(one[2] for one in ten) // len(ten),
                closed=sold[place][0],
                at=max(one[3] for one in ten),
            )

    def close(self) -> None:
        pass
