"""Other targets for a delivery: who goes on, who is new, who ends, and the entry that says so.

Owns all that is refused before that entry is written; what follows from it is done by whoever
delivers (player_core.py). Law: one append changes the route; where it stands is the cut. Of two who
change it at the same time the second finds what the first did. Law: rows that move can be read from
the log when the cut is written, and are spared by trims until every target is past it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import masked_uri
from penstock.delivery.registration import live_targets, other_names
from penstock.delivery.routing import SHARDS_MAX, WEIGHT
from penstock.errors import BadRequest, Forbidden, GuardFailed, NotFound, Refused, Trimmed
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.client import AsyncLog
from penstock.log.records import Guard, SetKey
from penstock.protocol.deliveries import (
    PastRoute,
    RegisteredDelivery,
    decode_delivery,
    encode_delivery,
)
from penstock.protocol.images import Image, decode_image, image_key
from penstock.protocol.names import deliver_key
from penstock.protocol.shards import CUTS_MAX, next_route
from penstock.protocol.trims import TRIM_KEY, told_trim
from penstock.stream.registration import decode_registration, stream_key

#: A shard that goes on, or the address of a new one.
Wanted = int | str


@dataclass(frozen=True, slots=True)
class Resharding:
    """What became of a delivery's targets."""

    before: RegisteredDelivery
    delivery: RegisteredDelivery

    @property
    def cut(self) -> Lsn:
        """From where on its rows are spread over the targets that it has now."""
        found = self.delivery.past[-1].cut
        assert found is not None
        return Lsn(found)

    @property
    def added(self) -> list[int]:
        return [one for one in self.delivery.layout.live if one not in self.before.layout.live]

    @property
    def removed(self) -> list[int]:
        return [one for one in self.before.layout.live if one not in self.delivery.layout.live]


def plan_reshard(
    before: RegisteredDelivery, wanted: Sequence[Wanted], *, image: str | None
) -> RegisteredDelivery:
    """The delivery with these targets; what goes on keeps its shard. Its cut is not known yet.

    Raises BadRequest and Refused.
    """
    live = [masked_uri(uri) for uri in live_targets(before)]
    shards: list[int] = []
    targets = list(before.targets)
    for one in wanted:
        if isinstance(one, int):
            if one not in before.layout.live:
                raise BadRequest(
                    f"shard {one} of delivery {before.name} has given its rows away, or never was: "
                    "a number is never given again, so give its target anew"
                )
            shards.append(one)
        elif masked_uri(one) in live:
            shards.append(before.layout.live[live.index(masked_uri(one))])
        else:
            shards.append(len(targets))
            targets.append(one)
    if len({masked_uri(targets[shard]) for shard in shards}) < len(wanted):
        raise BadRequest(
            "a target is given twice, or two differ only in what is hidden of an address: each is "
            "one shard, and is found again by its address"
        )
    if sorted(shards) == list(before.layout.live):
        raise BadRequest(f"delivery {before.name} has these targets already: {', '.join(live)}")
    if len(targets) > SHARDS_MAX or len(before.past) >= CUTS_MAX:
        raise Refused(
            f"delivery {before.name} would have had {len(targets)} targets in its life, after "
            f"{len(before.past) + 1} changes: {SHARDS_MAX} and {CUTS_MAX} are the most; deliver "
            "anew, under another name into empty tables"
        )
    route = list(next_route(before.route, shards))
    past = [*before.past, PastRoute(before.route, None, image)]
    return dataclasses.replace(
        before, targets=targets, route=route, epoch=before.epoch + 1, past=past
    )


def reshard(
    client: BlockingLog, name: str, wanted: Sequence[Wanted], *, epoch: int | None = None
) -> Resharding:
    """Give a delivery these targets. A player that runs it sees it at once, the next one later.

    `epoch`: of the route that numbers of shards are meant of.

    Raises NotFound; BadRequest for the same targets; Refused for a delivery whose rows cannot be
    told apart again; Trimmed if rows that move cannot be read any more.
    """
    done = client.run(lambda log: _reshard(log, name, wanted, epoch))
    if done is None:
        raise NotFound(f"no delivery {name}: {other_names(client, name)}")
    return done


async def _reshard(
    log: AsyncLog, name: str, wanted: Sequence[Wanted], epoch: int | None
) -> Resharding | None:
    """None: there is no such delivery."""
    while (value := await log.get(deliver_key(name))) is not None:
        before = decode_delivery(name, value.data, value.lsn)
        if epoch is not None and epoch != before.epoch:
            raise Refused(f"delivery {name} was given other targets meanwhile: look, and try again")
        try:
            base = await try_reshard(log, before, value.data, wanted)
        except GuardFailed:
            continue  # another was faster, or the query made another image, or somebody trims
        trim_point = (await log.bounds()).trim_point
        if base is not None and trim_point > base:
            # By hand, by age, or of a full log: such a trim tells nobody.
            raise Trimmed(
                f"delivery {name} has these targets now, but the log was trimmed at LSN "
                f"{trim_point} meanwhile, and rows that are to move are below: if a target stops "
                "for that, deliver anew, under another name into empty tables"
            )
        value = await log.get(deliver_key(name))
        if value is None:
            raise NotFound(f"delivery {name} was removed meanwhile")
        return Resharding(before, decode_delivery(name, value.data, value.lsn))
    return None


async def try_reshard(
    log: AsyncLog, before: RegisteredDelivery, registered: bytes, wanted: Sequence[Wanted]
) -> Lsn | None:
    """One append; `registered` is what `before` was read from. From where on the log is needed for
    rows that move; None: none do.

    Raises GuardFailed if something that it was planned from is not so any more.
    """
    key = deliver_key(before.name)
    guards = [Guard(key, registered)]
    image, base = None, None
    if await _moves_rows(log, before):
        told = await _data(log, TRIM_KEY)
        image, base = await _find_base(log, before, told)
        # No trim takes what is read at the cut: who tells of one after this append sees the cut
        # before it trims, and if one is told before it, the guard fails.
        guards.append(Guard(TRIM_KEY, told))
    if image is not None:
        assert before.query is not None
        # A later image may be beyond the cut, and then this one is trimmed.
        guards.append(Guard(image_key(before.query), image))
    planned = plan_reshard(before, wanted, image=None if image is None else image.decode())
    await log.append([], guards=guards, sets=[SetKey(key, encode_delivery(planned))])
    return base


async def _moves_rows(log: AsyncLog, delivery: RegisteredDelivery) -> bool:
    """Whether rows of before go to other targets. Raises Refused."""
    value = await _data(log, stream_key(delivery.stream))
    if value is None:
        raise NotFound(f"no stream {delivery.stream}")
    schema = decode_registration(delivery.stream, value).schema
    if schema.names[-1] == WEIGHT:
        return True
    if delivery.key:
        raise Refused(
            f"delivery {delivery.name} keeps the newest row by {', '.join(delivery.key)} of a "
            "stream that takes no rows back: its targets cannot give rows away. Deliver anew, "
            "under another name into empty tables"
        )
    return False  # they stay where they are


async def _find_base(
    log: AsyncLog, delivery: RegisteredDelivery, told: bytes | None
) -> tuple[bytes | None, Lsn]:
    """The image from which rows that move are read, if there is one; and from where on the log is
    needed for that. Raises Trimmed."""
    bounds = await log.bounds()
    trim_point = max(bounds.trim_point, told_trim(told, bounds.tail))
    found, image = await _find_image(log, delivery)
    if image is not None and image.position >= trim_point:
        return found, Lsn(image.position)
    if delivery.start < trim_point:
        raise Trimmed(
            f"rows of delivery {delivery.name} below LSN {trim_point} were trimmed from the log, "
            "and those that are to move could not be read: deliver anew, under another name into "
            "empty tables"
        )
    return None, Lsn(delivery.start)


async def _find_image(
    log: AsyncLog, delivery: RegisteredDelivery
) -> tuple[bytes | None, Image | None]:
    if delivery.query is None:
        return None, None
    try:
        data = await _data(log, image_key(delivery.query))
    except Forbidden:
        data = None  # the token is for the delivery and the stream: the history has it all
    if data is None:
        return None, None
    image = decode_image(delivery.query, data)
    return (data, image) if image.version == delivery.version else (None, None)


async def _data(log: AsyncLog, key: str) -> bytes | None:
    value = await log.get(key)
    return None if value is None else value.data
