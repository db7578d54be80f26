"""Rows that move from one shard to another at a cut: what counts below it, added up.

Owns the sum, which is in memory while shards need it. It comes from the log alone: of a query whose
result has an image (protocol/images.py) from that, otherwise from where the delivery began. So it
is the same whoever makes it, and in the same order. Law: what one shard gives others take, row by
row, with the same weight. A stream that takes no rows back has none to move: its rows of before
stay where they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.delivery.fold import Counts, fold
from penstock.delivery.messages import Piece, Places, join_rows
from penstock.delivery.routing import Router, Span
from penstock.delivery.source import Source
from penstock.errors import Forbidden
from penstock.ids import Lsn
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.protocol.images import Image, image_tag, payloads_of
from penstock.stream.batches import decode_batch

logger = logging.getLogger(__name__)

#: Rows that are added up at once, at least.
SUM_ROWS: Final = 50_000


class Sum:
    """Of rows with weights. Pure; in the order in which rows that are left were last added."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        #: Rows here, and how many of them were added up.
        self._count = 0
        self._summed = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._count += rows.num_rows
        if self._count > 2 * self._summed + SUM_ROWS:
            self.rows()

    def rows(self) -> pa.RecordBatch | None:
        """Different rows, each with its weight; None: there never were any."""
        if not self._batches:
            return None
        net = fold(join_rows(self._batches), key=(), changing=True, strict=False)
        assert isinstance(net, Counts)
        weights = pa.array(net.deltas, pa.int64())
        columns = [*net.rows.columns, weights]
        self._batches = [pa.RecordBatch.from_arrays(columns, schema=self._batches[0].schema)]
        self._count = self._summed = net.rows.num_rows
        return self._batches[0]


class Moves:
    """Of one player. Several shards may ask at once.

    Its token need not show images: then the whole history is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._making = asyncio.Lock()
        #: The cut whose rows are here.
        self.cut: Lsn | None = None
        self._rows: pa.RecordBatch | None = None
        self._bytes = 0

    async def at(self, delivery: RegisteredDelivery, shard: int, cut: Lsn) -> Span:
        """What counts at the cut for a shard. Raises Trimmed if it is gone."""
        async with self._making:
            if self.cut != cut:
                self.forget()
                self._rows = await self._add_up(delivery, cut)
                self.cut = cut
            rows = self._rows
        piece = None if rows is None else _piece(delivery, shard, cut, rows)
        return Span(cut, Lsn(cut + 1), {} if piece is None else {shard: piece}, commits=1)

    def forget(self) -> None:
        """Nobody needs them now; who does has them added up again."""
        self.cut = self._rows = None

    async def _add_up(self, delivery: RegisteredDelivery, cut: Lsn) -> pa.RecordBatch | None:
        source = self._source
        if not source.is_changing:
            return None
        router = Router(source.schema, delivery.key, delivery.layout.route_at(cut))
        moving = [node for node, _, _ in delivery.layout.moves(cut)]
        found = Sum()
        image = delivery.image_at(cut)
        start = Lsn(delivery.start)
        if image is not None:
            try:
                for rows in await self._read_image(delivery, image):
                    _add(found, router, moving, rows)
                start = Lsn(image.position)
            except Forbidden as error:
                logger.info("delivery=%s reads no image: %s", delivery.name, error)
        reading = source.read(start, cut)
        try:
            while reading.position < cut:
                commits = await reading.next()
                assert commits is not None, "a read has ended before its end"
                for batch in (batch for commit in commits for batch in commit.batches):
                    _add(found, router, moving, batch)
        finally:
            await reading.close()
        return found.rows()

    async def _read_image(self, delivery: RegisteredDelivery, image: Image) -> list[pa.RecordBatch]:
        if not image.entries:
            return []
        assert delivery.query is not None
        tag = image_tag(delivery.query, image.version)
        source, bounds = self._source, (Lsn(image.first_lsn), Lsn(image.end_lsn))
        entries = await source.read_entries(tag, *bounds)
        return [decode_batch(one, source.schema) for one in payloads_of(image, entries)]


def _add(found: Sum, router: Router, moving: Sequence[int], rows: pa.RecordBatch) -> None:
    if rows.num_rows:
        stays = np.isin(router.nodes(rows), moving)
        if stays.any():
            found.add(rows.filter(pa.array(stays)))


def _piece(
    delivery: RegisteredDelivery, shard: int, cut: Lsn, rows: pa.RecordBatch
) -> Piece | None:
    """Of all rows that move: those that the shard gives, taken back, or those that it takes."""
    layout = delivery.layout
    gives = [node for node, was, _ in layout.moves(cut) if was == shard]
    takes = [node for node, _, now in layout.moves(cut) if now == shard]
    router = Router(rows.schema, delivery.key, layout.route_at(cut))
    own = rows.filter(pa.array(np.isin(router.nodes(rows), gives or takes)))
    if not own.num_rows:
        return None
    if gives:
        own = _taken_back(own)
    return Piece(cut, Lsn(cut + 1), (own,), own.nbytes, Places((cut,), (0,)))


def _taken_back(rows: pa.RecordBatch) -> pa.RecordBatch:
    weights = rows.column(rows.num_columns - 1).to_numpy(zero_copy_only=False)
    columns = [*rows.columns[:-1], pa.array(-weights, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
