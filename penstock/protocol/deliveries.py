"""What the log knows of a delivery: what it is, how far it is, and what of the log it needs. Pure.

Owns the JSON under `deliver/<name>` and `delivered/<name>` (docs/formats.md, "Deliveries"). The
second is written by the delivery's player at most once a second, for trimming, lag and display. It
is never needed to deliver exactly once: every target keeps its own position beside its rows.

The first also says which shard had which virtual node before the last change of targets
(shards.py). A cut is where the value stands that was first written with it: the log alone knows
that place, so the value has none, and every later value has it in words.

Law: decode(encode(x)) equals x; anything else raises BadFormat. Law (I15): no target that kept its
rows needs an entry below `needed_from`, but for what markers above it name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.protocol.images import Image, decode_image
from penstock.protocol.shards import Shards, shards_of

FORMAT: Final = 1
#: With other shards than it began with: who does not know of cuts would route all rows alike.
FORMAT_WITH_CUTS: Final = 2
DELIVERED_FORMAT: Final = 1
#: Between two acks that say the same: a player's sign of life.
ALIVE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PastRoute:
    """Which shard had which virtual node, until the targets were changed."""

    route: list[int]
    #: Where the next route begins; None: where this value stands.
    cut: int | None
    #: The image of the query's result, as it was then: rows that move are read from there on. None:
    #: from the beginning of the delivery.
    image: str | None = None


@dataclass(frozen=True, slots=True)
class RegisteredDelivery:
    """What a delivery was begun with, and keeps."""

    name: str
    #: Made with it: no other delivery has it, not even a later one of this name.
    id: str
    stream: str
    #: The query whose rows they are, and its version; None: all rows of the stream.
    query: str | None
    version: int | None
    #: Columns by which rows replace each other and are spread over shards; none: all columns.
    key: list[str]
    #: The shard of each virtual node, and the number of this assignment.
    route: list[int]
    epoch: int
    #: The position of a target that has none.
    start: int
    table: str
    #: One for each shard, without secrets. Also of shards that are over.
    targets: list[str]
    strict: bool
    #: The stream for rows that targets refuse; None: such a row stops its target.
    dead_letter: str | None
    created_ms: int
    #: Routes of before, the oldest first.
    past: list[PastRoute] = field(default_factory=list)

    @property
    def shards(self) -> int:
        return len(self.targets)

    @property
    def layout(self) -> Shards:
        """Who has what, from where on."""
        cuts = [one.cut for one in self.past if one.cut is not None]
        return shards_of(self.shards, cuts, [*(one.route for one in self.past), self.route])

    def image_at(self, cut: int) -> Image | None:
        """From which rows that move at a cut are read; None: from the delivery's start."""
        text = next(one.image for one in self.past if one.cut == cut)
        return None if text is None else decode_image(self.query or "", text.encode())


@dataclass(frozen=True, slots=True)
class Delivered:
    """How a delivery stood when its player last said so."""

    #: Instance of the player.
    term: int
    #: By shard; None: it was never told.
    positions: list[int | None]
    #: By shard: what is wrong there, in words; None: nothing.
    problems: list[str | None]
    #: Rows that were applied since the player began, by shard.
    rows: list[int]
    #: False: it was the player's last word.
    is_running: bool
    #: What ended it, if that was an error.
    error: str | None
    time_ms: int


def needed_from(registered: RegisteredDelivery, delivered: Delivered | None) -> Lsn:
    """What stands below was applied by all targets; what rows that are to move need is not."""
    if delivered is None or len(delivered.positions) < registered.shards:
        return Lsn(min(registered.start, *_bases(registered, registered.start)))
    layout, start = registered.layout, Lsn(registered.start)
    told = []
    for shard, at in enumerate(delivered.positions):
        position = layout.birth(shard, start) if at is None else at
        if not layout.is_over(shard, position):
            told.append(position)
    least = min(told)
    return Lsn(min(least, *_bases(registered, least)))


def _bases(registered: RegisteredDelivery, position: int) -> list[int]:
    """From where on rows are read that move at cuts that a target at the position still has to
    pass; not empty."""
    found = [position]
    for cut in registered.layout.cuts:
        if cut >= position:
            image = registered.image_at(cut)
            found.append(registered.start if image is None else image.position)
    return found


def is_resharded(before: RegisteredDelivery, now: RegisteredDelivery) -> bool:
    """Whether it is the same delivery, with the same or with later targets."""
    known = replace(now, route=before.route, epoch=before.epoch, past=before.past)
    targets = now.targets[: before.shards]
    return now.epoch >= before.epoch and replace(known, targets=targets) == before


def encode_delivery(delivery: RegisteredDelivery) -> bytes:
    values = asdict(delivery)
    if not delivery.past:
        del values["past"]
    format = FORMAT_WITH_CUTS if delivery.past else FORMAT
    return json.dumps({"format": format, **values}).encode()


def decode_delivery(name: str, data: bytes, lsn: int) -> RegisteredDelivery:
    """`lsn`: where the value stands."""
    try:
        what = f"delivery {name} was registered"
        values = _values(data, (FORMAT, FORMAT_WITH_CUTS), what)
        past = [_past_route(one, lsn) for one in values.pop("past", [])]
        found = RegisteredDelivery(**_known(values, RegisteredDelivery), past=past)
        texts = [found.name, found.id, found.stream, found.table, *found.key, *found.targets]
        texts += [text for text in (found.query, found.dead_letter) if text is not None]
        counts = [found.epoch, found.start, found.created_ms, *found.route]
        counts += [] if found.version is None else [found.version]
        _check(texts, counts, [found.strict])
        if found.name != name or (found.query is None) != (found.version is None):
            raise ValueError("another name, or a query without a version")
        if not found.targets or not all(shard < found.shards for shard in found.route):
            raise ValueError("a route to no target")
        _check_images(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"delivery {name} is registered with bytes that cannot be read") from error
    return found


def _check_images(delivery: RegisteredDelivery) -> None:
    try:
        for cut in delivery.layout.cuts:
            delivery.image_at(cut)
    except BadFormat as error:
        raise ValueError("an image of other bytes") from error


def _past_route(values: dict[str, Any], lsn: int) -> PastRoute:
    found = PastRoute(values["route"], values["cut"], values["image"])
    cut = lsn if found.cut is None else found.cut
    _check([] if found.image is None else [found.image], [cut, *found.route], [])
    return PastRoute(found.route, cut, found.image)


def encode_delivered(delivered: Delivered) -> bytes:
    return json.dumps({"format": DELIVERED_FORMAT, **asdict(delivered)}).encode()


def decode_delivered(name: str, data: bytes) -> Delivered:
    try:
        values = _values(data, (DELIVERED_FORMAT,), f"acks of delivery {name} were written")
        found = Delivered(**_known(values, Delivered))
        texts = [text for text in (*found.problems, found.error) if text is not None]
        counts = [at for at in found.positions if at is not None]
        _check(texts, [*counts, *found.rows, found.term, found.time_ms], [found.is_running])
        if not len(found.positions) == len(found.problems) == len(found.rows):
            raise ValueError("not as many of one as of the other")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"acks of delivery {name} cannot be read") from error
    return found


def _values(data: bytes, formats: tuple[int, ...], what: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(data)
    if values.pop("format") not in formats:
        raise BadFormat(f"{what} by a newer program: use that one")
    return values


def _known(values: dict[str, Any], kind: type[RegisteredDelivery | Delivered]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {key: value for key, value in values.items() if key in names}


def _check(texts: list[str], counts: list[int], flags: list[bool]) -> None:
    if not all(type(text) is str for text in texts) or not all(type(one) is bool for one in flags):
        raise TypeError("a field has another type")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise TypeError("a count that is none")
