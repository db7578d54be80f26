"""The progress marker: one entry that commits input position, state changes and outputs of a task.

Owns its content and bytes (docs/formats.md, "Markers"). It is the last entry of its group; the
`inline` entries before it in the group became durable with it or not at all. What went ahead
of it, because it would not fit into one group, is named by `ranges`: whole groups of the task,
acknowledged before the marker was made. Impeller 3.3; ranges are explicit, so neither another
producer's entry nor an older instance's can lie inside one (pins R23, R24).

Law: decode_marker(encode_marker(m)) equals m; any other bytes raise BadFormat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import GROUP_ENTRIES_MAX

VERSION: Final = 1
#: Of markers that hold words about a source that several tasks share (shared_time.py): programs
#: from before would take a time for theirs that is not theirs yet.
VERSION_SHARED: Final = 2
#: Of markers of a task that has predecessors: programs from before would begin without their state.
VERSION_ORIGINS: Final = 3
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Heard:
    """The last marker of an upstream task that was taken in."""

    lsn: Lsn
    watermark_ms: int | None
    is_idle: bool
    #: Of tasks that share a source: how far it has looked, and what it told ahead of the others, as
    #: pairs of how far it had looked and the time.
    looked: Lsn = Lsn(0)
    ahead: tuple[tuple[Lsn, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """A group that was appended ahead of the marker: LSNs [first_lsn, first_lsn + count)."""

    first_lsn: Lsn
    count: int

    @property
    def end(self) -> Lsn:
        return Lsn(self.first_lsn + self.count)


@dataclass(frozen=True, slots=True)
class Origin:
    """A predecessor of a task, whose state is needed until the task has checkpoints of its own."""

    task: str
    #: Its last marker.
    lsn: Lsn
    #: The stages that ran in it, the last is its own; and its virtual nodes.
    stages: tuple[int, ...]
    nodes: frozenset[int]
    #: Entries below it are not needed to build its state; None: it has none.
    needs_from: Lsn | None


@dataclass(frozen=True, slots=True)
class Marker:
    """What a task has done, all of it, up to here."""

    task: str
    instance: int
    #: 0, 1, 2, … over all instances of the task.
    number: int
    #: All input below it is in, over all of the task's tags.
    position: Lsn
    #: Entries of its group, directly before it.
    inline: int
    ranges: tuple[Range, ...] = ()
    #: No row at or below it comes out of this task any more; None: it does not tell the time.
    watermark_ms: int | None = None
    #: Whether all its inputs have stepped aside: it holds back nobody's time.
    is_idle: bool = False
    #: By upstream task; part of the task's state, for its next instance.
    heard: dict[str, Heard] = field(default_factory=dict)
    #: Newest first, as state/checkpoint_store.py wrote them; both are durable.
    checkpoints: tuple[dict[str, Any], ...] = ()
    #: Whether the task ever wrote a change: its state needs a checkpoint, or all of its changes.
    has_state: bool = False
    #: Rows taken in and given out, over all instances.
    rows_in: int = 0
    rows_out: int = 0
    #: Below the position, where rows stand that wait for others before them (runtime/row_merge.py):
    #: the next instance reads those again, and nothing else. None: no row waits.
    reread_from: Lsn | None = None
    #: By stage that runs within the task and whose source other tasks share: the time of this
    #: task's own rows there, and whether it has stepped aside (shared_time.py).
    sources: dict[int, tuple[int | None, bool]] = field(default_factory=dict)
    #: When the oldest source entry of what it commits was appended; None: it commits none.
    origin_ms: int | None = None
    #: The run and the layout whose cut it stands at: the task goes no further in them.
    cut: tuple[int, int] | None = None
    #: Where its state came from when the query was rescaled (runtime/succession.py).
    origins: tuple[Origin, ...] = ()

    @property
    def begins_a_task(self) -> bool:
        """Whether it is the one that predecessors left, which no instance wrote."""
        return self.number == 0 and bool(self.origins)

    @property
    def needs_from(self) -> Lsn:
        """Entries below it are never read again by this task, whatever upstream tasks do.

        A marker of an upstream task may name groups as old as the marker before it.
        """
        first = self.position if self.reread_from is None else self.reread_from
        return Lsn(min([first, *(heard.lsn for heard in self.heard.values())]))


def join_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The same entries in fewer ranges: neighbours become one, up to the size of a group."""
    joined: list[Range] = []
    for named in ranges:
        last = joined[-1] if joined else None
        if last is not None and last.end == named.first_lsn:
            if last.count + named.count <= GROUP_ENTRIES_MAX:
                joined[-1] = Range(last.first_lsn, last.count + named.count)
                continue
        joined.append(named)
    return tuple(joined)


def encode_marker(marker: Marker, *, inline: int | None = None) -> bytes:
    """The bytes of a marker; of one beside so many entries, if that is told only now."""
    heard = {task: _encode_heard(word) for task, word in marker.heard.items()}
    is_shared = bool(marker.sources) or any(word.looked for word in marker.heard.values())
    version = VERSION_SHARED if is_shared else VERSION
    version = VERSION_ORIGINS if marker.origins else version
    more: dict[str, Any] = {}
    if marker.reread_from is not None:
        more["reread_from"] = marker.reread_from
    if marker.cut is not None:
        more["cut"] = marker.cut
    if marker.origins:
        more["origins"] = [
            [one.task, one.lsn, one.stages, sum(1 << node for node in one.nodes), one.needs_from]
            for one in marker.origins
        ]
    if marker.sources:
        more["sources"] = {str(stage): told for stage, told in marker.sources.items()}
    return _ENCODER.encode(
        {
            "version": version,
            "task": marker.task,
            "instance": marker.instance,
            "number": marker.number,
            "position": marker.position,
            "inline": marker.inline if inline is None else inline,
            "ranges": [[named.first_lsn, named.count] for named in marker.ranges],
            "watermark_ms": marker.watermark_ms,
            "is_idle": marker.is_idle,
            "heard": heard,
            "checkpoints": marker.checkpoints,
            "has_state": marker.has_state,
            "rows_in": marker.rows_in,
            "rows_out": marker.rows_out,
            "origin_ms": marker.origin_ms,
            **more,
        }
    ).encode()


def _encode_heard(word: Heard) -> list[Any]:
    head = [word.lsn, word.watermark_ms, word.is_idle]
    return [*head, word.looked, word.ahead] if word.looked else head


def _decode_heard(fields: Any) -> Heard:
    lsn, ms, idle, *shared = fields
    word = Heard(Lsn(_count(lsn)), _optional(ms), _typed(idle, bool))
    if not shared:
        return word
    looked, ahead = shared
    steps = tuple((Lsn(_count(lsn)), int(_typed(ms, int))) for lsn, ms in ahead)
    return replace(word, looked=Lsn(_count(looked)), ahead=steps)


def _decode_cut(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    run, layout = value
    return _count(run), _count(layout)


def _decode_origin(fields: Any) -> Origin:
    task, lsn, stages, bits, needs_from = fields
    ids, bits = tuple(map(_count, stages)), _count(bits)
    nodes = frozenset(node for node in range(bits.bit_length()) if bits >> node & 1)
    return Origin(_typed(task, str), Lsn(_count(lsn)), ids, nodes, _lsn(needs_from))


def decode_marker(payload: bytes) -> Marker:
    try:
        values: Any = json.loads(payload)
        if values["version"] not in (VERSION, VERSION_SHARED, VERSION_ORIGINS):
            raise BadFormat(
                f"a marker of version {values['version']}, this program reads up to "
                f"{VERSION_ORIGINS}: use a newer one"
            )
        marker = Marker(
            task=_typed(values["task"], str),
            instance=_count(values["instance"]),
            number=_count(values["number"]),
            position=Lsn(_count(values["position"])),
            inline=_count(values["inline"]),
            ranges=tuple(Range(Lsn(_count(first)), _count(n)) for first, n in values["ranges"]),
            watermark_ms=_optional(values["watermark_ms"]),
            is_idle=_typed(values["is_idle"], bool),
            heard={
                _typed(task, str): _decode_heard(word) for task, word in values["heard"].items()
            },
            checkpoints=tuple(_typed(reference, dict) for reference in values["checkpoints"]),
            has_state=_typed(values["has_state"], bool),
            rows_in=_count(values["rows_in"]),
            rows_out=_count(values["rows_out"]),
            origin_ms=_optional(values["origin_ms"]),
            reread_from=_lsn(values.get("reread_from")),
            sources={
                int(stage): (_optional(ms), _typed(idle, bool))
                for stage, (ms, idle) in values.get("sources", {}).items()
            },
            cut=_decode_cut(values.get("cut")),
            origins=tuple(map(_decode_origin, values.get("origins", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"bytes that are no marker: {error}") from error
    return marker


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _count(value: Any) -> int:
    number: int = _typed(value, int)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _lsn(value: Any) -> Lsn | None:
    return None if value is None else Lsn(_count(value))


def _optional(value: Any) -> int | None:
    return None if value is None else int(_typed(value, int))
